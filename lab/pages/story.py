"""The story, checked like the code: a typed number comes from the run, a strong word has its reason.

**Numbers.** Every number in prose (digits, percentages, words from "four" on, decimals inside formulas) must be
glued, or agree with what its part of the page printed, typed into its code or loaded, or stand in
book/story/typed_numbers.csv with an expression that gives it or, where nothing can, a reason. Left out: code, links,
roles, names ("Theorem 3.3", "GPT-2"), years, formulas without decimals, boxes of statements, proofs, and numbers
below four. A count must agree exactly, a decimal to its digits, and after "about", "over" or "up to" within 5 % on
the side that the words allow. Text that the code of pages and figures spells out (labels, titles, grounds of
verdicts) is read the same way, and what it prints is an echo, not a source.

**Strong words** have their reasons: see strong_words.
"""

import json
import re
from importlib import import_module

import nbformat
import pandas as pd

from lab.pages import evidence, prose
from lab.pages.sources import EXECUTED, convert, is_fresh, sources
from lab.pages.strong_words import WORDS, help_texts, page_names, reason_complaints, rows, word_complaints

NUMBERS = "book/story/typed_numbers.csv"
CALL = re.compile(r"\w+\([^()]*\)")


def executed(root, source):
    """A page's source with the outputs of its last run, and whether that run was of this very source."""
    notebook, last = convert(root, source), root / EXECUTED / f"{source.stem}.ipynb"
    pair = last if last.exists() and is_fresh(root, source) else source.with_suffix(".ipynb")
    ran = nbformat.read(pair, as_version=4).cells if pair.exists() else []
    outputs = {cell.source: cell.outputs for cell in ran if cell.cell_type == "code"}
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in code:
        cell.outputs = outputs.get(cell.source, [])
    return notebook, all(cell.source in outputs for cell in code)


def facts(root, expression):
    """The names that an expression of the list uses, such as `table("verify")` or `at("lipnb.jacobian.routes.X")`."""
    results, package = root / "data" / "results", root / "lipnb"
    known = {
        "ledger": lambda: pd.read_json(results / "ledger.json"),
        "statements": lambda: pd.read_csv(package / "statements.csv"),
        "listed": lambda: pd.read_csv(
            package / "tables.csv", index_col="name", true_values=["yes"], false_values=["no"]
        ),
        "table": lambda: lambda name: pd.read_csv(results / f"{name}.csv"),
        "birth": lambda: lambda name: pd.read_json(results / f"{name}.json", typ="series"),
        "config": lambda: lambda model: json.loads((root / f"data/models/{model}/config.json").read_text()),
        "pages": lambda: sources(root),
        "at": lambda: named,
    }
    return {name: make() for name, make in known.items() if re.search(rf"\b{name}\b", expression)}


def named(path):
    """An object of the package by its dotted name."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def listed_numbers(root, page, text, spelled=()):
    """The spans of a text that the list of typed numbers excuses, and what is wrong with its rows: (spans, complaints).

    A row may also quote what the page's code spells out.
    """
    spans, wrong = [], []
    for row in (row for row in rows(root / NUMBERS) if row["page"] == page):
        body, places = text, prose.span(text, row["text"])
        if not places:
            body = next((piece for piece in spelled if prose.span(piece, row["text"])), "")
            places = prose.span(body, row["text"])[:1]
        else:
            spans += places
        if len(places) != 1 and not (places and row["expression"]):  # what is computed may be said more than once
            wrong.append(f"{NUMBERS}: '{row['text']}' stands {len(places)} times on {page}, not once")
            continue
        for start, end in places:
            inside = [n for n in prose.numbers(prose.clean(body, formulas=True)) if start <= n.start < end]
            wrong += row_complaints(root, page, row, inside)
    return spans, wrong


def row_complaints(root, page, row, inside):
    """What is wrong with one row of the list of typed numbers, given the numbers that its quotation holds."""
    if not inside:
        yield f"{NUMBERS}: '{row['text']}' holds no number that needs it ({page})"
    elif row["expression"]:
        value = eval(row["expression"], facts(root, row["expression"]))
        values = list(value) if hasattr(value, "__len__") else [value]
        if len(values) != len(inside) or not all(map(agrees, inside, values)):
            said = ", ".join(n.text for n in inside)
            yield f"{page}: '{row['text']}' says {said}, but {row['expression']} gives {values}"
    elif not row["reason"]:
        yield f"{NUMBERS}: '{row['text']}' has neither expression nor reason"


def agrees(number, value):
    """Whether a typed number states a value; a percentage may state a fraction."""
    return number.agrees(value) or ("%" in number.text and number.agrees(100 * value))


def source_of(number, known):
    """Where a typed number is found, or None.

    The body of a printed table holds nearly every short number: only three digits and more may be read off it.
    """
    short = len(re.sub(r"\D|^[0.]+", "", number.text)) < 3
    chosen = {where: values for where, values in known.items() if where != ("outputs" if short else "words")}
    return next((where for where, values in chosen.items() if any(agrees(number, v) for v in values)), None)


def number_complaints(root, page, parts, spelled=()):
    """Typed numbers that come from nowhere, of a page in parts: each its text and the numbers it may state."""
    text = "".join(part for part, _ in parts)
    ends = [sum(len(part) for part, _ in parts[: i + 1]) for i in range(len(parts))]
    spans, wrong = listed_numbers(root, page, text, spelled)
    for number in prose.numbers(prose.clean(text, formulas=True)):
        known = next(known for (_, known), end in zip(parts, ends, strict=True) if number.start < end)
        if not source_of(number, known) and not any(start <= number.start < end for start, end in spans):
            wrong.append(f"{page}: typed number '{excerpt(number.text, 0)}': {excerpt(text, number.start)}")
    return wrong


def excerpt(text, place, around=60):
    """A few words around a place."""
    return re.sub(r"\s+", " ", text[max(0, place - around) : place + around]).strip()


def code_complaints(root, page, spelled, known):
    """Typed numbers in what code spells out for readers; a formula there, `exp(-3/2)`, is left out."""
    listed = [row["text"] for row in rows(root / NUMBERS) if row["page"] == page]
    for text in spelled:
        for number in prose.numbers(prose.clean(prose.blank(text, CALL), formulas=True)):
            quoted = any(a <= number.start < b for row in listed for a, b in prose.span(text, row))
            if not source_of(number, known) and not quoted:
                yield f"{page}: typed number '{number.text}' in the code's text: '{excerpt(text, number.start)}'"


def page_complaints(root, name):
    """Everything wrong with the story of one page."""
    source = root / "notebooks" / f"{name}.py"
    if not source.exists():
        text = (root / name).read_text(encoding="utf-8")
        return number_complaints(root, name, [(text, {})]) + word_complaints(root, name, text)
    notebook, _ = executed(root, source)
    parts = list(evidence.of_sections(root, source, notebook))
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    known = evidence.of_cells(code) | evidence.of_tables(root, source)
    spelled = evidence.spelled(code)
    found = number_complaints(root, name, parts, spelled) + [*code_complaints(root, name, spelled, known)]
    return found + word_complaints(root, name, "".join(text for text, _ in parts))


def figure_modules(root):
    """The modules that draw: what they spell out is read in the figures."""
    return sorted((root / "lipnb" / "figures").glob("*.py"))


def module_complaints(root, path):
    """Typed numbers in the titles and labels of one module that its own code does not hold."""
    cell, name = nbformat.v4.new_code_cell(path.read_text(encoding="utf-8")), str(path.relative_to(root))
    spelled = evidence.spelled([cell])
    return [
        *listed_numbers(root, name, "", spelled)[1],
        *code_complaints(root, name, spelled, evidence.of_cells([cell])),
    ]


def complaints(root, only=()):
    """Everything wrong with the story of the book, or of some pages."""
    names = [name for name in page_names(root) if not only or any(word in name for word in only)]
    found = [sentence for name in names for sentence in page_complaints(root, name)]
    if not only:
        found += [sentence for path in figure_modules(root) for sentence in module_complaints(root, path)]
        found += [sentence for name, text in help_texts(root) for sentence in word_complaints(root, name, text)]
        modules = {str(path.relative_to(root)) for path in figure_modules(root)}
        known = {*page_names(root), *(name for name, _ in help_texts(root)), *modules, "*"}
        found += [
            f"{path}: there is no page {row['page']}"
            for path in (NUMBERS, WORDS)
            for row in rows(root / path)
            if row["page"] not in known
        ]
        found += reason_complaints(root)
    return found


def report(root, only=()):
    """Print what is wrong with the story; return the exit status."""
    if unknown := [word for word in only if not any(word in name for name in page_names(root))]:
        print(f"There is no page {', '.join(unknown)}.")
        return 2
    found = complaints(root, only)
    for source in (source for source in sources(root) if any(word in source.stem for word in only)):
        if not executed(root, source)[1]:
            print(f"  {source.name} was edited since its last run: `story {source.stem} --run` runs it first.")
    print("\n".join(f"  {sentence}" for sentence in found))
    print(f"{len(found)} complaint(s) about the story")
    return 1 if found else 0
