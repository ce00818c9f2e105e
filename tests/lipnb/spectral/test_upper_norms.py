"""Norms from above: never below, tight, and answered where no factorisation converges."""

import pytest
import torch
from cases import normal

from lipnb.spectral.upper_norms import (
    UNIT,
    gamma,
    largest_eigenvalue,
    largest_singular,
    largest_singular_of_each,
    length,
)


def test_norms_are_upper_bounds_and_tight():
    generator = torch.Generator().manual_seed(0)
    for a, b in ((1, 1), (3, 8), (8, 3), (40, 40), (200, 30)):
        for scale in (1e-120, 1.0, 1e120):
            M = torch.randn(4, a, b, generator=generator, dtype=torch.float64)
            exact = torch.linalg.matrix_norm(M, 2)
            got = largest_singular(scale * M) / scale
            assert (got >= exact).all() and (got <= exact * (1 + 1e-6)).all()
    assert (largest_singular(torch.zeros(2, 3, 4, dtype=torch.float64)) == 0).all()
    assert gamma(1) >= UNIT and gamma(100) > 100 * UNIT


def test_traces_of_powers_stay_above(monkeypatch):
    monkeypatch.setattr("lipnb.spectral.upper_norms.EXACT_WORK", 0)
    M = normal(6, 12, 9)
    exact = torch.linalg.matrix_norm(M, 2)
    got = largest_singular_of_each(M)
    assert (got >= exact).all() and (got <= exact * 9 ** (1 / 8) * (1 + 1e-6)).all()
    assert (largest_singular_of_each(0 * M) == 0).all()


def test_lengths_whose_squares_underflow():
    rows, five = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64), torch.tensor(5.0, dtype=torch.float64)
    for unit in (1.0, 2.0**-600, 2.0**-1000, 2.0**1000):
        for found in (length(rows * unit)[0], length(rows * unit, (-2, -1))):
            assert five * unit <= found <= five * unit * (1 + 1e-14)
        assert length(rows * unit)[1] == 0
    assert length(rows * 2.0**-1074)[0] == 5 * 2.0**-1074


def test_eigenvalues_that_do_not_converge_leave_the_frobenius_norm(monkeypatch):
    def fails(*given):
        raise torch.linalg.LinAlgError("failed to converge")

    matrix = normal(3, 5, 4)
    exact = torch.linalg.matrix_norm(matrix, 2)
    monkeypatch.setattr(torch.linalg, "eigvalsh", fails)
    found = largest_singular(matrix)
    assert (found >= exact).all() and (found <= torch.linalg.matrix_norm(matrix) * (1 + 1e-9)).all()
    with pytest.raises(torch.linalg.LinAlgError):
        largest_singular(matrix / 0)
    assert largest_eigenvalue(torch.diag(torch.tensor([1.0, -1.0]).double())) >= 1, "above the trace, which is zero"
