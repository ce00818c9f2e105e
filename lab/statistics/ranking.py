"""Rank correlation of a known number with a later measurement: Spearman's, with clustered intervals.

Measurements on one window of a text, at every layer, are not independent, nor are those of one layer on every window.
Therefore whole windows and whole layers are resampled, never single points.
"""

from itertools import permutations

import numpy as np
import pandas as pd
from scipy.stats import rankdata, t

CONFIDENCE = 0.95


def spearman(a, b):
    """Spearman's rank correlation along the last axis; NaN if all entries of one are equal.

    `a`, `b` (..., n). Returns (...).
    """
    a, b = (rankdata(x, axis=-1) for x in np.broadcast_arrays(a, b))
    a, b = (x - x.mean(-1, keepdims=True) for x in (a, b))
    with np.errstate(invalid="ignore"):
        return (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))


def by_chance(count):
    """Half width of the smallest interval that contains 95 % of the correlations of random orders of `count` things.

    All orders of eight things or fewer, else 40,000 random ones.
    """
    if count <= 8:
        orders = np.array(list(permutations(range(count))))
    else:
        orders = np.random.default_rng(0).random((40_000, count))
    return float(np.quantile(np.abs(spearman(orders, np.arange(count))), CONFIDENCE, method="inverted_cdf"))


def holm(correlations, counts):
    """Probabilities of correlations at least as large in random orders, corrected for their number by Holm's method.

    `correlations`: Series, its first index level the name of a set of things. `counts`: how many things each set has.
    Returns a Series: below 0.05 are those that are beyond chance together, at 95 %. For eight things or fewer all
    orders are counted; for more the distribution is approximated by Student's.
    """
    found = correlations.copy()
    for name, size in dict(counts).items():
        rho = correlations[name].abs()
        if size <= 8:
            every = np.abs(spearman(np.array(list(permutations(range(size)))), np.arange(size)))
            chance = [(every >= one - 1e-9).mean() for one in rho]
        else:
            chance = 2 * t.sf(rho * np.sqrt((size - 2) / (1 - rho**2)), size - 2)
        found[name] = chance
    order = found.sort_values().index
    steps = found[order] * np.arange(len(found), 0, -1)
    return steps.cummax().clip(upper=1).reindex(found.index)


def of_layers(table, predictors, outcome, *, draws=1000, seed=0):
    """Rank correlation of each predictor with the outcome over the layers of one network, on geometric means.

    Texts are drawn with replacement, and windows within each; the layers are all layers of the network and stay fixed.

    `table`: columns layer, corpus, window, `outcome` and the predictors, all positive: one row for each layer and
    window. Returns index predictor; columns rho, low, high (95 % interval).
    """
    names = [*dict.fromkeys([*predictors, outcome])]
    wide = _wide(table, names)
    windows, rng = wide[outcome].columns, np.random.default_rng(seed)
    texts = list(windows.unique("corpus"))
    places = {text: np.flatnonzero(windows.get_level_values("corpus") == text) for text in texts}
    picked = rng.integers(len(texts), size=(draws, len(texts)))
    drawn = np.stack([np.concatenate([rng.choice(places[texts[i]], len(places[texts[i]])) for i in p]) for p in picked])
    means = {name: np.log(wide[name].to_numpy()) for name in names}
    again = {name: logs[:, drawn].mean(-1).T for name, logs in means.items()}
    return _said(
        {name: spearman(means[name].mean(1), means[outcome].mean(1)) for name in predictors},
        {name: spearman(again[name], again[outcome]) for name in predictors},
    )


def of_inputs(table, predictors, outcome, *, within=False, draws=1000, seed=0):
    """Rank correlation of each predictor over inputs across layers, models and texts, or within a layer.

    In every model, layers and the windows of each text are drawn with replacement: both are clusters.

    `table`: columns model, layer, corpus, window, `outcome` and the predictors: one row for each input; in a model
    every layer has the same windows. `within`: divide all by their mean over the windows of the same layer, so that
    only the text differs. Returns the same columns as `of_layers`.
    """
    names, rng = [*dict.fromkeys([*predictors, outcome])], np.random.default_rng(seed)
    if within:
        means = table.groupby(["model", "layer"])[names].transform("mean")
        table = table.assign(**(table[names] / means))
    parts, again = [], []
    for _, rows in table.groupby("model"):
        wide = _wide(rows, names)
        layers, windows = wide[outcome].shape
        texts = wide[outcome].columns.get_level_values("corpus")
        down = rng.integers(layers, size=(draws, layers))[:, :, None]
        across = np.empty((draws, windows), dtype=int)
        for text in texts.unique():
            places = np.flatnonzero(texts == text)
            across[:, places] = rng.choice(places, (draws, len(places)))
        parts.append({name: wide[name].to_numpy().ravel() for name in names})
        drawn = {name: wide[name].to_numpy()[down, across[:, None, :]] for name in names}
        again.append({name: values.reshape(draws, -1) for name, values in drawn.items()})
    parts, again = ({name: np.concatenate([p[name] for p in some], -1) for name in names} for some in (parts, again))
    return _said(
        {name: spearman(parts[name], parts[outcome]) for name in predictors},
        {name: spearman(again[name], again[outcome]) for name in predictors},
    )


def _wide(table, names):
    """One frame for each name: layers as rows, windows of texts as columns, without gaps or duplicates."""
    place = ["corpus", "window"]
    if table.duplicated(["layer", *place]).any() or len(table) != table.layer.nunique() * table.groupby(place).ngroups:
        raise ValueError("every layer must have each window once: choose the rows of one network and one kind.")
    return {name: table.pivot(index="layer", columns=place, values=name) for name in names}


def _said(found, drawn):
    ends = {name: np.nanquantile(rhos, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]) for name, rhos in drawn.items()}
    rows = {name: {"rho": float(rho), "low": ends[name][0], "high": ends[name][1]} for name, rho in found.items()}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("predictor")
