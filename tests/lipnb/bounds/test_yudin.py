"""The bound of yudin2025attention: the formula, the norm of the softmax, query biases as one more coordinate."""

import pytest
import torch
from cases import normal, normals, random_case, relative, windowed
from hypothesis import given
from hypothesis import strategies as st
from strategies import heads, quickly

from lipnb import Attention, AttentionJacobian, bounds, local_lipschitz
from lipnb.bounds import three_terms, without_query_bias, yudin_upper
from lipnb.bounds.term_bounds import RoundedLinearization


def test_yudins_bound_is_the_formula_and_sharp_without_scores():
    A, V, x = normals(3, (5, 5), (4, 5), (7, 5))
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


@given(head=heads(), masked=st.booleans())
@quickly
def test_one_head_is_never_above_yudin(head, masked):
    f = Attention.from_matrices(head.A, head.V, masked=masked)
    assert sum(three_terms(RoundedLinearization(f, head.x))) <= yudin_upper(f, head.x) * (1 + 1e-7)


def test_a_query_bias_is_one_more_coordinate():
    case = random_case(12, n=5)
    assert case.attention.query_bias is not None
    same, x = without_query_bias(case.attention, case.x, size=2.0)
    plain = case.attention.replace(value_bias=None, output_bias=None)
    assert torch.allclose(same(x), plain(case.x), atol=1e-12)


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
    for seed in range(5):
        f, x = windowed(1 + seed % 5, seed=10 * seed), (0.3 + seed / 4) * normal(9, 4, seed=99 + seed)
        norm = torch.linalg.matrix_norm(AttentionJacobian(f, x).dense(), 2).item()
        wider, tokens = bounds.without_query_bias(f, x, 1.0)
        assert wider.window == f.window and relative(wider(tokens), f(x)) < 1e-12
        assert norm <= torch.linalg.matrix_norm(AttentionJacobian(wider, tokens).dense(), 2).item() * (1 + 1e-9)
