"""The closed form of the Jacobian, by every route, against automatic differentiation."""

import itertools

import numpy as np
import pytest
import torch
from cases import KINDS, constant, covering, derivative, every_kind, normal, parts_of_a_map, random_case, relative
from cases import weighted as symmetrised
from scipy.sparse.linalg import svds

from lipnb import Attention, AttentionJacobian, local_lipschitz
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
        with pytest.raises(ValueError, match="a linear operator is of one sequence"):
            AttentionJacobian(case.attention, torch.stack([x, x])).linear_operator()


def by_autograd(f, x, weights=None):
    """The constant by automatic differentiation in float64."""
    return constant(f.to(dtype=torch.float64), x.double(), None if weights is None else weights.double()).item()


def test_nearly_hard_attention_far_from_the_origin():
    """Logits of 4e4 in float32: their rounding is far above the tolerance, and moves the constant by little."""
    for memory in [2**30, 1]:
        for kind in ["plain", "weights", "relative", "window", "sinks", "cap", "masked"]:
            generator = torch.Generator().manual_seed(1)
            x, eye = torch.randn(64, 4, generator=generator) + 100, torch.eye(4)[None]
            weights = torch.rand(64, generator=generator) + 0.1
            f = {
                "relative": Attention(eye, eye, eye, relative=torch.randn(1, 9, generator=generator)),
                "window": Attention(eye, eye, eye, window=5),
                "sinks": Attention(eye, eye, eye, sinks=torch.tensor([2e4])),
                "cap": Attention(eye, eye, eye, cap=50.0, scale=1e-2),
                "masked": Attention(eye, eye, eye, masked=True),
            }.get(kind, Attention(eye, eye, eye))
            weights = weights if kind == "weights" else None
            truth = by_autograd(f, x, weights)
            answer = local_lipschitz(f, x, weights=weights, memory=memory)
            assert answer.route == ("streamed" if memory == 1 else "cached")
            assert answer.value.item() == pytest.approx(truth, rel=1e-2)


CLOSE = 1e-11


PLAIN = [(seed, spread) for seed in range(24) if seed // 8 != 1 for spread in (0.3, 1.0, 4.0)]  # of 16 tokens or fewer


each = pytest.mark.parametrize("kind", [*KINDS, "plain"])


def maps(kind, n=None):
    """One map of a kind, or the plain ones: each with its dense Jacobian, and u and w of three directions."""
    for f, x, weights in (
        [random_case(seed, spread=s) for seed, s in PLAIN] if kind == "plain" else [every_kind(kind, n=n)]
    ):
        generator = torch.Generator().manual_seed(len(x[0]))
        u, w = (torch.randn(3, *x.shape[:2], m, generator=generator, dtype=x.dtype) for m in (f.width, f.output_width))
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
    for f, x, weights, J, *_ in itertools.islice(maps(kind, n=13), 0, None, 3):
        norm = torch.linalg.matrix_norm(symmetrised(J, x, weights), 2)
        for options in ({"memory": 2**30}, {"memory": 1}, {"method": "dense"}):
            lip = local_lipschitz(f, x, weights=weights, rtol=1e-8, **options)
            assert lip.converged.all() and relative(lip.value, norm) < 1e-8, options
            assert (lip.upper >= norm * (1 - 1e-12)).all()
        single = local_lipschitz(
            f.to(dtype=torch.float32), x.float(), weights=None if weights is None else weights.float()
        )
        assert relative(single.value, norm) < 1e-2


def test_a_jacobian_stays_at_its_input():
    from lipnb.jacobian import AutodiffJacobian

    for closed in [True, False]:
        given, x = parts_of_a_map(n=6)
        f, u = Attention(**given), normal(6, 4, seed=3)
        jacobian = AttentionJacobian(f, x) if closed else AutodiffJacobian(f, x)
        expected = jacobian.jvp(u), jacobian.infinity_norm() if closed else jacobian.jvp(2 * u)
        x.mul_(3)
        got = jacobian.jvp(u), jacobian.infinity_norm() if closed else jacobian.jvp(2 * u)
        assert all(map(torch.equal, got, expected))
