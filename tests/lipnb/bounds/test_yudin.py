"""The bound of yudin2025attention: the formula, the norm of the softmax, query biases as one more coordinate."""

import pytest
import torch
from cases import normal, random_case, relative, windowed

from lipnb import Attention, AttentionJacobian, bounds, local_lipschitz
from lipnb.bounds import three_terms, without_query_bias, yudin_upper
from lipnb.bounds.term_bounds import RoundedLinearization


def matrices(seed, d=5, m=4):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((d, d), (m, d), (7, d))]


def test_yudins_bound_is_the_formula_and_sharp_without_scores():
    A, V, x = matrices(3)
    A = A / 8  # no row is hard: its second entry counts
    P = (x @ A.T @ x.T).softmax(-1)
    top = P.topk(2, dim=-1).values
    g1 = (top[:, 0] * (1 - top[:, 0] + top[:, 1])).max()
    norm = [torch.linalg.matrix_norm(M, 2) for M in (V, P, x, A)]
    expected = norm[0] * (norm[1] + 2 * norm[2] ** 2 * norm[3] * g1)
    assert yudin_upper(Attention.from_matrices(A, V), x).item() == pytest.approx(expected.item(), rel=1e-7)
    still = Attention.from_matrices(0 * A, V, masked=True)  # only the value term is left
    exact = local_lipschitz(still, x, method="dense").value.item()
    assert yudin_upper(still, x).item() == pytest.approx(exact, rel=1e-7)


def test_one_head_is_never_above_yudin():
    for seed in range(120):
        for masked in (False, True):
            A, V, x = matrices(seed, d=1 + seed % 6, m=1 + seed % 4)
            x = (0.2, 1.0, 3.0)[seed % 3] * x[: 1 + seed % 7]
            attention = Attention.from_matrices(A, V, masked=masked)
            assert sum(three_terms(RoundedLinearization(attention, x))) <= yudin_upper(attention, x) * (1 + 1e-7)


def test_a_query_bias_is_one_more_coordinate():
    case = random_case(12, n=5)
    assert case.attention.query_bias is not None
    same, x = without_query_bias(case.attention, case.x, size=2.0)
    plain = case.attention.replace(value_bias=None, output_bias=None)
    assert torch.allclose(same(x), plain(case.x), atol=1e-12)
    with pytest.raises(ValueError, match="size must be positive"):
        without_query_bias(case.attention, case.x, size=0)


EYE = torch.eye(3, dtype=torch.float64)


def test_yudins_bound_refuses_biases():
    x, bias = torch.ones(2, 3, dtype=torch.float64), torch.ones(1, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="without query biases"):
        yudin_upper(Attention(EYE[None], EYE[None], EYE[None], query_bias=bias), x)
    with pytest.raises(ValueError, match="d = 3"):
        yudin_upper(Attention.from_matrices(EYE, EYE), x[:, :2])


def test_the_norm_of_the_softmax():
    for n in (1, 2, 3, 7, 40):
        p = torch.rand(500, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64) ** 8
        p[::5] = (80 * p[::5]).softmax(-1)
        p = p / p.sum(-1, keepdim=True)
        p[1::7, n // 2 :] = 0  # no longer of sum one
        true = torch.linalg.eigvalsh(torch.diag_embed(p) - p[..., None] * p[..., None, :])[..., -1]
        found = bounds.yudin.softmax_norm(p)
        assert (found >= true - 1e-15).all() and (found - true <= 1e-13).all() and (found <= 0.5 + 1e-13).all()
    tied = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.25, 0.25], [1.0, 0.0, 0.0]]).double()
    torch.testing.assert_close(bounds.yudin.softmax_norm(tied), torch.tensor([0.5, 0.25, 0.0]).double())


def test_a_query_bias_becomes_a_coordinate_with_a_window():
    for seed in range(12):
        f, x = windowed(1 + seed % 5, seed=10 * seed), (0.3 + seed / 4) * normal(9, 4, seed=99 + seed)
        norm = torch.linalg.matrix_norm(AttentionJacobian(f, x).dense(), 2).item()
        wider, tokens = bounds.without_query_bias(f, x, 1.0)
        assert wider.window == f.window and relative(wider(tokens), f(x)) < 1e-12
        assert norm <= torch.linalg.matrix_norm(AttentionJacobian(wider, tokens).dense(), 2).item() * (1 + 1e-9)
