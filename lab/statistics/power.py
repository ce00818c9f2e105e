"""What comparisons of two computations of a network find of planted faults, and how often clean runs set them off.

The rows are those of the tables `drift-power`, `drift-power-smollm2` and `drift-clean`.
"""

import numpy as np
import pandas as pd
from scipy.stats import binomtest

METHODS = {  # name -> what is held against what
    "drift": "local error against its floor",
    "cosine": "cosine by layer, below 0.999",
    "close": "allclose by layer, usual tolerances",
    "twice": "largest difference by layer, above twice that of an own run",
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
    most = runs.groupby(["model", "dtype"]).final.max().rename("most")
    rows = faults.join(most, on=["model", "dtype"])
    found = {"found drift": rows.verdict == "bug", "layer drift": rows.named_layer == rows.layer}
    for method, column in FIRST.items():
        found |= {f"found {method}": rows[column].notna(), f"layer {method}": rows[column] == rows.layer}
    found["found output"] = ~(rows.final <= rows.most)
    found["right half"] = (rows.named_part == rows.half) & found["layer drift"] & found["found drift"]
    found["layer drift"] &= found["found drift"]
    return rows.drop(columns="most").assign(**found)


def alarms(clean: pd.DataFrame) -> pd.DataFrame:
    """False alarms of each method: `count` of `runs`, their `share`, and its 95 % interval (Clopper and Pearson)."""
    runs = clean[clean.part == "run"]
    called = {"drift": runs.verdict == "bug"} | {method: runs[column].notna() for method, column in FIRST.items()}
    rows = []
    for method, one in called.items():
        test = binomtest(int(one.sum()), len(one))
        low, high = test.proportion_ci(0.95)
        rows.append({"method": method, "count": test.k, "runs": test.n, "share": test.k / test.n} | ends(low, high))
    return pd.DataFrame(rows).set_index("method")


def share(rows: pd.DataFrame, column: str, seed: int = 0) -> dict[str, float]:
    """Share of rows in which a column is true, with a 95 % interval by a bootstrap that draws whole kinds of faults."""
    each = rows.groupby("kind")[column].agg(["sum", "count"]).to_numpy(float)
    drawn = np.random.default_rng(seed).integers(len(each), size=(DRAWS, len(each)))
    total = each[drawn].sum(axis=1)
    return {"share": rows[column].mean()} | ends(*np.quantile(total[:, 0] / total[:, 1], [0.025, 0.975]))


def ends(low: float, high: float) -> dict[str, float]:
    """The ends of an interval, by name."""
    return {"low": float(low), "high": float(high)}
