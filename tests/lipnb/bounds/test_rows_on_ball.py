"""One head on a ball: its rows, with a mask in their order, on both sides of the inequality; tokens that reach it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import quickly, seeds

from lipnb import Attention, local_lipschitz
from lipnb.bounds import ball_upper
from lipnb.bounds.ball import _log_of_rows, _through_few, rows_of
from lipnb.bounds.multihead_norms import Sizes
from lipnb.bounds.rows_on_ball import norm_of_masked_rows, norm_of_rows
from lipnb.worst_case import climb, gaussian

W, E, F = torch.eye(3, dtype=torch.float64)
SWAP = torch.outer(E, W) + torch.outer(W, E) - torch.outer(F, F)
EYE = torch.eye(3, dtype=torch.float64)
SIZES = [(1.0, 0.0, 1.0, True), (2.0, 1.0, 2.0, True), (0.1, 1.0, 0.2, True), (1.0, 3.0, 0.5, False)]
sizes_of_rows = st.sampled_from([0.0, 0.01, 0.3, 1.0, 2.0, 30.0, 1e3])


def coefficients(value, key, apart):
    T = math.hypot(value, key) if apart else value + key
    return (T + value) / 2, (T - value) / 2


def rows_in_order(sizes, query, value, key, apart, first=(0.0, 0.0)):
    """The matrix of the rows whose two largest `sizes` are found by sorting; `first`: query and key terms of row 1."""
    n, (c_1, c_2) = len(sizes), coefficients(value, key, apart)
    matrix = torch.zeros(n, n, dtype=torch.float64)
    matrix[0, 0] = value + sum(first)
    for i in range(1, n):
        order = sizes[: i + 1].argsort(descending=True)
        matrix[i, i] += query
        matrix[i, order[0]] += c_1
        matrix[i, order[1]] += c_2
    return matrix


@pytest.mark.parametrize(("query", "value", "key", "apart"), SIZES)
@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_it_is_the_largest_sum_of_rows_in_their_order(n, query, value, key, apart):
    """The sum is convex, so steps to its normalised gradient never lower it; from 40 starts one reaches the largest."""
    normal, largest = gaussian(n), 0.0
    for case in range(40):
        sizes = normal(n).abs() ** (1 + case % 4)
        for _ in range(80):
            matrix = rows_in_order(sizes, query, value, key, apart)
            sizes = matrix.T @ (matrix @ sizes)
            sizes = sizes / sizes.norm()
        largest = max(largest, (rows_in_order(sizes, query, value, key, apart) @ sizes).norm().item())
    assert norm_of_masked_rows(query, value, key, n, apart=apart) == pytest.approx(largest, rel=1e-6)


@given(
    seed=seeds, n=st.integers(2, 12), query=sizes_of_rows, value=sizes_of_rows, key=sizes_of_rows, apart=st.booleans()
)
@quickly
def test_no_sizes_of_perturbations_exceed_it_and_two_tokens_are_never_below(seed, n, query, value, key, apart):
    upper = norm_of_masked_rows(query, value, key, n, apart=apart)
    for power in (1, 3, 9):
        sizes = gaussian(seed)(n).abs() ** power
        sizes = sizes / sizes.norm()
        assert (rows_in_order(sizes, query, value, key, apart) @ sizes).norm() <= upper * (1 + 1e-12)
    kappa = math.hypot(value, key / math.sqrt(2)) if apart else value + key / math.sqrt(2)
    assert upper <= _through_few(query, kappa, (n - 1) * kappa**2 + value**2, 2, n) * (1 + 1e-12)


@pytest.mark.parametrize(("query", "value", "key", "apart"), SIZES)
@pytest.mark.parametrize("n", [2, 3, 7])
def test_without_a_mask_it_is_the_largest_sum_of_rows_and_below_that_of_two_tokens(n, query, value, key, apart):
    """The two largest perturbations are those of tokens 1 and 2 in some order: all of them between, on a grid."""
    c_1, c_2 = coefficients(value, key, apart)
    turn, level = torch.meshgrid(*torch.linspace(0, math.pi / 2, 801).double().expand(2, 801), indexing="ij")
    y, z = level.cos() * turn.cos(), level.cos() * turn.sin()
    each = level.sin() / math.sqrt(max(n - 2, 1)) * (n > 2)
    shared = torch.maximum(c_1 * y + c_2 * z, c_2 * y + c_1 * z)
    found = (query * y + shared).square() + (query * z + shared).square() + (n - 2) * (query * each + shared).square()
    stated = norm_of_rows(query, value, key, n, apart=apart)
    largest = (found / (y.square() + z.square() + (n - 2) * each.square())).sqrt().nan_to_num(0).max().item()
    assert largest <= stated * (1 + 1e-12) and largest == pytest.approx(stated, rel=1e-5)
    kappa = math.hypot(value, key / math.sqrt(2)) if apart else value + key / math.sqrt(2)
    assert stated <= _through_few(query, kappa, n * kappa**2, 2, n) * (1 + 1e-12)
    assert not apart or value != 1 or stated < 0.999 * _through_few(query, kappa, n * kappa**2, 2, n)


@given(seed=seeds, n=st.integers(2, 6), value=st.floats(0, 10), key=st.floats(0, 10), apart=st.booleans())
@quickly
def test_no_row_exceeds_its_two_largest_perturbations(seed, n, value, key, apart):
    """Keys read along one direction with the values, or each logit changed by a number of its own."""
    normal = gaussian(seed)
    sizes, P = normal(n).abs() ** 2, (5 * normal(n)).softmax(0)
    if seed % 2:
        P = (60 * P).softmax(0)  # on two tokens, or on one
    places = torch.where(normal(n) > 0, 1.0, -1.0) * normal(n).abs().clamp_max(1) ** (seed % 3)
    zeta = places - P @ places
    if apart:
        turn = math.pi * torch.rand((), generator=torch.Generator().manual_seed(seed)).item()
        w, s = value * EYE[0], key * (math.cos(turn) * EYE[0] + math.sin(turn) * EYE[1])
        found = P * (w + zeta[:, None] * s).norm(dim=1) @ sizes
    else:
        found = value * (P @ sizes) + P @ (zeta * key * sizes * torch.where(normal(n) > 0, 1.0, -1.0))
    (c_1, c_2), (a, b) = coefficients(value, key, apart), sizes.topk(2).values
    assert found <= (c_1 * a + c_2 * b) * (1 + 1e-12)


def test_rows_of_two_tokens_attain_it():
    """Equal perturbations with weights of one half, keys across the values; or one alone, if key and value add up."""
    for value, key in ((1.0, 0.3), (1.0, 7.0), (0.0, 2.0)):
        P, zeta = torch.full((2,), 0.5).double(), torch.tensor([1.0, -1.0]).double()
        g = P * (value * EYE[0] + zeta[:, None] * key * EYE[1]).norm(dim=1)
        assert g.sum() == pytest.approx(sum(coefficients(value, key, True)))
        one = max(p * (value + 2 * (1 - p) * key) for p in torch.linspace(0, 1, 1001).tolist())
        assert 0.95 < one / coefficients(value, key, True)[0] <= 1


def fork_under_mask(n, t):
    """Row 2 has the pair of tokens 1 and 2, every later row that of 2 and 3, each with weights of one half."""
    found = []
    for behind in torch.logspace(-0.3, 1.7, 12).double() / t:  # the logits of all others, over t
        low, high = behind / 8 * E, behind.sqrt() * F
        x = torch.stack([W - 9 * low, -W - 3 * low, W - low, *[W - low + high] * (n - 3)])[:n]
        found.append(x / x.norm(dim=1).max())
    return torch.stack(found)


@pytest.mark.parametrize(
    ("n", "leading"), [(2, 5 / 2), (3, 13 / 4), (4, 3.8936369), (6, 5.0626183), (10, 7.2318241), (98, 51.5701112)]
)
def test_a_fork_reaches_it_at_every_length(n, leading):
    assert norm_of_masked_rows(1.0, 0.0, 1.0, n, apart=True) ** 2 == pytest.approx(leading, rel=1e-7)
    t = 1e6
    f = Attention.from_matrices(t * SWAP, EYE, masked=True)
    x, upper = fork_under_mask(n, t), ball_upper(f, n, 1.0)
    found = local_lipschitz(f, x).value.max().item()
    assert 1 - 1e-3 < found / upper < 1
    assert found / t == pytest.approx(math.sqrt(leading), rel=1e-3)


def test_ascents_come_near_and_none_exceeds_it():
    for n, t, near in ((2, 3.0, 0.9), (2, 10.0, 0.95), (3, 1.0, 0.6), (3, 10.0, 0.85), (4, 30.0, 0.7), (6, 10.0, 0.75)):
        f = Attention.from_matrices(t * SWAP, EYE, masked=True)
        normal = gaussian(n)
        start = torch.cat([fork_under_mask(n, t) + 0.02 * normal(12, n, 3), normal(4, n, 3)])
        best = climb(f, start / start.norm(dim=-1, keepdim=True).clamp_min(1), 1.0, steps=60)[0]
        dense = torch.stack([torch.func.jacrev(f)(x).reshape(3 * n, 3 * n) for x in best])
        assert near < torch.linalg.matrix_norm(dense, 2).max() / ball_upper(f, n, 1.0) < 1


def test_a_mask_that_leaves_one_pair_lowers_the_bound_and_no_other_head_is_touched():
    t, one = 1e4, Sizes(value=0.0, key=math.log(1e4), query=math.log(1e4), spread=99.0, same=0.0)
    f = Attention.from_matrices(t * SWAP, EYE)
    sinks = f.replace(masked=True, sinks=torch.zeros(1, dtype=torch.float64))
    for n in (2, 3, 10):
        kappa = math.hypot(1, t / math.sqrt(2))
        rows = {name: rows_of(g, n) for name, g in (("all", f), ("causal", f.replace(masked=True)), ("sink", sinks))}
        found = {name: math.exp(_log_of_rows(one, of, heads=1, apart=True)) for name, of in rows.items()}
        assert found["all"] == pytest.approx(norm_of_rows(t, 1.0, t, n, apart=True))
        assert found["all"] == pytest.approx(_through_few(t, kappa, n * kappa**2, 2, n), rel=1e-6)
        assert found["causal"] == pytest.approx(norm_of_masked_rows(t, 1.0, t, n, apart=True))
        sizes = torch.ones(n, dtype=torch.float64) / math.sqrt(n)  # with a sink row 1 has a query and a key too
        for _ in range(200):
            matrix = rows_in_order(sizes, t, 1.0, t, True, first=(t, t / 2))
            sizes = matrix.T @ (matrix @ sizes)
            sizes = sizes / sizes.norm()
        assert found["sink"] >= (matrix @ sizes).norm().item() > 1.001 * found["causal"]
        pair = math.exp(_log_of_rows(one, rows["causal"], heads=2, apart=False))
        assert pair > 1.005 * found["causal"]
