"""Power laws of a quantity in the sequence length."""

from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy import stats

SERIES = ("corpus", "order", "model", "weights", "masked", "layer", "object")  # rows that agree in these are one series


class SeveralSeries(ValueError):
    """Error for rows of several series where one series is required."""


class PowerLaw(NamedTuple):
    """A fit y = constant * x ** exponent.

    `constant`: value of the fitted law at x = 1. `exponent`: slope in log-log coordinates. `low`, `high`: confidence
    interval of the exponent. `confidence`: level of the interval. `points`: number of points fitted. `r2`: share of the
    variance of log y that the line explains.
    """

    constant: float
    exponent: float
    low: float
    high: float
    confidence: float
    points: int
    r2: float = float("nan")

    def __call__(self, x):
        """The fitted law at `x`."""
        return self.constant * np.asarray(x, dtype=float) ** self.exponent

    def __str__(self):
        return f"{self.constant:.3g} n^{self.exponent:.3f} [{self.low:.3f}, {self.high:.3f}]"


class Slope(NamedTuple):
    """The exponent between two values of x, from `local_slopes`."""

    low: float
    high: float
    exponent: float


def one_series(table, what="a fit", *, also=()):
    """The table, if all its rows belong to one series: one (corpus, order, model, weights, masked, layer, object).

    `table`: missing columns of `SERIES` are ignored. `what`: what needs one series, for the message. `also`: further
    columns that identify a series in this table, as ``head``. Returns the table; raises `SeveralSeries` otherwise.
    """
    mixed = {name: table[name].unique() for name in (*SERIES, *also) if name in table}
    mixed = {name: list(map(str, values)) for name, values in mixed.items() if len(values) > 1}
    if mixed:
        named = "; ".join(
            f"{name} {', '.join(values[:4])}{', ...' * (len(values) > 4)}" for name, values in mixed.items()
        )
        raise SeveralSeries(f"{what} needs the rows of one series, and these are of several ({named}): select one.")
    return table


def power_law(x, y, *, confidence=0.95, clusters=()):
    r"""Least-squares fit of :math:`\log y = \log c + p \log x`, with an interval for the exponent.

    `x`, `y` (points,): positive data, at least three points at two or more different `x`.
    `confidence`: level of the interval, between 0 and 1.
    `clusters` (points,): groupings within which points may depend on each other, as windows of a text and lengths.
      Without any, all points count as independent.
    Returns `PowerLaw`: without clusters the interval is Student's, for independent errors of equal spread in log-log
      coordinates. With them its variance is the largest of those clustered by each grouping, and by all of them
      (Cameron, Gelbach and Miller, 2011), with as many degrees of freedom as the grouping with the fewest groups has,
      less one. Both describe how well these points determine a line, not whether a line is the right curve.
    """
    x, y = np.asarray(x, dtype=float).ravel(), np.asarray(y, dtype=float).ravel()
    if x.shape != y.shape:
        raise ValueError(f"x and y must have as many entries, got {x.size} and {y.size}.")
    if x.size < 3 or np.unique(x).size < 2:
        raise ValueError("a power law needs at least three points at two different x.")
    if not (np.isfinite(x).all() and np.isfinite(y).all() and (x > 0).all() and (y > 0).all()):
        raise ValueError("a power law needs positive finite x and y: leave out zeros, NaN and infinities.")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}.")
    line = stats.linregress(np.log(x), np.log(y))
    error, freedom = line.stderr, x.size - 2
    if len(clusters):
        groups = [np.unique(np.asarray(labels).ravel(), return_inverse=True)[1].ravel() for labels in clusters]
        if any(labels.size != x.size or labels.max() < 1 for labels in groups):
            raise ValueError("clusters must have a label for each point, and two groups or more.")
        error = _clustered(np.log(x), np.log(y) - line.intercept - line.slope * np.log(x), groups)
        freedom = min(labels.max() for labels in groups)
    half = error * stats.t.ppf((1 + confidence) / 2, freedom)
    return PowerLaw(
        float(np.exp(line.intercept)),
        float(line.slope),
        float(line.slope - half),
        float(line.slope + half),
        confidence,
        x.size,
        float(line.rvalue**2),
    )


def _clustered(x, residual, groups):
    """Standard error of the slope if points of one group may depend on each other, for several groupings."""
    lever = (x - x.mean()) / np.square(x - x.mean()).sum()

    def variance(labels):
        count = labels.max() + 1
        sums = np.bincount(labels, lever * residual)
        return count / (count - 1) * (x.size - 1) / (x.size - 2) * np.square(sums).sum()

    alone = [variance(labels) for labels in groups]
    together = 0.0
    for size in range(1, len(groups) + 1):
        for chosen in combinations(groups, size):
            labels = np.unique(np.stack(chosen), axis=1, return_inverse=True)[1].ravel()
            together -= (-1) ** size * variance(labels)
    return max(*alone, together) ** 0.5


def rate(table, column="lipschitz", *, confidence=0.95):
    """Power law of a column of one series in the length, with an interval that respects windows and lengths.

    `table`: rows of one series: columns length and `column`; window if one length has several inputs.
    `confidence`: level of the interval. Returns `PowerLaw`: clustered by window and by length, if these repeat.
    """
    one_series(table)
    repeated = [name for name in ("window", "length") if name in table and 1 < table[name].nunique() < len(table)]
    return power_law(table.length, table[column], confidence=confidence, clusters=[table[name] for name in repeated])


def local_slopes(x, y, *, factor=2.0):
    """Exponents over consecutive spans of x, each from one end to `factor` times it, to test for a single power law.

    `x`, `y` (points,): as for `power_law`. `factor`: length of a span, above 1; 2 for octaves. A span that would end
    before the next x ends there. From the smallest x to the largest, without a gap.
    """
    x, y = np.asarray(x, dtype=float).ravel(), np.asarray(y, dtype=float).ravel()
    slopes, found = [], np.unique(x)
    while found.size > 1:
        end = found[max(1, np.searchsorted(found, found[0] * factor, side="right") - 1)]
        inside = (x >= found[0]) & (x <= end)
        line = stats.linregress(np.log(x[inside]), np.log(y[inside]))
        slopes.append(Slope(float(found[0]), float(end), float(line.slope)))
        found = found[found >= end]
    return slopes
