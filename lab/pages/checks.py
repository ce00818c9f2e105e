"""Rules for every page and its executed pair; each rule returns sentences, none if it is satisfied."""

import re

import nbformat
from myst_nb.core.variables import format_plain_text

from lab.pages import claims, layout, typed_numbers, verdicts
from lab.pages.sources import convert, plain, sources

MOST_BYTES = 300_000
FEWEST_WORDS = 6  # of an alternative text
ZERO = re.compile(r"[-+\s]*[0.,]*0[0.,]*\s*%?")  # 0, -0.00, 0 %
NEXT = re.compile(r"^\*\*Next:?\*\*:?\s*\{doc\}`(?:[^`<]*<)?([^`>]+)>?`", re.M)
# forbidden in outputs: facts of one machine or one run, and a program's internal words
FORBIDDEN = {
    "an absolute path": r"(?<![\w.])(?:/home/|/Users/|/root/|/tmp/|[A-Za-z]:\\Users\\)|/site-packages/",
    "a memory address": r"\bat 0x[0-9a-fA-F]{6,}",
    "Python's words for an object": r"(?:<|&lt;)(?:bound method|function|built-in|class &#x27;|class ')",
    "a NumPy scalar": r"\bnp\.(?:u?int|float|bool|str)\d*_?\(",
}


def outputs(cells):
    """Each output of some cells as text, with all its contents except pictures."""
    for output in (output for cell in cells for output in cell.get("outputs", [])):
        data = [str(value) for kind, value in output.get("data", {}).items() if "image/" not in kind]
        yield output, "\n".join([output.get("text", ""), *data])


def cells(notebook):
    """Reviewable contents of each cell: its kind, its text, its tags and caption."""
    return [(cell.cell_type, cell.source, dict(cell.metadata)) for cell in notebook.cells]


def agreement(root, source, notebook):
    """Rule: the pair holds the source's cells, and was made from the present tables."""
    now, made = convert(root, source), notebook.metadata.get("lipnb", {})
    if cells(notebook) != cells(now):
        yield "its cells differ from the source"
    for name, hashed in now.metadata["lipnb"]["tables"].items():
        if hashed is None:
            yield f"it loads data/results/{name}.csv, which does not exist"
        elif made.get("tables", {}).get(name) != hashed:
            yield f"the table {name} changed since it was executed"


def edited(root):
    """Rule: committed pairs belong to their sources; otherwise one sentence on how to update them."""
    pairs = [(source, source.with_suffix(".ipynb")) for source in sources(root)]
    there = [(source, nbformat.read(pair, as_version=4)) for source, pair in pairs if pair.exists()]
    if old := [source.stem for source, pair in there if cells(pair) != cells(plain(source))]:
        numbers = " ".join(name.partition("_")[0] for name in old)
        yield (
            f"{', '.join(old)}: shown as before the last edit of the .py. `.venv/bin/python -m lab pages execute "
            f"{numbers}` and `.venv/bin/python -m lab pages pair {numbers}` bring the .ipynb up to date."
        )


def execution(root, notebook):
    """Rule: every code cell ran, once, in order, without an error, a warning, or facts of one machine."""
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    if None in counts:
        yield "a code cell was never executed"
    elif counts != list(range(1, len(counts) + 1)):
        yield "its cells were not executed once each, in order"
    for output, text in outputs(notebook.cells):
        if output.output_type == "error":
            yield f"an output is an error: {output.ename}"
        if output.get("name") == "stderr":
            yield f"an output is a warning: {text.strip()[:80]}"
        for what, pattern in FORBIDDEN.items():
            if re.search(pattern, text) or (what == "an absolute path" and str(root) in text):
                yield f"an output holds {what}"


def glue(root, source, notebook):
    """Rule: every glued number is shown, in the page's text or on a page of prose, and only zero reads as zero."""
    text = "".join(path.read_text(encoding="utf-8") for path in (source, *(root / "book").glob("*.md")))
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        key = output.get("metadata", {}).get("scrapbook", {}).get("name")
        if key and not (shown := re.findall(rf"[`:]{re.escape(key)}(?::([^`]*))?`", text)):
            yield f"it glues {key!r}, which no text shows"
        number = next((value for kind, value in output.get("data", {}).items() if kind.endswith("text/plain")), "")
        for form in shown if key and re.search("[1-9]", number) else ():
            if ZERO.fullmatch(said := format_plain_text(number, form or "s")):
                yield f"it glues {key!r} as {number}, which would read {said!r}"


def figures(source, notebook):
    """Rule: each picture has a separate cell, whose metadata have its name, caption and alternative text."""
    for cell in notebook.cells:
        said = cell.metadata.get("mystnb", {})
        name, caption = (said.get("figure", {}).get(key, "") for key in ("name", "caption"))
        alt, last = said.get("image", {}).get("alt", ""), cell.source.strip().rpartition("\n")[2]
        drawn = sum("image/png" in output.get("data", {}) for output in cell.get("outputs", []))
        if drawn > 1:
            yield f"one cell shows {drawn} figures ({last}): give each a cell and a caption"
        elif drawn != bool(name and caption):
            yield f"`{last}` has a figure without name and caption, or these without a figure"
        elif drawn and not name.startswith(f"fig-{source.name[:2]}-"):
            yield f"a figure's name is fig-{source.name[:2]}-words, not {name}"
        elif drawn and (len(alt.split()) < FEWEST_WORDS or alt in caption):
            yield f"the alternative text of {name} must say what is seen, in words of its own"


def pictures(root):
    """Rule: pictures shown outside their page equal those of the page, and have an alternative text."""
    for path in (root / "README.md", *sorted((root / "book").glob("*.md"))):
        where = path.relative_to(root)
        for name, alt in layout.pictures(path):
            image, kept = layout.picture(root / "notebooks", name), root / f"book/figures/{name}.png"
            if image is None:
                yield f"{where}: no page that was run calls a figure {name!r}"
            elif path.name == "README.md" and not (kept.exists() and kept.read_bytes() == image):
                yield f"{where}: {kept.relative_to(root)} is not what its page shows as {name}"
            if len(alt.split()) < FEWEST_WORDS:
                yield f"{where}: {name} has no alternative text that says what is seen"


def size(pair):
    """Rule: the pair is small enough to be downloaded."""
    if pair.stat().st_size > MOST_BYTES:
        yield f"it weighs {pair.stat().st_size // 1000} kB, more than {MOST_BYTES // 1000}"


def page(root, source):
    """All rules, for one page."""
    pair = source.with_suffix(".ipynb")
    if not pair.exists():
        return [f"{pair.name}: it does not exist"]
    notebook = nbformat.read(pair, as_version=4)
    rules = (agreement(root, source, notebook), execution(root, notebook), glue(root, source, notebook))
    rules += (figures(source, notebook), size(pair))
    return [f"{pair.name}: {sentence}" for rule in rules for sentence in rule]


def toc_pages(root):
    """Files named in the table of contents, in order."""
    return re.findall(r"\b(?:root|file)\W+([\w/-]+)", (root / "_toc.yml").read_text(encoding="utf-8"))


def contents(root):
    """Rule: the table of contents names every page once, and no missing file."""
    listed = toc_pages(root)
    pages = [f"notebooks/{source.stem}" for source in sources(root)]
    prose = [f"book/{path.stem}" for path in (root / "book").glob("*.md")]
    for name in sorted(set(pages + prose) - set(listed)):
        yield f"_toc.yml: {name} is missing"
    for name in sorted(set(listed) - set(pages + prose)):
        yield f"_toc.yml: {name} has no source"
    for name in sorted({name for name in listed if listed.count(name) > 1}):
        yield f"_toc.yml: {name} stands twice"
    numbered = [name for name in listed if name.startswith("notebooks/")]
    for name, after in zip(numbered, numbered[1:], strict=False):
        if name > after:
            yield f"_toc.yml: {after} follows {name}: numbers of pages rise along the contents"
    for name, after in zip(listed, [*listed[1:], None], strict=True):
        path = root / f"{name}.py" if name.startswith("notebooks/") else root / f"{name}.md"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for target in re.findall(NEXT, text.replace("\n# ", "\n")):
            full = target.removeprefix("../") if target.startswith("../") else f"{name.rpartition('/')[0]}/{target}"
            if full != after:
                yield f"{name}: **Next:** names {full}, the table of contents goes on with {after}"
    for pair in sorted((root / "notebooks").glob("*.ipynb")):
        if not pair.with_suffix(".py").exists():
            yield f"{pair.name}: it has no source {pair.stem}.py"


def ledger(root):
    """Rule: every statement has a verdict, and the stored ledger matches the pairs."""
    rows = verdicts.gather(root, root / "notebooks")
    yield from verdicts.complaints(root, rows)
    if rows and not claims.same(claims.read_stored(root), claims.claims(root, rows)):
        yield f"{claims.STORED} is not what the pages recorded: `make notebooks` writes it."


def complaints(root):
    """All violations, one sentence each."""
    found = [sentence for source in sources(root) for sentence in page(root, source)]
    rules = (contents(root), pictures(root), ledger(root), typed_numbers.complaints(root))
    return [*found, *(sentence for rule in rules for sentence in rule)]


def report(root):
    """Print all violations; returns the exit status."""
    found = complaints(root)
    for sentence in found:
        print(f"  {sentence}")
    if any(".ipynb" in sentence for sentence in found):
        print("`python -m lab pages execute NN` and `pair NN` make a pair anew, `make notebooks` all of them.")
    print(f"{len(sources(root))} pages, {len(found)} complaint(s)")
    return 1 if found else 0
