"""Columns of a scan's tables in words, its summary by layer and length, and the comparison of two scans."""

from typing import Any

import numpy as np
import pandas as pd

from lipscan.scanning.catalogue import TITLES
from lipscan.scanning.fmt import factor, many, short
from lipscan.scanning.options import in_words

__all__ = ["TITLES", "compare", "summarise"]

TABLES = ("scan", "heads", "tokens", "whole")  # in the folder of a scan, each TABLE.csv with TABLE.json
SAME = ("text_sha256", "special", "windows", "object", "seed", "masked")  # what must be equal, or nothing is compared
ROUNDING = 1e-6  # of a constant in float32, relative; added to what the solver leaves open

WINDOW = {
    "layer, length, window": "layer from 0, tokens n of the window, number of the window from 0",
    "self_check": "largest difference between our map of the layer and the network's, over its largest entry",
    "leak": "how far earlier outputs move when later tokens change: 0 under a causal mask; blank with one token",
    "passed": "whether both are as they should be; else nothing is measured",
    "radius, mean_radius": "norms of the tokens that are received: largest, and root mean square",
    "lipschitz": "local Lipschitz constant, from below: the largest singular value of the Jacobian",
    "relative": "lipschitz |x| / |f(x)|: the constant for changes in units of their tokens, so that layers compare",
    "residual, converged, steps": "of the singular pair (relative), whether the solver met --rtol, its products",
    "probable": "upper bound on the constant, which fails with probability 10^-6 over the solver's random start",
    "route": "how products with the Jacobian were made",
    "column": "largest column sum of the attention matrix over heads: how much attention one token gets, at most n",
    "certified_lower, certified": "the constant lies between the two, proved, rounding included",
    "random": "lipschitz of random weights of the same shape, same tokens, first window",
    "shuffled": "lipschitz of the same weights on the tokens of the first window in random order",
    "log10_NAME": "logarithm to base 10 of the bound NAME, which the report explains",
}
SUMMARY = {
    "layer, length, windows": "one row for each layer and length, over so many windows",
    "measured": "in how many of them the constant could be measured; what could not is in the json files, under gaps",
    "lipschitz, low, high": "mean, least and largest constant of the windows",
    "passed, converged, route": "whether all windows passed, whether all converged, all routes",
    "relative, column, mean_radius": "means over windows",
    "self_check, leak, residual, radius": "largest over windows",
    "certified, certified_lower": "means of the windows that have them",
    "certified_over": "largest ratio certified / lipschitz, each of the same window; a plain ratio",
    "certified_constant": "mean constant of those windows",
    "over_random, over_shuffled": "lipschitz over that of the baseline, both of the first window; plain ratios",
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
        Its columns are explained in `COLUMNS`, those of summary.csv. The names look alike; only those of bounds are
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
            row |= {
                "lipschitz": constant.mean(),
                "low": constant.min(),
                "high": constant.max(),
                "residual": group.residual.max(),
                "converged": bool(group.converged.all()),
                "route": " + ".join(sorted(set(group.route))),
                "relative": group.relative.mean(),
                "column": group.column.mean(),
                "certified": group.certified.mean(),
                "certified_lower": group.certified_lower.mean(),
                "certified_over": (group.certified / constant).max(),
                "certified_constant": constant[group.certified.notna()].mean(),
            }
            for name in ("random", "shuffled"):
                if name in group and group[name].notna().any():
                    row[f"over_{name}"] = (constant / group[name]).mean()
            for key in TITLES:
                if (column := f"log10_{key}") in group and group[column].notna().any():
                    row[f"over_{key}"] = (group[column] - np.log10(constant)).mean()
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


def compare(before: Any, after: Any) -> pd.DataFrame:
    """Comparison of the constants of two scans on the same windows, up to the tolerance of the solver.

    Parameters
    ----------
    before, after : Scan
        Of the same text, windows, mask and object, with layers and lengths in common.

    Returns
    -------
    DataFrame
        One row for each layer and length that both have: `before`, `after` (mean constants), `ratio` (after / before,
        mean over windows), `error` (largest relative width of what the solver leaves open, of both), `relative_before`
        and `relative_after`, and `differs`: "higher" or "lower" where the intervals from constant to probable bound of
        the two scans lie apart in every window, the same way each time; else "".

    Raises
    ------
    ValueError
        "these scans cannot be compared: ...", "scans are compared, got ...".
    """
    for one in (before, after):
        if not hasattr(one, "about"):
            raise ValueError(f"scans are compared, got {one!r}: lipscan.scanning.load(folder) gives that of a folder.")
    check_alike(before.about["settings"], after.about["settings"])
    both = before.table.merge(after.table, on=["layer", "length", "window"], suffixes=("_before", "_after"))
    both = both[both.passed_before & both.passed_after & both.lipschitz_before.notna() & both.lipschitz_after.notna()]
    if both.empty:
        raise ValueError(
            "these scans cannot be compared: they have no layer and length in common that passed and were measured."
        )
    both = both.assign(
        ratio=both.lipschitz_after / both.lipschitz_before,
        higher=both.lipschitz_after * (1 - ROUNDING) > both.probable_before * (1 + ROUNDING),
        lower=both.probable_after * (1 + ROUNDING) < both.lipschitz_before * (1 - ROUNDING),
    )
    for when in ("before", "after"):
        both[f"error_{when}"] = both[f"probable_{when}"] / both[f"lipschitz_{when}"] - 1
    rows = []
    for (layer, length), group in both.groupby(["layer", "length"]):
        row = {
            "layer": layer,
            "length": length,
            "before": group.lipschitz_before.mean(),
            "after": group.lipschitz_after.mean(),
            "ratio": group.ratio.mean(),
            "error": group[["error_before", "error_after"]].max(axis=None),
            "relative_before": group.relative_before.mean(),
            "relative_after": group.relative_after.mean(),
            "differs": "higher" if group.higher.all() else "lower" if group.lower.all() else "",
        }
        rows.append(row)
    return pd.DataFrame(rows)


def check_alike(old: dict, new: dict) -> None:
    """Raise ValueError if scans with these settings cannot be compared."""
    for name in SAME:
        if old[name] != new[name]:
            raise ValueError(f"these scans cannot be compared: {_unlike(name, old, new)}.")


def check_common(old: dict, new: dict) -> None:
    """Raise ValueError if scans with these settings have no layer, or no length, in common."""
    for name, word in (("layers_scanned", "layers"), ("lengths", "lengths")):
        if not {*old[name]} & {*new[name]}:
            one, other = (in_words(name, settings[name]) for settings in (old, new))
            raise ValueError(
                f"these scans cannot be compared: {word} are {one} in the first and {other} in the second, none in "
                f"both; scan both with one --{word}."
            )


def _unlike(name, old, new):
    """Clause on the difference of two scans, and how to remove it."""
    one, other = (in_words(name, settings[name]) for settings in (old, new))
    if name == "text_sha256":
        texts = (settings["text"] for settings in (old, new))
        one, other = (
            f"{text} (SHA-256 {settings[name][:8]})" for text, settings in zip(texts, (old, new), strict=True)
        )
        return f"the first read {one}, the second {other}; scan both with one --text"
    if name == "special":
        return (
            f"special tokens around each window are {one} in the first and {other} in the second; scan both with "
            "--no-special"
        )
    if name == "masked":
        causal, both = ("first", "second") if old[name] else ("second", "first")
        return f"the {causal} attends to earlier tokens alone, the {both} to all; a BERT becomes causal with --masked"
    named = {"windows": "the number of windows", "object": "what is measured"}.get(name, name)
    return f"{named} is {one} in the first and {other} in the second; scan both with one --{name}"


def unpaired(before: Any, after: Any) -> list[str]:
    """Sentences on the layers of each scan that the other lacks and that are not compared."""
    one, other = ({*scan.summary.layer} for scan in (before, after))
    return [
        f"{len(mine - theirs)} of {many(len(mine), 'layer')} of the {which} scan have no partner in the other: layers "
        "are compared by their number."
        for which, mine, theirs in (("first", one, other), ("second", other, one))
        if mine - theirs
    ]


def compared(table: pd.DataFrame) -> list[str]:
    """Sentences on the result of a comparison."""
    higher, lower = (table[table.differs == word] for word in ("higher", "lower"))
    if not len(higher) + len(lower):
        return ["At no layer and length do all windows differ by more than the solver may have left open."]
    told = table[table.differs != ""]
    far = told.loc[told.ratio.clip(lower=1e-300).map(lambda ratio: max(ratio, 1 / ratio)).idxmax()]
    parts = [
        f"{len(rows)} {'is' if len(rows) == 1 else 'are'} {word}"
        for rows, word in ((higher, "higher"), (lower, "lower"))
        if len(rows)
    ]
    return [
        f"Of {len(table)} layers and lengths {' and '.join(parts)} in every window, by more than the solver may "
        "have left open" + ("; of the others not every window differs by so much." if len(told) < len(table) else "."),
        f"Farthest: layer {far.layer} at {many(far.length, 'token')}, from {short(far.before, 4)} to "
        f"{short(far.after, 4)}, a factor of {factor(far.ratio)}.",
    ]
