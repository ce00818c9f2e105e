"""A scan on the terminal: one line for each layer and length, as wide as there is room."""

import os
from typing import TextIO

import pandas as pd
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lipnb.scanning.run import Scan
from lipnb.scanning.summary import TITLES, skipped, times, verdicts

__all__ = ["show"]

PIPE = 120  # characters of a line of the table where there is no terminal and COLUMNS is not set
CERTIFIED = "certified <="
# heading, least width of the terminal at which it is shown, text of a row
COLUMNS = (
    ("layer", 0, lambda row: str(row.layer)),
    ("n", 0, lambda row: str(row.length)),
    ("constant", 0, lambda row: _number(row.lipschitz)),
    ("range", 92, lambda row: f"{_number(row.low)} to {_number(row.high)}" if row.windows > 1 else ""),
    ("residual", 110, lambda row: f"{row.residual:.0e}" + ("" if row.converged else " !")),
    (CERTIFIED, 60, lambda row: _number(row.certified)),
    ("radius mean", 100, lambda row: _number(row.mean_radius)),
    ("max", 78, lambda row: _number(row.radius)),
    ("check", 0, lambda row: "ok" if row.passed else "FAILED"),
)
BOUNDS_FROM = 72  # width from which bounds are shown
EACH_BOUND = 13


def show(found: Scan, *, file: TextIO | None = None, width: int | None = None) -> None:
    """Print a scan.

    Parameters
    ----------
    found : lipnb.scanning.Scan
        From `lipnb.scanning.scan`.
    file : file, optional
        Default: standard output; what is no terminal gets plain text.
    width : int, optional
        Characters of a line of the table; default: those of the environment variable COLUMNS, else of the terminal,
        else 120.
    """
    options = {"file": file, "highlight": False, "force_jupyter": False}
    console = Console(width=width, **options)
    if width is None and not console.is_terminal:
        asked = os.environ.get("COLUMNS", "")
        console = Console(width=int(asked) if asked.isdecimal() and int(asked) else PIPE, no_color=True, **options)
    summary, settings = found.summary, found.about["settings"]
    bounds = [key for key in TITLES if f"over_{key}" in summary]
    columns = [
        column
        for column in COLUMNS
        if console.width >= column[1]
        and (column[0] != "range" or settings["windows"] > 1)
        and (column[0] != CERTIFIED or summary.get("certified", pd.Series(dtype=float)).notna().any())
    ]
    used = sum(len(heading) + 4 for heading, _, _ in columns)
    room = max(0, (console.width - used) // EACH_BOUND) if console.width >= BOUNDS_FROM else 0
    title = (
        f"{settings['model']} ({settings['weights']}, {'masked' if settings['masked'] else 'unmasked'}), "
        f"{settings['object']}, on {settings['text']}"
    )
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, _, _ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for key in bounds[:room]:
        table.add_column(escape(TITLES[key]), justify="right", max_width=EACH_BOUND - 2)
    rows = list(summary.itertuples())
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        cells = [
            text(row) if row.passed or heading in ("layer", "n", "max", "radius mean", "check") else ""
            for heading, _, text in columns
        ]
        cells += [f"x {said}" if (said := times(getattr(row, f"over_{key}"))) else "" for key in bounds[:room]]
        last_of_layer = after is not None and after.layer != row.layer and len(settings["lengths"]) > 1
        table.add_row(*cells, style=None if row.passed else "red", end_section=last_of_layer)
    if console.is_terminal:
        console.print(table)
    else:  # without the blanks that fill each line
        with console.capture() as drawn:
            console.print(table)
        console.file.write("\n".join(line.rstrip() for line in drawn.get().split("\n")))
    if bounds[:room]:
        console.print(
            "Bounds: how many times higher than the constant, geometric mean over windows."
            + (f" {len(bounds) - room} more in the report." if len(bounds) > room else "")
        )
    for sentence in (*verdicts(found.about, summary), *skipped(found.about, summary)):
        console.print(escape(sentence), soft_wrap=not console.is_terminal)


def _number(value):
    """Four digits at most."""
    return "" if pd.isna(value) else f"{value:.4g}"
