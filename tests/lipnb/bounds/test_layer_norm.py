"""Norm layers before attention: how far they stretch, and where they put tokens."""

import math

import pytest
import torch
from cases import normal

from lipnb import Attention, bounds, local_lipschitz
from lipnb.bounds import ball_upper, layer_norm_radius
from lipnb.worst_case import gaussian


def test_a_narrow_ellipsoid_helps():
    normal = gaussian(8)
    gain = torch.tensor([10.0, 0.1, 0.1, 0.1, 0.1, 0.1]).double()
    f = Attention.from_matrices(normal(6, 6), torch.diag(1 / gain))
    ellipsoid = gain, torch.zeros(6)
    assert ball_upper(f, 50, math.inf, ellipsoid=ellipsoid) < 0.2 * ball_upper(f, 50, layer_norm_radius(*ellipsoid))


def norm(matrix):
    return torch.linalg.matrix_norm(matrix, 2).item()


def after_rms_norm(A, V, gain, x):
    """Dense norm of the derivative of attention after RMSNorm, and what unit tokens have with the changed matrices."""
    d = len(gain)
    f, units = Attention.from_matrices(A, V), x / x.norm(dim=1, keepdim=True)
    J = torch.func.jacrev(lambda y: f(math.sqrt(d) * gain * y / y.norm(dim=1, keepdim=True)))(x)
    absorbed = d * gain[:, None] * A * gain, math.sqrt(d) * V * gain
    there = local_lipschitz(Attention.from_matrices(*absorbed), units, method="dense").value.item()
    return norm(J.reshape(x.numel(), x.numel())), there, bounds.general_upper(*absorbed, len(x), 1.0)


def test_the_norm_costs_the_inverse_of_the_shortest_token():
    for size in [0.1, 1.0, 10.0]:
        for seed in range(10):
            x = size * normal(5, 3, seed=seed)
            whole, at_units, _ = after_rms_norm(*normal(2, 3, 3, seed=20 + seed), normal(3, seed=40 + seed), x)
            assert whole <= at_units / x.norm(dim=1).min().item() * (1 + 1e-12)


def test_without_that_factor_the_bound_at_unit_tokens_fails_at_a_short_token():
    """One token, A = 0, absorbed value matrix I: the constant is 1 / |x|, Theorem 3.3 says sqrt(3)."""
    V = torch.eye(2, dtype=torch.float64) / math.sqrt(2)
    whole, at_units, bound = after_rms_norm(0 * V, V, torch.ones(2).double(), torch.tensor([[0.3, 0.4]]).double())
    assert whole == pytest.approx(2) and at_units == pytest.approx(1) and bound == pytest.approx(math.sqrt(3))


def test_norm_layers():
    for seed in range(20):
        d = 2 + seed % 4
        gain, x = normal(d, seed=seed), normal(5, d, seed=seed + 50) * 10 ** (seed % 5 - 3)
        layers = (
            (True, lambda y, g=gain, d=d: torch.nn.functional.layer_norm(y, (d,), g, None, 1e-3)),
            (False, lambda y, g=gain, d=d: torch.nn.functional.rms_norm(y, (d,), g, 1e-3)),
        )
        for centred, layer in layers:
            here = bounds.layer_norm.norm_layer_upper(gain, 1e-3, x, centred=centred)
            true = torch.stack([torch.linalg.matrix_norm(torch.autograd.functional.jacobian(layer, y), 2) for y in x])
            assert (true <= here * (1 + 1e-12)).all() and (here <= bounds.layer_norm.norm_layer_upper(gain, 1e-3)).all()
            if not centred and d > 2:
                assert (true / here).max() > 0.3
    at_zero = torch.autograd.functional.jacobian(layers[1][1], torch.zeros(d).double())
    torch.testing.assert_close(torch.linalg.matrix_norm(at_zero, 2), bounds.layer_norm.norm_layer_upper(gain, 1e-3))
    assert bounds.layer_norm.norm_layer_upper(torch.ones(2), 0.0, torch.ones(2)) == math.inf
    far = torch.tensor([-1.0, 0.0, 1.0]).double()  # of standard deviation (2/3)^(1/2)
    for size, place in ((1e160, 0.0), (1e-170, 0.0), (2.0**-10, 2.0**40), (2.0**-18, 2.0**27)):
        known = 1.5**0.5 / size
        assert bounds.layer_norm.norm_layer_upper(torch.ones(3), 0.0, place + size * far).item() == pytest.approx(
            known, rel=1e-12
        )


@pytest.mark.parametrize("size", [1e-150, 1e-8, 1e100])
def test_the_radius_grows_with_gain_and_shift(size):
    gain, shift = normal(4), 3 * normal(4)
    assert math.isclose(
        layer_norm_radius(size * gain, size * shift), size * layer_norm_radius(gain, shift), rel_tol=1e-12
    )
