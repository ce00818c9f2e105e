"""Slopes of every layer of the growth atlas, of its controls, and of quantities that vary with them."""

import numpy as np
import pandas as pd

from lab import results
from lab.statistics.growth import slope

__all__ = [
    "CLOSE",
    "KEY",
    "against",
    "differences",
    "main_range",
    "named",
    "of_other_models",
    "rates",
    "stored",
    "summary",
]

KEY = ["map", "corpus", "case", "layer"]  # one series
CLOSE = 0.1  # slopes that differ by less count as close: 7 % an octave
TRAINED = {"MiniLM": 128, "MiniLM, masked": 128}  # longest texts in training, for models that read longer ones
SHARED = 512  # tokens up to which all texts and controls are measured
NAMES = {  # model, mask -> name for readers
    ("minilm", False): "MiniLM",
    ("minilm", True): "MiniLM, masked",
    ("gpt2-mini", True): "gpt2-mini",
    ("stories260K", True): "stories260K",
    ("smollm2", True): "SmolLM2",
    ("dinov2-small", False): "DINOv2",
    ("rxnmapper-albert", False): "ALBERT",
    ("gpt2", True): "random GPT-2",
}
CASES = {("text", False): "as read", ("shuffled", False): "shuffled", ("text", True): "random weights"}
ALONG = ("attention_norm", "column", "popular", "released", "relative", "radius")  # columns fitted besides the constant


def stored(prefix="atlas-"):
    """All stored tables of the book's atlas as one, with the columns `map` and `case` of `named`.

    Parameters
    ----------
    prefix : str
        Common prefix of the names of the tables.

    Returns
    -------
    DataFrame
        One row for each layer and window.

    Raises
    ------
    FileNotFoundError
        No table name begins with `prefix`; `python -m lab tables` makes the tables.

    Examples
    --------
    >>> sorted(set(stored().case))
    ['as read', 'random weights', 'shuffled']
    """
    names = [name for name in results.names() if name.startswith(prefix) and name in results.listed().index]
    if not names:
        raise FileNotFoundError(f"no table begins with {prefix}: `python -m lab tables atlas-minilm` makes one.")
    table = named(pd.concat([results.load(name) for name in names], ignore_index=True))
    known = {name: place for place, name in enumerate(NAMES.values())}  # others come last
    return table.sort_values(
        "map", key=lambda maps: maps.map(known).fillna(len(known)), kind="stable", ignore_index=True
    )


def of_other_models(claimed=0.25):
    """Summary of the models outside the book that `python -m lab tables --model NAME` has measured.

    Parameters
    ----------
    claimed : float
        A slope to compare the measured ones with.

    Returns
    -------
    DataFrame
        The columns of `summary`, with the name of the table as `map`; and released and sub-layer, the numbers of layers
        whose slope of the released quantity is within `CLOSE` of `claimed`, for attention without and with its
        sub-layer ("–" if not measured). Empty without such a table of two lengths with two windows each.
    """
    found = []
    for name in results.names():
        if not name.startswith("atlas-") or name in results.listed().index:
            continue
        of_model = name.removeprefix("atlas-")
        table = named(results.load(name)).assign(map=of_model)
        if min(table.length.nunique(), table.groupby([*KEY, "length"]).window.nunique().min()) < 2:
            continue  # no slope
        every = rates(table, along=("released",))
        own = _first(every[every.case == "as read"])
        line = summary(every, claimed).iloc[0].to_dict() | {"released": _near(own.released, claimed)}
        if (other := f"released-map-{of_model}") in results.names():
            sub = rates(results.load(other), along=("released",), key=["layer"])
            line["sub-layer"] = _near(sub.released, claimed)
        found.append({"sub-layer": "–"} | line)
    return pd.DataFrame(found)


def _near(slopes, claimed):
    return f"{(slopes - claimed).abs().le(CLOSE).sum()} of {len(slopes)}"


def named(table):
    """The table with columns `map`, the name for readers, and `case`: as read, shuffled or random weights."""
    maps = [
        NAMES.get((model, masked), f"{model}, masked" if masked else model)
        for model, masked in zip(table.model, table.masked, strict=True)
    ]
    cases = [CASES[order, weights == "random"] for order, weights in zip(table.order, table.weights, strict=True)]
    return table.assign(map=maps, case=cases)


def main_range(table):
    """Rows of the lengths at which layers are compared: those of all texts and controls, within the training length.

    Parameters
    ----------
    table : DataFrame
        From `stored`.

    Returns
    -------
    DataFrame
    """
    return table[table.length <= table["map"].map(TRAINED).fillna(SHARED)]


def rates(table, *, along=ALONG, key=KEY):
    """Slopes of every series of a table, by default of the atlas, with intervals.

    Parameters
    ----------
    table : DataFrame
        From `stored`, or rows of it; or another table of lengths and windows.
    along : sequence of str
        Positive columns whose slopes are fitted too.
    key : sequence of str
        Columns that identify a series.

    Returns
    -------
    DataFrame
        One row for each series, with the columns of its key: slope, low, high (of the constant, see
        `lab.statistics.growth.slope`), curve, shortest, longest (tokens), windows; and the slope of each column in
        `along`, under its name.
    """
    found = []
    for place, rows in table.groupby(list(key), sort=False):
        fit = slope(rows)
        line = dict(zip(key, place, strict=True)) | {"slope": fit.slope, "curve": fit.curve, "windows": fit.windows}
        line |= {"low": fit.interval[0], "high": fit.interval[1]}
        line |= {"shortest": int(fit.low), "longest": int(fit.high)}
        found.append(line | {name: slope(rows, name).slope for name in along})
    return pd.DataFrame(found)


def _first(rates):
    """Rows on the first text, or picture, of each map."""
    return rates[rates.corpus == rates.groupby("map").corpus.transform("first")]


def against(rates, claimed=0.25):
    """Position of the interval of each slope relative to the claimed one: "below", "contains" or "above"."""
    below, above = rates.high < claimed, rates.low > claimed
    return pd.Series(np.select([below, above], ["below", "above"], "contains"), index=rates.index)


def summary(rates, claimed=0.25):
    """One row for each map: the slopes of its layers on its first text, their positions, and both controls.

    Parameters
    ----------
    rates : DataFrame
        From `rates`.
    claimed : float
        A slope to compare the intervals with.

    Returns
    -------
    DataFrame
        Columns map, layers, shortest, longest, smallest, median, largest (slope of a layer), below, contains, above
        (layers whose interval lies so with respect to `claimed`), close (slopes within `CLOSE` of it), straight (layers
        not distinguished from a power law, flat ones included), and the medians of both controls, shuffled and random.
    """
    found, first = [], _first(rates)
    for name, rows in first.groupby("map", sort=False):
        cases = dict(iter(rows.groupby("case")))
        own = cases.get("as read", cases.get("random weights"))  # a model of random weights is its own control
        where = against(own, claimed).value_counts()
        line = {"map": name, "layers": len(own), "shortest": own.shortest.min(), "longest": own.longest.max()}
        line |= {"smallest": own.slope.min(), "median": own.slope.median(), "largest": own.slope.max()}
        line |= {verdict: int(where.get(verdict, 0)) for verdict in ("below", "contains", "above")}
        line |= {"close": int((own.slope - claimed).abs().le(CLOSE).sum())}
        line |= {"straight": int(own.curve.isin(["power law", "flat"]).sum())}
        for column, case in (("shuffled", "shuffled"), ("random", "random weights")):
            line[column] = cases[case].slope.median() if case in cases else np.nan
        found.append(line)
    return pd.DataFrame(found)


def differences(rates, limit):
    """Differences of slopes when one factor changes: order of tokens, text, picture, mask, depth, weights.

    Parameters
    ----------
    rates : DataFrame
        From `rates`, for rows with lengths that all texts have: windows of other lengths have other slopes.
    limit : float
        Larger differences are counted.

    Returns
    -------
    DataFrame
        One row for each change: changed, pairs (layers, or for depth models), median, largest, beyond (number above
        `limit`), all of the absolute difference, for texts, pictures and depth of the largest less the smallest slope;
        place, that of the largest; and each, all of them (ndarray).
    """
    from lipscan.models.demo.pictures import PICTURES  # only here: figures are drawn on machines without torch

    own = rates[rates.case == "as read"]
    first = _first(rates).set_index(["map", "layer"])
    cases = {case: rows.slope for case, rows in first.groupby("case")}
    masked = own["map"].str.endswith(", masked")
    pairs = own[masked].assign(map=own[masked]["map"].str.removesuffix(", masked")).set_index(KEY).slope
    texts = own.groupby(["map", "layer"])
    spread = texts.slope.agg(np.ptp)[texts.size() > 1]
    on_pictures = texts.corpus.first().isin(PICTURES)[spread.index]
    found = {
        "order of the tokens": (cases["as read"] - cases["shuffled"]).abs(),
        "text": spread[~on_pictures],
        "picture": spread[on_pictures],
        "mask": (pairs - own.set_index(KEY).slope).abs().droplevel(["corpus", "case"]),
        "depth": cases["as read"].groupby("map").agg(np.ptp),
        "weights": (cases["as read"] - cases["random weights"]).abs(),
    }
    lines = []
    for changed, sizes in found.items():
        sizes = sizes.dropna()
        if sizes.empty:
            continue
        place = sizes.idxmax()
        line = {"changed": changed, "pairs": len(sizes), "median": sizes.median(), "largest": sizes.max()}
        where = place if isinstance(place, str) else f"{place[0]}, layer {place[1]}"
        line |= {"beyond": int((sizes > limit).sum()), "place": where, "each": sizes.to_numpy()}
        lines.append(line)
    return pd.DataFrame(lines)
