"""How a quantity grows with the number of tokens: slopes, bends and their intervals, from a few windows a length.

The tables read here have one row for each series, length and window. Lengths are geometric or nearly so. At each length
the windows are drawn at random, without overlap within the length and independently of the other lengths: there is no
effect that all windows of one length share, so windows are what is resampled, and never lengths.

Every slope below is a weighted sum of the mean of log2 of the values at each length. Its interval is Student's with
Welch-Satterthwaite degrees of freedom, since the percentile bootstrap is too narrow with four to eight windows a
length: `lab.resampling` has the comparison. Intervals hold one at a time: of twenty octaves, one misses on average.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from lab.power_laws import SeveralSeries, one_series
from lab.resampling import intervals

__all__ = ["Forecast", "Growth", "forecast", "octaves", "pooled", "slope"]

# exponents that differ by less predict constants within 11 % an octave: the spread of windows is about as large
TOLERANCE = 0.15
# at most 7 % an octave, and a factor of two over ten octaves
FLAT = 0.1
# slopes of equal or exactly linear logarithms are that close to what they should be in floating point
ROUNDING = 1e-9


class Growth(NamedTuple):
    """How a quantity grows over a range of lengths, from `slope` or `pooled`.

    Attributes
    ----------
    slope : float
        Exponent over the whole range: least squares through the means of the logarithms, each length weighing the same.
    interval : tuple of float
        Confidence interval of the slope.
    curvature : float
        Change of the slope from one octave to the next: twice the coefficient of the square of log2 n in the
        least-squares parabola through the same means. NaN for two lengths.
    curvature_interval : tuple of float
        Confidence interval of the curvature.
    r2 : float
        Share of the variance of the means that the straight line explains; NaN if they are all equal.
    low, high : float
        Shortest and longest length.
    windows : int
        Fewest windows at a length.
    curve : str
        "power law", "flat", "bends up", "bends down", "irregular", or "undecided" for two lengths; see `slope`.
    confidence : float
        Level of the intervals.
    texts : int
        Number of texts.
    spread : float
        Largest less smallest slope of a text; NaN for one text.
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
    texts: int = 1
    spread: float = float("nan")

    def __str__(self):
        low, high = self.interval
        return (
            f"n^{self.slope:.3f} [{low:.3f}, {high:.3f}], {self.curve}, R^2 = {self.r2:.3f}, "
            f"n = {self.low:g} to {self.high:g}"
        )


class Forecast(NamedTuple):
    """Slopes predicted where they were held out, from `forecast`.

    Attributes
    ----------
    errors : DataFrame
        One row for each prediction: held_out ("half" or "group"), predictor ("features", "mean" or "permuted"), split,
        series (its label in the features), slope, predicted, error (predicted less slope).
    summary : DataFrame
        One row for each held_out and predictor: predictions (their number), median (of the absolute errors), within
        (share of absolute errors at most the one asked for).
    """

    errors: pd.DataFrame
    summary: pd.DataFrame


def octaves(table, column="lipschitz", *, texts=None, method="t", draws=2000, confidence=0.95, seed=0):
    """Exponents between consecutive lengths, with intervals.

    Parameters
    ----------
    table : DataFrame
        Rows of one series: columns length and `column`, at least two windows a length.
    column : str
        What grows; positive.
    texts : str, optional
        Column that tells texts apart, as "corpus", if there are several: slopes are then means over texts, and their
        intervals are those of `pooled`.
    method : str
        "t" (the default, for the reasons in `lab.resampling`), "studentised" or "percentile" bootstrap over windows.
    draws, seed : int
        Resamples of the bootstrap, and its seed; "t" needs neither.
    confidence : float
        Level of each interval, between 0 and 1.

    Returns
    -------
    DataFrame
        One row for each pair of consecutive lengths: low, high (the lengths), slope, and its interval, from and to.

    Raises
    ------
    SeveralSeries
        "octaves needs the rows of one series, ...", "a window stands twice at one length, ...".
    ValueError
        For a missing column, values that are not positive, one length, one window at a length, an unknown method.

    Examples
    --------
    >>> import pandas as pd
    >>> rows = [(n, w, n**0.5 * (1 + 0.01 * w)) for n in (16, 32, 64) for w in range(4)]
    >>> table = pd.DataFrame(rows, columns=["length", "window", "lipschitz"])
    >>> octaves(table).round(3)
       low  high  slope   from     to
    0   16    32    0.5  0.468  0.532
    1   32    64    0.5  0.468  0.532
    """
    lengths, samples = _logs(table, column, "octaves", texts)
    options = {"method": method, "draws": draws, "confidence": confidence, "seed": seed}
    each, ends = intervals(samples, _weights(lengths), **options)
    steps = lengths.size - 1
    found = {"low": lengths[:-1], "high": lengths[1:], "slope": each.mean(0)[:steps]}
    return pd.DataFrame(found | dict(zip(("from", "to"), ends[:steps].T, strict=True)))


def slope(table, column="lipschitz", *, method="t", draws=2000, confidence=0.95, seed=0):
    """The exponent over the whole range of lengths, the bend, and a word for the curve.

    The word is "bends up" or "bends down" if the interval of the curvature excludes 0 and the parabola's slope changes
    by more than `TOLERANCE` from the first octave to the last; else "irregular" if the interval of some octave's slope
    lies farther than `TOLERANCE` from the overall slope; else "flat" if the interval of the overall slope lies within
    `FLAT` of 0, and "power law" if not. "Power law" says that these windows do not tell the curve from one.

    Parameters
    ----------
    table, column, method, draws, confidence, seed
        As for `octaves`.

    Returns
    -------
    Growth
        With an interval each for slope and curvature.

    Raises
    ------
    SeveralSeries, ValueError
        As for `octaves`.

    Examples
    --------
    >>> import pandas as pd
    >>> rows = [(n, w, n**0.5 * (1 + 0.01 * w)) for n in (16, 32, 64, 128) for w in range(4)]
    >>> print(slope(pd.DataFrame(rows, columns=["length", "window", "lipschitz"])))
    n^0.500 [0.490, 0.510], power law, R^2 = 1.000, n = 16 to 128
    """
    return _growth(*_logs(table, column, "a slope", None), method=method, draws=draws, confidence=confidence, seed=seed)


def pooled(table, column="lipschitz", *, texts="corpus", method="t", draws=2000, confidence=0.95, seed=0):
    """The same for several texts of one model and layer: means over texts.

    Two or three texts are treated as fixed: only windows count as random, each within its text and length, and the
    interval is that of the mean slope of these very texts. It says nothing of others; `spread` shows how far these
    differ. From four texts on (`lab.resampling.SAMPLED`), texts count as drawn from many, and the interval is that of
    the mean slope over texts of their kind: Student's for the slopes of the texts, each of which also carries the noise
    of its windows, with one degree of freedom fewer than texts. It covers 92 to 97 % in simulations with four and six
    texts; the bootstrap of texts and of windows within them covers 80 to 98 % by percentiles, and 92 to 96 %
    studentised.

    Parameters
    ----------
    table, column, method, draws, confidence, seed
        As for `octaves`, with two texts or more that have the same lengths.
    texts : str
        Column that tells them apart.

    Returns
    -------
    Growth
        Slope, curvature and the slopes behind the word are means over texts.

    Raises
    ------
    SeveralSeries, ValueError
        As for `octaves`; also for one text, and for texts of different lengths.

    Examples
    --------
    >>> import pandas as pd
    >>> rows = [(t, n, w, n**p * (1 + 0.01 * w)) for t, p in (("alice", 0.4), ("news", 0.6))
    ...         for n in (16, 32, 64) for w in range(4)]
    >>> table = pd.DataFrame(rows, columns=["corpus", "length", "window", "lipschitz"])
    >>> growth = pooled(table)
    >>> print(growth, f"of {growth.texts} texts, spread {growth.spread:.1f}")
    n^0.500 [0.490, 0.510], power law, R^2 = 1.000, n = 16 to 64 of 2 texts, spread 0.2
    """
    lengths, samples = _logs(table, column, "a pooled slope", texts)
    if len(samples) < 2:
        raise ValueError(f"pooling needs two texts or more in the column {texts}, got {len(samples)}: use slope.")
    return _growth(lengths, samples, method=method, draws=draws, confidence=confidence, seed=seed)


def forecast(features, slopes, groups, *, layers=None, splits=200, within=0.05, seed=0):
    """How well slopes are predicted from features, on series that were held out.

    Ordinary least squares with an intercept is fitted to one part of the series and predicts the rest: over random
    halves, which split the layers of each group, and leaving out one group at a time. A feature that merely tells
    groups apart can do well on halves, and fails on groups. Two controls are predicted alongside: the mean slope of the
    fitted part, and the same fit with the rows of the features permuted among all series.

    Parameters
    ----------
    features : DataFrame, shape (series, features)
        Finite numbers.
    slopes : array_like, shape (series,)
        What is predicted. A Series must have the index of the features, as must groups and layers.
    groups : array_like, shape (series,)
        The model of each. With a single one, only halves are measured.
    layers : array_like, shape (series,), optional
        Rows of one group that agree here, as those of one layer on several texts, are held out together. By default
        each row stands for itself.
    splits : int
        Number of random halves, and of permutations.
    within : float
        Error that still counts as close.
    seed : int
        Of halves and permutations.

    Returns
    -------
    Forecast
        The errors one by one, and a summary. Errors of different splits are of the same series: they are not
        independent.

    Raises
    ------
    ValueError
        "... must be finite", "... must have the index of the features", "... features need at least ... series to fit".

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> norm = pd.DataFrame({"norm": np.linspace(0, 1, 12)})
    >>> found = forecast(norm, 0.1 + 0.5 * norm.norm, ["a", "b", "c"] * 4, splits=20)
    >>> found.summary.query("predictor == 'features'").within.tolist()
    [1.0, 1.0]
    """
    for name, given in {"slopes": slopes, "groups": groups, "layers": layers}.items():
        if given is not None and len(given) != len(features):
            raise ValueError(f"{name} must have one entry for each of the {len(features)} series, got {len(given)}.")
        if isinstance(given, pd.Series) and not given.index.equals(features.index):
            raise ValueError(f"{name} must have the index of the features: reindex or pass an array.")
    x, y = features.to_numpy(dtype=float), np.asarray(slopes, dtype=float)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("features and slopes must be finite: leave out the series where they are not.")
    if splits < 1:
        raise ValueError(f"splits must be at least 1, got {splits}.")
    groups = pd.factorize(np.asarray(groups))[0]
    layers = np.arange(y.size) if layers is None else pd.factorize(np.asarray(layers))[0]
    random, found = np.random.default_rng(seed), []
    for split in range(splits):
        shuffled = x[random.permutation(y.size)]
        folds = [("half", _half(groups, layers, random))]
        if groups.max() > 0:
            folds += [("group", groups == group) for group in range(groups.max() + 1)]
        for held_out, out in folds:
            predicted = {"permuted": _predict(shuffled, y, out)}
            if held_out == "half" or split == 0:  # a group left out is the same in every split
                predicted |= {"features": _predict(x, y, out), "mean": np.full(out.sum(), y[~out].mean())}
            found += [
                pd.DataFrame({"series": features.index[out], "slope": y[out], "predicted": values}).assign(
                    held_out=held_out, predictor=predictor, split=split
                )
                for predictor, values in predicted.items()
            ]
    errors = pd.concat(found, ignore_index=True)[["held_out", "predictor", "split", "series", "slope", "predicted"]]
    errors["error"] = errors.predicted - errors.slope
    size = errors.assign(size=errors.error.abs()).groupby(["held_out", "predictor"])["size"]
    summary = size.agg(predictions="size", median="median", within=lambda sizes: (sizes <= within).mean())
    return Forecast(errors, summary.reset_index())


def _half(groups, layers, random):
    """Which series are held out: all rows of every other layer of each group, the layers in random order."""
    out = np.zeros(groups.size, dtype=bool)
    for group in range(groups.max() + 1):
        units = random.permutation(np.unique(layers[groups == group]))
        held = units[: (units.size + random.integers(2)) // 2]  # of an odd number, half a layer more or less
        out |= (groups == group) & np.isin(layers, held)
    return out


def _predict(x, y, out):
    """What least squares, fitted to the series that are not held out, predicts for those that are."""
    if (~out).sum() < x.shape[1] + 2:
        raise ValueError(f"{x.shape[1]} features need at least {x.shape[1] + 2} series to fit, got {(~out).sum()}.")
    centre, scale = x[~out].mean(0), x[~out].std(0)  # so that lstsq drops no feature for its unit
    design = np.insert((x - centre) / np.where(scale > 0, scale, 1.0), 0, 1.0, axis=1)
    return design[out] @ np.linalg.lstsq(design[~out], y[~out], rcond=None)[0]


def _logs(table, column, what, texts):
    """Lengths in order, and log2 of the values: a list over texts of lists over lengths."""
    for name in ("length", column, *([texts] if texts else [])):
        if name not in table:
            raise ValueError(f"{what} needs the column {name}, and the table has {', '.join(map(str, table.columns))}.")
    one_series(table.drop(columns=texts) if texts else table, what)
    key = ["length", *([texts] if texts else [])]
    if "window" in table and table.duplicated([*key, "window"]).any():
        raise SeveralSeries(f"a window stands twice at one length, so {what} would mix series: select one.")
    values = table[column].to_numpy(dtype=float)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError(f"{what} needs positive finite values of {column}: leave out zeros, NaN and infinities.")
    lengths = np.unique(table.length)
    if lengths.size < 2 or lengths[0] <= 0:
        raise ValueError(f"{what} needs two positive lengths or more, got {', '.join(map(str, lengths)) or 'none'}.")
    samples = []
    for text in table[texts].unique() if texts else [None]:
        own = values, table.length.to_numpy()
        if texts:
            own = tuple(part[(table[texts] == text).to_numpy()] for part in own)
        if np.unique(own[1]).size < lengths.size:
            raise ValueError(
                f"{what} needs the same lengths of all texts, and {text} lacks some: keep the common ones."
            )
        samples.append([np.log2(own[0][own[1] == length]) for length in lengths])
    for length, *cells in zip(lengths, *samples, strict=True):
        if min(cell.size for cell in cells) < 2:
            raise ValueError(f"{what} needs two windows or more at each length, got one at {length}: leave it out.")
    return lengths, samples


def _weights(lengths):
    """What the mean logarithms weigh in the slope of each octave, in the overall one and in the curvature, as rows."""
    x = np.log2(lengths)
    steps = np.diff(np.eye(x.size), axis=0) / np.diff(x)[:, None]
    centred = x - x.mean()
    bend = 2 * np.linalg.pinv(np.vander(centred, 3))[0] if x.size > 2 else np.full(2, np.nan)
    return np.stack([*steps, centred / np.square(centred).sum(), bend])


def _growth(lengths, samples, **options):
    """What `slope` and `pooled` return."""
    each, ends = intervals(samples, _weights(lengths), **options)
    *steps, overall, curvature = map(float, each.mean(0))
    interval, bend = (tuple(map(float, pair)) for pair in ends[-2:])
    x, y = np.log2(lengths), np.mean([[cell.mean() for cell in text] for text in samples], axis=0)
    return Growth(
        overall,
        interval,
        curvature,
        bend,
        float(np.corrcoef(x, y)[0, 1] ** 2) if np.ptp(y) > ROUNDING else float("nan"),
        float(lengths[0]),
        float(lengths[-1]),
        min(cell.size for text in samples for cell in text),
        _curve(ends[: len(steps)], overall, interval, curvature, bend),
        options["confidence"],
        len(samples),
        float(np.ptp(each[:, -2])) if len(samples) > 1 else float("nan"),
    )


def _curve(steps, overall, interval, curvature, bend):
    """The word for a curve, from the intervals of its octaves, the overall slope and the curvature, with theirs."""
    if np.isnan(bend).any():
        return "undecided"
    if abs(curvature) * (len(steps) - 1) > TOLERANCE and (bend[0] > 0 or bend[1] < 0):
        return "bends up" if curvature > 0 else "bends down"
    if any(low > overall + TOLERANCE or high < overall - TOLERANCE for low, high in steps):
        return "irregular"
    return "flat" if -FLAT <= interval[0] and interval[1] <= FLAT else "power law"
