"""Forks reach what they state, and the search on a ball stays in it, keeps its best and finds what is known."""

import contextlib
import importlib
import math

import pytest
import torch
from cases import constant, drawn, normal

from lipnb import Attention, bounds, local_lipschitz
from lipnb.worst_case import bulk_directions, fork_input, forks, on_ball, tight_input, two_clusters
from lipnb.worst_case.forks import slopes
from lipnb.worst_case.region import domain_of

on_ball_module = importlib.import_module("lipnb.worst_case.ball_search")


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """Short ascents of layers: nothing here depends on their length."""
    monkeypatch.setattr(on_ball_module, "POINTS", (60, 60))


EYE = torch.eye(3, dtype=torch.float64)


def layer(seed, heads=1, *, output=True, bias=True, masked=False, d=5):
    """Random heads of key width 2, not alike."""
    normal = drawn(seed)
    return Attention(
        normal(heads, 2, d),
        normal(heads, 2, d),
        normal(heads, 3, d),
        normal(heads, 4, 3) if output else None,
        query_bias=normal(heads, 2) if bias else None,
        masked=masked,
    )


# heads, output, bias
UNMASKED = [(1, False, False), (1, True, True), (2, True, False), (3, False, True), (4, True, True)]


def test_forks_reach_what_they_state():
    """Without a mask, and for one head with one."""
    for heads, output, bias, masked in [*((*one, False) for one in UNMASKED), (1, True, True, True)]:
        for seed, n, R in ((0, 3, 0.4), (1, 4, 1.0), (2, 9, 1.7), (3, 12, 4.0)):
            f = layer(seed, heads, output=output, bias=bias, masked=masked)
            found = forks(f, n, R, bulk_directions(f), keep=5, seed=seed)
            x = found.tokens()
            assert x.shape == (len(found.stated), n, 5) and (found.counts.sum(1) == n).all() and len(x) == 5
            assert x.norm(dim=-1).max() <= R * (1 + 1e-12)
            assert found.stated.isfinite().all() and (found.stated.diff() <= 0).all()
            for one, stated in zip(x, found.stated.tolist(), strict=True):
                assert constant(f, one).item() >= stated * (1 - 1e-9)


def test_two_clusters_reach_what_they_state():
    for heads, output, bias in UNMASKED:
        for seed, n, R in ((0, 2, 0.4), (1, 4, 1.0), (2, 9, 1.7), (3, 12, 4.0)):
            f = layer(seed, heads, output=output, bias=bias)
            found = two_clusters(f, n, R, bulk_directions(f))
            for x, stated in zip(found.tokens(), found.stated.tolist(), strict=True):
                assert x.shape == (n, 5) and x.norm(dim=-1).max() <= R * (1 + 1e-12)
                assert constant(f, x).item() >= stated * (1 - 1e-9)


def test_a_fork_that_grows_is_nearly_as_rough_as_stated():
    """So that the statement is no empty one: many heads, a mask or none, the growth in n."""
    f = layer(0, 3)
    for n in (30, 120):
        found = forks(f, n, 4.0, bulk_directions(f), keep=1)
        assert local_lipschitz(f, found.tokens()[0]).value < 1.2 * found.stated[0]


def test_forks_of_one_head_state_no_less_than_fork_input():
    for seed in range(6):
        f = layer(seed, bias=False, output=False)
        A, V = f.scale * f.key[0].mT @ f.query[0], f.value[0]
        for n, R in ((5, 1.0), (30, 2.0)):
            assert forks(f, n, R, bulk_directions(f)).stated[0] >= 0.98 * fork_input(A, V, n, R)[1]


def test_the_slope_of_a_head_gives_its_logits():
    f = layer(0, 3)
    x = normal(6, 5, seed=1)
    logits = slopes(f, x).movedim(1, 0) @ x.mT
    assert torch.allclose(logits.softmax(-1), f.probabilities(x))


def test_the_search_stays_in_the_ball_and_its_value_can_be_measured_again():
    for seed, (heads, output) in enumerate([(1, False), (3, True), (2, False), (1, True), (3, False), (2, True)]):
        (n, R), masked = ((2, 1.0), (5, 1.5), (9, 3.0))[seed // 2], seed % 2 == 1
        f = layer(seed, heads, output=output, masked=masked)
        found = on_ball(f, n, R, seed=seed, progress=False)
        assert found.x.shape == (n, 5) and found.x.norm(dim=1).max() <= R * (1 + 1e-12)
        assert found.value == pytest.approx(constant(f, found.x).item(), rel=1e-5)
        assert found.value == pytest.approx(local_lipschitz(f, found.x).value.item(), rel=2e-4)
        assert found.kind.removesuffix(", ascended") in ("fork", "two clusters", "two sides", "random")
        norms = bounds.heads_on_ball(bounds.head_norms(f), n, R, masked)
        assert found.value <= math.exp(min(norms.values())) * (1 + 1e-9)


def test_the_search_finds_no_less_than_the_constructions():
    for seed in range(4):
        f = layer(seed, bias=False, output=False, masked=seed % 2 == 1)
        A, V = f.scale * f.key[0].mT @ f.query[0], f.value[0]
        n, R = 12, 2.0
        known = [fork_input(A, V, n, R)[0]] + ([tight_input(A, n, R)] if seed else [])
        found = on_ball(f, n, R, progress=False).value
        assert found >= 0.98 * max(local_lipschitz(f, x).value.item() for x in known)


def test_more_effort_gives_no_less_and_often_more():
    gained = 0
    for seed in range(4):
        f = layer(seed, 2, masked=seed % 2 == 1)
        values = [on_ball(f, 6, 1.5, seed=seed, effort=effort, progress=False).value for effort in range(3)]
        assert all(later >= earlier * (1 - 1e-4) for earlier, later in zip(values, values[1:], strict=False))
        gained += values[1] > 1.01 * values[0]
    assert gained >= 2


def test_the_same_seed_gives_the_same_input_and_leaves_the_global_one_alone():
    f, state = layer(0, 2), torch.get_rng_state()
    first, second = (on_ball(f, 5, 1.0, seed=3, progress=False) for _ in range(2))
    assert torch.equal(first.x, second.x) and first.value == second.value
    assert torch.equal(torch.get_rng_state(), state)


def test_one_token_and_one_coordinate():
    f = layer(0, 2)
    whole = (f.output @ f.value).sum(0)
    assert on_ball(f, 1, 2.0, progress=False).value == pytest.approx(torch.linalg.matrix_norm(whole, 2).item())
    narrow = on_ball(Attention.from_matrices(EYE[:1, :1], 2 * EYE[:1, :1]), 7, 2.0, progress=False)
    assert narrow.x.shape == (7, 1) and narrow.value > 2


def test_zero_matrices_and_single_precision():
    assert on_ball(Attention.from_matrices(EYE, 0 * EYE), 4, 1.0, progress=False).value == 0
    flat = on_ball(Attention.from_matrices(0 * EYE, EYE), 4, 1.0, progress=False)
    assert flat.value == pytest.approx(1)  # the mean of all tokens
    f = Attention.from_matrices(-EYE, EYE).to(dtype=torch.float32)
    found = on_ball(f, 8, 2.0, progress=False)
    assert found.x.dtype == torch.float32
    assert local_lipschitz(f, found.x).value.item() == pytest.approx(found.value, rel=1e-3)


def test_a_width_that_no_head_sees_changes_nothing():
    """One head on the span of its rows is the same problem."""
    f = layer(0, d=5)
    wide = f.replace(**{name: torch.nn.functional.pad(getattr(f, name), (0, 9)) for name in ("query", "key", "value")})
    narrow, found = on_ball(f, 6, 1.5, progress=False), on_ball(wide, 6, 1.5, progress=False)
    assert found.value == pytest.approx(narrow.value, rel=0.05) and not found.x[:, 5:].abs().max() > 1e-9


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
        f, ellipsoid = layer(heads, heads, output=output, masked=masked, d=d), ellipsoid_of(heads + d, d)
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


def test_a_ball_as_an_ellipsoid_is_searched_as_well():
    """Gain 1 makes a ball of one coordinate less: with it no head reads, both searches see the same problem."""
    f = layer(0, bias=False, output=False, d=6)
    centring = torch.eye(6, dtype=torch.float64) - 1 / 6
    f = f.replace(**{name: getattr(f, name) @ centring for name in ("query", "key", "value")})
    ball = on_ball(f, 8, math.sqrt(6), progress=False)
    flat = torch.ones(6).double(), torch.zeros(6).double()
    assert on_ball(f, 8, math.inf, ellipsoid=flat, progress=False).value == pytest.approx(ball.value, rel=0.02)


def test_the_search_on_an_ellipsoid_beats_random_tokens_of_it():
    for seed in range(3):
        f, (gain, shift) = layer(seed, 2, masked=seed == 2), ellipsoid_of(seed)
        u = normal(200, 9, 5, seed=seed)
        u = u - u.mean(-1, keepdim=True)
        x = shift + math.sqrt(5) * gain * u / u.norm(dim=-1, keepdim=True)
        most = local_lipschitz(f, x, rtol=1e-3).value.max()
        assert on_ball(f, 9, math.inf, ellipsoid=(gain, shift), seed=seed, progress=False).value > 1.5 * most


def test_the_shortest_token_of_an_ellipsoid():
    """Against many random points; and a ball too small for any is refused by name."""
    for seed in range(4):
        gain, shift = ellipsoid_of(seed)
        f = layer(seed)
        region = domain_of(f, math.inf, (gain, shift))
        least = region.whole_tokens(region.inner).norm().item()
        u = normal(20000, 5, seed=seed)
        some = region.whole_tokens(u / u.norm(dim=1, keepdim=True).clamp_min(1)).norm(dim=1).min().item()
        assert least <= some <= 2 * least + 0.5 and region.inner.norm() <= 1 + 1e-12
        with pytest.raises(ValueError, match="no token of the ellipsoid is in the ball: R must be at least"):
            on_ball(f, 3, 0.99 * least, ellipsoid=(gain, shift))


def test_the_bar_moves_during_the_constructions(monkeypatch):
    """Something is shown before the first comparison, and all announced steps are made."""
    seen = []

    class Bar(on_ball_module._Silent):
        def update(self, steps=1):
            seen.append(steps)

    monkeypatch.setattr(on_ball_module, "_bar", lambda total, wanted: contextlib.nullcontext(Bar()))
    on_ball(layer(0, 2), 5, 1.0, effort=0)
    assert len(seen) >= 3 and sum(seen) == on_ball_module.CONSTRUCTION_STEPS
    seen.clear()
    on_ball(layer(0, 2), 5, 1.0)
    assert sum(seen) == on_ball_module.CONSTRUCTION_STEPS + on_ball_module.POINTS[True] + on_ball_module.TOKENS


def test_bad_input_gets_a_sentence():
    f = layer(0)
    for R, sentence in (
        (0.0, "R must be positive"),
        (math.inf, "R must be a finite number"),
        (1e200, "a square within"),
    ):
        with pytest.raises(ValueError, match=sentence):
            on_ball(f, 3, R)
    for name, wrong in (("R", "1"), ("R", None), ("n", "3"), ("n", [3])):
        with pytest.raises(TypeError, match=f"{name} must be a number, got"):
            on_ball(f, **({"n": 3, "R": 1.0} | {name: wrong}))
    with pytest.raises(ValueError, match="R must be positive"):
        on_ball(f, 3, math.nan)
    for seed in ("0", 1.0, None):
        with pytest.raises(TypeError, match="seed must be a whole number"):
            on_ball(f, 3, 1.0, seed=seed)
    for ellipsoid in (1.0, (torch.ones(5),), (torch.ones(4), torch.ones(4))):
        with pytest.raises(ValueError, match="ellipsoid must be"):
            on_ball(f, 3, 1.0, ellipsoid=ellipsoid)
    for effort in (-1, 1.5, "1", None):
        with pytest.raises(ValueError, match="effort must be 0 or more"):
            on_ball(f, 3, 1.0, effort=effort)
    with pytest.raises(ValueError, match="on_ball knows dot-product scores only"):
        on_ball(f.replace(score="l2"), 3, 1.0)
    with pytest.raises(ValueError, match="n must be"):
        on_ball(f, 0, 1.0)
