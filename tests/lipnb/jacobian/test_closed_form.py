"""The closed form of the Jacobian, by every route, against automatic differentiation."""

import itertools

import numpy as np
import pytest
import torch
from cases import KINDS, covering, derivative, every_kind, normal, parts_of_a_map, random_case, relative, truth_of
from cases import weighted as symmetrised
from scipy.sparse.linalg import svds

from lipnb import Attention, AttentionJacobian, AutodiffJacobian, local_lipschitz
from lipnb.jacobian import Linearization
from lipnb.jacobian.streamed import StreamedGram

DOT = [kind for kind in KINDS if covering()[kind]["score"] == "dot"]


def test_products_stay_transposes_of_one_another_where_attention_is_nearly_hard():
    for kind, steep in itertools.product(DOT, (30.0, 3000.0)):
        f, x, _ = every_kind(kind, n=9)
        x = x / covering()[kind]["spread"]
        J, u, w = AttentionJacobian(f, steep * x), normal(*x.shape), normal(*x.shape[:2], f.output_width, seed=1)
        size = torch.linalg.matrix_norm(J.dense(), 2).amax() * u.norm() * w.norm()
        assert abs((J.jvp(u) * w).sum() - (u * J.vjp(w)).sum()) < 1e-15 * steep**2 * size  # what such logits round


def test_the_jacobian_is_an_operator_of_scipy():
    for seed in (1, 5):
        case = random_case(seed)
        x = case.x.reshape(-1, *case.x.shape[-2:])[0]
        J = AttentionJacobian(case.attention, x)
        A, dense = J.linear_operator(), J.dense().numpy()
        assert A.shape == dense.shape and A.dtype == dense.dtype
        assert abs(A @ np.eye(A.shape[1]) - dense).max() < 1e-12 * abs(dense).max()
        assert abs(A.T @ np.eye(A.shape[0]) - dense.T).max() < 1e-12 * abs(dense).max()
        assert abs(A @ dense[0] - dense @ dense[0]).max() < 1e-12 * abs(dense).max() ** 2
        top = svds(A, 1, return_singular_vectors=False, rng=0)
        assert top[0] == pytest.approx(local_lipschitz(case.attention, x, rtol=1e-9).value.item(), rel=1e-8)
        single = AttentionJacobian(case.attention.to(dtype=torch.float32), x[None].float()).linear_operator()
        assert single.dtype == np.float32 and (single @ dense[0]).dtype == np.float32


EYE4 = torch.eye(4)[None]
HARD = {
    "plain": {},
    "weights": {},
    "relative": {"relative": normal(1, 9).float()},
    "window": {"window": 5},
    "sinks": {"sinks": torch.tensor([2e4])},
    "cap": {"cap": 50.0, "scale": 1e-2},
    "masked": {"masked": True},
}


@pytest.mark.parametrize(("memory", "route"), [(2**30, "cached"), (1, "streamed")])
@pytest.mark.parametrize("kind", HARD)
def test_nearly_hard_attention_far_from_the_origin(kind, memory, route):
    """Logits of 4e4 in float32: their rounding is far above the tolerance, and moves the constant by little."""
    f, x = Attention(EYE4, EYE4, EYE4, **HARD[kind]), normal(64, 4, seed=1).float() + 100
    weights = normal(64).abs().float() + 0.1 if kind == "weights" else None
    answer = local_lipschitz(f, x, weights=weights, memory=memory)
    assert answer.route == route and answer.value.item() == pytest.approx(truth_of(f, x, weights), rel=1e-2)


CLOSE = 1e-11


PLAIN = [(0, 0.3), (1, 1.0), (2, 4.0), (5, 0.3), (16, 4.0), (20, 1.0)]  # other sizes: seeds and spreads


each = pytest.mark.parametrize("kind", [*KINDS, "plain"])


def maps(kind, n=None):
    """One map of a kind, or plain ones: each with its dense Jacobian, and u and w of three directions."""
    cases = [random_case(seed, spread=s) for seed, s in PLAIN] if kind == "plain" else [every_kind(kind, n=n)]
    for f, x, weights in cases:
        u, w = (normal(3, *x.shape[:2], m, seed=m) for m in (f.width, f.output_width))
        yield f, x, weights, derivative(f, x, weights), u, w


def applied(matrix, vectors):
    """Products (c, b, M) of matrices (b, M, N) with vectors (c, b, n, d)."""
    return torch.einsum("bij,cbj->cbi", matrix, vectors.flatten(-2))


@each
def test_the_closed_form(kind):
    """Products of many directions at once, the dense matrix, and with weights those of the weighted norm."""
    for f, x, weights, J, u, w in maps(kind):
        closed = AttentionJacobian(f, x, weights)
        assert relative(closed.dense(), J) < CLOSE
        tangent, gradient = closed.jvp(u), closed.vjp(w)
        assert relative(tangent.flatten(-2), applied(J, u)) < CLOSE
        assert relative(gradient.flatten(-2), applied(J.mT, w)) < CLOSE
        size = tangent.norm() * w.norm()
        assert abs((tangent * w).sum() - (u * gradient).sum()) <= 1e-12 * size
        M = symmetrised(J, x, weights)
        assert relative(closed.gram(u).flatten(-2), applied(M.mT @ M, u)) < CLOSE
        if weights is None:
            assert relative(closed.infinity_norm(), J.abs().sum(-1).amax(-1)) < CLOSE


def same_products(products, M, u, close=CLOSE):
    """Whether an operator multiplies as M^T M does; nothing is left of a first product, in parts of a batch neither."""
    expected = applied(M.mT @ M, u)
    for _ in range(2):
        for i in range(len(u)):
            given = u[i].flatten(1)
            assert relative(products.gram(given) * products.unit**2, expected[i]) < close
            assert torch.equal(given, u[i].flatten(1))
    part = products.restrict(torch.tensor([1]))
    assert relative(part.gram(u[0, 1:].flatten(1)) * products.unit**2, expected[0, 1:]) < close


@each
def test_cached_products(kind):
    for f, x, weights, J, u, w in maps(kind, n=11):
        same_products(AttentionJacobian(f, x, weights).operator(), symmetrised(J, x, weights), u)
        at = Linearization.of(f, x, weights)
        assert relative(at.jvp(u[0]).flatten(1), applied(J, u)[0]) < CLOSE
        assert relative(at.vjp(w[0]).flatten(1), applied(J.mT, w)[0]) < CLOSE


@each
def test_streamed_products(kind):
    """Tiles of one row, tiles that end short, just fit, or hold everything."""
    for f, x, weights, J, u, _ in maps(kind, n=11):
        for rows in (1, 4, 10, 11, None):
            same_products(StreamedGram(f, x, weights, rows=rows), symmetrised(J, x, weights), u)


@each
def test_row_sums_taken_off_entry_by_entry_give_the_same_products(kind, monkeypatch):
    """The way of nearly hard attention, on attention where autograd has all digits."""
    monkeypatch.setattr("lipnb.jacobian.linearization.NEAR_HARD", 0.0)
    for f, x, weights, J, u, w in maps(kind, n=11):
        closed, M = AttentionJacobian(f, x, weights), symmetrised(J, x, weights)
        assert closed.operator().near_hard
        assert relative(closed.jvp(u).flatten(-2), applied(J, u)) < CLOSE
        assert relative(closed.vjp(w).flatten(-2), applied(J.mT, w)) < CLOSE
        same_products(closed.operator(), M, u)
        same_products(StreamedGram(f, x, weights, rows=4), M, u, close=1e-9)  # of logits in the hundreds


@each
def test_the_constant_by_every_method(kind):
    for f, x, weights, J, *_ in maps(kind, n=13):
        norm = torch.linalg.matrix_norm(symmetrised(J, x, weights), 2)
        for options in ({"memory": 2**30}, {"memory": 1}, {"method": "dense"}):
            lip = local_lipschitz(f, x, weights=weights, rtol=1e-8, **options)
            assert lip.converged.all() and relative(lip.value, norm) < 1e-8, options
            assert (lip.upper >= norm * (1 - 1e-12)).all()
        single = local_lipschitz(
            f.to(dtype=torch.float32), x.float(), weights=None if weights is None else weights.float()
        )
        assert relative(single.value, norm) < 1e-2


@pytest.mark.parametrize("kind", [AttentionJacobian, AutodiffJacobian])
def test_a_jacobian_stays_at_its_input(kind):
    given, x = parts_of_a_map(n=6)
    J, u = kind(Attention(**given), x), normal(6, 4, seed=3)
    expected = J.jvp(u), J.dense()
    x.mul_(3)
    assert all(map(torch.equal, (J.jvp(u), J.dense()), expected))


def test_weights_count_in_the_maximum_norm_and_complex_vectors_are_refused():
    x, weights = normal(3, 2), torch.tensor([1.0, 100.0, 7.0]).double()
    f = Attention.from_matrices(normal(2, 2), normal(2, 2))
    J, plain = AttentionJacobian(f, x, weights), AttentionJacobian(f, x)
    assert relative(J.infinity_norm(), J.dense().abs().sum(-1).amax(-1)) < 1e-12
    assert relative(J.infinity_norm(), plain.infinity_norm()) > 1e-3
    with pytest.raises(ValueError, match="real, and the vector complex"):
        J.linear_operator() @ (1j * np.ones(6))
