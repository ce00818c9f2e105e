"""Two scans side by side, such as before and after a fine-tune: layer by layer, beyond the error of the solver."""

from typing import NamedTuple, TextIO

import pandas as pd
from rich.markup import escape

from lipnb.scanning.folder import Scan, in_words
from lipnb.scanning.terminal import console_for, print_table

__all__ = ["Comparison", "check_alike", "compare", "compared", "show_comparison"]

SAME = ("text_sha256", "special", "windows", "object", "seed", "masked")  # what must be equal, or nothing is compared
ROUNDING = 1e-6  # of a constant in float32, relative; added to what the solver leaves open


class Comparison(NamedTuple):
    """Two scans side by side: the `table` of `compare`, and what to call the first (`before`) and the second."""

    table: pd.DataFrame
    before: str
    after: str


def compare(before: Scan, after: Scan) -> pd.DataFrame:
    """Where the constants of two scans on the same windows differ by more than the solver may have left open.

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
        "these scans cannot be compared: ...".
    """
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
        rows.append(
            {
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
        )
    return pd.DataFrame(rows)


def check_alike(old: dict, new: dict) -> None:
    """Raise one sentence where scans with these settings cannot be compared."""
    for name in SAME:
        if old[name] != new[name]:
            raise ValueError(f"these scans cannot be compared: {_unlike(name, old, new)}.")


def _unlike(name, old, new):
    """What two scans have not in common, and how they would, in a clause or two."""
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


def compared(table: pd.DataFrame) -> list[str]:
    """What a comparison found, in sentences."""
    higher, lower = (table[table.differs == word] for word in ("higher", "lower"))
    if not len(higher) + len(lower):
        return [
            "The two cannot be told apart: nowhere do all windows differ by more than the solver may have left open."
        ]
    told = table[table.differs != ""]
    far = told.loc[told.ratio.clip(lower=1e-300).map(lambda ratio: max(ratio, 1 / ratio)).idxmax()]
    return [
        f"Of {len(table)} layers and lengths {len(higher)} {'is' if len(higher) == 1 else 'are'} higher and "
        f"{len(lower)} lower in every window, by more than the solver may have left open"
        + ("; the others cannot be told apart." if len(told) < len(table) else "."),
        f"Farthest: layer {far.layer} at {far.length} tokens, from {far.before:.4g} to {far.after:.4g}, "
        f"a factor of {far.ratio:.3g}.",
    ]


def show_comparison(comparison: Comparison, *, file: TextIO | None = None, width: int | None = None) -> None:
    """Print a comparison of two scans."""
    console, table = console_for(file, width), comparison.table
    lines: list[tuple[list[str], dict]] = []
    for row in table.itertuples():
        cells = [str(row.layer), str(row.length), f"{row.before:.4g}", f"{row.after:.4g}", f"{row.ratio:.4g}"]
        cells += [f"{row.error:.0e}", f"{row.relative_before:.3g}", f"{row.relative_after:.3g}", row.differs]
        lines.append((cells, {}))
    headings = ["layer", "n", "before", "after", "ratio", "error", "relative", "after", "differs"]
    print_table(console, f"before: {comparison.before}, after: {comparison.after}", headings, lines)
    for sentence in compared(table):
        console.print(escape(sentence), soft_wrap=not console.is_terminal)
