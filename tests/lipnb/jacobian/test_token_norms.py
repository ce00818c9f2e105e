"""Which token moves which: block norms and singular pairs against the dense Jacobian, for every kind of map."""

import pytest
import torch
from cases import KINDS, drawn, every_kind, normal, relative

from lipnb import Attention, AttentionJacobian, block_norms, local_lipschitz, singular_pair
from lipnb.jacobian import token_norms


def dense_norms(f, x):
    """Block norms (n, n) of one sequence, from the dense Jacobian."""
    n, d = x.shape
    return torch.linalg.matrix_norm(AttentionJacobian(f, x).dense().view(n, -1, n, d).movedim(1, 2), 2)


def wide(dtype=torch.float64, **more):
    """A map of 80 coordinates in 4 heads on 2 of keys, and 7 tokens."""
    draw = drawn(0)
    parts = [draw(h, 20, 80) / 9 for h in (4, 2, 2)] + [draw(4, 80, 20) / 9]
    return Attention(*(part.to(dtype) for part in parts), **more), (2 * draw(7, 80)).to(dtype)


@pytest.mark.parametrize("small", [0, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_those_of_the_dense_jacobian(kind, small, monkeypatch):
    """Each block by the solver, or all at once; by autograd too; and they lie around the constant."""
    monkeypatch.setattr(token_norms, "SMALL", small)
    f, x, _ = every_kind(kind)
    found = block_norms(f, x, rtol=1e-7)
    assert found.shape == (*x.shape[:-1], x.shape[1])
    for one, norms in zip(x, found, strict=True):
        assert relative(norms, dense_norms(f, one)) < (1e-6 if small == 0 else 1e-12)
        if (hidden := f.hidden(len(one))) is not None:
            assert (norms[hidden] == 0).all()
    if kind % 3 == 0:
        assert relative(block_norms(lambda x: f(x), x, rtol=1e-7), found) < 1e-6
    if small:
        constant = local_lipschitz(f, x, rtol=1e-8).value
        assert (found.amax((1, 2)) <= constant * (1 + 1e-7)).all()
        assert (constant <= torch.linalg.matrix_norm(found, 2) * (1 + 1e-12)).all()


def test_wide_blocks():
    for masked in [False, True]:
        for dtype, close in [(torch.float64, 1e-5), (torch.float32, 1e-4)]:
            turn = torch.linspace(0.1, 1, 10, dtype=dtype)
            f, x = wide(
                masked=masked, dtype=dtype, frequencies=turn, query_norm=torch.ones(4, 20, dtype=dtype), norm_eps=0.1
            )
            found, expected = block_norms(f, x, rtol=1e-5), dense_norms(f.to(dtype=torch.float64), x.double())
            assert found.dtype == dtype and relative(found, expected) < close
            seen = expected > 0
            assert ((found.double() / expected - 1)[seen].abs() < close).all()  # each entry, also the smallest


def test_blocks_that_the_solver_leaves_open_are_taken_whole(monkeypatch):
    f, x = wide()
    solved = token_norms.lanczos
    monkeypatch.setattr(token_norms, "lanczos", lambda *a, **k: solved(*a, **{**k, "max_steps": 2}))
    assert relative(block_norms(f, x), dense_norms(f, x)) < 1e-12
    assert relative(block_norms(lambda x: f(x), x), dense_norms(f, x)) < 1e-12


def test_tiny_probabilities_and_weights_keep_their_digits(monkeypatch):
    """Blocks far below the square root of the smallest number: no square may vanish, and the solver settles them."""
    solved, settled = token_norms.lanczos, []
    watched = lambda *given, **how: settled.append((answer := solved(*given, **how)).converged) or answer  # noqa: E731
    monkeypatch.setattr(token_norms, "lanczos", watched)
    for dtype in [torch.float32, torch.float64]:
        f, x = wide(dtype=torch.float64)
        small = Attention(f.query, f.key, 1e-12 * f.value, 1e-9 * f.output, scale=12 * f.scale).to(dtype=dtype)
        expected = dense_norms(small.to(dtype=torch.float64), x)
        found = block_norms(small, x.to(dtype), rtol=1e-5).double()
        heard = expected > (1e-36 if dtype == torch.float32 else 0)
        if dtype == torch.float32:  # hard attention: what is left of v - o on the diagonal is rounding
            heard &= ~torch.eye(len(x), dtype=torch.bool)
        assert expected.min() < 1e-30
        assert ((found / expected - 1)[heard].abs() < (1e-3 if dtype == torch.float32 else 1e-5)).all()
    assert torch.cat(settled).double().mean() > 0.99


def test_the_singular_pair_is_that_of_the_dense_jacobian():
    for kind in KINDS[::2]:
        f, x, _ = every_kind(kind)
        for g in (f, lambda x, f=f: f(x)):
            pair = singular_pair(g, x, rtol=1e-10)
            for i, one in enumerate(x):
                J = AttentionJacobian(f, one).dense()
                value = torch.linalg.matrix_norm(J, 2)
                assert abs(pair.value[i] / value - 1) < 1e-9 and pair.converged[i]
                v, u = pair.input[i].flatten(), pair.output[i].flatten()
                assert (J @ v - value * u).norm() < 1e-6 * value and (J.T @ u - value * v).norm() < 1e-4 * value
                assert v[v.abs().argmax()] > 0
            for norms in (pair.moving, pair.moved):
                assert torch.allclose(norms.square().sum(-1), torch.ones(len(x), dtype=x.dtype))


def test_a_map_that_does_not_move():
    f = Attention(*[torch.zeros(2, 3, 4)] * 3)
    x = torch.ones(5, 4)
    assert (block_norms(f, x) == 0).all() and singular_pair(f, x).value == 0


@pytest.mark.parametrize(
    ("dtype", "unit"), [(torch.float32, 1e20), (torch.float32, 1e-22), (torch.float64, 1e160), (torch.float64, 1e-170)]
)
def test_outputs_have_length_one_where_squares_leave_the_type(dtype, unit):
    x, eye = normal(5, 4).to(dtype), torch.eye(4, dtype=dtype)
    for f in (lambda z: unit * z, Attention.from_matrices(eye / 2, unit * eye)):
        pair = singular_pair(f, x)
        assert pair.converged and pair.value > 0 and abs(pair.output.norm() - 1) < 1e-5


def test_the_upper_bound_of_a_pair_counts_what_attention_has_rounded():
    """Parts of the logits near 1e13 cancel in float64; the constant, in sixty digits, is 999.372."""
    b, eye = 2.0**34, torch.eye(2).double()[None]
    key = torch.tensor([[[1, 0], [-1, 1 / b]]]).double()
    f = Attention(0 * eye, key, eye, query_bias=torch.full((1, 2), b).double(), scale=1.0)
    x = (normal(6, 2) * torch.tensor([1e3, 1.0]).double()).float().double()
    pair = singular_pair(f, x)
    assert pair.upper >= local_lipschitz(f, x).upper * (1 - 1e-12) > 1e3 * pair.value
    narrow = torch.eye(2)[None]
    assert singular_pair(Attention(narrow, narrow, narrow, sinks=torch.tensor([80.0])), torch.eye(2)).upper > 9e-35
