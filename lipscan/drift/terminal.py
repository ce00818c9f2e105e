"""Terminal output of a comparison: the verdict, one line for each layer, and whether the errors add up."""

from typing import Any, TextIO

from rich.markup import escape

from lipscan.drift.words import lead
from lipscan.scanning.fmt import short, small
from lipscan.scanning.terminal import console_for, print_table

HEADINGS = ["layer", "error", "floor", "floors", "attention", "MLP", "leans", "gain", "random", "share"]


def show(found: Any, *, file: TextIO | None = None) -> None:
    """Print a `Drift`: what was compared, a line for each layer, the closure, and the verdict."""
    console, table = console_for(file, None), found.table
    if table.gain_worst.notna().any():
        headings = [*HEADINGS[:-1], "worst", HEADINGS[-1]]
    else:
        headings = HEADINGS
    halves = {(row.layer, row.part): row for row in table.itertuples()}
    cells: list[tuple[list[str], dict]] = []
    for row in table[~table.part.isin(("attention", "mlp"))].itertuples():
        parts = [halves.get((row.layer, half)) for half in ("attention", "mlp")]
        line = [str(row.layer) if row.part == "layer" else row.part, small(row.error / row.size)]
        line += [small(row.floor / row.size), _floors(row), *("" if one is None else _floors(one) for one in parts)]
        line += [f"{row.signed - row.floor_signed:+.2f}", short(row.gain), short(row.gain_random)]
        line += [short(row.gain_worst)] * ("worst" in headings)
        cells.append(([*line, "" if row.share != row.share else f"{row.share:.0%}"], {}))
    lines = [lead(found.about)]
    console.print(escape(lines[0]), soft_wrap=not console.is_terminal)
    print_table(console, headings, cells)
    closure = found.closure
    said = f"The carried errors have {closure.length:.2f} of the length of the final difference "
    said += f"({closure.difference:.1g} of the state), at a cosine of {closure.angle:.3f}"
    for sentence in (f"{said}{f': {closure.why}' if closure.why else ''}.", found.verdict.sentence):
        console.print(escape(sentence), soft_wrap=not console.is_terminal)


def _floors(row):
    """Error over floor of a part, as the verdict takes it."""
    return f"{row.token_ratio:.2f}"
