"""Sentences of How Smooth Is Attention? between its theorems: what they say, as inequalities that can fail."""

import math

import pytest
import torch
from cases import normal

from lipnb import Attention, bounds, local_lipschitz, spectral
from lipnb.worst_case import tight_input


def norm(matrix):
    return torch.linalg.matrix_norm(matrix, 2).item()


def test_attention_is_permutation_equivariant_without_a_mask_only():
    for masked in [False, True]:
        f, x, order = (
            Attention.from_matrices(*normal(2, 4, 4), masked=masked),
            normal(6, 4, seed=1),
            torch.arange(6).flip(0),
        )
        moved = ((f(x[order]) - f(x)[order]).norm() / f(x).norm()).item()
        assert moved > 0.1 if masked else moved < 1e-13


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


def test_at_the_edge_the_general_bound_is_tight_up_to_a_constant():
    """n = 1 + exp(2 gamma R^2): at most 4 sqrt(3) |A| / gamma times too high."""
    for A, kappa in [(-torch.eye(2).double(), 1), (torch.eye(2).double(), 8)]:
        for s in [1.0, 2.0, 3.0]:
            n, R = 1 + round(math.exp(2 * s)), math.sqrt(s / bounds.growth_rate(A))
            measured = local_lipschitz(Attention.from_matrices(A, abs(A)), tight_input(A, n, R)).value.item()
            upper = bounds.general_upper(A, abs(A), n, R)
            assert measured <= upper <= 4 * math.sqrt(3) * kappa * measured


def test_the_limit_of_large_radius_is_approached_at_the_explicit_rate():
    for masked in [False, True]:
        for near in [False, True]:
            for seed in range(8):
                (A, V), x, n = normal(2, 3, 3, seed=seed), normal(6, 3, seed=50 + seed), 6
                if near:
                    x[4] = x[1] + 1e-3 * normal(3, seed=90 + seed)  # two tokens that later ones can hardly tell apart
                f = Attention.from_matrices(A, V, masked=masked)
                scores = x @ A.T @ x.T
                if masked:
                    scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)[1:]
                gap = -scores.topk(2).values.diff().max().item()
                limit = bounds.large_radius_limit(f, x).item()
                for u in (3.0, 10.0, 20.0):
                    y = math.sqrt(u / gap) * x
                    t = norm(A) * y.square().sum(1).max().item()
                    allowed = norm(V) * (4 * t * (1 + math.sqrt(n)) + math.sqrt(2 * n)) * (n - 1) * math.exp(-u)
                    assert abs(local_lipschitz(f, y, method="dense").value.item() - limit) <= allowed


def test_power_iteration_stops_at_the_second_value_where_the_start_misses_the_first():
    values = torch.tensor([1, 0.9, *[0.4] * 38], dtype=torch.float64)
    start = normal(1, 40)
    found = {}
    for along in (1.0, 1e-12):
        planted = start.clone()
        planted[:, 0] *= along
        found[along] = spectral.power_iteration(lambda u: values**2 * u, planted, rtol=1e-6).value.item()
    assert found[1.0] == pytest.approx(1, abs=1e-4) and found[1e-12] == pytest.approx(0.9, abs=1e-4)
