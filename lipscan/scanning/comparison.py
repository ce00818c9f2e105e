"""Comparison of two scans: which constants differ by more than the solver may have left open."""

from typing import Any

import pandas as pd

from lipscan.scanning.fmt import factor, many, short
from lipscan.scanning.options import in_words

__all__ = ["compare"]

SAME = ("text_sha256", "special", "windows", "object", "seed", "masked")  # what must be equal, or nothing is compared
ROUNDING = 1e-6  # of a constant in float32, relative; added to what the solver leaves open


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
