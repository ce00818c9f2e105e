"""Slopes of layers next to slopes that account for them: errors, correlations, and how curves bend.

Layers of one model are similar, so models are resampled; a map with and without a mask belongs to one model.
"""

import numpy as np
import pandas as pd

from lab.statistics.growth import octaves

KEY = ["model", "masked", "corpus", "layer", "length", "window", "text"]  # one window at one layer


def with_terms(measured, terms, also=()):
    """Rows of constants joined with the terms of the heads at the same windows.

    `measured`: rows of the atlas as read, see `lab.statistics.layer_growth.stored`, or ``interventions``.
    `terms`: ``head-terms``, or ``head-terms-changed``.
    `also`: columns that identify rows in addition to those of a window.
    Returns the rows of `measured` that occur in `terms`, with its columns value, key, query, one_head and bound, and
    `both`: the largest term of the values plus the largest of the keys.
    """
    columns = ["value", "key", "query", "one_head", "bound"]
    found = measured.merge(terms[[*KEY, *also, *columns]], on=[*KEY, *also], validate="one_to_one")
    if lost := len(terms) - len(found):
        raise ValueError(f"{lost} rows of the terms have no constant at the same window: make both tables again.")
    return found.assign(both=found.value + found.key)


def neighbours(rates):
    """Mean slope of the neighbouring layers of each layer on its text: a control that uses the constants next to it."""
    layers = rates.sort_values("layer").groupby(["map", "corpus"]).slope
    return pd.concat([layers.shift(1), layers.shift(-1)], axis=1).mean(axis=1).reindex(rates.index)


def bends(measured, along):
    """Slopes of octaves less their mean over the octaves of a layer: how its curve bends, without its level.

    `measured`: windows of layers: columns map, corpus, layer, length, window, lipschitz, and those of `along`.
    `along`: positive columns that bend too.
    Returns one row for each octave: map, corpus, layer, slope (of the constant) and the columns of `along`.
    """
    found = []
    for (name, corpus, layer), rows in measured.groupby(["map", "corpus", "layer"], sort=False):
        steps = pd.DataFrame({one: octaves(rows.assign(lipschitz=rows[one])).slope for one in ("lipschitz", *along)})
        found.append((steps - steps.mean()).assign(map=name, corpus=corpus, layer=layer))
    return pd.concat(found, ignore_index=True).rename(columns={"lipschitz": "slope"})


def compared(rates, predictors, *, together=None, draws=2000, seed=0):
    """Errors of predictors that are columns of slopes, without any fit.

    `rates`: one row for each layer, or octave: columns map, slope and the predictors.
    `predictors`: columns; the errors of the others are compared with those of the first.
    `together`: columns; rows that agree in all of them are resampled as one. By default those of one model, with a mask
      or without.
    `draws`: resamplings, for the intervals: their middle 95 %.
    Returns one row for each predictor: median, rmse, largest, mean (of the error: predicted less slope), correlation
      (NaN for a constant predictor) with its interval low to high, and less (root mean square error less that of the
      first predictor), with less_low to less_high.
    """
    places = _places(rates, together)
    random = np.random.default_rng(seed)
    picks = [np.concatenate([places[i] for i in random.integers(len(places), size=len(places))]) for _ in range(draws)]
    y, found = rates.slope.to_numpy(), []
    values = {name: rates[name].to_numpy() for name in predictors}
    for name, x in values.items():
        error, first = x - y, values[predictors[0]] - y
        less = [_rms(error[pick]) - _rms(first[pick]) for pick in picks]
        line = {"predictor": name, "median": np.median(abs(error)), "rmse": _rms(error)}
        line |= {"largest": abs(error).max(), "mean": error.mean(), "correlation": _correlation(x, y)}
        correlations = [_correlation(x[pick], y[pick]) for pick in picks]
        line |= dict(zip(("low", "high"), np.percentile(correlations, [2.5, 97.5]), strict=True))
        line |= {"less": _rms(error) - _rms(first)}
        line |= dict(zip(("less_low", "less_high"), np.percentile(less, [2.5, 97.5]), strict=True))
        found.append(line)
    return pd.DataFrame(found)


def _correlation(x, y):
    """Correlation; NaN if one of the two is constant."""
    return float(np.corrcoef(x, y)[0, 1]) if np.ptp(x) > 0 and np.ptp(y) > 0 else np.nan


def _rms(error):
    return float(np.sqrt(np.mean(np.square(error))))


def _places(rates, together):
    """Positions of the rows that are resampled as one, a list of arrays."""
    if together is None:
        labels = rates["map"].str.removesuffix(", masked")
    else:
        labels = rates.groupby(list(together), sort=False).ngroup()
    return [np.flatnonzero(labels == label) for label in labels.unique()]
