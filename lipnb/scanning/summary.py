"""What a scan says of each layer at each length, and in a few sentences."""

import numpy as np
import pandas as pd

from lipnb.scanning.catalogue import SCANNED

__all__ = [
    "BASELINES",
    "ENDS",
    "TITLES",
    "closest",
    "measured",
    "range_of",
    "rounded_up",
    "skipped",
    "summarise",
    "times",
]

BASELINES = {  # and why there is none
    "random": "No baseline of random weights: those of this model are random themselves.",
    "shuffled": "No baseline of shuffled tokens: this model reads images, which are not put in another order.",
}
ENDS = {"layers": "last layer", "hidden": "last hidden states", "logits": "logits"}  # of the whole network
TITLES = {bound.column: bound.title for bound in SCANNED}


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each layer and length.

    Parameters
    ----------
    table : DataFrame
        One row for each window, from `lipnb.scanning.scan`.

    Returns
    -------
    DataFrame
        Its columns are explained in `lipnb.scanning.columns`, those of summary.csv. The names look alike; only those of
        bounds are logarithms.
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
            for name in BASELINES:
                if name in group and group[name].notna().any():
                    row[f"over_{name}"] = (constant / group[name]).mean()
            for key in TITLES:
                if (column := f"log10_{key}") in group and group[column].notna().any():
                    row[f"over_{key}"] = (group[column] - np.log10(constant)).mean()
        rows.append(row)
    return pd.DataFrame(rows)


def measured(summary: pd.DataFrame) -> pd.DataFrame:
    """The rows of a summary that have a constant."""
    return summary[summary.passed & (summary.measured > 0)]


def times(log10: float) -> str:
    """How many times too high, from its logarithm to base 10, in few characters.

    Examples
    --------
    >>> [times(log10) for log10 in (0.41, 2.53, 5.08, 151.2)]
    ['2.6', '340', '1.2e5', '1e151']
    """
    if pd.isna(log10):
        return ""
    if log10 < 2:
        return f"{10**log10:.2g}"
    if log10 < 4:
        return f"{round(10**log10, -1):.0f}"
    exponent = int(np.floor(log10))
    return f"{10 ** (log10 - exponent):.1f}e{exponent}" if log10 < 15 else f"1e{log10:.0f}"


def range_of(low: str, high: str) -> str:
    """Two numbers as text, or one where both are written alike.

    Examples
    --------
    >>> range_of("1.1", "2"), range_of("1.1", "1.1")
    ('1.1 to 2', '1.1')
    """
    return low if low == high else f"{low} to {high}"


def rounded_up(value: float) -> str:
    """A number that is an upper bound, in three digits that are no less than it.

    Examples
    --------
    >>> rounded_up(2.7101), rounded_up(2.71), rounded_up(1234.0)
    ('2.72', '2.71', '1.24e+03')
    """
    said = f"{value:.3g}"
    if not np.isfinite(value) or float(said) >= value:
        return said
    return f"{float(said) + 10.0 ** (np.floor(np.log10(abs(value))) - 2):.3g}"


def _round(number):
    """A large number in few characters: 2.5e6."""
    return f"{number:.1e}".replace("e+0", "e").replace("e+", "e").replace(".0e", "e")


def skipped(about: dict, summary: pd.DataFrame) -> list[str]:
    """What was not measured, and why: a list of sentences."""
    settings, said = about["settings"], []
    failed = summary[~summary.passed & summary.self_check.notna()]
    for row in failed.itertuples():
        said.append(
            f"Layer {row.layer} at n = {row.length} failed its self-check (error {row.self_check:.1e}, leak "
            f"{row.leak:.1e}): not measured."
        )
    work = {int(n): operations for n, operations in settings["work"].items()}
    if not settings["certified"]:
        said.append("Certified upper bounds were not asked for.")
    elif all(operations is None for operations in work.values()):
        why = (
            "lipnb.certify knows attention in closed form, not whole blocks with residual and norm"
            if settings["object"] == "block"
            else f"lipnb knows no closed form of the attention of {settings['architecture']}, and measured the "
            "network's own module by automatic differentiation"
        )
        close = settings["close"] is not None
        said.append(f"No certified bounds{', and no look at single heads and tokens' if close else ''}: {why}.")
    else:
        for n, operations in work.items():
            if operations > settings["upper_work"]:
                said.append(
                    f"No certified bound at n = {n}: about {_round(operations)} operations each, more than "
                    f"the limit of {_round(settings['upper_work'])} (--upper-work)."
                )
        if settings["certified"] < settings["windows"]:
            said.append(
                f"Certified: {settings['certified']} of {settings['windows']} windows of each length (--upper-windows)."
            )
    before, after = settings["special"]
    if before or after:
        said.append(f"Each window is {' '.join([*before, '...', *after])}: special tokens are among its n.")
    elif settings["tokenizer"]:
        said.append("No special tokens stand around the windows.")
    said += [BASELINES[name] for name in BASELINES if name not in settings["baselines"]]
    if settings["close"] is not None and settings.get("no_logits"):
        said.append(settings["no_logits"])
    if settings.get("left_out"):
        said.append(settings["left_out"])
    for n in (int(n) for n in settings["lengths"]):
        if n == 1:
            said.append("A window of one token has no mask to check.")
    return said


def closest(summary: pd.DataFrame) -> list[str]:
    """Keys of the bounds in closed form, the closest on average first; behind them those that miss more rows."""
    over = {key: summary[f"over_{key}"] for key in TITLES if f"over_{key}" in summary}
    return sorted(over, key=lambda key: (over[key].isna().sum(), over[key].mean()))
