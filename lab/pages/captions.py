"""Captions: the paragraph after a figure becomes its numbered caption in the book (``book/_ext/captioned.py``).

In a source the Markdown cell after the one that draws begins with two lines,

    <!-- figure fig-41-rates: what it looks like to a reader who does not see it -->
    *What is seen, and what follows.*

so that a notebook reads well in Jupyter, where the comment is hidden; the book gives the figure this name, this
caption and this alternative text, by the cell metadata of MyST-NB.
"""

import re
from collections import defaultdict

__all__ = ["complaints", "moved"]

COMMENT = re.compile(r"<!--\s*figure\b")
BLOCK = re.compile(
    r"""\A\s*<!--\s*figure\s+(?P<name>[\w-]+)\s*:\s*(?P<alt>(?:(?!-->).)*?)\s*-->\s*\n\s*
    \*(?!\*(?!\*))                                # one star, or three where the caption begins in bold
    (?P<caption>(?:(?!\n\s*\n).)+?(?<!\*)(?:\*\*)?)  # one paragraph; two stars of its own where it ends in bold
    \*[ ]*(?:\n\s*\n|\n?\Z)""",
    re.S | re.X,
)
FEWEST_WORDS = 6  # of an alternative text
NAME = re.compile(r"fig-\d\d-[a-z0-9-]+")


def draws(cell):
    """How many pictures a cell shows."""
    outputs = cell.get("outputs", []) if cell.cell_type == "code" else []
    return sum("image/png" in out.get("data", {}) for out in outputs if not glued(out))


def glued(output):
    """Whether an output is only kept for a sentence, not shown."""
    return any(key.startswith("application/papermill.record") for key in output.get("data", {}))


def pairs(notebook):
    """Each cell with the one after it; None after the last."""
    return zip(notebook.cells, [*notebook.cells[1:], None], strict=True)


def drawn(notebook):
    """Each cell that shows pictures, with the cell after it and the block that this begins with, or None."""
    for cell, after in pairs(notebook):
        if draws(cell):
            text = after.source if after is not None and after.cell_type == "markdown" else ""
            yield cell, after, BLOCK.match(text)


def vector(cell):
    """Whether a cell shows a picture as SVG alone: captions, and what is shown outside the page, need PNG."""
    outputs = cell.get("outputs", []) if cell.cell_type == "code" else []
    shown = [out.get("data", {}) for out in outputs if not glued(out)]
    return any("image/svg+xml" in data and "image/png" not in data for data in shown)


def orphans(notebook):
    """Comments that name a figure but do not begin the cell after one that draws: the first line of each."""
    followers = {id(after) for cell, after in pairs(notebook) if draws(cell) or vector(cell)}
    for cell in notebook.cells:
        begins = id(cell) in followers and COMMENT.match(cell.source.lstrip())
        found = [*COMMENT.finditer(cell.source)] if cell.cell_type == "markdown" else []
        yield from (cell.source[one.start() :].splitlines()[0] for one in found[1 if begins else 0 :])


def one_line(text):
    """A wrapped text in one line."""
    return " ".join(text.split())


def moved(notebook):
    """The notebook, changed in place: captions in the metadata of the cells that draw, gone from the text."""
    for cell, after, block in drawn(notebook):
        if block:
            cell.metadata["mystnb"] = {
                "figure": {"name": block["name"], "caption": one_line(block["caption"])},
                "image": {"alt": one_line(block["alt"])},
            }
            after.source = after.source[block.end() :]
    return notebook


def complaints(pages):
    """What is wrong with the figures of executed pages, given as name -> notebook; one sentence each."""
    where = defaultdict(list)
    for page, notebook in pages.items():
        for cell in notebook.cells:
            if vector(cell):
                last = cell.source.strip().splitlines()[-1]
                yield f"{page}: the figure of `{last}` is SVG without PNG: it can have no caption"
        for line in orphans(notebook):
            yield f"{page}: `{line}` stands after no cell that draws"
        for cell, _, block in drawn(notebook):
            last = cell.source.strip().splitlines()[-1]
            if draws(cell) > 1:
                yield f"{page}: one cell shows {draws(cell)} figures ({last}): give each a cell and a caption"
            if block is None:
                yield f"{page}: the figure of `{last}` has no caption block after it (see lab/pages/captions.py)"
                continue
            where[block["name"]].append(page)
            if not NAME.fullmatch(block["name"]) or block["name"][4:6] != page[:2]:
                yield f"{page}: a figure's name is fig-{page[:2]}-words, not {block['name']}"
            if len(block["alt"].split()) < FEWEST_WORDS or one_line(block["alt"]) in one_line(block["caption"]):
                yield f"{page}: the alternative text of {block['name']} must say what is seen, in words of its own"
    for name, found in where.items():
        if len(found) > 1:
            yield f"{', '.join(found)}: the name {name} is given to {len(found)} figures"
