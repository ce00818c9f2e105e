"""Numbers of prose pages, from the run: a mark in their text becomes the value that an executed page glued.

A page glues a number under a key (``myst_nb.glue``); a prose page, which is not executed, names it by page, key and
format: ``{from}`41_real_text:slope:.2f` ``. Staging writes the number in its place. The page ``ledger`` stands for the
verdicts themselves: its keys are ``statements``, ``forms``, the verdicts (statements of each), and the id of a
statement (the largest number of cases that one of its forms was tried on).
"""

import ast
import re

import nbformat

from lab.pages import verdicts
from lab.pages.sources import sources

__all__ = ["complaints", "filled", "of_ledger", "of_page"]

ROLE = re.compile(r"\{from\}`([^`]*)`")
LEDGER = "ledger"
NOTHING = re.compile(r"[-+\s]*[0.,]*0[0.,]*\s*%?")  # 0, -0.00, 0 %


def of_page(notebook):
    """What an executed page glued: key -> number, or its text where it is none; a ValueError where a key has two."""
    found = {}
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        glued = output.get("metadata", {}).get("scrapbook", {})
        text = output.get("data", {}).get(f"{glued.get('mime_prefix', '')}text/plain")
        if "name" in glued and text is not None:
            try:
                value = ast.literal_eval(text)
            except (SyntaxError, ValueError):
                value = text
            if found.setdefault(glued["name"], value) != value:
                raise ValueError(f"{glued['name']!r} is glued as {found[glued['name']]!r} and as {value!r}")
    return found


def of_ledger(root, rows):
    """The counts of the ledger: statements, forms tested, statements by verdict, and the cases of each statement."""
    mine = verdicts.by_statement(root, rows)
    own = [verdicts.verdict_of(rows) for rows in mine.values()]
    cases = {id: max((row["cases"] for row in rows), default=0) for id, rows in mine.items()}
    counts = {verdict: own.count(verdict) for verdict in verdicts.ORDER}
    return {"statements": len(mine), "forms": len(rows)} | counts | cases


class Runs:
    """The numbers of all executed pages of a folder, each page read when it is first named."""

    def __init__(self, root, notebooks):
        self.root, self.notebooks, self.known = root, notebooks, {}

    def of(self, page):
        """The numbers of one page."""
        if page not in self.known:
            path = self.notebooks / f"{page}.ipynb"
            if page == LEDGER:
                self.known[page] = of_ledger(self.root, verdicts.gather(self.root, self.notebooks))
            elif path.exists():
                try:
                    self.known[page] = of_page(nbformat.read(path, as_version=4))
                except ValueError as error:
                    raise ValueError(f"page {page}: {error}; give each number a key of its own") from None
            else:
                raise ValueError(f"there is no executed page {page!r}")
        return self.known[page]

    def said(self, mark):
        """The text that a mark stands for; a ValueError says in one sentence why there is none."""
        page, _, rest = mark.partition(":")
        key, _, spec = rest.partition(":")
        numbers = self.of(page)
        if key not in numbers:
            raise ValueError(f"page {page} glues no {key!r}")
        value = numbers[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"page {page} glues {key!r} as {value!r}, which is no number")
        try:
            said = format(value, spec)
        except ValueError:
            raise ValueError(f"{value!r}, glued by page {page} as {key!r}, cannot be written as {spec!r}") from None
        if value != 0 and NOTHING.fullmatch(said):
            raise ValueError(f"{value!r}, glued by page {page} as {key!r}, is not zero but would read {said!r}")
        return said


def filled(runs, name, text):
    """A prose page with every mark replaced; a ValueError says in one sentence which mark has no number."""

    def said(match):
        try:
            return runs.said(match[1])
        except ValueError as error:
            raise ValueError(f"{name}: {match[0]}: {error}") from None

    return ROLE.sub(said, text)


def complaints(root, notebooks):
    """Every mark of the prose pages without its number, every page that glues two as one: a sentence each."""
    runs = Runs(root, notebooks)
    for source in sources(root):
        if (notebooks / f"{source.stem}.ipynb").exists():
            try:
                runs.of(source.stem)
            except ValueError as error:
                yield f"notebooks/{source.name}: {error}"
    for path in sorted((root / "book").glob("*.md")):
        for match in ROLE.finditer(path.read_text(encoding="utf-8")):
            try:
                runs.said(match[1])
            except ValueError as error:
                yield f"{path.relative_to(root)}: {match[0]}: {error}"
