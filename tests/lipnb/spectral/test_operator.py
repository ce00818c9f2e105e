"""What a solver knows of matrices: products by a function and by the matrices themselves, and parts of a batch."""

import torch
from cases import normal, relative

from lipnb.spectral import lanczos, start_vectors
from lipnb.spectral.operator import FunctionGram, MatrixGram


def test_products_by_a_function_and_by_matrices_are_those_of_the_gram_matrix():
    J, u = normal(3, 5, 4), normal(3, 4, seed=1)
    expected = torch.einsum("bmi,bmj,bj->bi", J, J, u)
    for operator in (MatrixGram(J), FunctionGram(lambda v: torch.einsum("bmi,bmj,bj->bi", J, J, v))):
        assert relative(operator.gram(u), expected) < 1e-14 and operator.heuristic_start() is None
    assert relative(MatrixGram(J).restrict(torch.tensor([0, 2])).gram(u[[0, 2]]), expected[[0, 2]]) < 1e-14


def test_a_batch_that_cannot_be_made_smaller_has_the_values_of_one_that_can():
    J = normal(4, 30, 20) * torch.tensor([1.0, 1e-3, 1e3, 0.0], dtype=torch.float64)[:, None, None]
    start = start_vectors(4, 20, seed=0, dtype=torch.float64, device="cpu")
    assert FunctionGram(lambda v: v).restrict(torch.tensor([0])) is None
    exact = torch.linalg.matrix_norm(J, 2)
    for operator in (MatrixGram(J), FunctionGram(MatrixGram(J).gram)):
        assert torch.allclose(lanczos(operator, start, rtol=1e-8).value, exact, rtol=1e-7)
