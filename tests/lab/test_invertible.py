"""Contractive layers, residual maps and their inverses: the guarantee, before and after training, in both norms."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.experiments import inversion
from lab.invertible import (
    ContractiveAttention,
    ContractiveFeedForward,
    DotProductAttention,
    InvertibleStack,
    Residual,
    _squared,
    largest_singular_value,
    predicted_iterations,
)
from lipnb import Attention, bounds, local_lipschitz
from lipnb.jacobian import infinity_norm

KINDS = [(2, "theorem"), (2, "sharp"), (math.inf, "theorem")]


def attention(seed=0, width=4, heads=2, size=1.0, **options):
    layer = ContractiveAttention(width, heads, seed=seed, **{"dtype": torch.float64, **options})
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(size)
    return layer


def tokens(seed, *shape, size=1.0, dtype=torch.float64):
    return size * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def size_of(x, p):
    return torch.linalg.vector_norm(x, p, dim=(-2, -1))


@pytest.mark.parametrize(("p", "bound"), KINDS)
@pytest.mark.parametrize("masked", [False, True])
def test_the_layer_is_l2_attention_over_its_bound(p, bound, masked):
    layer, x = attention(3, 6, 3, p=p, bound=bound, masked=masked), tokens(0, 2, 5, 6)
    weights = [matrix.detach() for matrix in (layer.query, layer.value, layer.output)]
    upper = bounds.l2_upper_sharp(*weights, 5, masked) if bound == "sharp" else bounds.l2_upper(*weights, 5, p)
    assert abs(layer.divisor(5).item() / upper - 1) < 1e-8
    assert torch.allclose(layer(x) * upper, Attention.l2(*weights, masked=masked)(x), rtol=1e-7)
    assert layer.lipschitz_upper(5) == 1


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 9),
    size=st.floats(-2, 2),
    spread=st.floats(-2, 1.5),
    kind=st.sampled_from(KINDS),
    masked=st.booleans(),
    c=st.floats(0.3, 0.97),
    single=st.booleans(),
)
def test_contraction_and_inverse(seed, n, size, spread, kind, masked, c, single):
    dtype = torch.float32 if single else torch.float64
    layer = attention(seed, 4, 2, 10**size, p=kind[0], bound=kind[1], masked=masked, dtype=dtype)
    x = tokens(seed, 3, n, 4, size=10**spread, dtype=dtype)
    found = (
        local_lipschitz(layer.attention(n), x, method="dense").value
        if layer.p == 2
        else infinity_norm(layer.attention(n), x)
    )
    assert found.max() <= 1 + 1e-6
    g = Residual(layer, c)
    inverse = g.inverse(g(x).detach())
    assert inverse.converged.all() and (size_of(inverse.x - x, layer.p) <= inverse.error_bound * 1.01).all()
    assert inverse.x.shape == x.shape and inverse.x.dtype == dtype and inverse.residual.max() < (1e-4, 1e-9)[not single]


def test_one_token_and_identity_matrices_attain_the_rate():
    """f(x) = x: the error is c^k to the digit, and as many iterations are needed as predicted."""
    layer = attention(0, 1, 1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(1)
    y, errors = torch.full((1, 1), 1.9, dtype=torch.float64), []
    Residual(layer, 0.9).inverse(y, trace=lambda z: errors.append(abs(z.item() - 1)))
    expected = 0.9 ** torch.arange(1, 101, dtype=torch.float64) * 0.9
    assert (torch.tensor(errors[:100], dtype=torch.float64) / expected - 1).abs().max() < 1e-9
    assert next(k for k, e in enumerate(errors, 1) if e <= 1e-10 * 0.9) == predicted_iterations(0.9, 1e-10) == 219


def test_dot_products_are_not_inverted_and_nothing_is_hidden():
    x = torch.tensor([0.0, 6, 6, -6, -6], dtype=torch.float64)[:, None]
    for layer in (DotProductAttention(1, dtype=torch.float64), attention(0, 1, 1)):
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.fill_(1)
        g = Residual(layer, 0.9)
        found = g.inverse(g(x))
        error = size_of(found.x - x, 2) / size_of(x, 2)
        if isinstance(layer, DotProductAttention):
            assert not found.converged and found.error_bound == math.inf and error > 0.1 and found.residual > 0.1
        else:
            assert found.converged and error < 1e-10 and found.iterations <= predicted_iterations(0.9, 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_training_keeps_the_guarantee(kind):
    layers = [attention(seed, 4, 2, p=kind[0], bound=kind[1]) for seed in range(3)]
    residuals, words = [Residual(layer, 0.9) for layer in layers], tokens(0, 3, 5, 4, size=2)
    before = [layer.query.detach().clone() for layer in layers]
    losses = inversion.fit(residuals, words, 6, steps=60, rate=0.03)
    assert (losses[-10:].mean(0) < losses[:10].mean(0)).all()
    x, _ = inversion.denoising_batch(words, 6, torch.Generator().manual_seed(1))
    for i, residual in enumerate(residuals):
        assert not torch.equal(before[i], residual.layer.query)
        said = inversion.tried(residual, x[i])
        assert not said["failed"] and 0 < said["constant"] <= 1


def test_a_failure_would_be_seen(monkeypatch):
    """A layer divided by a hundredth of its bound: the table must count it."""
    residuals, words, n = inversion.drawn_layers(0, 4)
    x, _ = inversion.denoising_batch(words, n, torch.Generator().manual_seed(0))
    assert not any(inversion.tried(g, x[i])["failed"] for i, g in enumerate(residuals))
    whole = ContractiveAttention.divisor
    monkeypatch.setattr(ContractiveAttention, "divisor", lambda self, n: whole(self, n) / 100)
    assert any(inversion.tried(g, x[i])["failed"] for i, g in enumerate(residuals))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
def test_feed_forward_contracts_after_any_jump_of_its_weights(activation, dtype):
    layer = ContractiveFeedForward(5, 12, activation=activation, dtype=dtype)
    with torch.no_grad():  # a jump that an estimate from power iteration would not have caught up with
        layer.first.weight.copy_(tokens(1, 12, 5) * torch.tensor([1, 1, 1, 1, 9.0]))
    norms = [torch.linalg.matrix_norm(matrix.double(), 2).item() for matrix in layer.matrices()]
    least = 1 - 20 * 12 * torch.finfo(dtype).eps  # the margin for rounding, and no more, is given away
    assert max(norms) <= 1 and min(norms) > least
    x = tokens(2, 40, 5, size=2)
    J = torch.func.vmap(torch.func.jacrev(layer.double()))(x)
    assert 0.1 < torch.linalg.matrix_norm(J, 2).max() <= 1


def test_feed_forward_gradients_go_through_the_norms():
    layer = ContractiveFeedForward(3, 5, activation="tanh", dtype=torch.float64)
    x = tokens(0, 4, 3)
    weights = [weight.detach().requires_grad_() for weight in (layer.first.weight, layer.second.weight)]

    def loss(first, second):
        changed = {"first.weight": first, "second.weight": second}
        return torch.func.functional_call(layer, changed, (x,)).square().sum()

    assert torch.autograd.gradcheck(loss, weights)


@pytest.mark.parametrize("shape", [(3, 5, 9), (3, 9, 5), (4, 4)])
def test_largest_singular_value_and_its_gradient(shape):
    matrix = tokens(0, *shape).requires_grad_()
    values = largest_singular_value(matrix)
    assert torch.allclose(values, torch.linalg.matrix_norm(matrix, 2), rtol=1e-12)
    (mine,) = torch.autograd.grad(values.square().sum(), matrix)
    (other,) = torch.autograd.grad(torch.linalg.matrix_norm(matrix, 2).square().sum(), matrix)
    assert torch.allclose(mine, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("gap", [0.0, 1e-7, 1e-5, 1e-3, 0.5])
def test_what_a_gpu_does_in_place_of_a_decomposition(gap):
    """Squarings stop early where two singular values nearly coincide: then either vector will do."""
    matrix = tokens(1, 2, 9, 20).float()
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    values[:, 1] = values[:, 0] * (1 - gap)
    matrix = (left @ (values[..., None] * right)).float()
    found = torch.linalg.vector_norm(matrix.mT @ _squared(matrix @ matrix.mT), dim=(-2, -1))
    assert (found.double() / values[:, 0] - 1).abs().max() < 2**-18
    assert not _squared(torch.zeros(2, 3, 3)).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_block_is_inverted_and_its_bound_is_true(dtype):
    stack = InvertibleStack(
        Residual(attention(1, dtype=dtype), 0.9),
        Residual(ContractiveFeedForward(4, 16, seed=2, dtype=dtype), 0.9),
        Residual(attention(3, masked=True, dtype=dtype), 0.7),
    )
    x = tokens(0, 2, 3, 6, 4, size=2, dtype=dtype)
    found = stack.inverse(stack(x).detach())
    assert found.converged.all() and found.iterations.shape == (2, 3)
    assert (size_of(found.x - x, 2) <= found.error_bound).all()
    assert (found.error_bound < (1e-2 if dtype == torch.float32 else 1e-6)).all()


def test_the_error_of_a_later_layer_is_stretched_by_those_before():
    """f(x) = -x attains every bound: g(x) = (1 - c) x."""
    layers = [attention(0, 1, 1) for _ in range(2)]
    with torch.no_grad():
        for layer in layers:
            for name, parameter in layer.named_parameters():
                parameter.fill_(-1 if name == "value" else 1)
    stack, x = InvertibleStack(*(Residual(layer, 0.9) for layer in layers)), torch.ones(1, 1, dtype=torch.float64)
    found = stack.inverse(stack(x).detach(), rtol=1e-3)
    error = (found.x - x).abs().item()
    assert 1.5e-3 < error <= found.error_bound.item() * (1 + 1e-9) < 2.1e-3


def test_gradients_of_the_inverse_are_exact():
    g = InvertibleStack(Residual(attention(1), 0.9), Residual(ContractiveFeedForward(4, 16, dtype=torch.float64), 0.8))
    y, v = tokens(0, 3, 4).requires_grad_(), tokens(1, 3, 4)
    (g.inverse(y).x * v).sum().backward()
    x = g.inverse(y).x.detach()
    J = torch.func.jacrev(g)(x).reshape(12, 12)
    assert torch.allclose(y.grad.flatten(), torch.linalg.solve(J.T, v.flatten()), rtol=1e-8)
    weight, step = g[0].layer.query, 1e-5
    pulled, ends = weight.grad[1, 0, 2].item(), []
    for sign in (1, -1):
        with torch.no_grad():
            weight[1, 0, 2] += sign * step
            ends.append((g.inverse(y).x * v).sum().item())
            weight[1, 0, 2] -= sign * step
    assert abs((ends[0] - ends[1]) / (2 * step) / pulled - 1) < 1e-4


def test_zero_weights_give_the_identity():
    layer = attention(0)
    with torch.no_grad():
        layer.output.zero_()
    x = tokens(0, 3, 4)
    g = Residual(layer, 0.9)
    assert torch.equal(g(x), x) and torch.equal(g.inverse(x).x, x)
    g(x).square().sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in layer.parameters())
