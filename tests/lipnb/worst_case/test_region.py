"""On the ellipsoid of a LayerNorm: tokens are what it makes, and the search stays there."""

import importlib
import math

import pytest
import torch
from cases import constant, narrow_layer, normal

from lipnb import bounds, local_lipschitz
from lipnb.worst_case import on_ball
from lipnb.worst_case.region import domain_of

on_ball_module = importlib.import_module("lipnb.worst_case.ball_search")


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """Short ascents of layers: nothing here depends on their length."""
    monkeypatch.setattr(on_ball_module, "POINTS", (60, 60))


def ellipsoid_of(seed, d=5):
    """Gain and shift of a random LayerNorm."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(d, generator=generator, dtype=torch.float64) for _ in range(2))


def in_ellipsoid(x, gain, shift):
    """How far tokens are from the form shift + sqrt(d) gain (u - mean of u), and the largest |u| of the shortest u."""
    d = len(gain)
    G = math.sqrt(d) * gain[:, None] * (torch.eye(d, dtype=torch.float64) - 1 / d)
    u = torch.linalg.lstsq(G, (x - shift).mT, driver="gelsd").solution
    return (G @ u - (x - shift).mT).abs().max().item(), u.norm(dim=0).max().item()


def test_on_an_ellipsoid_tokens_are_what_a_layer_norm_makes():
    """Alone and met with a ball; below its bound; one head on the span of its rows, 12 coordinates, and whole."""
    for heads, output, d, masked in [(1, False, 12, False), (1, True, 5, True), (2, True, 5, False)]:
        f, ellipsoid = narrow_layer(heads, heads, output=output, masked=masked, d=d), ellipsoid_of(heads + d, d)
        reach = bounds.layer_norm_radius(*ellipsoid)
        region = domain_of(f, math.inf, ellipsoid)
        least = region.whole_tokens(region.inner).norm().item()
        values = []
        for R in (math.inf, (reach + least) / 2, least * (1 + 1e-4)):
            found = on_ball(f, 7, R, ellipsoid=ellipsoid, progress=False)
            rest, most = in_ellipsoid(found.x, *ellipsoid)
            assert found.x.shape == (7, d) and rest < 1e-9 and most <= 1 + 1e-9
            assert found.x.norm(dim=1).max() <= R * (1 + 1e-12)
            assert found.value == pytest.approx(constant(f, found.x).item(), rel=1e-5)
            assert found.value <= bounds.ball_upper(f, 7, R, ellipsoid=ellipsoid)
            values.append(found.value)
        assert values[1] < values[0]
        assert domain_of(f, 2 * reach, ellipsoid).R == math.inf  # a ball around the ellipsoid cuts nothing off


def test_the_search_on_an_ellipsoid_beats_random_tokens_of_it():
    for seed in range(3):
        f, (gain, shift) = narrow_layer(seed, 2, masked=seed == 2), ellipsoid_of(seed)
        u = normal(200, 9, 5, seed=seed)
        u = u - u.mean(-1, keepdim=True)
        x = shift + math.sqrt(5) * gain * u / u.norm(dim=-1, keepdim=True)
        most = local_lipschitz(f, x, rtol=1e-3).value.max()
        assert on_ball(f, 9, math.inf, ellipsoid=(gain, shift), seed=seed, progress=False).value > 1.5 * most


def test_the_shortest_token_of_an_ellipsoid():
    """Against many random points; and a ball too small for any is refused by name."""
    for seed in range(4):
        gain, shift = ellipsoid_of(seed)
        f = narrow_layer(seed)
        region = domain_of(f, math.inf, (gain, shift))
        least = region.whole_tokens(region.inner).norm().item()
        u = normal(20000, 5, seed=seed)
        some = region.whole_tokens(u / u.norm(dim=1, keepdim=True).clamp_min(1)).norm(dim=1).min().item()
        assert least <= some <= 2 * least + 0.5 and region.inner.norm() <= 1 + 1e-12
        with pytest.raises(ValueError, match="no token of the ellipsoid is in the ball: R must be at least"):
            on_ball(f, 3, 0.99 * least, ellipsoid=(gain, shift))
