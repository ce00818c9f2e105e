"""Bounds on measures in a ball, from both sides, by logarithms where they overflow; and the limit of large radius."""

import math

import pytest
import torch
from cases import normal
from hypothesis import given, settings
from hypothesis import strategies as st

from lipnb import Attention, local_lipschitz
from lipnb.bounds import (
    chosen_tokens,
    growth_rate,
    large_radius_limit,
    masked_mean_field_upper,
    mean_field_lower,
    mean_field_upper,
    mean_field_upper_sharp,
)
from lipnb.worst_case import eigenvector, two_diracs

UPPER = [mean_field_upper, mean_field_upper_sharp]
EYE = torch.eye(2, dtype=torch.float64)
quickly = settings(derandomize=True, deadline=None, max_examples=60)
seeds = st.integers(0, 10**6)


def constant(A, V, x, a):
    return local_lipschitz(Attention.from_matrices(A, V), x, weights=a, method="dense").value.item()


def largest_norm(x):
    return x.norm(dim=-1).max().item()


@given(seed=seeds, n=st.integers(1, 6), d=st.integers(1, 4), size=st.sampled_from([0.0, 0.01, 0.3, 1.0, 4.0]))
@quickly
def test_upper_bounds_hold_for_any_measure(seed, n, d, size):
    A, V, x = size * normal(d, d, seed=seed), normal(3, d, seed=seed + 1), normal(n, d, seed=seed + 2)
    a = (3 * normal(n, seed=seed + 3)).softmax(0)
    measured = math.log(constant(A, V, x, a))
    sharp, printed = (bound(A, V, largest_norm(x), log=True) for bound in reversed(UPPER))
    assert measured <= sharp + 1e-9 and sharp <= printed + 1e-9


def test_upper_bounds_are_reached_where_nothing_is_attended():
    V, x, a = normal(3, 2, seed=0), normal(5, 2, seed=1), normal(5, seed=2).softmax(0)
    exact = constant(0 * EYE, V, x, a)
    for bound in UPPER:
        assert bound(0 * EYE, V, 1.7) == pytest.approx(exact, rel=1e-7)


MATRICES = [
    -EYE,
    EYE,
    torch.diag(torch.tensor([2.0, -0.1])).double(),
    torch.tensor([[-0.3, 2.0], [0, 0.7]]).double(),
    torch.tensor([[2.0, -1.0], [0, 0.5]]).double(),
]


def test_two_diracs_are_above_the_lower_bound_and_below_the_upper():
    for case in range(len(MATRICES)):
        for s in [0.1, 0.5, 2.0, 10.0, 100.0, 300.0]:
            A = MATRICES[case]
            R = math.sqrt(s / growth_rate(A))
            x, a = two_diracs(A, R)
            assert largest_norm(x) <= R * (1 + 1e-12) and a.sum() == pytest.approx(1)
            measured, lower = math.log(constant(A, EYE, x, a)), mean_field_lower(A, R, log=True)
            r = 1 / (2 * math.exp(2 * s) - 1)
            assert measured >= lower + math.log(math.sqrt(1 - r**2) * (1 + 1 / s - r)) - 1e-9  # theta, above 1
            assert measured <= mean_field_upper_sharp(A, EYE, R, log=True) + 1e-9
            if s >= 10:
                assert measured == pytest.approx(lower + math.log1p(1 / s), abs=1e-6)


def test_a_third_of_the_weight_is_best():
    x, a = two_diracs(-EYE, 10.0, share=1 / 3)
    best = constant(-EYE, EYE, x, a)
    x, a = two_diracs(-EYE, 10.0)
    assert best / constant(-EYE, EYE, x, a) == pytest.approx(3 * math.sqrt(3) / 4, rel=0.01)
    for share in (0.2, 0.28, 0.4, 0.6):
        x, a = two_diracs(-EYE, 10.0, share=share)
        assert constant(-EYE, EYE, x, a) < best
    # and then the sharp bound is 1.54 above, in the limit
    assert mean_field_upper_sharp(-EYE, EYE, 10.0) / best == pytest.approx(8 / (3 * math.sqrt(3)), rel=0.01)


def test_the_formulas():
    for R in [0.0, 0.5, 1.0, 3.0]:
        A, V = torch.diag(torch.tensor([1.5, -0.5])).double(), 2 * EYE
        t = 1.5 * R**2
        assert mean_field_upper(A, V, R) == pytest.approx(2 * (1 + 3 * t) * math.exp(2 * t), rel=1e-6)
        assert mean_field_upper_sharp(A, V, R) == pytest.approx(2 * (t + (1 + t) * math.exp(t)), rel=1e-6)
        assert masked_mean_field_upper(A, V, R) == pytest.approx(2 * (t + 2 * (1 + 2 * t) * math.exp(2 * t)), rel=1e-6)
        assert mean_field_lower(A, R) == pytest.approx(0.25 * R**2 * math.exp(0.5 * R**2), rel=1e-12)


def test_logarithms_agree_with_plain_numbers():
    for bound in [*UPPER, masked_mean_field_upper]:
        for R in [0.0, 0.1, 1.0, 5.0, 12.0]:
            assert bound(EYE, EYE, R, log=True) == pytest.approx(math.log(bound(EYE, EYE, R)), abs=1e-9)
            if R > 0:
                assert mean_field_lower(-EYE, R, log=True) == pytest.approx(
                    math.log(mean_field_lower(-EYE, R)), abs=1e-9
                )


def test_logarithms_are_finite_where_numbers_are_not():
    for t in [800.0, 5e3, 1e6]:
        R = math.sqrt(t)
        expected = {
            mean_field_upper: math.log(1 + 3 * t) + 2 * t,
            mean_field_upper_sharp: math.log(1 + t) + t,
            masked_mean_field_upper: math.log(2 + 4 * t) + 2 * t,
        }
        for bound, logarithm in expected.items():
            assert bound(EYE, EYE, R, log=True) == pytest.approx(logarithm, rel=1e-6)
            with pytest.raises(OverflowError, match=r"the bound is exp\(.*\), beyond the largest float: use log=True"):
                bound(EYE, EYE, R)
        assert mean_field_lower(-EYE, R, log=True) == pytest.approx(math.log(t / 2) + t, rel=1e-12)
        with pytest.raises(OverflowError, match="use log=True"):
            mean_field_lower(-EYE, R)


def test_zero_maps_have_zero_bounds():
    assert mean_field_upper(EYE, 0 * EYE, 1.0) == 0 and mean_field_upper_sharp(EYE, 0 * EYE, 1.0, log=True) == -math.inf
    assert mean_field_lower(EYE, 0.0) == 0 and mean_field_lower(0 * EYE, 3.0) == 0


def test_bad_input():
    for arguments, error, sentence in [
        ((EYE[:1], EYE, 1.0), ValueError, "A must be square"),
        ((EYE, EYE[:, :1], 1.0), ValueError, "V of shape"),
        ((EYE * torch.nan, EYE, 1.0), ValueError, "NaN"),
        ((EYE, EYE, -1.0), ValueError, "R must be"),
        ((EYE, EYE, math.nan), ValueError, "R must be"),
    ]:
        for bound in (*UPPER, masked_mean_field_upper):
            with pytest.raises(error, match=sentence):
                bound(*arguments)
        A, _, R = arguments
        if "V" not in sentence:
            with pytest.raises(error, match=sentence):
                mean_field_lower(A, R)


def test_no_real_eigenvalue_no_lower_bound():
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]]).double()
    with pytest.raises(ValueError, match="no real eigenvalue"):
        mean_field_lower(turn, 1.0)


def case_of_heads(seed, *, masked):
    """Heads, tokens, and the smallest gap between the two best scores of a token."""
    h, n, d = 1 + seed % 3, 2 + seed % 6, 3
    output = None if seed % 4 == 1 else normal(h, 4, 3, seed=seed + 3)
    parts = (normal(h, size, d, seed=seed + i) for i, size in enumerate((2, 2, 3)))
    f = Attention(*parts, output, masked=masked)
    x = normal(n, d, seed=seed + 4)
    query, key, _ = f.project(x)
    scores = query @ key.mT
    if masked:
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
    best = scores.topk(2, dim=-1).values
    return f, x, (best[..., 0] - best[..., 1]).min().item()


def test_the_limit_is_that_of_scaled_tokens():
    for masked in [False, True]:
        for seed in range(40):
            f, x, gap = case_of_heads(10 * seed, masked=masked)
            limit = large_radius_limit(f, x).item()
            far = local_lipschitz(f, math.sqrt(60 / gap) * x, method="dense").value.item()
            assert far == pytest.approx(limit, rel=1e-8), seed
        batch = torch.stack([x, 1.5 * x, x.flip(0)])
        assert torch.allclose(large_radius_limit(f, batch[:2]), torch.tensor([limit, limit]).double())
        assert large_radius_limit(f, batch).shape == (3,)


def test_one_head_counts_followers():
    for seed in range(12):
        n, d = 2 + seed % 6, 3
        A, V, x = normal(d, d, seed=seed), normal(2, d, seed=seed + 50), normal(n, d, seed=seed + 99)
        f = Attention.from_matrices(A, V)
        followers = torch.bincount((x @ A.T @ x.T).argmax(1)).max().item()
        size = torch.linalg.matrix_norm(V, 2).item()
        limit = large_radius_limit(f, x).item()
        assert limit == pytest.approx(size * math.sqrt(followers), rel=1e-12)
        f = Attention.from_matrices(A, V, masked=True)
        assert (chosen_tokens(f, x)[0] <= torch.arange(n)).all()


def test_biases_do_not_matter_in_the_limit():
    f, x, gap = case_of_heads(30, masked=False)
    biases = {"key_bias": normal(f.heads, 2, seed=2), "value_bias": normal(f.heads, 3, seed=3)}
    biased = f.replace(query_bias=normal(f.heads, 2, seed=1), **biases)
    limit = large_radius_limit(f, x).item()
    assert large_radius_limit(biased, x).item() == pytest.approx(limit, rel=1e-12)
    far = local_lipschitz(biased, 100 * math.sqrt(60 / gap) * x, method="dense").value.item()
    assert far == pytest.approx(limit, rel=1e-8)


def test_ties_are_refused():
    f = Attention.from_matrices(EYE, EYE)
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]).double()
    with pytest.raises(ValueError, match="token 0 has its largest logit at more than one token"):
        large_radius_limit(f, x)
    with pytest.raises(ValueError, match="at more than one token"):
        chosen_tokens(Attention.from_matrices(0 * EYE, EYE), x[:2])
    assert large_radius_limit(f, x[:2]).item() == pytest.approx(1.0)
    assert large_radius_limit(f, x[:1]).item() == pytest.approx(1.0)  # one token has no rival
    # the mask hides the second of the two
    assert chosen_tokens(Attention.from_matrices(EYE, EYE, masked=True), x[:2]).tolist() == [[0, 1]]


def test_another_value_matrix_multiplies_the_lower_bound():
    for case in range(len(MATRICES)):
        A, V = MATRICES[case], normal(3, 2, seed=case)
        _, u = eigenvector(A)
        for s in (0.3, 3.0, 30.0):
            R = math.sqrt(s / growth_rate(A))
            measured = math.log(constant(A, V, *two_diracs(A, R)))
            assert measured >= mean_field_lower(A, R, log=True) + math.log((V @ u).norm().item())
