"""Products through the separable kernel against the closed form and autograd, and where the solver takes them."""

import itertools
import math

import pytest
import torch
from cases import drawn, normal, relative

from lipnb import Attention, AttentionJacobian, AutodiffJacobian, local_lipschitz
from lipnb.jacobian import separable
from lipnb.jacobian.separable import PARTICLES, Expansion, SeparableJacobian


def test_particles_whose_coordinates_differ_in_size_keep_all_of_their_logits():
    """A direction of keys is small beside the others, and of the logits as large as they: it is not left out."""
    points = 2 * torch.rand(3000, 2, generator=torch.Generator().manual_seed(0)) - 1
    for small, dtype in itertools.product([1e-6, 1e-15], [torch.float32, torch.float64]):
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


def particles(seed, shape, n=150):
    """A random map of the given shape, particles in a box, and weights over nine orders of magnitude."""
    (h, k, d, v, m, bias), draw, uniform = shape, drawn(seed), torch.Generator().manual_seed(seed)
    sizes = {"query_bias": (h, k), "key_bias": (h, k), "value_bias": (h, v)} if bias else {}
    sizes |= {"output_bias": (m,)} if bias and m else {}
    given = {"query": draw(h, k, d) / d**0.5, "key": draw(h, k, d) / d**0.5, "value": draw(h, v, d)}
    given |= {"output": draw(h, m, v)} if m else {}
    attention = Attention(**given, **{name: draw(*size) for name, size in sizes.items()})
    x = 3 * torch.rand(n, d, generator=uniform, dtype=torch.float64) - 1
    weights = 10 ** (-9 * torch.rand(n, generator=uniform, dtype=torch.float64))
    return attention, x, weights, draw(n, d), draw(n, attention.output_width)


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
    if seed < 4:  # of few key dimensions
        single = SeparableJacobian(attention.to(torch.float32), x.float(), None if weights is None else weights.float())
        assert single.jvp(u.float()).dtype == torch.float32 and relative(single.jvp(u.float()), tangent) < 1e-3
    scale = torch.rand(len(x), generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    by_hand = closed.vjp(scale[:, None] ** 2 * closed.jvp(u / scale[:, None])) / scale[:, None]
    assert relative(jacobian.gram(u, scale), by_hand) < 1e-8


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


def test_large_offsets_change_nothing():
    # queries far from zero (a bias) and keys far from zero (a translation) overflow without the shifts
    attention, x = plane(1.0)
    bias = torch.tensor([[30.0, -20.0]], dtype=torch.float64)
    biased = Attention(attention.query, attention.key, attention.value, query_bias=bias, scale=1.0)
    jacobian, closed = SeparableJacobian(biased, x, rtol=1e-9), AttentionJacobian(biased, x)
    assert relative(jacobian.jvp(x), closed.jvp(x)) < 1e-6
    moved = Attention(attention.query, attention.key, attention.value, key_bias=1e3 * bias, scale=1.0)
    assert relative(SeparableJacobian(moved, x, rtol=1e-9).jvp(x), AttentionJacobian(attention, x).jvp(x)) < 1e-6


TURN = torch.tensor([[0.5, -1.0], [1.0, 0.0]], dtype=torch.float64)
LINE = [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [2.5, 0.0]]
FEW = {
    "one particle": ([[0.3, 0.7]], particles(1, SHAPES[1])[0]),
    "equal particles": ([[1.0, 2.0]] * 5, particles(1, SHAPES[1])[0]),
    "on a line": (LINE, particles(1, SHAPES[1])[0]),
    # one key dimension has no width, yet the slope of the kernel across it matters
    "keys on an axis and queries across": (LINE, Attention.from_matrices(TURN, TURN)),
}


@pytest.mark.parametrize("name", FEW)
def test_few_particles(name):
    x, attention = torch.tensor(FEW[name][0], dtype=torch.float64), FEW[name][1]
    u, jacobian = normal(*x.shape), SeparableJacobian(attention, x, rtol=1e-10)
    closed = AttentionJacobian(attention, x)
    assert relative(jacobian.jvp(u), closed.jvp(u)) < 1e-8 and relative(jacobian.vjp(u), closed.vjp(u)) < 1e-8


def test_zero_logits_and_logits_of_low_rank():
    generator = torch.Generator().manual_seed(0)
    x, u = torch.randn(2, 50, 6, generator=generator, dtype=torch.float64)
    left, right = torch.randn(2, 6, 2, generator=generator, dtype=torch.float64) / 3
    for A in (left @ right.mT, torch.zeros(6, 6, dtype=torch.float64)):
        attention = Attention.from_matrices(A, torch.eye(6, dtype=torch.float64))
        jacobian = SeparableJacobian(attention, x, rtol=1e-10)
        assert len(jacobian.nodes[0]) == (2 if A.any() else 1)
        assert relative(jacobian.jvp(u), AttentionJacobian(attention, x).jvp(u)) < 1e-8


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
