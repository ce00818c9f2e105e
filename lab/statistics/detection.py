"""What comparisons of two computations of a network find of planted faults, and how often clean runs set them off.

The rows are those of the tables `drift-power`, `drift-power-smollm2`, `drift-clean` and `drift-windows`.
"""

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from lipscan.drift.verdict import LEANS, SURE

SAME = ["model", "dtype"]  # clean runs that calibrate a method
METHODS = {  # name -> what is held against what
    "drift": "local error against its floor",
    "cosine": "cosine by layer, below 0.999",
    "close": "allclose by layer, usual tolerances",
    "twice": "largest difference by layer, above twice an own run's",
    "output": "relative difference of the output, above all clean runs",
}
FIRST = {"cosine": "cosine_layer", "close": "close_layer", "twice": "twice_layer"}  # the first layer that is wrong
DRAWS = 2000  # of the bootstrap


def judged(faults: pd.DataFrame, clean: pd.DataFrame) -> pd.DataFrame:
    """Faults with what each method says: columns `found` and `layer` of each, and `right half` of drift.

    The last method takes the largest difference of the clean runs of the same model and type as its threshold: no other
    without false alarms finds more. It names no layer.
    """
    runs = clean[clean.part == "run"]
    most = runs.groupby(SAME).final.max().rename("most")
    rows = faults.join(most, on=SAME)
    found = {"found drift": rows.verdict == "bug", "layer drift": rows.named_layer == rows.layer}
    for method, column in FIRST.items():
        found |= {f"found {method}": rows[column].notna(), f"layer {method}": rows[column] == rows.layer}
    found["found output"] = ~(rows.final <= rows.most)
    found["right half"] = (rows.named_part == rows.half) & found["layer drift"] & found["found drift"]
    found["layer drift"] &= found["found drift"]
    return rows.drop(columns="most").assign(**found)


def alarms(clean: pd.DataFrame) -> pd.DataFrame:
    """False alarms of each method among clean runs, see `rate`."""
    runs = clean[clean.part == "run"]
    called = {"drift": runs.verdict == "bug"} | {method: runs[column].notna() for method, column in FIRST.items()}
    return pd.DataFrame({method: rate(one) for method, one in called.items()}).T


def clean_layers(clean: pd.DataFrame) -> pd.DataFrame:
    """A row for each clean layer and window: whether any of its parts is called a fault, ``above``, or ``leaning``."""
    parts = clean[clean.part.isin(("layer", "attention", "mlp"))]
    tilt = (parts.signed - parts.floor_signed).abs()
    parts = parts.assign(above=parts.height > 1, leaning=tilt > (SURE * parts.signed_noise).clip(lower=LEANS))
    columns = ["above", "leaning"]
    return parts.groupby([*SAME, "run", "window", "layer"])[columns].any().reset_index()


def rate(hits: pd.Series) -> dict[str, float]:
    """True entries: their `count` of `n`, `share`, and its 95 % interval by Clopper and Pearson, `low` to `high`."""
    test = binomtest(int(hits.sum()), len(hits))
    return {"count": test.k, "n": test.n, "share": test.k / test.n} | _ends(*test.proportion_ci(0.95))


def share(rows: pd.DataFrame, column: str, seed: int = 0) -> dict[str, float]:
    """Share of rows in which a column is true, with a 95 % interval by a bootstrap that draws whole kinds of faults."""
    each = rows.groupby("kind")[column].agg(["sum", "count"]).to_numpy(float)
    drawn = np.random.default_rng(seed).integers(len(each), size=(DRAWS, len(each)))
    total = each[drawn].sum(axis=1)
    return {"share": rows[column].mean()} | _ends(*np.quantile(total[:, 0] / total[:, 1], [0.025, 0.975]))


def _ends(low, high):
    return {"low": float(low), "high": float(high)}


def over_windows(table: pd.DataFrame) -> pd.DataFrame:
    """What can be seen with more windows: a row for each model, type and number of windows.

    ``clean``: largest floors of a clean layer (median token), ``clean_other`` without the runs that round their sums in
    parts. ``seen``: the weakest of the planted strengths from which on all groups of windows are above ``clean``, and
    ``seen_other`` above ``clean_other``; NaN if none is.
    """
    lines = []
    for key, group in table.groupby([*SAME, "windows"], sort=False):
        line = dict(zip([*SAME, "windows"], key, strict=True))
        clean, faults = group[group.strength == 0], group[group.strength > 0]
        for name, rows in (("", clean), ("_other", clean[~clean.run.str.startswith("sums")])):
            top = rows.token_ratio.max()
            least = faults.groupby("strength").token_ratio.min().sort_index(ascending=False)
            seen = least[(least > top).cummin()]
            line |= {f"clean{name}": top, f"seen{name}": seen.index.min() if len(seen) else float("nan")}
        lines.append(line)
    return pd.DataFrame(lines)
