"""Typed numbers have their sources: what the page printed, typed into its code or loaded, or a row of a list.

Every number in prose (digits, percentages, words from "four" on, decimals inside formulas) must be glued, or agree
with what its part of the page printed, typed into its code or loaded, or stand in book/story/typed_numbers.csv with
an expression that gives it or, where nothing can, a reason. Left out: code, links, roles, names ("Theorem 3.3",
"GPT-2"), years, formulas without decimals, boxes of statements, proofs, and numbers below four. A count must agree
exactly, a decimal to its digits, and after "about", "over" or "up to" within 5 % on the side that the words allow.
Text that the code of pages and figures spells out (labels, titles, grounds of verdicts) is read the same way, and
what it prints is an echo, not a source.
"""

import json
import re
from importlib import import_module

import pandas as pd

from lab import ledger, results
from lab.pages import prose
from lab.pages.sources import rows, sources

NUMBERS = "book/story/typed_numbers.csv"
CALL = re.compile(r"\w+\([^()]*\)")


def facts(root, expression):
    """The names that an expression of the list uses, such as `table("verify")` or `at("lipnb.attention.X")`."""
    stored = root / "data" / "results"
    known = {
        "ledger": lambda: pd.read_json(stored / "ledger.json"),
        "statements": ledger.statements,
        "listed": results.listed,
        "table": lambda: lambda name: pd.read_csv(stored / f"{name}.csv"),
        "birth": lambda: lambda name: pd.read_json(stored / f"{name}.json", typ="series"),
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
