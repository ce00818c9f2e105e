"""Counts of layers whose constant grows like a claimed power of the number of tokens, for each group of inputs.

A slope is *near* the claimed exponent if it differs from it by at most `layer_growth.CLOSE`. A slope has an error, and
near the edge the count depends on it. So each count has an interval, from windows drawn again with replacement, and the
layers are also counted by their 95 % intervals: inside the band around the claimed exponent, outside it, or undecided.
"""

import numpy as np
import pandas as pd

from lab import results
from lab.statistics import layer_growth
from lab.statistics.layer_growth import CLOSE, SHARED

EXPONENTS = {"error_none": 0.0, "error_quarter": 0.25, "error_half": 0.5}
CLAIMED = 0.25
SERIES = ["map", "corpus", "layer"]
TEXTS = {"alice": "Alice", "ag_news": "AG News", "python_reference": "Python's reference"}
MADE = {
    "unseen-atlas-e5-small": "attention alone",
    "unseen-atlas-minilm-l3": "attention alone",
    "unseen-map": "sub-layer",
}
PARTS = (("paper-range",), tuple(MADE), ("sublayer-texts", "released-map"))


def near(slopes, claimed=CLAIMED):
    """Whether each slope is within `layer_growth.CLOSE` of the claimed exponent."""
    return (slopes - claimed).abs().le(CLOSE)


def counted(table, *, claimed=CLAIMED, draws=2000, seed=0):
    """Counts of the layers of a table of windows; every series of it counts as one layer.

    Parameters
    ----------
    table : DataFrame
        Columns model, map, corpus, layer, length, window, lipschitz and released: every series with the same windows at
        a length as the others of its model and corpus.
    claimed : float
        Exponent.
    draws : int
        Resamplings of the windows.
    seed : int
        Seed of the resamplings.

    Returns
    -------
    dict
        layers; weights, the number of different attention weights among them; near, with its interval near_low and
        near_high; inside, outside and undecided, by the intervals of single slopes; released, the number of layers
        whose released quantity is near, with its interval released_low and released_high; mean, the slope averaged over
        the layers of a map, then over maps; and for each exponent of `EXPONENTS` the mean distance of the slopes.
    """
    rates = layer_growth.rates(table, along=("released",), key=SERIES)
    low, high = claimed - CLOSE, claimed + CLOSE
    inside = int(((rates.low >= low) & (rates.high <= high)).sum())
    outside = int(((rates.low > high) | (rates.high < low)).sum())
    found = {"layers": len(rates), "weights": _weights(rates), "near": int(near(rates.slope, claimed).sum())}
    found |= {"inside": inside, "outside": outside, "undecided": len(rates) - inside - outside}
    found |= {"released": int(near(rates.released, claimed).sum())}
    for name, column in (("near", "lipschitz"), ("released", "released")):
        counts = _resampled(table, column, claimed, draws, seed)
        found |= dict(zip((f"{name}_low", f"{name}_high"), np.percentile(counts, [2.5, 97.5]).astype(int), strict=True))
    found["mean"] = rates.groupby(["map", "corpus"]).slope.mean().mean()
    return found | {name: (rates.slope - exponent).abs().mean() for name, exponent in EXPONENTS.items()}


def _weights(rates):
    """Number of different weights: a model with and without a mask is one, and ALBERT has one layer at all depths."""
    layers = rates.layer.where(rates["map"] != "ALBERT", 0)
    return len({*zip(rates["map"].str.removesuffix(", masked"), layers, strict=True)})


def _resampled(table, column, claimed, draws, seed):
    """Counts of near slopes (draws,), windows of a length drawn again, the same ones for all layers that read them."""
    random, total = np.random.default_rng(seed), np.zeros(draws, dtype=int)
    for _, rows in table.groupby(["model", "corpus"], sort=False):
        x = np.log2(np.unique(rows.length))
        slopes, at = 0.0, (x - x.mean()) / np.square(x - x.mean()).sum()
        for weight, (_, cell) in zip(at, rows.groupby("length"), strict=True):
            wide = np.log2(cell.pivot(index=["map", "layer"], columns="window", values=column).to_numpy())
            picks = random.integers(wide.shape[1], size=(draws, wide.shape[1]))
            slopes = slopes + weight * wide[:, picks].mean(-1)  # (layers, draws)
        total += (abs(slopes - claimed) <= CLOSE).sum(0)
    return total


def all_counts():
    """Counts for every group of inputs that the book measured, from the stored tables.

    Returns
    -------
    DataFrame
        One row for each group: key, its name; map, "attention alone" or "sub-layer"; inputs and tokens, in words; and
        the counts of `counted`.
    """
    found = []
    for key, what, inputs, table in _groups():
        lengths = sorted(table.length.unique())
        tokens = f"{lengths[0]} to {lengths[-1]}" + ", MiniLM to 128" * (key == "all-main")
        found.append({"key": key, "map": what, "inputs": inputs, "tokens": tokens} | counted(table))
    return pd.DataFrame(found)


def averages():
    """Mean exponent of attention alone by how layers, models and lengths are averaged.

    Returns
    -------
    DataFrame
        One row for each way: over, in words; and mean, of the means of maps where nothing else is said.
    """
    atlas = layer_growth.stored()
    every = atlas[(atlas.case == "as read") & (atlas.length <= SHARED)]
    own, texts = _first(every), layer_growth.main_range(every[every.corpus.isin(TEXTS)])
    unseen = layer_growth.named(_loaded(*MADE))
    alone = _first(unseen[unseen.what == "attention alone"])
    main = _slopes(layer_growth.main_range(own))
    maps, short = main.groupby("map").mean(), _slopes(own[own.length <= 128])
    weights = main.drop("MiniLM, masked")
    weights = pd.concat([weights.drop("ALBERT"), weights[["ALBERT"]].groupby("map").mean()])
    found = {
        "seven maps, main range": maps,
        "seven maps, 8 to 128 tokens": short.groupby("map").mean(),
        "seven maps, 8 to 512 tokens": _slopes(own).groupby("map").mean(),
        "seven maps, 128 to 512 tokens only": _slopes(own[own.length >= 128]).groupby("map").mean(),
        "six models, MiniLM without a mask only": maps.drop("MiniLM, masked"),
        "all layers": main,
        "all layers, 8 to 128 tokens": short,
        "different weights": weights,
        "nine maps: the two unseen models too": pd.concat([maps, _slopes(alone).groupby("map").mean()]),
    }
    for corpus, title in TEXTS.items():
        found[f"the five maps that read text, on {title}"] = (
            _slopes(texts[texts.corpus == corpus]).groupby("map").mean()
        )
    return pd.DataFrame({"over": [*found], "mean": [slopes.mean() for slopes in found.values()]})


def _slopes(table):
    """Slope of each series, indexed by its map."""
    return layer_growth.rates(table, along=(), key=SERIES).set_index("map").slope


def _groups():
    """Key, map, inputs in words, and rows of every group."""
    atlas = layer_growth.stored()
    own = atlas[(atlas.case == "as read") & (atlas.length <= SHARED)]
    texts = own[own.model == "minilm"]
    own, untrained = _first(own), atlas[(atlas["map"] == "random GPT-2") & (atlas.corpus == "alice")]
    paper, unseen, maps = (layer_growth.named(_loaded(*names)) for names in PARTS)
    short = {"128": 128, "512": SHARED}
    alone, sub, first = "attention alone", "sub-layer", "all trained layers, first input of each"
    yield "all-main", alone, first, layer_growth.main_range(own)
    for name, most in short.items():
        yield f"all-{name}", alone, first, own[own.length <= most]
    yield "paper-all", alone, "all that read texts or reactions", _first(paper)
    for corpus, title in TEXTS.items():
        for name, most in short.items():
            rows = texts[(texts.corpus == corpus) & (texts.length <= most)]
            yield f"minilm-{corpus}-{name}", alone, f"MiniLM, with and without a mask, {title}", rows
    for corpus in ("alice", "ag_news"):
        rows = paper[(paper.model == "minilm") & (paper.corpus == corpus)]
        yield f"paper-minilm-{corpus}", alone, f"MiniLM, with and without a mask, {TEXTS[corpus]}", rows
    yield "others-main", alone, "the other models", layer_growth.main_range(own[own.model != "minilm"])
    yield "random-gpt2", alone, "random GPT-2, Alice", untrained
    first_sub, news = _first(maps), maps[maps.model == "minilm"]
    for name, most in short.items():
        rows = first_sub[first_sub.length <= most]
        yield f"last-{name}", sub, "norm last, as in BERT: MiniLM, ALBERT", rows[~rows.pre_norm]
        yield f"first-{name}", sub, "norm first: the other models", rows[rows.pre_norm]
    for corpus, title in TEXTS.items():
        for name, most in short.items():
            rows = news[(news.corpus == corpus) & (news.length <= most)]
            yield f"sub-minilm-{corpus}-{name}", sub, f"MiniLM, with and without a mask, {title}", rows
    for model in ("e5-small", "minilm-l3"):
        for corpus in ("alice", "ag_news"):
            for what in (alone, sub):
                rows = unseen[(unseen.model == model) & (unseen.corpus == corpus) & (unseen.what == what)]
                place = "sub-" * (what == sub) + f"{model}-{corpus}"
                yield place, what, f"{model}, chosen and thresholds set beforehand, {TEXTS[corpus]}", rows


def _loaded(*names):
    """Stored tables as one, without controls; of a sub-layer in two tables, the rows of the first."""
    tables = [results.load(name).assign(what=MADE.get(name)) for name in names]
    if names == PARTS[2]:
        tables[1] = tables[1][tables[1].pre_norm]
    table = pd.concat(tables, ignore_index=True)
    return table[(table.order == "text") & (table.weights != "random")]


def _first(table):
    """Rows on the first text, or picture, of each map."""
    return table[table.corpus == table.groupby("map").corpus.transform("first")]
