"""Bounds with a mask: never below what is measured; the refuted form is violated by its counter-example."""

import math

import numpy as np
import pytest
import torch
from cases import normal, normals
from hypothesis import given, settings
from hypothesis import strategies as st

from lipnb import Attention, AttentionJacobian, bounds, local_lipschitz, measures, worst_case

EYE = torch.eye(2, dtype=torch.float64)


def averaging(n):
    """The masked map without scores on n tokens of width one."""
    zero = torch.zeros(1, 1, dtype=torch.float64)
    return local_lipschitz(
        Attention.from_matrices(zero, zero + 1, masked=True), torch.zeros(n, 1).double(), rtol=1e-8
    ).value.item()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 7), d=st.integers(1, 4), heat=st.floats(-3, 2), close=st.booleans())
def test_masked_bounds_are_never_below_the_constant(seed, n, d, heat, close):
    A, V, x = normals(seed, (d, d), (3, d), (n, d))
    A = 10**heat * A
    x = x[:1] + 1e-3 * x if close else x
    R = x.norm(dim=1).max().item()
    f = Attention.from_matrices(A, V, masked=True)
    norm = local_lipschitz(f, x, method="dense").value.item()
    local = bounds.column_upper(A, V, x, masked=True).item()
    assert norm <= local * (1 + 1e-9)
    assert local <= bounds.general_upper_sharp(A, V, n, R) * (1 + 1e-9)
    assert bounds.general_upper_sharp(A, V, n, R) <= bounds.general_upper(A, V, n, R) * (1 + 1e-9)
    assert math.log(norm) <= bounds.masked_mean_field_upper(A, V, R, log=True) + 1e-9


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 8), t=st.floats(0, 2))
def test_the_corrected_masked_mean_field_bound_holds_with_weights(seed, n, t):
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(2, 2, generator=generator, dtype=torch.float64)
    A = t * A / torch.linalg.matrix_norm(A, 2)
    x = torch.nn.functional.normalize(torch.randn(n, 2, generator=generator, dtype=torch.float64), dim=1)
    weights = (4 * torch.randn(n, generator=generator, dtype=torch.float64)).exp()
    f = Attention.from_matrices(A, EYE, masked=True)
    norm = local_lipschitz(f, x, weights=weights, method="dense").value.item()
    assert norm <= bounds.masked_mean_field_upper(A, EYE, 1.0) * (1 + 1e-9)
    rows = torch.linalg.matrix_norm(AttentionJacobian(f, x).dense().view(n, 2, n, 2), 2, dim=(1, 3)).sum(1).max()
    assert rows.item() <= bounds.masked_mean_field_upper(A, EYE, 1.0, p=math.inf) * (1 + 1e-9)


def test_ascent_does_not_pass_the_masked_bounds():
    for t in (0.05, 0.5, 3.0):
        A = -t * EYE
        f = Attention.from_matrices(A, EYE, masked=True)
        start = normal(4, 5, 2, seed=1)
        best = worst_case.climb(f, start, 1.0, steps=40)[1].max().item()
        assert best <= bounds.masked_mean_field_upper(A, EYE, 1.0)
        assert best <= bounds.general_upper_sharp(A, EYE, 5, 1.0)


def test_averages_over_the_past_refute_the_recalled_form():
    zero = torch.zeros(1, 1, dtype=torch.float64)
    recalled = bounds.mean_field_upper(zero, zero + 1, 1.0)
    assert recalled == pytest.approx(1)
    for n, expected in ((1, 1.0), (2, 1.144), (10, 1.410), (100, 1.630), (1000, 1.748)):
        norm = averaging(n)
        assert norm == pytest.approx(expected, abs=5e-4)
        assert norm <= bounds.masked_mean_field_upper(zero, zero + 1, 1.0)
        assert n == 1 or norm > 1.14 * recalled


def test_equal_tokens_average_whatever_the_scores_are():
    A = normal(3, 3)
    f = Attention.from_matrices(A, torch.eye(3).double(), masked=True)
    x = torch.ones(10, 3, dtype=torch.float64)
    assert local_lipschitz(f, x).value.item() == pytest.approx(averaging(10), rel=1e-6)


def test_hardys_inequality_is_what_the_factor_needs():
    generator = np.random.default_rng(0)
    for p in (1.5, 2.0, 3.0):
        for _ in range(50):
            weights, g = generator.exponential(size=(2, 12)) ** 3
            averages = np.cumsum(weights * g) / np.cumsum(weights)
            ratio = ((weights * averages**p).sum() / (weights * g**p).sum()) ** (1 / p)
            assert ratio <= p / (p - 1)


def test_the_factor_of_p_enters_once():
    A = 0.3 * EYE
    bound = {p: bounds.masked_mean_field_upper(A, EYE, 1.0, p=p) for p in (1.5, 2, 3, math.inf)}
    core = (1 + 0.6) * math.exp(0.6)
    for p, value in bound.items():
        hardy = 1 if math.isinf(p) else p / (p - 1)
        assert value == pytest.approx(0.3 + hardy * core, rel=1e-6)
    for p in (1, 0.5, -1):
        with pytest.raises(ValueError, match="p must be more than 1"):
            bounds.masked_mean_field_upper(A, EYE, 1.0, p=p)
    assert bounds.masked_mean_field_upper(1e4 * EYE, EYE, 1.0, log=True) == pytest.approx(2e4 + math.log(4e4 + 2), 1e-3)
    with pytest.raises(OverflowError, match="log=True"):
        bounds.masked_mean_field_upper(1e4 * EYE, EYE, 1.0)


def test_small_moves_cost_what_the_masked_jacobian_says():
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        A, V, x = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((2, 2), (2, 2), (5, 2)))
        f = Attention.from_matrices(A, V, masked=True)
        s = torch.rand(5, generator=generator, dtype=torch.float64).sort().values
        _, sigma, Vh = torch.linalg.svd(AttentionJacobian(f, x).dense())
        y = x + 1e-6 * Vh[0].view_as(x)
        quotient = measures.conditional_wasserstein(s, f(x), s, f(y)) / measures.conditional_wasserstein(s, x, s, y)
        assert quotient == pytest.approx(sigma[0].item(), rel=1e-5)


def two_clusters(t, tokens=2000, step=0.02):
    """The constant in d_2 at tokens 1, -1, 1, ... of geometrically growing weights, A = t and V = 1."""
    x = torch.ones(tokens, 1, dtype=torch.float64)
    x[1::2] = -1
    weights = (step * torch.arange(1.0 - tokens, 1.0, dtype=torch.float64)).exp()
    f = Attention.from_matrices(torch.full((1, 1), t).double(), x[:1], masked=True)
    return local_lipschitz(f, x, weights=weights / weights.sum(), rtol=1e-6).value.item()


def test_two_clusters_refute_the_recalled_form_beyond_equal_tokens():
    """The proof on the page: the constant of the ball is at least 2 + t / cosh(t)^2, the recalled form below it."""
    for t in [0.03, 0.16, 0.17]:
        one = torch.ones(1, 1, dtype=torch.float64)
        norm, lower = two_clusters(t), 2 + t / math.cosh(t) ** 2
        assert 0.98 * lower < norm <= lower
        assert norm > bounds.mean_field_upper(t * one, one, 1.0)
        assert lower < bounds.masked_mean_field_upper(t * one, one, 1.0)


def averaging_in_lp(p):
    """Norm ratio in l^p of averages over the past, at powers on a geometric grid of positions."""
    weights = np.exp(0.01 * np.arange(20_000))
    right = np.cumsum(weights)
    g = (right / right[-1]) ** (-0.98 / p)
    averages = np.cumsum(weights * g) / right
    return ((weights * averages**p).sum() / (weights * g**p).sum()) ** (1 / p)


def test_the_corrected_bound_is_sharp_without_scores():
    """Averages over the past of s^(-b) are s^(-b) / (1 - b): the norm in l^p tends to p / (p - 1)."""
    zero = torch.zeros(1, 1, dtype=torch.float64)
    for p in (1.2, 2.0, 5.0):
        assert 0.85 < averaging_in_lp(p) / bounds.masked_mean_field_upper(zero, zero + 1, 1.0, p=p) <= 1


def test_near_one_equal_tokens_refute_the_recalled_form_at_larger_scores():
    one = torch.ones(1, 1, dtype=torch.float64)
    for t, p in ((0.3, 1.2), (0.5, 1.1), (0.7, 1.05)):  # equal tokens: averages, whatever the scores
        assert averaging_in_lp(p) > bounds.mean_field_upper(t * one, one, 1.0)
        assert averaging_in_lp(p) <= bounds.masked_mean_field_upper(t * one, one, 1.0, p=p)
