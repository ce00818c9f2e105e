"""The story, checked like the code: a typed number comes from the run, a strong word has its reason.

Read are the pages, the prose, README.md, the titles and labels of figures, and the help of the commands; the rules
are those of typed_numbers and of strong_words.
"""

import ast
import sys

import nbformat

from lab.pages import evidence
from lab.pages.sources import EXECUTED, convert, is_fresh, page_names, rows, sources
from lab.pages.strong_words import WORDS, reason_complaints, word_complaints
from lab.pages.typed_numbers import NUMBERS, code_complaints, listed_numbers, number_complaints
from lipnb.cli.words import nearest


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
    return [*sorted((root / "lab" / "figures").glob("*.py")), *(root / "lipnb" / "scanning").glob("figures.py")]


def module_complaints(root, path):
    """Typed numbers in the titles and labels of one module that its own code does not hold."""
    cell, name = nbformat.v4.new_code_cell(path.read_text(encoding="utf-8")), str(path.relative_to(root))
    spelled = evidence.spelled([cell])
    return [
        *listed_numbers(root, name, "", spelled)[1],
        *code_complaints(root, name, spelled, evidence.of_cells([cell])),
    ]


def help_texts(root):
    """Help of the command line: every literal text in lipnb/cli and lab/cli that is not an address or a key."""
    for path in sorted([*root.glob("lipnb/cli/*.py"), *root.glob("lab/cli/*.py")]):
        texts = [
            node.value
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
        ]
        yield str(path.relative_to(root)), "\n\n".join(texts).replace("\n", "\n\n")


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
        print(f"there is no page {unknown[0]!r}{nearest(unknown[0], page_names(root))}", file=sys.stderr)
        return 2
    found = complaints(root, only)
    for source in (source for source in sources(root) if any(word in source.stem for word in only)):
        if not executed(root, source)[1]:
            print(f"  {source.name} was edited since its last run: `story {source.stem} --run` runs it first.")
    print("\n".join(f"  {sentence}" for sentence in found))
    print(f"{len(found)} complaint(s) about the story")
    return 1 if found else 0
