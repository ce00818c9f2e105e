"""Comparison of two scans: which constants differ by more than the solver leaves open."""

from typing import Any

import pandas as pd

from lipscan.recording.table import DIGITS
from lipscan.scanning.options import in_words
from lipscan.scanning.words import Finding, finding

__all__ = ["compare"]

SAME = {  # what must be equal, or nothing is compared: the reason in words
    "text_sha256": "the first read {read} (SHA-256 {one:.8}), the second {other_read} (SHA-256 {other:.8}); scan both "
    "with one --text",
    "special": "special tokens around each window are {one} in the first and {other} in the second; scan both with "
    "--no-special",
    "windows": "the number of windows is {one} in the first and {other} in the second; scan both with one --windows",
    "object": "the measured object is {one} in the first and {other} in the second; scan both with one --object",
    "seed": "seed is {one} in the first and {other} in the second; scan both with one --seed",
    "masked": "only earlier tokens are seen (a causal mask): {one} in the first, {other} in the second; --masked makes "
    "a BERT causal",
}
# relative error of a constant besides what the solver leaves open: of float32, and half a unit of the last stored digit
ROUNDING = 1e-6 + 0.5 * 10.0 ** (1 - DIGITS)


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
        mean over windows; a constant of 0 has none), `error` (largest relative gap that the solver leaves open, over
        both scans), `relative_before` and `relative_after`, and `differs`: "higher" or "lower" if the intervals from
        constant to probable bound of the two scans are disjoint in every window, always in the same order; otherwise
        "".

    Raises
    ------
    ValueError
        "these scans cannot be compared: ...", "only scans can be compared, got ...".
    """
    for one in (before, after):
        if not hasattr(one, "about"):
            raise ValueError(
                f"only scans can be compared, got {one!r}: use lipscan.scanning.load(folder) for a stored scan."
            )
    check_alike(before.about["settings"], after.about["settings"])
    both = before.table.merge(after.table, on=["layer", "length", "window"], suffixes=("_before", "_after"))
    both = both[both.passed_before & both.passed_after & both.lipschitz_before.notna() & both.lipschitz_after.notna()]
    if both.empty:
        raise ValueError(
            "these scans cannot be compared: they have no layer and length in common that passed the self-check and "
            "were measured."
        )
    both = both.assign(
        ratio=both.lipschitz_after / both.lipschitz_before.where(both.lipschitz_before > 0),
        higher=both.lipschitz_after * (1 - ROUNDING) > both.probable_before * (1 + ROUNDING),
        lower=both.probable_after * (1 + ROUNDING) < both.lipschitz_before * (1 - ROUNDING),
    )
    for when in ("before", "after"):
        constant = both[f"lipschitz_{when}"]
        both[f"error_{when}"] = both[f"probable_{when}"] / constant.where(constant > 0) - 1
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
    for name, words in SAME.items():
        if old[name] != new[name]:
            one, other = (in_words(name, settings[name]) for settings in (old, new))
            said = words.format(one=one, other=other, read=old["text"], other_read=new["text"])
            raise ValueError(f"these scans cannot be compared: {said}.")


def check_common(old: dict, new: dict) -> None:
    """Raise ValueError if scans with these settings have no layer, or no length, in common."""
    for name, word in (("layers_scanned", "layers"), ("lengths", "lengths")):
        if not {*old[name]} & {*new[name]}:
            one, other = (in_words(name, settings[name]) for settings in (old, new))
            raise ValueError(
                f"these scans cannot be compared: {word} are {one} in the first and {other} in the second, none in "
                f"both; scan both with one --{word}."
            )


def compared(table: pd.DataFrame) -> list[Finding]:
    """Findings of a comparison: the farthest layer, and how many constants are higher or lower."""
    told = table[table.differs != ""]
    if not len(told):
        return [finding("same")]
    zero = (told.before == 0) | (told.after == 0)  # no ratio, or one of 0: none is farther
    far = told.loc[zero.idxmax() if zero.any() else told.ratio.map(lambda ratio: max(ratio, 1 / ratio)).idxmax()]
    at = {"layer": far.layer, "length": far.length, "before": far.before, "after": far.after}
    counts = {word: int((table.differs == word).sum()) for word in ("higher", "lower")}
    counts["others"] = len(table) - len(told)
    said = [finding(key, count, rows=len(table)) for key, count in counts.items() if count]
    return [finding("farthest_zero", **at) if zero.any() else finding("farthest", far.ratio, **at), *said]


def unpaired(before: Any, after: Any) -> list[Finding]:
    """Findings on the layers of each scan that the other lacks and that are not compared."""
    one, other = ({*scan.summary.layer} for scan in (before, after))
    pairs = (("unpaired_first", one, other), ("unpaired_second", other, one))
    return [finding(key, len(mine - theirs), layers=len(mine)) for key, mine, theirs in pairs if mine - theirs]
