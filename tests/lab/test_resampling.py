"""Intervals from a few windows: they cover as often as they say, and the percentile bootstrap does not."""

import doctest

import numpy as np
import pytest
from scipy import stats

from lab import resampling

LENGTHS = 7
X = np.arange(LENGTHS) - (LENGTHS - 1) / 2
SUMS = np.stack(
    [np.eye(LENGTHS)[1] - np.eye(LENGTHS)[0], X / np.square(X).sum(), 2 * np.linalg.pinv(np.vander(X, 3))[0]]
)
# how often chance alone leaves the bounds: in one of a million runs, were the seed not fixed
CHANCE = 1e-6


def noise(random, shape, kind):
    """Noise of mean 0 for each length (last axis but one) and window."""
    if kind == "normal":
        return random.standard_normal(shape)
    return (random.gamma(2.0, size=shape) - 2) * np.linspace(1, 0.2, shape[-2])[:, None]


def covered(made, truth=0.0, block=50, **options):
    """How often the interval of each sum contains the truth, over these samples."""
    ends, weights = [], np.kron(np.eye(block), SUMS)  # a block of experiments at once: sums over groups of their own
    for start in range(0, len(made), block):
        texts = [[cell for cells in text for cell in cells] for text in zip(*made[start : start + block], strict=True)]
        ends.append(resampling.intervals(texts, weights, **options)[1].reshape(block, len(SUMS), 2))
    ends = np.concatenate(ends)
    return ((ends[..., 0] <= truth) & (truth <= ends[..., 1])).mean(0)


def between(share, count, low, high):
    """Whether a measured share is compatible with a true one in [low, high]."""
    ends = stats.binom.ppf(CHANCE / 2, count, low), stats.binom.isf(CHANCE / 2, count, high)
    return (ends[0] <= share * count).all() and (share * count <= ends[1]).all()


def test_examples_hold():
    found = doctest.testmod(resampling)
    assert found.failed == 0 and found.attempted


@pytest.mark.parametrize("windows", [4, 8])
@pytest.mark.parametrize("kind", ["normal", "skewed, its spread falling"])
def test_students_interval_covers_with_few_windows(kind, windows):
    random = np.random.default_rng(windows)
    made = [[list(noise(random, (LENGTHS, windows), kind))] for _ in range(2000)]
    assert between(covered(made), len(made), 0.93, 0.975)
    assert between(covered(made, confidence=0.8), len(made), 0.77, 0.84)


def test_of_the_bootstraps_the_studentised_one_covers_and_the_percentiles_do_not():
    random = np.random.default_rng(1)
    made = [[list(noise(random, (LENGTHS, 4), "normal"))] for _ in range(400)]
    assert between(covered(made, method="studentised", draws=400), len(made), 0.94, 0.975)
    assert not between(covered(made, method="percentile", draws=400)[:1], len(made), 0.95, 1)
    assert between(covered(made, method="percentile", draws=400), len(made), 0.83, 0.91)


@pytest.mark.parametrize("texts", [3, 4])
def test_few_texts_are_fixed_and_several_are_drawn(texts):
    random = np.random.default_rng(texts)
    made, fixed = [], 2.0 * np.arange(texts)  # slopes of texts, which differ by more than their windows
    for _ in range(1000):
        drawn = (
            random.permutation(fixed)
            if texts < resampling.SAMPLED
            else fixed.mean() + 2 * random.standard_normal(texts)
        )
        made.append([list(slope * X[:, None] + noise(random, (LENGTHS, 4), "normal")) for slope in drawn])
    share = covered(made, fixed.mean())[1]
    assert between(share, len(made), 0.94, 0.975)
    if texts == resampling.SAMPLED:  # windows alone would miss how the texts differ
        assert covered([samples[:3] for samples in made], fixed.mean())[1] < 0.6


def test_texts_and_their_windows_are_both_resampled():
    random = np.random.default_rng(0)
    samples = [list(3 * text * X[:, None] + noise(random, (LENGTHS, 6), "normal")) for text in range(5)]
    each, student = resampling.intervals(samples, SUMS)
    assert each[:, 1] == pytest.approx([X @ np.mean(text, axis=1) / np.square(X).sum() for text in samples])
    half = stats.t.ppf(0.975, 4) * each[:, 1].std(ddof=1) / 5**0.5
    assert student[1] == pytest.approx(each[:, 1].mean() + half * np.array([-1, 1]))
    for method in ("studentised", "percentile"):
        ends = resampling.intervals(samples, SUMS, method=method)[1]
        assert (ends[:, 0] < each.mean(0)).all() and (each.mean(0) < ends[:, 1]).all()
        again = resampling.intervals(samples, SUMS, method=method)[1]
        assert np.array_equal(ends, again)
        assert not np.array_equal(ends, resampling.intervals(samples, SUMS, method=method, seed=1)[1])
    # the spread of slopes resampled with their texts: between texts, and of windows within each
    level = 2 * stats.norm.cdf(1) - 1
    wide = np.ptp(resampling.intervals(samples, SUMS, method="percentile", draws=20000, confidence=level)[1][0]) / 2
    within = np.mean([sum(np.var(text[at]) / 6 for at in (0, 1)) for text in samples])
    assert wide == pytest.approx(((each[:, 0].var() + within) / 5) ** 0.5, rel=0.05)


def test_two_groups_are_those_of_welch():
    random = np.random.default_rng(2)
    first, second = random.standard_normal(4), 3 * random.standard_normal(9) + 1
    known = stats.ttest_ind(second, first, equal_var=False).confidence_interval(0.9)
    ends = resampling.intervals([[first, second]], [[-1, 1]], confidence=0.9)[1]
    assert ends[0] == pytest.approx([known.low, known.high])


@pytest.mark.parametrize("method", resampling.METHODS)
@pytest.mark.parametrize("texts", [1, 2, 4])
def test_equal_values_leave_a_point(method, texts):
    each, ends = resampling.intervals([[np.full(4, 0.1)] * LENGTHS] * texts, SUMS, method=method, draws=50)
    assert np.abs(each).max() < 1e-12 and np.abs(ends).max() < 1e-12


def test_bad_input():
    samples = [[np.arange(3.0), np.arange(4.0)]]
    with pytest.raises(ValueError, match="method must be one of t, studentised, percentile, got 'normal'"):
        resampling.intervals(samples, [[-1, 1]], method="normal")
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1"):
        resampling.intervals(samples, [[-1, 1]], confidence=95)
    with pytest.raises(ValueError, match="draws be positive"):
        resampling.intervals(samples, [[-1, 1]], draws=0)
