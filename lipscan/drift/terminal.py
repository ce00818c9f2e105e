"""Terminal output of a comparison: one line for each layer, whether the errors add up, and the verdict."""

from typing import Any, TextIO

from rich.markup import escape

from lipscan.drift.words import HEADINGS, lead
from lipscan.scanning.fmt import short, small
from lipscan.scanning.terminal import console_for, print_table

SHOWN = [heading for heading in HEADINGS if heading not in ("tenth of tokens", "worst token")]  # the report has all


def show(found: Any, *, file: TextIO | None = None) -> None:
    """Print a `Drift`: what was compared, a line for each layer, the closure, and the verdict."""
    console, table = console_for(file, None), found.table
    shown = [heading for heading in SHOWN if heading != "at worst" or table.gain_worst.notna().any()]
    at = shown.index("floors") + 1
    headings = ["layer", *shown[:at], "attention", "MLP", *shown[at:]]
    halves = {(row.layer, row.part): row for row in table.itertuples()}
    cells: list[tuple[list[str], dict]] = []
    for row in table[~table.part.isin(("attention", "mlp"))].itertuples():
        values = texts(row)
        parts = [halves.get((row.layer, half)) for half in ("attention", "mlp")]
        values |= {"layer": str(row.layer) if row.part == "layer" else row.part}
        values |= {
            name: "" if one is None else texts(one)["floors"]
            for name, one in zip(("attention", "MLP"), parts, strict=True)
        }
        cells.append(([values[heading] for heading in headings], {}))
    console.print(escape(lead(found.about)), soft_wrap=not console.is_terminal)
    print_table(console, headings, cells)
    closure = found.closure
    said = f"The carried errors have {closure.length:.2f} of the length of the final difference "
    said += f"({closure.difference:.1g} of the state), at a cosine of {closure.angle:.3f}"
    said = "There is no difference at the end" if not closure.difference else said
    if found.logits is not None and found.logits.difference:
        at = found.logits
        said += f"; at the logits {at.length:.2f} ({at.difference:.1g}), at a cosine of {at.angle:.3f}"
    sentences = [f"{said}{f': {closure.why}' if closure.why else ''}.", found.about.get("note"), found.verdict.sentence]
    for sentence in filter(None, sentences):
        console.print(escape(sentence), soft_wrap=not console.is_terminal)


def texts(row: Any) -> dict[str, str]:
    """Numbers of a row of the table by their heading in `lipscan.drift.words.HEADINGS`."""
    return {
        "error": small(row.error / row.size),
        "floor": small(row.floor / row.size),
        "floors": f"{row.token_ratio:.2f}" if row.token_ratio < 100 else f"{row.token_ratio:,.0f}",
        "tenth of tokens": short(row.token_tenth),
        "worst token": short(row.token_worst),
        "leans": f"{row.signed - row.floor_signed:+.2f}",
        "gain": short(row.gain),
        "random": short(row.gain_random),
        "at worst": short(row.gain_worst),
        "share": "" if row.share != row.share else f"{round(row.share, 2) + 0:.0%}",
    }
