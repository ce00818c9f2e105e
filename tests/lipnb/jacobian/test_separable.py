"""Products through the separable kernel against the closed form and autograd, and where the solver takes them."""

import itertools
import math

import pytest
import torch
from cases import normal, relative, windowed

from lipnb import Attention, AttentionJacobian, AutodiffJacobian, local_lipschitz
from lipnb.jacobian import separable
from lipnb.jacobian.separable import PARTICLES, Expansion, SeparableJacobian
from lipnb.spectral import lanczos, start_vectors


def test_particles_whose_coordinates_differ_in_size_keep_all_of_their_logits():
    """A direction of keys is small beside the others, and of the logits as large as they: it is not left out."""
    points = 2 * torch.rand(3000, 2, generator=torch.Generator().manual_seed(0)) - 1
    for small, dtype in itertools.product([1e-6, 1e-9, 1e-15], [torch.float32, torch.float64]):
        x = (points.double() * torch.tensor([1.0, small**-0.5], dtype=torch.float64)).to(dtype)
        f = Attention.from_matrices(*(torch.diag(torch.tensor([1.0, s], dtype=dtype)) for s in (small, small**0.5)))
        separable, exact = local_lipschitz(f, x, memory=1), local_lipschitz(f, x, memory=2**40)
        assert separable.route == "separable" and exact.route == "cached"
        assert separable.upper.item() >= exact.value.item() * (1 - 1e-5)
        assert separable.value.item() == pytest.approx(exact.value.item(), rel=2e-4)


def test_a_kernel_is_no_coarser_than_the_answer_asked_for():
    x, one = torch.randn(3000, 1, generator=torch.Generator().manual_seed(0)).double(), torch.ones(1, 1).double()
    f = Attention.from_matrices(one, one)
    routes = {rtol: local_lipschitz(f, x, memory=1, rtol=rtol) for rtol in (1e-4, 1e-11, 1e-13)}
    assert routes[1e-4].route == "separable" and routes[1e-13].route == "streamed"
    exact = local_lipschitz(f, x, memory=2**40, rtol=1e-13)
    for rtol, answer in routes.items():
        assert answer.upper.item() >= exact.value.item() * (1 - 1e-14)
        assert answer.value.item() == pytest.approx(exact.value.item(), rel=2 * rtol + 1e-12)


def test_many_particles_in_the_plane_take_the_separable_kernel():
    """Two equal particles are one of twice the weight: here their differences are stretched less."""
    f, x = Attention.from_matrices(normal(2, 2), normal(2, 2, seed=1)), 0.5 * normal(2000, 2, seed=2)
    weights = torch.ones(2000, dtype=torch.float64)
    weights[:1000] = 2
    copies = torch.cat([x, x[:1000]])
    cached = local_lipschitz(f, copies, rtol=1e-6, memory=1e12)
    separable = local_lipschitz(f, copies, rtol=1e-6, memory=1e6)
    weighted = local_lipschitz(f, x, weights=weights, rtol=1e-6, memory=1e6)
    assert separable.route == weighted.route == "separable" and cached.route == "cached"
    assert separable.value.item() == pytest.approx(cached.value.item(), rel=1e-5)
    assert weighted.value.item() == pytest.approx(cached.value.item(), rel=1e-5)


# heads, key width, width, value width, output width (None: concatenated), biases
SHAPES = [
    (1, 1, 1, 1, None, False),
    (1, 2, 2, 2, None, False),
    (2, 2, 2, 3, 3, True),
    (3, 1, 4, 2, None, True),
    (1, 3, 3, 3, None, False),
    (2, 3, 5, 2, 4, True),
    (2, 5, 3, 5, None, True),
    (2, 4, 2, 5, 4, True),
]


def particles(seed, shape, n=150, dtype=torch.float64):
    """A random map of the given shape, particles in a box, and weights over nine orders of magnitude."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size):
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype)

    h, k, d, v, m, bias = shape
    attention = Attention(
        normal(h, k, d) / d**0.5,
        normal(h, k, d) / d**0.5,
        normal(h, v, d),
        None if m is None else normal(h, m, v),
        query_bias=normal(h, k) if bias else None,
        key_bias=normal(h, k) if bias else None,
        value_bias=normal(h, v) if bias else None,
        output_bias=normal(m) if bias and m else None,
    )
    x = 3 * torch.rand(n, d, generator=generator, dtype=torch.float64).to(dtype) - 1
    weights = 10 ** (-9 * torch.rand(n, generator=generator, dtype=torch.float64)).to(dtype)
    return attention, x, weights, normal(n, d), normal(n, attention.output_width)


def plane(radius, n=300, seed=0):
    """One head in the plane, logits x . y, particles uniform in a disc."""
    generator = torch.Generator().manual_seed(seed)
    angle, area = torch.rand(2, n, generator=generator, dtype=torch.float64)
    x = radius * area.sqrt()[:, None] * torch.stack([torch.cos(2 * math.pi * angle), torch.sin(2 * math.pi * angle)], 1)
    identity = torch.eye(2, dtype=torch.float64)
    return Attention.from_matrices(identity, identity), x


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("seed", "shape"), [*enumerate(SHAPES)])
def test_separable_products_equal_autograd_and_are_adjoint(seed, shape, weighted, monkeypatch):
    monkeypatch.setitem(PARTICLES, "cpu", 64)  # some tiles
    attention, x, weights, u, w = particles(seed, shape)
    weights = weights if weighted else None
    jacobian = SeparableJacobian(attention, x, weights, rtol=1e-11)
    closed = AttentionJacobian(attention, x, weights)
    twin = AutodiffJacobian(lambda y: attention(y, weights), x)
    assert jacobian.shape == closed.shape
    tangent, gradient = jacobian.jvp(u), jacobian.vjp(w)
    assert relative(tangent, twin.jvp(u)) < 1e-8
    assert relative(gradient, twin.vjp(w)) < 1e-8
    assert relative(tangent, closed.jvp(u)) < 1e-8
    assert abs((tangent * w).sum() - (gradient * u).sum()) <= 1e-12 * tangent.norm() * w.norm()
    assert relative(jacobian.gram(u), jacobian.vjp(tangent)) < 1e-12
    scale = torch.rand(len(x), generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    by_hand = closed.vjp(scale[:, None] ** 2 * closed.jvp(u / scale[:, None])) / scale[:, None]
    assert relative(jacobian.gram(u, scale), by_hand) < 1e-8


def test_local_constant_equals_the_dense_one():
    for weighted in [False, True]:
        attention, x, weights, *_ = particles(2, SHAPES[2], n=60)
        weights = weights if weighted else None
        root = None if weights is None else weights.sqrt()
        start = start_vectors(1, x.numel(), seed=0, dtype=x.dtype, device=x.device)
        dense = local_lipschitz(attention, x, weights=weights, method="dense").value
        J = SeparableJacobian(attention, x, weights, rtol=1e-10)
        solved = lanczos(lambda u: J.gram(u.view_as(x), scale=root).view(1, -1), start, rtol=1e-8)
        assert solved.converged.all()
        assert abs(solved.value / dense - 1) < 1e-7


def test_kernel_error_is_honest():
    for rtol in [1e-2, 1e-4, 1e-7, 1e-10]:
        for radius in [1.0, 2.0]:
            # the error of products of smooth vectors, where nothing cancels, is the order of the kernel's error
            attention, x = plane(radius)
            jacobian, exact = SeparableJacobian(attention, x, rtol=rtol), AttentionJacobian(attention, x)
            assert jacobian.kernel_error < 10 * rtol
            for u in (x, x.flip(1) ** 2, torch.randn(x.shape, generator=torch.Generator().manual_seed(3)).double()):
                product = exact.jvp(u)
                error = (jacobian.jvp(u) - product).norm() / product.norm()
                assert error <= 10 * jacobian.kernel_error + 1e-13


def test_more_nodes_and_a_smaller_radius_err_less():
    attention, x = plane(2.0)
    query, key, _ = attention.project(x)
    errors = [Expansion(query[0].mT, key[0].mT).use((p, p)).error() for p in (6, 10, 14, 18)]
    assert all(after < before / 30 for before, after in zip(errors, errors[1:], strict=False))
    few, many = (math.prod(SeparableJacobian(*plane(radius)).nodes[0]) for radius in (1.0, 3.0))
    assert few < many
    assert all(SeparableJacobian(*plane(radius), rtol=1e-6).kernel_error < 3e-6 for radius in (0.1, 1.0, 3.0))


def test_float32():
    attention, x, weights, u, _ = particles(2, SHAPES[2])
    exact = AttentionJacobian(attention, x, weights).jvp(u)
    jacobian = SeparableJacobian(attention.to(dtype=torch.float32), x.float(), weights.float())
    assert jacobian.jvp(u.float()).dtype == torch.float32
    assert relative(jacobian.jvp(u.float()), exact) < 1e-4


def test_large_offsets_change_nothing():
    # queries far from zero (a bias) and keys far from zero (a translation) overflow without the shifts
    attention, x = plane(1.0)
    bias = torch.tensor([[30.0, -20.0]], dtype=torch.float64)
    biased = Attention(attention.query, attention.key, attention.value, query_bias=bias, scale=1.0)
    jacobian, closed = SeparableJacobian(biased, x, rtol=1e-9), AttentionJacobian(biased, x)
    assert relative(jacobian.jvp(x), closed.jvp(x)) < 1e-6
    moved = Attention(attention.query, attention.key, attention.value, key_bias=1e3 * bias, scale=1.0)
    assert relative(SeparableJacobian(moved, x, rtol=1e-9).jvp(x), AttentionJacobian(attention, x).jvp(x)) < 1e-6


def test_one_particle_equal_particles_and_particles_on_a_line():
    for points in [[[0.3, 0.7]], [[1.0, 2.0]] * 5, [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]]:
        x = torch.tensor(points, dtype=torch.float64)
        attention = particles(1, SHAPES[1])[0]
        u = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        jacobian, closed = SeparableJacobian(attention, x, rtol=1e-10), AttentionJacobian(attention, x)
        assert relative(jacobian.jvp(u), closed.jvp(u)) < 1e-8
        assert relative(jacobian.vjp(u), closed.vjp(u)) < 1e-8


def test_keys_on_an_axis_and_queries_across():
    # one key dimension has no width, yet the slope of the kernel across it matters
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [2.5, 0.0]], dtype=torch.float64)
    turn = torch.tensor([[0.5, -1.0], [1.0, 0.0]], dtype=torch.float64)
    attention = Attention.from_matrices(turn, turn)
    u = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    jacobian, closed = SeparableJacobian(attention, x, rtol=1e-10), AttentionJacobian(attention, x)
    assert relative(jacobian.jvp(u), closed.jvp(u)) < 1e-8
    assert relative(jacobian.vjp(u), closed.vjp(u)) < 1e-8


def test_zero_logits_and_logits_of_low_rank():
    generator = torch.Generator().manual_seed(0)
    x, u = torch.randn(2, 50, 6, generator=generator, dtype=torch.float64)
    left, right = torch.randn(2, 6, 2, generator=generator, dtype=torch.float64) / 3
    for A in (left @ right.mT, torch.zeros(6, 6, dtype=torch.float64)):
        attention = Attention.from_matrices(A, torch.eye(6, dtype=torch.float64))
        jacobian = SeparableJacobian(attention, x, rtol=1e-10)
        assert len(jacobian.nodes[0]) == (2 if A.any() else 1)
        assert relative(jacobian.jvp(u), AttentionJacobian(attention, x).jvp(u)) < 1e-8


def test_too_sharp_a_kernel_is_refused_and_named():
    attention, x = plane(20.0)
    with pytest.raises(ValueError, match="spread too far for a separable kernel.*AttentionJacobian takes"):
        SeparableJacobian(attention, x)
    with pytest.raises(ValueError, match="spread too far"):
        Expansion(1e3 * x.mT, x.mT).choose(1e-3)


def test_kernels_are_built_once(monkeypatch):
    """Whether they pay or not."""
    made, inner = [], separable.kernels
    monkeypatch.setattr(separable, "kernels", lambda *given: made.append(1) or inner(*given))
    attention, x = plane(1.0, n=3000)
    assert local_lipschitz(attention, x, memory=1).route == "separable" and len(made) == 1
    assert local_lipschitz(attention, 30 * x[:300], memory=1).route == "streamed" and len(made) == 2


def test_when_it_pays():
    attention, x = plane(1.0, n=3000)
    assert SeparableJacobian.if_it_pays(attention, x)
    assert SeparableJacobian.if_it_pays(attention, x, torch.ones(3000, dtype=torch.float64))
    assert not SeparableJacobian.if_it_pays(attention, x[:100])  # fewer particles than nodes
    assert not SeparableJacobian.if_it_pays(attention, 30 * x)  # too sharp
    masked = Attention.from_matrices(attention.query[0], attention.value[0], masked=True)
    assert not SeparableJacobian.if_it_pays(masked, x)
    eye = torch.eye(4, dtype=torch.float64)
    assert not SeparableJacobian.if_it_pays(Attention.from_matrices(eye, eye), torch.cat([x, x], 1))


def test_bad_inputs():
    attention, x = plane(1.0)
    jacobian = SeparableJacobian(attention, x)
    with pytest.raises(ValueError, match="u must have shape"):
        jacobian.jvp(x[:3])
    with pytest.raises(ValueError, match="w must have shape"):
        jacobian.vjp(x[:, :1])
    with pytest.raises(ValueError, match="one entry per token"):
        jacobian.gram(x, torch.ones(3, dtype=torch.float64))
    with pytest.raises(ValueError, match="one set of particles"):
        SeparableJacobian(attention, x[None])
    with pytest.raises(ValueError, match="x holds NaN"):
        SeparableJacobian(attention, x * torch.nan)
    with pytest.raises(ValueError, match="weights must be positive"):
        SeparableJacobian(attention, x, torch.zeros(len(x), dtype=torch.float64))
    masked = Attention.from_matrices(attention.query[0], attention.value[0], masked=True)
    with pytest.raises(ValueError, match="masked attention has no separable kernel"):
        SeparableJacobian(masked, x)
    eye = torch.eye(4, dtype=torch.float64)
    with pytest.raises(ValueError, match="depend on 4 key dimensions"):
        SeparableJacobian(Attention.from_matrices(eye, eye), torch.cat([x, x], 1))


def test_a_separable_kernel_is_refused_and_not_chosen():
    f, x = windowed(3, k=2, d=2), 0.1 * normal(2000, 2)
    with pytest.raises(ValueError, match="masked attention has no separable kernel"):
        SeparableJacobian(f, x)
    assert not SeparableJacobian.if_it_pays(f, x)
    assert SeparableJacobian.if_it_pays(f.replace(masked=False, window=None), x)
    assert local_lipschitz(f, x, memory=1).route == "streamed"
