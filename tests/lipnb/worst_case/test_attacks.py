"""Attacks on an input: against grid search and dense Jacobians, in their ball, never below their starts."""

import math

import pytest
import torch
from cases import constant, random_case
from hypothesis import given
from hypothesis import strategies as st
from strategies import quickly, seeds

from lipnb import Attention
from lipnb.bounds import nearby_upper
from lipnb.measures.splitting import query_blocks, splitting
from lipnb.worst_case import attacks

ONE = torch.ones(1, 1, dtype=torch.float64)


def one_input(seed, spread=1.0, n=None):
    case = random_case(seed, n=n or 1 + seed % 6, spread=spread)
    return case.attention, case.x[0]


def directions(x, count, seed=0):
    return attacks.random_directions(x, count, seed=seed)


def test_two_tokens_on_a_line_against_grid_search():
    for radius in [0.01, 0.1, 0.5, 2.0]:
        for A, tokens in [(2.0, (1.0, -0.5)), (-1.0, (0.3, 1.2))]:
            f, x = Attention.from_matrices(A * ONE, ONE), torch.tensor(tokens, dtype=torch.float64)[:, None]
            angle = torch.linspace(0, 2 * math.pi, 2001, dtype=torch.float64)
            share = torch.linspace(0, 1, 101, dtype=torch.float64)[:, None]
            grid = radius * (share[..., None] * torch.stack([angle.cos(), angle.sin()], -1)).reshape(-1, 2, 1)
            truth = attacks.change(f, x, grid).max().item()
            top = attacks.singular(f, x).direction
            starts = torch.cat([top[None], -top[None], directions(x, 40)])  # many: far away there are several hills
            moves, found = attacks.push(f, x, starts, radius, size=0.5)
            assert found.max().item() == pytest.approx(truth, rel=1e-3)
            assert truth <= nearby_upper(f, x, [radius]).best.item()
            assert found.max().item() == pytest.approx(attacks.change(f, x, moves).max().item(), rel=1e-12)


@given(seed=seeds, size=st.sampled_from([None, 0.1, 0.5, 5.0]), log=st.floats(-4, 1))
@quickly
def test_ascent_stays_in_the_ball_and_is_never_below_its_starts(seed, size, log):
    f, x = one_input(seed)
    radius, starts = 10**log, directions(x, 3, seed)
    moves, found = attacks.push(f, x, starts, radius, steps=5, size=size)
    assert (attacks.length(moves) <= radius * (1 + 1e-12)).all()
    assert (found >= attacks.change(f, x, radius * starts) * (1 - 1e-12)).all()
    assert torch.allclose(found, attacks.change(f, x, moves), rtol=1e-9, atol=1e-15)


def test_only_movable_tokens_move_and_weights_measure():
    for seed in range(5):
        f, x = one_input(seed, n=4)
        weights = torch.tensor([0.5, 2.0, 1.0, 0.5], dtype=torch.float64)
        movable = torch.tensor([True, False, True, False])
        radii = torch.tensor([0.1, 1.0], dtype=torch.float64)
        for size in (None, 0.5):
            moves, found = attacks.push(
                f, x, directions(x, 2), radii, steps=4, size=size, weights=weights, movable=movable
            )
            assert (moves[:, ~movable] == 0).all() and (moves[:, movable] != 0).any()
            assert torch.allclose((weights[:, None] * moves**2).sum((1, 2)).sqrt(), attacks.length(moves, weights))
            assert (attacks.length(moves, weights) <= radii * (1 + 1e-12)).all()
            apart = f(x + moves, weights) - f(x, weights)
            assert torch.allclose((weights[:, None] * apart**2).sum((1, 2)).sqrt(), found, rtol=1e-9)


def test_the_singular_direction_attains_the_constant_to_first_order():
    for seed in range(12):
        f, x = one_input(seed)
        top, exact = attacks.singular(f, x), constant(f, x).item()
        assert top.value == pytest.approx(exact, rel=1e-4) and exact <= top.upper * (1 + 1e-12)
        slope = attacks.change(f, x, 1e-5 * top.direction).item() / 1e-5
        assert slope == pytest.approx(exact, rel=2e-4 + 1e-3 * (exact == 0))
        # the first power of the radius: what is left over is of second order
        assert abs(attacks.change(f, x, 1e-4 * top.direction).item() / 1e-4 - exact) <= 1e-2 * exact
        # no direction does more, and aligned steps from anywhere are power iteration
        assert attacks.change(f, x, 1e-6 * directions(x, 20)).max().item() <= 1e-6 * exact * (1 + 1e-4)
        _, found = attacks.push(f, x, directions(x, 1), 1e-6, steps=300)
        assert found.item() / 1e-6 == pytest.approx(exact, rel=1e-3)


def test_parting_copies_have_the_slope_of_the_criterion():
    for seed in range(0, 12, 2):
        f, x = one_input(seed)
        copied, weights, moves = attacks.parting(x, query_blocks(f, x))
        assert weights.sum() == len(x) and attacks.length(moves, weights).item() == pytest.approx(1)
        assert (moves != 0).any(1).sum() <= 2
        slope = attacks.change(f, copied, 1e-6 * moves, weights).item() / 1e-6
        assert slope == pytest.approx(splitting(f, x).apart, rel=1e-3, abs=1e-4)
        # copies that stay together are the token
        whole = torch.zeros_like(moves)
        whole[weights < 1] = torch.ones_like(x[0])
        token = (weights < 1).nonzero()[0]
        same = torch.zeros_like(x).index_fill_(0, token, 1.0)
        assert attacks.length(whole, weights).item() == pytest.approx(attacks.length(same).item())
        changes = attacks.change(f, copied, whole, weights), attacks.change(f, x, same)
        assert changes[0].item() == pytest.approx(changes[1].item(), abs=1e-9)
