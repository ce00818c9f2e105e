"""Growth with length: planted slopes and bends, the words for curves, intervals."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lab.statistics import growth, power_laws

LENGTHS = (16, 32, 64, 128, 256)


def table(logs, spread=0.01, windows=5, lengths=LENGTHS, **series):
    """Windows whose log2 have exactly these means, and a spread that is the same at every length."""
    offsets = spread * np.linspace(-1, 1, windows)
    rows = [
        (n, w, 2 ** (log + offset)) for n, log in zip(lengths, logs, strict=True) for w, offset in enumerate(offsets)
    ]
    return pd.DataFrame(rows, columns=["length", "window", "lipschitz"]).assign(**series)


X = np.log2(LENGTHS)
MID = X - X.mean()


def test_planted_slopes_and_bends_are_found():
    fit = growth.slope(table(1 + 0.4 * MID + 0.03 * MID**2))
    assert fit.slope == pytest.approx(0.4) and fit.curvature == pytest.approx(0.06)
    assert fit.interval[0] < 0.4 < fit.interval[1] and fit.curvature_interval[0] < 0.06 < fit.curvature_interval[1]
    assert (fit.low, fit.high, fit.windows) == (16, 256, 5)
    steps = growth.octaves(table(1 + 0.4 * MID + 0.03 * MID**2))
    assert steps.slope.diff()[1:].tolist() == pytest.approx([0.06] * 3)  # the slope changes by the curvature an octave
    assert steps.low.tolist() == [16, 32, 64, 128] and steps.high.tolist() == [32, 64, 128, 256]
    assert ((steps["from"] < steps.slope) & (steps.slope < steps["to"])).all()
    line = power_laws.power_law(LENGTHS, 2 ** (0.4 * MID + 0.03 * MID**2))
    assert fit.r2 == pytest.approx(line.r2) and fit.slope == pytest.approx(line.exponent)


def wobble(size):
    """A deviation of the last octave but one and its neighbours that has neither slope nor curvature."""
    basis = np.vander(MID, 3)
    bump = np.eye(5)[2] - basis @ np.linalg.lstsq(basis, np.eye(5)[2], rcond=None)[0]
    return size * bump / np.abs(np.diff(bump)).max()


@pytest.mark.parametrize(
    ("logs", "spread", "word"),
    [
        (0.5 * MID + wobble(growth.TOLERANCE - 0.001), 0.01, "power law"),
        (0.5 * MID + wobble(growth.TOLERANCE + 0.05), 0.01, "irregular"),
        (0.5 * MID + wobble(growth.TOLERANCE + 0.05), 0.5, "power law"),  # the same octave, lost in the windows
        (0.5 * MID + 0.026 * MID**2, 0.001, "bends up"),  # from the first octave to the last: three times twice that
        (0.5 * MID - 0.026 * MID**2, 0.001, "bends down"),
        (0.5 * MID + 0.024 * MID**2, 0.001, "power law"),  # a bend within the tolerance
        (0.5 * MID + 0.026 * MID**2, 0.5, "power law"),  # the bend, lost in the windows
        ((growth.FLAT - 0.001) * MID, 0.0, "flat"),
        ((growth.FLAT + 0.001) * MID, 0.0, "power law"),
        ((0.001 - growth.FLAT) * MID, 0.0, "flat"),
        (-(growth.FLAT + 0.001) * MID, 0.0, "power law"),
        (0 * MID, 0.5, "power law"),  # the interval leaves the band
        (0 * MID + wobble(growth.TOLERANCE + 0.05), 0.01, "irregular"),
    ],
)
def test_the_word_for_a_curve(logs, spread, word):
    assert growth.slope(table(logs, spread)).curve == word


def test_a_constant_series_is_flat():
    for value in (0.1, 3.0, 1e-9):
        fit = growth.slope(table(0 * MID).assign(lipschitz=value))
        assert fit.curve == "flat" and abs(fit.slope) < 1e-9 and abs(fit.curvature) < 1e-9 and np.isnan(fit.r2)
        assert np.abs([*fit.interval, *fit.curvature_interval]).max() < 1e-9


def test_two_lengths_have_a_slope_and_no_bend():
    rows = table([1, 1.5], lengths=(32, 64))
    fit = growth.slope(rows)
    assert fit.slope == pytest.approx(0.5) and np.isnan([fit.curvature, *fit.curvature_interval]).all()
    assert fit.curve == "undecided" and len(growth.octaves(rows)) == 1 and fit.r2 == pytest.approx(1)


SEVEN = 7
STEPS = np.arange(SEVEN) - (SEVEN - 1) / 2
SUMS = np.stack(
    [np.eye(SEVEN)[1] - np.eye(SEVEN)[0], STEPS / np.square(STEPS).sum(), 2 * np.linalg.pinv(np.vander(STEPS, 3))[0]]
)
# how often chance alone leaves the bounds: in one of a million runs, were the seed not fixed
CHANCE = 1e-6


def noise(random, shape, kind):
    """Noise of mean 0 for each length (last axis but one) and window."""
    if kind == "normal":
        return random.standard_normal(shape)
    return (random.gamma(2.0, size=shape) - 2) * np.linspace(1, 0.2, shape[-2])[:, None]


def covered(made, **options):
    """How often the interval of each sum contains 0, the truth, over these samples."""
    ends = np.stack([growth.intervals(samples, SUMS, **options)[1] for samples in made])
    return ((ends[..., 0] <= 0) & (ends[..., 1] >= 0)).mean(0)


def between(share, count, low, high):
    """Whether a measured share is compatible with a true one in [low, high]."""
    ends = stats.binom.ppf(CHANCE / 2, count, low), stats.binom.isf(CHANCE / 2, count, high)
    return (ends[0] <= share * count).all() and (share * count <= ends[1]).all()


@pytest.mark.parametrize("windows", [4, 8])
@pytest.mark.parametrize("kind", ["normal", "skewed, its spread falling"])
def test_students_interval_covers_with_few_windows(kind, windows):
    random = np.random.default_rng(windows)
    made = [list(noise(random, (SEVEN, windows), kind)) for _ in range(2000)]
    assert between(covered(made), len(made), 0.93, 0.975)
    assert between(covered(made, confidence=0.8), len(made), 0.77, 0.84)


def test_two_groups_are_those_of_welch():
    random = np.random.default_rng(2)
    first, second = random.standard_normal(4), 3 * random.standard_normal(9) + 1
    known = stats.ttest_ind(second, first, equal_var=False).confidence_interval(0.9)
    ends = growth.intervals([first, second], [[-1, 1]], 0.9)[1]
    assert ends[0] == pytest.approx([known.low, known.high])


def test_the_difference_of_slopes_is_that_of_welch():
    """Over one octave, from one unit to two: the slopes are differences of means, and two of them are four groups."""
    random = np.random.default_rng(3)
    tables = [
        pd.DataFrame([(n, w, 2 ** random.normal()) for n in (8, 16) for w in range(5 + 3 * i)],
                     columns=["length", "window", "lipschitz"])
        for i in range(2)
    ]  # fmt: skip
    logs = [np.log2(table.lipschitz[table.length == n]) for table in tables for n in (8, 16)]
    errors = np.array([one.var(ddof=1) / one.size for one in logs])
    freedom = errors.sum() ** 2 / (errors**2 / [one.size - 1 for one in logs]).sum()
    value, ends = growth.difference(*tables)
    assert value == pytest.approx(logs[1].mean() - logs[0].mean() - logs[3].mean() + logs[2].mean())
    half = stats.t.ppf(0.975, freedom) * errors.sum() ** 0.5
    assert ends == pytest.approx((value - half, value + half))
    # other lengths on either side have weights of their own
    longer = tables[1].assign(length=8 * tables[1].length)
    assert growth.difference(tables[0], longer) == (pytest.approx(value), pytest.approx(ends))
