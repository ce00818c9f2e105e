"""Growth of a quantity with the number of tokens: slopes, bends and their intervals, from a few windows a length.

The tables read here have one row for each series, length and window. Lengths are geometric or nearly so. At each
length the windows are drawn at random, without overlap within the length and independently of the other lengths. All
windows of one length share no common effect, so windows are resampled, and never lengths.

Every slope below is a weighted sum of the mean of log2 of the values at each length. Its interval is Student's with
Welch-Satterthwaite degrees of freedom. With four to eight windows a length the percentile bootstrap is too narrow: for
slopes and bends over seven lengths it covers 83 to 93 % instead of 95 %, in simulations with normal, skewed
and heavy-tailed values whose spread is the same at all lengths or changes fivefold; Student's interval covers 92 to
97 % in them. `tests/lab/test_growth.py` repeats some of these cases. Each interval holds individually: of twenty
octaves, one misses on average.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from lab.statistics.power_laws import SeveralSeries, one_series

# exponents that differ by less predict constants within 11 % an octave: the spread of windows is about as large
TOLERANCE = 0.15
# at most 7 % an octave, and a factor of two over ten octaves
FLAT = 0.1
# in floating point, slopes of equal or exactly linear logarithms are that close to the exact value
ROUNDING = 1e-9


class Growth(NamedTuple):
    """Growth of a quantity over a range of lengths, from `slope`.

    `slope`: exponent over the whole range: least squares through the means of the logarithms, with equal weights for
    all lengths.
    `interval`: confidence interval of the slope.
    `curvature`: change of the slope from one octave to the next: twice the coefficient of the square of log2 n in the
      least-squares parabola through the same means. NaN for two lengths.
    `curvature_interval`: confidence interval of the curvature.
    `r2`: share of the variance of the means that the straight line explains; NaN if they are all equal.
    `low`, `high`: shortest and longest length.
    `windows`: fewest windows at a length.
    `curve`: "power law", "flat", "bends up", "bends down", "irregular", or "undecided" for two lengths; see `slope`.
    `confidence`: level of the intervals.
    """

    slope: float
    interval: tuple[float, float]
    curvature: float
    curvature_interval: tuple[float, float]
    r2: float
    low: float
    high: float
    windows: int
    curve: str
    confidence: float

    def __str__(self):
        low, high = self.interval
        return (
            f"n^{self.slope:.3f} [{low:.3f}, {high:.3f}], {self.curve}, R^2 = {self.r2:.3f}, "
            f"n = {self.low:g} to {self.high:g}"
        )


def octaves(table):
    """Exponents between consecutive lengths, with intervals.

    `table`: rows of one series: columns length and lipschitz, at least two windows a length. Returns one row for each
    pair of consecutive lengths: low, high (the lengths), slope, and its 95 % interval, from and to.
    """
    lengths, samples = _logs(table, "lipschitz", "octaves")
    sums, ends = intervals(samples, _weights(lengths))
    steps = lengths.size - 1
    found = {"low": lengths[:-1], "high": lengths[1:], "slope": sums[:steps]}
    return pd.DataFrame(found | dict(zip(("from", "to"), ends[:steps].T, strict=True)))


def slope(table, column="lipschitz", *, confidence=0.95):
    """The exponent over the whole range of lengths, the bend, and a word for the curve.

    The word is "bends up" or "bends down" if the interval of the curvature excludes 0 and the parabola's slope changes
    by more than `TOLERANCE` from the first octave to the last; else "irregular" if the interval of some octave's slope
    lies farther than `TOLERANCE` from the overall slope; else "flat" if the interval of the overall slope lies within
    `FLAT` of 0, and "power law" if not. "Power law" means that these windows do not distinguish the curve from one.

    `table`: as for `octaves`, with any positive `column`. `confidence`: level of the intervals, between 0
    and 1. Returns `Growth`: with an interval each for slope and curvature.
    """
    lengths, samples = _logs(table, column, "a slope")
    sums, ends = intervals(samples, _weights(lengths), confidence)
    *_, overall, curvature = map(float, sums)
    interval, bend = (tuple(map(float, pair)) for pair in ends[-2:])
    x, y = np.log2(lengths), [cell.mean() for cell in samples]
    return Growth(
        overall,
        interval,
        curvature,
        bend,
        float(np.corrcoef(x, y)[0, 1] ** 2) if np.ptp(y) > ROUNDING else float("nan"),
        float(lengths[0]),
        float(lengths[-1]),
        min(cell.size for cell in samples),
        _curve(ends[:-2], overall, interval, curvature, bend),
        confidence,
    )


def difference(first, second, column="lipschitz", *, confidence=0.95):
    """Difference of the overall slopes of two series, with Student's interval: their windows are independent.

    `first`, `second`: rows of one series each, of any lengths. Other arguments as for `slope`. Returns the difference,
    and lower and upper end.
    """
    lengths, samples = zip(*(_logs(table, column, "a difference of slopes") for table in (first, second)), strict=True)
    weights = [_weights(each)[-2] for each in lengths]
    sums, ends = intervals([*samples[0], *samples[1]], [[*weights[0], *-weights[1]]], confidence)
    return float(sums[0]), tuple(map(float, ends[0]))


def intervals(samples, weights, confidence=0.95):
    """Weighted sums of the means of a few values each, with Student's intervals (Welch, Satterthwaite).

    `samples`: the values of each group, two or more, independent. `weights` (sums, groups): weight of the mean of each
    group in each sum. `confidence`: level of each interval, between 0 and 1. Returns (sums,); (sums, 2): lower
    and upper ends.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}.")
    weights, sizes = np.asarray(weights, dtype=float), np.array([cell.size for cell in samples])
    errors = np.array([cell.var(ddof=1) for cell in samples]) / sizes
    sums, variance = weights @ [cell.mean() for cell in samples], np.square(weights) @ errors
    quartic = weights**4 @ (np.square(errors) / (sizes - 1))
    # without any spread the interval is a point, whatever the degrees of freedom
    freedom = np.maximum(np.square(variance) / np.maximum(quartic, np.finfo(float).tiny), 1.0)
    half = np.sqrt(variance) * stats.t.ppf((1 + confidence) / 2, freedom)
    return sums, np.stack([sums - half, sums + half], axis=1)


def _logs(table, column, what):
    """Lengths in order, and log2 of the values: a list over lengths."""
    for name in ("length", column):
        if name not in table:
            raise ValueError(f"{what} needs the column {name}, and the table has {', '.join(map(str, table.columns))}.")
    one_series(table, what)
    if "window" in table and table.duplicated(["length", "window"]).any():
        raise SeveralSeries(f"a window stands twice at one length, so {what} would mix series: select one.")
    values = table[column].to_numpy(dtype=float)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError(f"{what} needs positive finite values of {column}: leave out zeros, NaN and infinities.")
    lengths = np.unique(table.length)
    if lengths.size < 2 or lengths[0] <= 0:
        raise ValueError(f"{what} needs two positive lengths or more, got {', '.join(map(str, lengths)) or 'none'}.")
    samples = [np.log2(values[(table.length == length).to_numpy()]) for length in lengths]
    for length, cell in zip(lengths, samples, strict=True):
        if cell.size < 2:
            raise ValueError(f"{what} needs two windows or more at each length, got one at {length}: leave it out.")
    return lengths, samples


def _weights(lengths):
    """Weights of the mean logarithms in the slopes of octaves, the overall slope and the curvature, as rows."""
    x = np.log2(lengths)
    steps = np.diff(np.eye(x.size), axis=0) / np.diff(x)[:, None]
    centred = x - x.mean()
    bend = 2 * np.linalg.pinv(np.vander(centred, 3))[0] if x.size > 2 else np.full(2, np.nan)
    return np.stack([*steps, centred / np.square(centred).sum(), bend])


def _curve(steps, overall, interval, curvature, bend):
    """The word for a curve, from slopes and intervals of its octaves, the overall slope and the curvature."""
    if np.isnan(bend).any():
        return "undecided"
    if abs(curvature) * (len(steps) - 1) > TOLERANCE and (bend[0] > 0 or bend[1] < 0):
        return "bends up" if curvature > 0 else "bends down"
    if any(low > overall + TOLERANCE or high < overall - TOLERANCE for low, high in steps):
        return "irregular"
    return "flat" if -FLAT <= interval[0] and interval[1] <= FLAT else "power law"
