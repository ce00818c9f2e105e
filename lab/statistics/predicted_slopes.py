"""Prediction of the slopes of layers by other slopes: errors, correlations and held-out models.

Layers of one model are similar, so models are resampled; a map with and without a mask belongs to one model.
"""

import numpy as np
import pandas as pd

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
    """Mean slope of the neighbouring layers of each layer in its map: a control that uses the constants next to it."""
    layers = rates.sort_values("layer").groupby("map").slope
    return pd.concat([layers.shift(1), layers.shift(-1)], axis=1).mean(axis=1).reindex(rates.index)


def compared(rates, predictors, *, within=0.05, draws=2000, seed=0):
    """Errors of predictors that are columns of slopes, without any fit.

    `rates`: one row for each layer: columns map, slope and the predictors.
    `predictors`: columns; the errors of the others are compared with those of the first.
    `within`: error that counts as close.
    `draws`: resamplings of the models, for the intervals: their middle 95 %.
    Returns one row for each predictor: median, within (share), rmse, largest, mean (of the error: predicted less
      slope), correlation (NaN for a constant predictor) with its interval low to high, apart (correlation
      within maps: both less the mean of their map), and less (root mean square error less that of the first predictor),
      with less_low to less_high.
    """
    names, places = _models(rates)
    random = np.random.default_rng(seed)
    picks = [np.concatenate([places[i] for i in random.integers(len(names), size=len(names))]) for _ in range(draws)]
    y, found = rates.slope.to_numpy(), []
    values = {name: rates[name].to_numpy() for name in predictors}
    for name, x in values.items():
        error, first = x - y, values[predictors[0]] - y
        less = [_rms(error[pick]) - _rms(first[pick]) for pick in picks]
        centred = rates[[name, "slope"]] - rates.groupby("map")[[name, "slope"]].transform("mean")
        line = {"predictor": name, "median": np.median(abs(error)), "within": (abs(error) <= within).mean()}
        line |= {"rmse": _rms(error), "largest": abs(error).max(), "mean": error.mean()}
        line |= {"correlation": _correlation(x, y), "apart": _correlation(*centred.to_numpy().T)}
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


def _models(rates):
    """Names of the models, masked or not, and the positions of their rows."""
    model = rates["map"].str.removesuffix(", masked").to_numpy()
    names = list(dict.fromkeys(model))
    return names, [np.flatnonzero(model == name) for name in names]


def held_out(rates, predictors):
    """Root mean square errors on each map, from a line fitted to the layers of the other models; and on all maps.

    `rates`, `predictors`: as for `compared`. Returns index map, and "all"; columns layers, the predictors, and "mean
    slope" of the other models.
    """
    y, errors = rates.slope.to_numpy(), {name: np.empty(len(rates)) for name in (*predictors, "mean slope")}
    for place in _models(rates)[1]:
        rest = np.setdiff1d(np.arange(y.size), place)
        errors["mean slope"][place] = y[rest].mean() - y[place]
        for name in predictors:
            x = rates[name].to_numpy()
            errors[name][place] = np.polyval(np.polyfit(x[rest], y[rest], 1), x[place]) - y[place]
    table = pd.DataFrame(errors).assign(map=rates["map"].to_numpy())
    shown = table.groupby("map", sort=False).agg(_rms)
    shown.loc["all"] = table.drop(columns="map").agg(_rms)
    shown.insert(0, "layers", [*table.groupby("map", sort=False).size(), len(table)])
    return shown
