"""Distances between discrete measures against slow twins, and the mean-field map against its integrals."""

import sys
from itertools import permutations

import numpy as np
import pytest
import torch
from cases import drawn, l2_parameters, normal, relative
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance
from strategies import quickly, seeds

from lipnb import Attention, local_lipschitz
from lipnb.measures import conditional_wasserstein, mean_field_map, repeat, splitting, wasserstein


def test_fields_and_blocks_of_queries():
    """What a point sees of an L2 measure: the map at its own tokens, and derivatives in the query alone."""
    for seed in range(3):
        query, value, output = l2_parameters(seed)
        f, x = Attention.l2(query, value, output), normal(6, query.shape[2], seed=seed)
        weights = normal(6, seed=seed).exp()
        assert relative(mean_field_map(f, x, weights, x), f(x, weights)) < 1e-12
        blocks = splitting.query_blocks(f, x, weights)
        step = 1e-6 * normal(6, x.shape[1], seed=seed + 1)
        ends = [mean_field_map(f, x, weights, x + sign * step) for sign in (1, -1)]
        assert relative(torch.einsum("nmd,nd->nm", blocks, step), (ends[0] - ends[1]) / 2) < 1e-6


orders = st.sampled_from([1, 1.5, 2, 3])


def cloud(rng, n, d, equal=False):
    return rng.normal(size=(n, d)), np.full(n, 1 / n) if equal else rng.dirichlet(np.ones(n))


def distances(x, y):
    return np.linalg.norm(x[:, None] - y[None], axis=-1)


@given(seed=seeds, n=st.integers(1, 6), d=st.integers(1, 4), p=orders)
@quickly
def test_equal_weights_are_the_best_of_all_matchings(seed, n, d, p):
    rng = np.random.default_rng(seed)
    (x, _), (y, _) = cloud(rng, n, d), cloud(rng, n, d)
    costs = distances(x, y) ** p
    best = min(costs[range(n), order].mean() for order in permutations(range(n))) ** (1 / p)
    assert wasserstein(x, y, p=p) == pytest.approx(best, rel=1e-12)


@given(seed=seeds, n=st.integers(1, 8), m=st.integers(1, 8))
@quickly
def test_on_the_line_it_is_the_area_between_distribution_functions(seed, n, m):
    rng = np.random.default_rng(seed)
    (x, a), (y, b) = cloud(rng, n, 1), cloud(rng, m, 1)
    expected = wasserstein_distance(x[:, 0], y[:, 0], a, b)
    assert wasserstein(x, y, a, b, p=1) == pytest.approx(expected, rel=1e-9)


@given(seed=seeds, n=st.integers(1, 4), m=st.integers(1, 4), p=orders)
@quickly
def test_weights_are_repetitions(seed, n, m, p):
    """The assignment of copies and the linear programme of weights are two solvers."""
    rng = np.random.default_rng(seed)
    x, y = torch.tensor(rng.normal(size=(n, 2))), torch.tensor(rng.normal(size=(m, 2)))
    counts, others = rng.integers(1, 4, n), rng.integers(1, 4, m)
    a, b = torch.tensor(counts / counts.sum()), torch.tensor(others / others.sum())
    # as many copies on both sides
    copies_x, copies_y = repeat(x, counts * others.sum()), repeat(y, others * counts.sum())
    assert len(copies_x) == len(copies_y)
    assert wasserstein(x, y, a, b, p=p) == pytest.approx(wasserstein(copies_x, copies_y, p=p), rel=1e-9, abs=1e-12)


@given(seed=seeds, n=st.integers(1, 6), m=st.integers(1, 6), k=st.integers(1, 6), p=orders)
@quickly
def test_it_is_a_distance(seed, n, m, k, p):
    rng = np.random.default_rng(seed)
    (x, a), (y, b), (z, c) = cloud(rng, n, 2), cloud(rng, m, 2), cloud(rng, k, 2)
    there = wasserstein(x, y, a, b, p=p)
    assert there == pytest.approx(wasserstein(y, x, b, a, p=p), rel=1e-9)
    assert there <= wasserstein(x, z, a, c, p=p) + wasserstein(z, y, c, b, p=p) + 1e-12
    order = rng.permutation(n)
    assert wasserstein(x, x[order], a, a[order], p=p) <= 1e-12 < there
    split = np.concatenate([x, x]), np.concatenate([0.3 * a, 0.7 * a])  # the same measure, written twice
    assert wasserstein(split[0], y, split[1], b, p=p) == pytest.approx(there, rel=1e-9)


@given(seed=seeds, n=st.integers(1, 6), shift=st.floats(1e-7, 1e7))
@quickly
def test_translations_cost_their_length_and_scales_scale(seed, n, shift):
    rng = np.random.default_rng(seed)
    (x, a), (y, b) = cloud(rng, n, 3), cloud(rng, n, 3)
    moved = wasserstein(x, x + [shift, 0, 0], a, a)
    assert moved == pytest.approx(shift, rel=1e-8 * max(1, 1e-1 / shift))
    assert wasserstein(shift * x, shift * y, a, b) == pytest.approx(shift * wasserstein(x, y, a, b), rel=1e-9)


@given(seed=seeds, p=orders)
@quickly
def test_conditional_distance_moves_nothing_between_positions(seed, p):
    rng = np.random.default_rng(seed)
    n = 4
    s, x, y = np.arange(n) / n, rng.normal(size=(n, 2)), rng.normal(size=(n, 2))
    in_place = (np.linalg.norm(x - y, axis=1) ** p).mean() ** (1 / p)
    order = rng.permutation(n)  # pairs of position and token in any order
    found = conditional_wasserstein(s, x, s[order], y[order], p=p)
    assert found == pytest.approx(in_place, rel=1e-12)
    assert found >= wasserstein(x, y, p=p) * (1 - 1e-12)
    # one position only: the plain distance
    assert conditional_wasserstein(0 * s, x, 0 * s, y, p=p) == pytest.approx(wasserstein(x, y, p=p), rel=1e-12)


def test_conditional_distance_by_hand():
    """Two positions of mass 1/4 and 3/4; at the second, two points of weights 1/3 and 2/3 meet one."""
    s, x, a = [0.0, 1.0, 1.0], [[0.0], [0.0], [3.0]], [0.25, 0.25, 0.5]
    t, y, b = [1.0, 0.0], [[3.0], [2.0]], [0.75, 0.25]
    assert conditional_wasserstein(s, x, t, y, a, b) == pytest.approx((0.25 * 4 + 0.25 * 9) ** 0.5)
    assert conditional_wasserstein(s, x, t, y, a, [0.5, 0.5]) == np.inf
    assert conditional_wasserstein([0.0, 1.0], y, [0.0, 0.5], y) == np.inf


def test_the_mean_field_map_is_its_integrals_and_attention_at_its_points():
    for seed in range(8):
        normal = drawn(seed)
        A, V, x, z, a = normal(3, 3), normal(2, 3), normal(5, 3), normal(4, 3), normal(5).exp()
        f = Attention.from_matrices(A, V)
        kernel = a * (z @ A.T @ x.T).exp()
        assert torch.allclose(mean_field_map(f, x, a, z), kernel @ x @ V.T / kernel.sum(1, keepdim=True), atol=1e-12)
        assert torch.allclose(mean_field_map(f, x, 7 * a, z), mean_field_map(f, x, a, z), atol=1e-12)
        parts, biases = [(2, 2, 3), (2, 2, 3), (2, 4, 3), (2, 5, 4)], {"query_bias": (2, 2), "value_bias": (2, 4)}
        biases = {name: normal(*shape) for name, shape in biases.items()}
        heads = Attention(*(normal(*shape) for shape in parts), **biases, output_bias=normal(5))
        assert torch.allclose(mean_field_map(heads, x, a, x), heads(x, a), atol=1e-12)
        counts = torch.tensor([1, 2, 3, 1, 2])
        copies = repeat(x, counts)
        assert torch.allclose(
            mean_field_map(heads, x, counts.double(), x), heads(copies)[counts.cumsum(0) - 1], atol=1e-12
        )


def test_the_quotient_of_distances_is_the_weighted_norm():
    for seed in range(3):
        draw = drawn(seed)
        A, V, x = draw(3, 2, 2)
        x, a = torch.cat([x, x.flip(1) + 1]), draw(4).softmax(0)
        f = Attention.from_matrices(A, V)
        norm = local_lipschitz(f, x, weights=a, method="dense").value.item()
        reached = 0.0
        for _ in range(60):
            y = x + 1e-6 * draw(4, 2) / a.sqrt()[:, None]
            reached = max(reached, wasserstein(f(x, a), f(y, a), a, a) / wasserstein(x, y, a, a))
        assert 0.7 * norm < reached <= norm * (1 + 1e-4)


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(ModuleNotFoundError, match="pip install '..transport.'"):
        wasserstein(torch.zeros(2, 1), torch.ones(3, 1))


def test_powers_of_distances_that_leave_the_range_of_floats():
    x = torch.tensor([[0.0], [1.0]]).double()
    for size in (1e-170, 1e-3, 1e300):
        assert wasserstein(size * x, size * (x + 0.25)) == pytest.approx(0.25 * size, rel=1e-12)
    assert wasserstein(x, x + 1e-3, p=100) == pytest.approx(1e-3)
    with pytest.raises(ValueError, match="p = 120 is too large for these points"):
        wasserstein(x, x + 1e-3, p=120)
    assert wasserstein(x, x, p=120) == 0
