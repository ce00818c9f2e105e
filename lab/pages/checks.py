"""What must hold of every page and its executed pair; each rule returns sentences, none when it holds."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import nbformat
import yaml
from myst_nb.core.variables import format_plain_text

from lab.pages import layout, typed_numbers, verdicts
from lab.pages.sources import convert, provenance, sources

MOST_BYTES = 300_000
FEWEST_WORDS = 6  # of an alternative text
ZERO = re.compile(r"[-+\s]*[0.,]*0[0.,]*\s*%?")  # 0, -0.00, 0 %
NEXT = re.compile(r"^\*\*Next:?\*\*:?\s*\{doc\}`(?:[^`<]*<)?([^`>]+)>?`", re.M)
PLACES = re.compile(r"(?<![\w.])(?:/home/|/Users/|/root/|/tmp/|[A-Za-z]:\\Users\\)|/site-packages/")
ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{6,}")
OBJECT = re.compile(r"(?:<|&lt;)(?:bound method|function|built-in|class &#x27;|class ')")
SCALAR = re.compile(r"\bnp\.(?:u?int|float|bool|str)\d*_?\(")


def cells(notebook):
    """What a reader reviews of each cell: its kind, its text, its tags and caption."""
    return [(cell.cell_type, cell.source, dict(cell.metadata)) for cell in notebook.cells]


def agreement(root, source, notebook):
    """The pair holds the source's cells and was made from the present source and tables."""
    if cells(notebook) != cells(convert(root, source)):
        yield "its cells differ from the source"
    made_from, now = notebook.metadata.get("lipnb", {}), provenance(root, source)
    if made_from.get("source") != now["source"]:
        yield "the source changed since it was executed"
    for name, hashed in now["tables"].items():
        if hashed is None:
            yield f"it loads data/results/{name}.csv, which does not exist"
        elif made_from.get("tables", {}).get(name) != hashed:
            yield f"the table {name} changed since it was executed"


def execution(notebook):
    """Every code cell ran, once, in order, without an error or a warning."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    counts = [cell.execution_count for cell in code if cell.source.strip()]
    if None in counts:
        yield "a code cell was never executed"
    elif counts != list(range(1, len(counts) + 1)):
        yield "its cells were not executed once each, in order"
    for output in (output for cell in code for output in cell.outputs):
        if output.output_type == "error":
            yield f"an output is an error: {output.ename}"
        if output.get("name") == "stderr":
            yield f"an output is a warning: {output.text.strip()[:80]}"


def portability(root, notebook):
    """No output tells where it was made, what program made it, nor changes from run to run."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    data = [item for output in outputs for item in output.get("data", {}).items()]
    text = "\n".join([*(output.get("text", "") for output in outputs), *(str(b) for a, b in data if a[:5] == "text/")])
    if PLACES.search(text) or str(root) in text or str(Path.home()) + "/" in text:
        yield "an output holds an absolute path"
    if ADDRESS.search(text):
        yield "an output holds a memory address"
    if found := OBJECT.search(text):
        yield f"an output shows Python's words for an object: {found[0]}..."


def numbers(notebook):
    """No output, glued ones among them, shows a number as NumPy's repr has it."""
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        if found := SCALAR.search(str((output.get("text", ""), output.get("data", {})))):
            yield f"an output shows a NumPy scalar: {found[0]}...)"


def glue(root, source, notebook):
    """Every number that the page glues is shown, in its own text or on a page of prose, and none but zero as zero."""
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
    """Each picture has a cell of its own, whose metadata have its name, its caption and a text in its place."""
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
    """What is shown outside its page is what the page shows, and is told in words."""
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
    """Light enough to be downloaded."""
    if pair.stat().st_size > MOST_BYTES:
        yield f"it weighs {pair.stat().st_size // 1000} kB, more than {MOST_BYTES // 1000}"


def page(root, source):
    """Every rule, for one page."""
    pair = source.with_suffix(".ipynb")
    if not pair.exists():
        return [f"{pair.name}: it does not exist"]
    notebook = nbformat.read(pair, as_version=4)
    rules = (agreement(root, source, notebook), execution(notebook), portability(root, notebook))
    rules = (*rules, numbers(notebook), glue(root, source, notebook), figures(source, notebook), size(pair))
    return [f"{pair.name}: {sentence}" for rule in rules for sentence in rule]


def toc_pages(entry):
    """The files named in a table of contents, in order."""
    if isinstance(entry, dict):
        return [entry[key] for key in ("root", "file") if key in entry] + [
            file for value in entry.values() if isinstance(value, list) for file in toc_pages(value)
        ]
    return [file for item in entry for file in toc_pages(item)]


def contents(root):
    """The table of contents names every page, once, and nothing that does not exist."""
    listed = toc_pages(yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8")))
    pages = [f"notebooks/{source.stem}" for source in sources(root)]
    prose = [f"book/{path.stem}" for path in (root / "book").glob("*.md")]
    for name in sorted(set(pages + prose) - set(listed)):
        yield f"_toc.yml: {name} is missing"
    for name in sorted(set(listed) - set(pages + prose)):
        yield f"_toc.yml: {name} has no source"
    for name in sorted({name for name in listed if listed.count(name) > 1}):
        yield f"_toc.yml: {name} stands twice"
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


def body(function):
    """A function or class as text in which names that the page chose no longer count, nor what it says of itself."""
    own = ast.parse(ast.unparse(function)).body[0]
    if ast.get_docstring(own) is not None:
        own.body = own.body[1:]
    stored = {node.id for node in ast.walk(own) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    stored |= {node.arg for node in ast.walk(own) if isinstance(node, ast.arg)}
    numbers = {own.name: "0"}
    for node in ast.walk(own):
        if isinstance(node, ast.Name) and node.id in stored | {own.name}:
            node.id = numbers.setdefault(node.id, str(len(numbers)))
        elif isinstance(node, ast.arg):
            node.arg = numbers.setdefault(node.arg, str(len(numbers)))
    own.name = "0"
    return ast.dump(own)


def definitions(root):
    """No function is defined in two pages, under whatever names: it belongs in the package."""
    where = defaultdict(dict)
    for source in sources(root):
        for node in ast.parse(source.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                where[body(node)][source.name] = node.name
    for pages in where.values():
        if len(pages) > 1:
            names = " and ".join(f"{name} ({page})" for page, name in sorted(pages.items()))
            yield f"one function is defined in several pages, {names}: move it to the package"


def ledger(root):
    """Every statement has a verdict, and the stored ledger is what the pairs recorded."""
    rows = verdicts.gather(root, root / "notebooks")
    yield from verdicts.complaints(root, rows)
    stored = verdicts.read_stored(root)
    if rows and (stored is None or not verdicts.same(stored, rows)):
        yield f"{verdicts.STORED} is not what the pages recorded: `make notebooks` writes it."


def complaints(root):
    """Everything that does not hold, one sentence each."""
    found = [sentence for source in sources(root) for sentence in page(root, source)]
    rules = (contents(root), pictures(root), definitions(root), ledger(root), typed_numbers.complaints(root))
    return [*found, *(sentence for rule in rules for sentence in rule)]


def report(root):
    """Print what does not hold; return the exit status."""
    found = complaints(root)
    for sentence in found:
        print(f"  {sentence}")
    if any(".ipynb" in sentence for sentence in found):
        print("`make notebooks` makes the pairs anew from their sources.")
    print(f"{len(sources(root))} pages checked, {len(found)} complaint(s)")
    return 1 if found else 0
