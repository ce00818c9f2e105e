"""A plugin of pytest: nbval compares committed pages with the runs that `python -m lab pages execute` has made.

    pytest -p lab.pages.recorded --nbval-lax --nbval-current-env notebooks

What nbval checks, and how, stays its own; only the run is not made a second time. A page whose last run is missing,
failed, or saw other inputs than there are now, and one whose committed cells are not those of its run, is executed by
nbval as without this plugin.

Numbers written with twelve digits or more, such as those a page records for its sentences, are compared to six: the
last ones differ between processors.
"""

import re
from functools import cache, partial
from pathlib import Path

import nbformat
from nbval.plugin import IPyNbCell, coalesce_streams

from lab.pages.sources import EXECUTED, is_fresh


def code(notebook):
    """The code cells of a notebook."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


FULL = re.compile(r"(?<![\w.])\d+\.\d+(?:e[+-]?\d+)?(?![\w.])")  # a number in full; no version and no name


def rounded(text):
    """The text, its numbers of twelve significant digits or more rounded to six."""

    def six(number):
        digits = number[0].partition("e")[0].replace(".", "").lstrip("0")
        return f"{float(number[0]):.6g}" if len(digits) >= 12 else number[0]

    return FULL.sub(six, text) if isinstance(text, str) else text


@cache
def recorded(pair):
    """Outputs of each code cell in the last run of a committed page, or None where nbval has to run it."""
    root, source = pair.parents[1], pair.with_suffix(".py")
    if not source.exists() or not is_fresh(root, source):
        return None
    committed, run = (code(nbformat.read(path, as_version=4)) for path in (pair, root / EXECUTED / pair.name))
    if [cell.source for cell in committed] != [cell.source for cell in run]:
        return None
    return [cell.outputs for cell in run]


def compare(cell, outputs):
    """What nbval does once a cell has run."""
    if cell.options["check"] and not cell.compare_outputs(
        coalesce_streams(outputs), coalesce_streams(cell.cell.outputs)
    ):
        cell.raise_cell_error("Cell outputs differ", "\n".join(cell.comparison_traceback))


def sanitized(sanitize, text):
    """What nbval compares of an output: its own replacements, then ours."""
    return rounded(sanitize(text))


def pytest_collection_modifyitems(items):
    """Give each cell of a recorded page its outputs, in place of a kernel; round what is compared."""
    for item in items:
        if not isinstance(item, IPyNbCell):
            continue
        item.sanitize = partial(sanitized, item.sanitize)
        if (outputs := recorded(Path(item.path))) is not None:
            item.parent.setup = item.parent.setup_sanitize_files
            item.runtest = partial(compare, item, outputs[item.cell_num])


def pytest_report_collectionfinish(items):
    """Say how many pages are compared with a recorded run."""
    pages = {item.path for item in items if isinstance(item, IPyNbCell)}
    return f"{sum(recorded(Path(page)) is not None for page in pages)} of {len(pages)} pages were run already"
