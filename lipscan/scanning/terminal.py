"""Terminal output of a scan: one line for each layer and length, at most 100 characters."""

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from string import ascii_lowercase
from typing import Any, NamedTuple, TextIO

import pandas as pd
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lipscan.scanning.comparison import compared
from lipscan.scanning.findings import findings, gaps, left_out, weights_of
from lipscan.scanning.fmt import factor, short, small, times, up
from lipscan.scanning.folder import Scan
from lipscan.scanning.planning import Planned
from lipscan.scanning.summary import closest
from lipscan.scanning.words import PAGES, QUESTIONS, TABLE, Finding

WIDEST = 100  # most characters of a line, however wide the terminal
GAP = 2  # characters between columns


class Column(NamedTuple):
    """A column of the table: its heading, the column of the summary that it needs, the text of a row, and its rank."""

    heading: str
    needs: str | None
    text: Callable[[Any], str]
    rank: int = 0  # the highest is left out first where the terminal is narrow; 0 never

    @property
    def name(self) -> str:
        """The heading in one line, as in `TABLE`."""
        return self.heading.replace("self-\n", "self-").replace("-\n", "").replace("\n", " ")


CHECK = Column("self-\ncheck", None, lambda row: _check(row))
COLUMNS = (
    Column("layer", None, lambda row: str(row.layer)),
    Column("tokens", None, lambda row: str(row.length)),
    Column("constant", None, lambda row: short(row.lipschitz, 4) + ("" if row.converged else " !")),
    Column("proved\nbelow", "certified_over", lambda row: _x(up(row.certified_over)), 1),
    Column("typical", "typical", lambda row: short(row.typical), 2),
    Column("relative", "relative", lambda row: short(row.relative, 4), 3),
    Column("over\nrandom", "over_random", lambda row: _x(short(row.over_random)), 4),
    Column("over\nshuffled", "over_shuffled", lambda row: _x(short(row.over_shuffled)), 5),
    Column("most at-\ntention", "column", lambda row: short(row.column), 7),
    CHECK,
)
ALWAYS = (*COLUMNS[:2], CHECK)  # in rows without a constant too


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


def print_table(console: Console, headings: Sequence[str], rows: Sequence[tuple[list[str], dict]]) -> None:
    """Print a table of texts; each row comes with its style."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, GAP - 1, 0, 0))
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
    console, said = console_for(file, width), findings(found)
    settings = found.about["settings"]
    mask = "masked" if settings["masked"] else "unmasked"
    known = ", ".join(filter(None, [settings["architecture"], weights_of(settings), mask]))
    _say(console, [f"{settings['model']} ({known}), {settings['object']}, on {settings['text']}"], style="bold")
    for section in ("rough", "much", "usual"):
        _answer(console, said, section, QUESTIONS[section])
    _layers(console, found)
    _say(console, gaps(found.gaps), style="red")
    _answer(console, said, "error", QUESTIONS["error"])
    _answer(console, said, "details", "In detail")
    _answer(console, left_out(found.about, found.summary), "left_out", "What was measured, and what was not")
    if pages := sorted({one.page for one in said if one.page}):
        named = "; ".join(f"{page[:2]} {PAGES[page]}" for page in pages)
        _say(console, [f"\nExplained in the book, as pages notebooks/NN_*.ipynb of a clone of lipnb: {named}."])


def show_plan(rows: Sequence[Planned], title: str, *, file: TextIO | None = None) -> None:
    """Print what a scan would measure, and about how long that takes."""
    console = console_for(file, None)
    cells: list[tuple[list[str], dict]] = [([row.what, str(row.number), f"{row.seconds:.0f} s"], {}) for row in rows]
    _say(console, [title])
    print_table(console, ["what", "how many", "about"], cells)
    total = sum(row.seconds for row in rows)
    _say(console, [f"Together about {total:.0f} seconds, plus loading; several times as long on a busy machine."])


def _answer(console, said, section, title):
    """Print the findings of a section under their title; nothing if there are none."""
    if here := [f"  {one}" for one in said if one.section == section]:
        _say(console, [f"\n{title}", *here])


def _layers(console, found):
    """Print the table of layers, in as many columns as fit, and the keys to them."""
    summary, bound = found.summary, closest(found.summary)
    there = {name for name in summary if summary[name].notna().any()} | {None}
    columns = [one for one in COLUMNS if one.needs in there]
    letters = dict(zip(bound.title.unique(), ascii_lowercase, strict=False))
    if letters:
        factors = {at: f"{_x(times(one.over))} {letters[one.title]}" for at, one in bound.iterrows()}
        columns.insert(-1, Column("closest\nformula", None, lambda row: factors.get(row.Index, ""), 6))
    rows = list(summary.itertuples())
    blank = [not row.passed or not row.measured for row in rows]
    texts = {
        one: ["" if gap and one not in ALWAYS else one.text(row) for row, gap in zip(rows, blank, strict=True)]
        for one in columns
    }
    widths = {one: max(map(len, [*one.heading.split("\n"), *texts[one]])) for one in columns}
    while sum(widths[one] + GAP for one in columns) > console.width and max(one.rank for one in columns):
        columns.remove(max(columns, key=lambda one: one.rank))
    several = summary.length.nunique() > 1
    ends = [several and row.layer != after.layer for row, after in pairwise(rows)] + [False]
    looks = [{"style": "red" if gap else None, "end_section": end} for gap, end in zip(blank, ends, strict=True)]
    lines = list(zip(map(list, zip(*(texts[one] for one in columns), strict=True)), looks, strict=True))
    print_table(console, [one.heading for one in columns], lines)
    keys = {one.name: TABLE[one.name] for one in columns if one.name in TABLE}
    if "closest formula" in keys:
        named = "; ".join(f"{letter} {title}" for title, letter in letters.items())
        keys["closest formula"] += f": {named}"
    _say(console, [f"{name}: {key}" for name, key in keys.items()])


def show_comparison(
    table: pd.DataFrame,
    before: str,
    after: str,
    *,
    more: Sequence[Finding] = (),
    file: TextIO | None = None,
    width: int | None = None,
) -> None:
    """Print a comparison from `lipscan.scanning.compare`, with the names of both scans and the findings `more`."""
    console = console_for(file, width)
    lines: list[tuple[list[str], dict]] = []
    for row in table.itertuples():
        cells = [str(row.layer), str(row.length), short(row.before, 4), short(row.after, 4), factor(row.ratio)]
        cells += [small(row.error), short(row.relative_before), short(row.relative_after), row.differs]
        lines.append((cells, {}))
    relative = ["relative,\nbefore", "relative,\nafter"]
    headings = ["layer", "tokens", "before", "after", "after /\nbefore", "solver's\nerror", *relative, "differs"]
    _say(console, [f"before: {before}, after: {after}"])
    print_table(console, headings, lines)
    _say(console, [*compared(table), *more])


def _say(console, sentences, **look):
    """Print sentences or findings; without a terminal each is one unbroken line."""
    for sentence in sentences:
        console.print(escape(str(sentence)), soft_wrap=not console.is_terminal, **look)


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
