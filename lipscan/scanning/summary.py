"""Columns of a scan's tables in words, and its summary by layer and length."""

import numpy as np
import pandas as pd

from lipscan.recording.table import outward
from lipscan.scanning.catalogue import TITLES

__all__ = ["TITLES", "summarise"]

TABLES = ("scan", "heads", "tokens", "whole")  # in the folder of a scan, each TABLE.csv with TABLE.json

WINDOW = {
    "layer, length, window": "layer from 0, tokens n of the window, number of the window from 0",
    "self_check": "largest difference between our map of the layer and the network's, over its largest entry",
    "leak": "how far earlier outputs move when later tokens change: 0 under a causal mask; blank with one token",
    "passed": "whether both are as they should be; else nothing is measured",
    "radius, mean_radius": "norms of the tokens that are received: largest, and root mean square",
    "lipschitz": "local Lipschitz constant, from below: the largest singular value of the Jacobian",
    "relative": "lipschitz |x| / |f(x)|: the constant for changes in units of their tokens, so that layers compare",
    "typical": "how many times longer a small change in a random direction becomes: |J|_F / sqrt(n d), the root mean "
    "square over directions; from the worst one and 8 random ones: standard error about 1 % in trained models, where "
    "many directions count, and never above 25 %",
    "steepest_token, steepest_share": "place, from 0, of the token on which most of the worst small change (the top "
    "right singular vector) lies, and the share of its squared length there: 0.99 is nearly all of it",
    "residual, converged, steps": "of the singular pair (relative), whether the solver met --rtol, its products",
    "probable": "upper bound on the constant, which fails with probability 10^-6 over the solver's random start; "
    "rounded up",
    "route": "how products with the Jacobian were made",
    "column": "largest column sum of the attention matrix over heads: how much attention one token gets, at most n",
    "certified_lower, certified": "the constant lies between the two, proved, rounding included: they are "
    "rounded outward, down and up",
    "random": "lipschitz of random weights of the same shape, same tokens, first window",
    "shuffled": "lipschitz of the same weights on the tokens of the first window in random order",
    "log10_NAME": "logarithm to base 10 of the bound NAME, which the report explains",
}
SUMMARY = {
    "layer, length, windows": "one row for each layer and length, over so many windows",
    "measured": "in how many of them the constant could be measured; what could not is in the json files, under gaps",
    "lipschitz, low, high": "mean, least and largest constant of the windows",
    "passed, converged, route": "whether all windows passed, whether all converged, all routes",
    "relative, typical, column, mean_radius": "means over windows",
    "steepest_token, steepest_share": "of the first window that was measured",
    "self_check, leak, residual, radius": "largest over windows",
    "certified, certified_lower": "means of the windows that have them, rounded outward",
    "certified_over": "largest ratio certified / lipschitz, each of the same window; a plain ratio, rounded up",
    "certified_constant": "mean constant of those windows",
    "over_random, over_shuffled": "lipschitz over that of the baseline, both of the first window; plain ratios; one "
    "token has no order, and a constant of 0 no ratio",
    "over_NAME": "logarithm to base 10 of bound NAME / lipschitz, mean over windows: 2 means 100 times too high",
}
HEADS = {
    "layer, length, head": "at the first window of the shortest length, each head alone",
    "shares_keys_with": "number of the keys and values that the head reads; heads of one number share them",
    "lipschitz, relative, converged": "as above, of the head with its part of the output matrix",
}
TOKENS = {
    "layer, length, place, token": "at the first window of the shortest length: place from 0, and the token there",
    "written": "the same token as a reader would write it, in quotes: a space or the end of a line is seen",
    "radius": "norm of the token that the layer receives",
    "own": "norm of the block of the Jacobian from the token to its own output; this and the next four are blank where "
    "they would take too long by automatic differentiation",
    "moves, moves_most": "root of the sum of squared norms of the blocks to other outputs; place of the largest",
    "moved, moved_most_by": "the same for the blocks from other tokens to this output",
    "in_steepest, out_steepest": "norm here of the top singular vector of inputs, and of outputs",
}
WHOLE = {
    "part": "layer: with norms, residuals and MLP; layers, hidden, logits: the network from its first layer's input to "
    "what its last layer gives (where a norm follows), to its last hidden states, to its logits",
    "composed": "whether this is the layers one after another and no more: then their constants multiply to a bound",
    "layer, length": "at the first window of the shortest length; layer -1 for the network",
    "lipschitz, relative, residual, converged, steps": "as above, by automatic differentiation, to 0.1 %",
}
COLUMNS = {"scan.csv": WINDOW, "summary.csv": SUMMARY, "heads.csv": HEADS, "tokens.csv": TOKENS, "whole.csv": WHOLE}


def explained() -> str:
    """All columns of all tables, one or two lines each, for `lipnb scan --columns`."""
    return "\n\n".join(
        "\n".join([file, *(f"  {names}\n      {words}" for names, words in columns.items())])
        for file, columns in COLUMNS.items()
    )


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Summary of a scan, one row for each layer and length.

    Parameters
    ----------
    table : DataFrame
        One row for each window, from `lipnb.scan`.

    Returns
    -------
    DataFrame
        Columns as in summary.csv, explained in `COLUMNS`. The names look alike; only the columns of bounds are
        logarithms.
    """
    rows = []
    for (layer, length), group in table.groupby(["layer", "length"], sort=True):
        row = {
            "layer": layer,
            "length": length,
            "windows": len(group),
            "passed": bool(group.passed.all()),
            "self_check": group.self_check.max(),
            "leak": group.leak.max(),
            "radius": group.radius.max(),
            "mean_radius": group.mean_radius.mean(),
        }
        group = group[group.lipschitz.notna()]
        row["measured"] = len(group)
        if row["passed"] and len(group):
            constant = group.lipschitz
            positive = constant.where(constant > 0)  # 0 has no ratios
            row |= {
                "lipschitz": constant.mean(),
                "low": constant.min(),
                "high": constant.max(),
                "residual": group.residual.max(),
                "converged": bool(group.converged.all()),
                "route": " + ".join(sorted(set(group.route))),
                "relative": group.relative.mean(),
                "column": group.column.mean(),
                "certified": outward(group.certified.mean(), up=True),
                "certified_lower": outward(group.certified_lower.mean(), up=False),
                "certified_over": outward((group.certified / positive).max(), up=True),
                "certified_constant": constant[group.certified.notna()].mean(),
            }
            if "typical" in group:  # stored tables of 0.3 lack it
                first = group.loc[group.window.idxmin()]
                row |= {"typical": group.typical.mean(), "steepest_share": first.steepest_share}
                row["steepest_token"] = first.steepest_token
            for name in ("random", "shuffled"):
                if name in group and group[name].notna().any() and (name == "random" or length > 1):
                    row[f"over_{name}"] = (constant / group[name].where(group[name] > 0)).mean()
            for key in TITLES:
                if (column := f"log10_{key}") in group and group[column].notna().any():
                    row[f"over_{key}"] = (group[column] - np.log10(positive)).mean()
        rows.append(row)
    return pd.DataFrame(rows)


def measured(summary: pd.DataFrame) -> pd.DataFrame:
    """Rows of a summary that have a constant."""
    return summary[summary.passed & (summary.measured > 0)]


def first_window(table: pd.DataFrame) -> pd.DataFrame:
    """First window with a constant for each layer and length, with `low` and `high` over all windows."""
    good = table[table.passed & table.lipschitz.notna()].sort_values(["layer", "length", "window"])
    constants = good.groupby(["layer", "length"]).lipschitz
    good = good.assign(low=constants.transform("min"), high=constants.transform("max"))
    return good.drop_duplicates(["layer", "length"])


def closest(summary: pd.DataFrame) -> pd.DataFrame:
    """Closest bound in closed form for each row that has one: its `title`, and `over` as in summary.csv."""
    over = summary[[f"over_{key}" for key in TITLES if f"over_{key}" in summary]].dropna(how="all")
    if over.empty:
        return pd.DataFrame(columns=["title", "over"])
    titles = over.idxmin(axis=1).str.removeprefix("over_").map(TITLES)
    return pd.DataFrame({"title": titles, "over": over.min(axis=1)})
