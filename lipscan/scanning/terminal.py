"""Terminal output of a scan: one line for each layer and length, at most 100 characters."""

import os
from collections.abc import Sequence
from string import ascii_lowercase
from typing import TextIO

import pandas as pd
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from lipscan.scanning.comparison import compared
from lipscan.scanning.fmt import factor, short, small, times, up
from lipscan.scanning.folder import Scan
from lipscan.scanning.sentences import WHERE, as_sentences, findings, skipped, weights_of
from lipscan.scanning.summary import closest

WIDEST = 100  # most characters of a line, however wide the terminal
# heading, least width of the terminal, column of the summary that it needs, text of a row
COLUMNS = (
    ("layer", 0, None, lambda row: str(row.layer)),
    ("n", 0, None, lambda row: str(row.length)),
    ("constant", 0, None, lambda row: short(row.lipschitz, 4) + ("" if row.converged else " !")),
    ("certified", 50, "certified_over", lambda row: _x(up(row.certified_over))),
    ("relative", 60, "relative", lambda row: short(row.relative, 4)),
    ("/ random", 70, "over_random", lambda row: _x(short(row.over_random))),
    ("/ shuffled", 78, "over_shuffled", lambda row: _x(short(row.over_shuffled))),
    ("column", 90, "column", lambda row: short(row.column, 4)),
    ("check", 0, None, lambda row: _check(row)),
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
    """Print a table of texts; each row comes with its style."""
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for cells, look in rows:
        table.add_row(*map(escape, cells), **look)
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as drawn:  # drop the blanks that pad each line
        console.print(table)
    console.file.write("\n".join(line.rstrip() for line in drawn.get().split("\n")))


def show(found: Scan, *, file: TextIO | None = None, width: int | None = None) -> None:
    """Print a scan to `file` (default: standard output), as plain text if `file` is not a terminal."""
    console, summary, settings = console_for(file, width), found.summary, found.about["settings"]
    there = {name for name in summary if summary[name].notna().any()} | {None}
    columns = [(heading, text) for heading, wide, name, text in COLUMNS if console.width >= wide and name in there]
    bound, letters = closest(summary), {}
    if len(bound) and console.width >= 84:
        named = bound.title.unique()
        letters = dict(zip(named, ascii_lowercase, strict=False)) if len(named) > 1 else {}
        factors = {at: f"{_x(times(one.over))} {letters.get(one.title, '')}".strip() for at, one in bound.iterrows()}
        columns.insert(-1, ("bound", lambda row: factors.get(row.Index, "")))
    rows, sections = list(summary.itertuples()), len(settings["lengths"]) > 1
    lines: list[tuple[list[str], dict]] = []
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        blank = not row.passed or not row.measured
        cells = ["" if blank and heading not in ALWAYS else text(row) for heading, text in columns]
        ends = after is not None and after.layer != row.layer and sections
        lines.append((cells, {"style": "red" if blank else None, "end_section": ends}))
    mask = "masked" if settings["masked"] else "unmasked"
    known = ", ".join(filter(None, [settings["architecture"], weights_of(settings), mask]))
    title = f"{settings['model']} ({known}), {settings['object']}, on {settings['text']}"
    print_table(console, title, [heading for heading, _ in columns], lines)
    if letters:
        _say(console, ["bound: " + "; ".join(f"{letter} {name}" for name, letter in letters.items())])
    of_first = [heading for heading, _ in columns if heading.startswith("/")]
    if of_first and settings["windows"] > 1:
        _say(console, [f"{', '.join(of_first)}: in the first window"])
    _say(console, as_sentences(found.gaps), style="red")
    said = findings(found)
    if any(finding.pages for finding in said):
        _say(console, [WHERE])
    for finding in said:
        _say(console, [finding.sentence])
        if console.is_terminal:
            console.print(Padding(escape(finding.means), (0, 0, 0, 4)))
        else:
            _say(console, [f"    {finding.means}"])
    _say(console, skipped(found.about, summary))


def show_comparison(
    table: pd.DataFrame,
    before: str,
    after: str,
    *,
    more: Sequence[str] = (),
    file: TextIO | None = None,
    width: int | None = None,
) -> None:
    """Print a comparison from `lipscan.scanning.compare`, with the names of both scans and the sentences `more`."""
    console = console_for(file, width)
    lines: list[tuple[list[str], dict]] = []
    for row in table.itertuples():
        cells = [str(row.layer), str(row.length), short(row.before, 4), short(row.after, 4), factor(row.ratio)]
        cells += [small(row.error), short(row.relative_before), short(row.relative_after), row.differs]
        lines.append((cells, {}))
    headings = ["layer", "n", "before", "after", "ratio", "error", "relative", "after", "differs"]
    print_table(console, f"before: {before}, after: {after}", headings, lines)
    _say(console, [*compared(table), *more])


def _say(console, sentences, **look):
    """Print sentences; without a terminal each is one unbroken line."""
    for sentence in sentences:
        console.print(escape(sentence), soft_wrap=not console.is_terminal, **look)


def _x(text):
    """A factor as text; empty if unknown."""
    return text and f"x {text}"


def _check(row):
    """Result of the self-check, and the number of windows that could be measured."""
    if not row.passed and not pd.isna(row.self_check):
        return "FAILED"
    if not row.measured:
        return "gap"
    return "ok" if row.measured == row.windows else f"{row.measured} of {row.windows}"
