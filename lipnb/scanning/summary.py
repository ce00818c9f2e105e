"""What a scan says of each layer at each length, and in a few sentences."""

import numpy as np
import pandas as pd

from lipnb.scanning.catalogue import CATALOGUE

__all__ = ["TITLES", "skipped", "summarise", "times", "verdicts"]

TITLES = {bound.key: bound.title for bound in CATALOGUE}


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each layer and length.

    Parameters
    ----------
    table : DataFrame
        One row for each window, from `lipnb.scanning.scan`.

    Returns
    -------
    DataFrame
        layer, length, windows, passed, self_check, leak, radius (largest), mean_radius (root mean square), lipschitz
        (mean) with its `low` and `high`, residual (largest), converged (all), route, certified and certified_lower
        (means of the windows that have them), `certified_over` (the largest ratio of the first to the constant, as
        it is), and for each bound ``over_<key>``: the logarithm to base 10 of how many times too high it is, mean over
        windows; 2 means 100 times. The names look alike; only those of bounds are logarithms.
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
        if row["passed"]:
            constant = group.lipschitz
            row |= {
                "lipschitz": constant.mean(),
                "low": constant.min(),
                "high": constant.max(),
                "residual": group.residual.max(),
                "converged": bool(group.converged.all()),
                "route": " + ".join(sorted(set(group.route))),
                "certified": group.certified.mean(),
                "certified_lower": group.certified_lower.mean(),
                "certified_over": (group.certified / constant).max(),
            }
            for key in TITLES:
                if (column := f"log10_{key}") in group and group[column].notna().any():
                    row[f"over_{key}"] = (group[column] - np.log10(constant)).mean()
        rows.append(row)
    return pd.DataFrame(rows)


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


def _round(number):
    """A large number in few characters: 2.5e6."""
    return f"{number:.1e}".replace("e+0", "e").replace("e+", "e").replace(".0e", "e")


def skipped(about: dict, summary: pd.DataFrame) -> list[str]:
    """What was not measured, and why: a list of sentences."""
    settings, said = about["settings"], []
    failed = summary[~summary.passed]
    for row in failed.itertuples():
        said.append(
            f"Layer {row.layer} at n = {row.length} failed its self-check (error {row.self_check:.1e}, leak "
            f"{row.leak:.1e}): not measured."
        )
    work = {int(n): operations for n, operations in settings["work"].items()}
    if not settings["certified"]:
        said.append("Certified upper bounds were not asked for.")
    elif all(operations is None for operations in work.values()):
        said.append(
            "No certified bracket: lipnb.certify knows the heads of the theorems, not rotary positions or whole blocks."
        )
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
    if settings.get("left_out"):
        said.append(settings["left_out"])
    for n in (int(n) for n in settings["lengths"]):
        if n == 1:
            said.append("A window of one token has no mask to check.")
    return said


def verdicts(about: dict, summary: pd.DataFrame) -> list[str]:
    """What was found, in a few sentences of plain words."""
    good = summary[summary.passed]
    if good.empty:
        return ["No layer passed its self-check: nothing was measured."]
    settings = about["settings"]
    top, low = good.loc[good.lipschitz.idxmax()], good.loc[good.lipschitz.idxmin()]
    said = [
        f"{int(summary.passed.sum())} of {len(summary)} layers and lengths passed the self-check: what was "
        "measured is the model's own attention.",
        f"Largest local constant: {top.high:.3g}, layer {top.layer} at {top.length} tokens. Smallest layer mean: "
        f"{low.lipschitz:.3g}, layer {low.layer} at {low.length}.",
    ]
    if len(settings["lengths"]) > 1:
        longest, shortest = max(settings["lengths"]), min(settings["lengths"])
        growth = (
            good[good.length == longest].set_index("layer").lipschitz
            / good[good.length == shortest].set_index("layer").lipschitz
        ).dropna()
        if len(growth):
            said.append(
                f"From {shortest} to {longest} tokens the constant changes by a factor of {growth.min():.2g} "
                f"to {growth.max():.2g}, depending on the layer; the square root of the length would give "
                f"{(longest / shortest) ** 0.5:.2g}."
            )
    if good.certified_over.notna().any():
        said.append(f"Certified upper bounds lie within a factor of {good.certified_over.max():.3g} of the constant.")
    over = [column for column in good if column.startswith("over_")]
    if over:
        means = good[over].mean().sort_values()
        best, worst = means.index[0], means.index[-1]
        said.append(
            f"Of the bounds in closed form, {TITLES[best[5:]]} comes closest, {times(means.iloc[0])} times too "
            f"high on average; {TITLES[worst[5:]]} is {times(means.iloc[-1])} times too high."
        )
    if not good.converged.all():
        said.append(
            f"{int((~good.converged.astype(bool)).sum())} of {len(good)} did not converge: their constants are "
            "lower bounds that may be too low."
        )
    return said
