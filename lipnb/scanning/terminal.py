"""A scan on the terminal: one line for each layer and length, at most 100 characters."""

import os
from collections.abc import Callable, Sequence
from typing import TextIO

import pandas as pd
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from lipnb.scanning.folder import Scan
from lipnb.scanning.gaps import as_sentences
from lipnb.scanning.summary import closest, rounded_up, skipped, times
from lipnb.scanning.verdict import WHERE, verdicts

__all__ = ["console_for", "print_table", "show"]

WIDEST = 100  # characters of a line, however wide the terminal
Column = tuple[str, int, Callable]

# heading, least width at which it is shown, text of a row
COLUMNS: tuple[Column, ...] = (
    ("layer", 0, lambda row: str(row.layer)),
    ("n", 0, lambda row: str(row.length)),
    ("constant", 0, lambda row: _number(row.lipschitz) + ("" if row.converged else " !")),
    ("certified", 50, lambda row: "" if pd.isna(row.certified_over) else f"x {rounded_up(row.certified_over)}"),
    ("relative", 60, lambda row: _number(row.relative)),
    ("/ random", 70, lambda row: _factor(getattr(row, "over_random", None))),
    ("/ shuffled", 78, lambda row: _factor(getattr(row, "over_shuffled", None))),
    ("column", 90, lambda row: _number(row.column)),
    ("check", 0, lambda row: _check(row)),
)
ALWAYS = ("layer", "n", "check")


def console_for(file: TextIO | None, width: int | None) -> Console:
    """A console of at most 100 characters a line: of `width`, else of COLUMNS, else of the terminal."""
    options = {"file": file, "highlight": False, "force_jupyter": False}
    console = Console(width=width and min(width, WIDEST), **options)
    if width is None:
        asked = os.environ.get("COLUMNS", "")
        there = console.width if console.is_terminal else int(asked) if asked.isdecimal() and int(asked) else WIDEST
        plain = {} if console.is_terminal else {"no_color": True}
        console = Console(width=min(there, WIDEST), **plain, **options)
    return console


def print_table(console: Console, title: str, headings: Sequence[str], rows: Sequence[tuple[list[str], dict]]) -> None:
    """Print a table of texts; each row with how it looks."""
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for cells, look in rows:
        table.add_row(*map(escape, cells), **look)
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as drawn:  # without the blanks that fill each line
        console.print(table)
    console.file.write("\n".join(line.rstrip() for line in drawn.get().split("\n")))


def show(found: Scan, *, file: TextIO | None = None, width: int | None = None) -> None:
    """Print a scan.

    Parameters
    ----------
    found : lipnb.scanning.Scan
        From `lipnb.scan`.
    file : file, optional
        Default: standard output; what is no terminal gets plain text.
    width : int, optional
        Characters of a line of the table; default: those of the environment variable COLUMNS, else of the terminal, at
        most 100.
    """
    console, summary, settings = console_for(file, width), found.summary, found.about["settings"]
    columns = [column for column in COLUMNS if console.width >= column[1] and _there(column[0], summary)]
    order = closest(summary)
    if order and console.width >= 84:
        columns.insert(-1, ("bound", 84, lambda row: _times(getattr(row, f"over_{order[0]}"))))
    rows, sections = list(summary.itertuples()), len(settings["lengths"]) > 1
    lines = []
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        blank = not row.passed or not row.measured
        cells = ["" if blank and heading not in ALWAYS else text(row) for heading, _, text in columns]
        ends = after is not None and after.layer != row.layer and sections
        lines.append((cells, {"style": "red" if blank else None, "end_section": ends}))
    mask = "masked" if settings["masked"] else "unmasked"
    title = f"{settings['model']} ({settings['weights']}, {mask}), {settings['object']}, on {settings['text']}"
    print_table(console, title, [heading for heading, _, _ in columns], lines)
    for sentence in as_sentences(found.gaps):
        console.print(escape(sentence), soft_wrap=not console.is_terminal, style="red")
    for finding in verdicts(found):
        console.print(escape(finding.sentence), soft_wrap=not console.is_terminal)
        if console.is_terminal:
            console.print(Padding(escape(finding.means), (0, 0, 0, 4)))
        else:
            console.print(f"    {escape(finding.means)}", soft_wrap=True)
    console.print(WHERE, soft_wrap=not console.is_terminal)
    for sentence in skipped(found.about, summary):
        console.print(escape(sentence), soft_wrap=not console.is_terminal)


def _there(heading, summary):
    """Whether any row has such a number."""
    name = {"certified": "certified_over", "/ random": "over_random", "/ shuffled": "over_shuffled"}.get(
        heading, heading
    )
    return name not in ("certified_over", "over_random", "over_shuffled", "relative", "column") or (
        name in summary and summary[name].notna().any()
    )


def _times(log10):
    said = times(log10)
    return said and f"x {said}"


def _check(row):
    """Whether the layer was taken out of the network correctly, and in how many windows it could be measured."""
    if not row.passed and not pd.isna(row.self_check):
        return "FAILED"
    if not row.measured:
        return "gap"
    return "ok" if row.measured == row.windows else f"{row.measured} of {row.windows}"


def _number(value):
    """Four digits at most."""
    return "" if pd.isna(value) else f"{value:.4g}"


def _factor(value):
    return "" if value is None or pd.isna(value) else f"x {value:.3g}"
