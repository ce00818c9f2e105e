"""The search on a ball stays in it, keeps its best, finds what is known, and ascends along the right slope."""

import contextlib
import importlib
import math

import pytest
import torch
from cases import ADDED, constant, layer_in_use, narrow_layer

from lipnb import Attention, bounds, local_lipschitz
from lipnb.worst_case import even_fork_input, fork_input, gaussian, on_ball, tight_input

on_ball_module = importlib.import_module("lipnb.worst_case.ball_search")


def test_biases_left_out_of_the_search_change_no_derivative():
    for added in ADDED:
        normal = gaussian(13)
        f, x = layer_in_use(normal, **ADDED[added](normal)), normal(4, 3)
        bare = f.replace(output_bias=normal(3)).without_irrelevant_biases()
        assert bare.output_bias is None and (bare.value_bias is None) == (added != "sinks")
        assert torch.allclose(torch.func.jacrev(bare)(x), torch.func.jacrev(f)(x), rtol=1e-9, atol=1e-12)


def test_the_slope_of_the_ascent_is_that_of_the_constant():
    """Against differences of the constant itself, by all singular values."""
    for added in ADDED:
        normal = gaussian(9)
        f = layer_in_use(normal, **ADDED[added](normal), masked=True)
        x, v = normal(5, 3), normal(5, 3)
        found = torch.linalg.svd(torch.func.jacrev(f)(x).flatten(2).flatten(0, 1))
        left, right = found.U[:, 0].view(5, 3), found.Vh[0].view(5, 3)
        x.requires_grad_()
        (pulled,) = torch.autograd.grad((f(x) * left).sum(), x, create_graph=True)
        (slope,) = torch.autograd.grad((pulled * right).sum(), x)
        step, x = 1e-5, x.detach()
        ahead, back = constant(f, torch.stack([x + step * v, x - step * v]))
        assert (slope * v).sum().item() == pytest.approx(((ahead - back) / (2 * step)).item(), rel=1e-5)


@pytest.mark.parametrize("added", ["shared", "rotary", "normalised", "capped", "relative", "sinks"])
def test_the_search_stays_in_the_ball_under_the_bound_and_beats_its_starts(added, monkeypatch):
    monkeypatch.setattr(on_ball_module, "POINTS", (15, 15))
    monkeypatch.setattr(on_ball_module, "PLACED", 15)
    normal = gaussian(11)
    f = layer_in_use(normal, **ADDED[added](normal), masked=True)
    where = {"R": math.inf, "ellipsoid": (torch.tensor([1.0, 0.5, 2.0]), None)} if added == "rotary" else {"R": 1.5}
    start = on_ball(f, 6, **where, effort=0, progress=False)
    found = on_ball(f, 6, **where, progress=False)
    x = found.x if added != "rotary" else found.x / torch.tensor([1.0, 0.5, 2.0]) / math.sqrt(3) * 1.5
    assert x.norm(dim=-1).max() <= 1.5 * (1 + 1e-9)
    assert found.value == pytest.approx(constant(f, found.x[None]).item(), rel=1e-5)
    assert start.value * (1 - 1e-4) <= found.value <= bounds.ball_upper(f, 6, **where)
    assert found.value > 1.05 * constant(f, 1.5 * torch.nn.functional.normalize(normal(20, 6, 3), dim=-1)).median()


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """Short ascents of layers: nothing here depends on their length."""
    monkeypatch.setattr(on_ball_module, "POINTS", (60, 60))


EYE = torch.eye(3, dtype=torch.float64)


def test_the_search_stays_in_the_ball_and_its_value_can_be_measured_again():
    for seed, (heads, output) in enumerate([(1, False), (3, True), (2, False), (1, True), (3, False), (2, True)]):
        (n, R), masked = ((2, 1.0), (5, 1.5), (9, 3.0))[seed // 2], seed % 2 == 1
        f = narrow_layer(seed, heads, output=output, masked=masked)
        found = on_ball(f, n, R, seed=seed, progress=False)
        assert found.x.shape == (n, 5) and found.x.norm(dim=1).max() <= R * (1 + 1e-12)
        assert found.value == pytest.approx(constant(f, found.x).item(), rel=1e-5)
        assert found.value == pytest.approx(local_lipschitz(f, found.x).value.item(), rel=2e-4)
        assert found.kind.removesuffix(", ascended") in ("fork", "two clusters", "two sides", "random")
        norms = bounds.heads_on_ball(bounds.head_norms(f), n, R, masked)
        assert found.value <= math.exp(min(norms.values())) * (1 + 1e-9)


def test_the_search_finds_no_less_than_the_constructions():
    for seed in range(4):
        f = narrow_layer(seed, bias=False, output=False, masked=seed % 2 == 1)
        A, V = f.scale * f.key[0].mT @ f.query[0], f.value[0]
        n, R = 12, 2.0
        known = [fork_input(A, V, n, R)[0]] + ([tight_input(A, n, R)] if seed else [])
        found = on_ball(f, n, R, progress=False).value
        assert found >= 0.98 * max(local_lipschitz(f, x).value.item() for x in known)


def test_the_search_begins_at_even_forks_too():
    """Where the best forks have three quarters of the bound, for a head alone and beside a small one."""
    A, V, n, R = torch.diag(torch.tensor([1.0, -1.0, -1.0]).double()), EYE, 10, 10.0
    upper = bounds.general_upper_exact(A, V, n, R)
    both = torch.stack([A, 1e-3 * A]), *torch.stack([EYE, 1e-3 * EYE]).expand(2, 2, 3, 3)
    for f in (Attention.from_matrices(A, V), Attention(*both, EYE.expand(2, 3, 3), scale=1.0)):
        start = on_ball(f, n, R, effort=0, progress=False)
        assert start.value >= even_fork_input(A, V, n, R)[1] * (1 - 1e-3) and 0.9499 < start.value / upper < 0.96
        assert start.kind == "fork" and start.x.norm(dim=1).max() <= R * (1 + 1e-12)
        found = on_ball(f, n, R, progress=False)
        assert start.value < found.value < upper * 1.01


def test_more_effort_gives_no_less_and_often_more():
    gained = 0
    for seed in range(4):
        f = narrow_layer(seed, 2, masked=seed % 2 == 1)
        values = [on_ball(f, 6, 1.5, seed=seed, effort=effort, progress=False).value for effort in range(3)]
        assert all(later >= earlier * (1 - 1e-4) for earlier, later in zip(values, values[1:], strict=False))
        gained += values[1] > 1.01 * values[0]
    assert gained >= 2


def test_the_same_seed_gives_the_same_input():
    first, second = (on_ball(narrow_layer(0, 2), 5, 1.0, seed=3, progress=False) for _ in range(2))
    assert torch.equal(first.x, second.x) and first.value == second.value


def test_one_token_and_one_coordinate():
    f = narrow_layer(0, 2)
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
    f = narrow_layer(0, d=5)
    wide = f.replace(**{name: torch.nn.functional.pad(getattr(f, name), (0, 9)) for name in ("query", "key", "value")})
    narrow, found = on_ball(f, 6, 1.5, progress=False), on_ball(wide, 6, 1.5, progress=False)
    assert found.value == pytest.approx(narrow.value, rel=0.05) and not found.x[:, 5:].abs().max() > 1e-9


def test_a_ball_as_an_ellipsoid_is_searched_as_well():
    """Gain 1 makes a ball of one coordinate less: with it no head reads, both searches see the same problem."""
    f = narrow_layer(0, bias=False, output=False, d=6)
    centring = torch.eye(6, dtype=torch.float64) - 1 / 6
    f = f.replace(**{name: getattr(f, name) @ centring for name in ("query", "key", "value")})
    ball = on_ball(f, 8, math.sqrt(6), progress=False)
    flat = torch.ones(6).double(), torch.zeros(6).double()
    assert on_ball(f, 8, math.inf, ellipsoid=flat, progress=False).value == pytest.approx(ball.value, rel=0.02)


def test_the_bar_moves_during_the_constructions(monkeypatch):
    """Something is shown before the first comparison, and all announced steps are made."""
    seen = []

    class Bar(on_ball_module._Silent):
        def update(self, steps=1):
            seen.append(steps)

    monkeypatch.setattr(on_ball_module, "_bar", lambda total, wanted: contextlib.nullcontext(Bar()))
    on_ball(narrow_layer(0, 2), 5, 1.0, effort=0)
    assert len(seen) >= 3 and sum(seen) == on_ball_module.CONSTRUCTION_STEPS
    seen.clear()
    on_ball(narrow_layer(0, 2), 5, 1.0)
    assert sum(seen) == on_ball_module.CONSTRUCTION_STEPS + on_ball_module.POINTS[True] + on_ball_module.TOKENS
