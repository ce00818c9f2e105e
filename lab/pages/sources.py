"""The pages' sources: which tables each loads, what it was made from, the notebook that it becomes."""

import csv
import hashlib
import os
import re
import sys
from pathlib import Path

import jupytext

ROOT = Path(__file__).resolve().parents[2]
EXECUTED = "_build/notebooks"
LOADED_TABLE = re.compile(r"""results\.load\(\s*["']([\w.-]+)["']""")
# where a page may read from outside the repository
ENVIRONMENT = ("NLTK_DATA", "LIPNB_DATA", "LIPNB_RESULTS", "HF_HOME", "HF_HUB_CACHE")


def sources(root):
    """Every page's source, in the order of the book."""
    return sorted((root / "notebooks").glob("[0-9]*.py"))


def rows(path):
    """Rows of a list such as lab/statements.csv, as dictionaries; none where there is no list."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def digest(path):
    """sha256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tables(root, source):
    """The tables that a page loads, by name, where lab.results looks for them."""
    folder = Path(os.environ.get("LIPNB_RESULTS") or root / "data" / "results")
    text = source.read_text(encoding="utf-8")
    # a name may reach the call through a variable: every quoted name of a table counts
    named = [path.stem for path in folder.glob("*.csv") if re.search(rf"""["']{re.escape(path.stem)}["']""", text)]
    return {name: folder / f"{name}.csv" for name in sorted({*named, *LOADED_TABLE.findall(text)})}


def provenance(root, source):
    """What a pair was made from: the sha256 of its source and of each table it loads."""
    made_from = {name: digest(path) if path.exists() else None for name, path in tables(root, source).items()}
    return {"source": digest(source), "tables": made_from}


def checking(root, path):
    """Whether a file of the laboratory only checks, lays out or starts: no page shows anything that it makes."""
    place = path.relative_to(root).parts
    return place[:2] in {("lab", "cli"), ("lab", "pages")} and place[-1] != "running.py"


def inputs(root, source):
    """Every file whose content can change what a page shows."""
    package = [
        path
        for house in ("lipnb", "lab")
        for path in (root / house).rglob("*")
        if path.is_file() and path.suffix != ".pyc" and not checking(root, path)
    ]
    made = tables(root, source).values()
    results = [path for table in made for path in (table, table.with_suffix(".json")) if path.exists()]
    models = [path for path in (root / "data" / "models").rglob("*") if path.is_file()]
    return sorted([source, root / "constraints.txt", *package, *results, *models])


def fingerprint(root, source):
    """One hash of a page's inputs; equal hashes mean that running it again would show the same."""
    known = hashlib.sha256(sys.version.encode())
    for name in ENVIRONMENT:
        known.update(f"{name}={os.environ.get(name, '')}\0".encode())
    for path in inputs(root, source):
        known.update(f"{os.path.relpath(path, root)}\0{digest(path)}\0".encode())
    return known.hexdigest()


def convert(root, source):
    """A page's source as a notebook without outputs, the same bytes every time."""
    notebook = jupytext.read(source, config=jupytext.config.load_jupytext_config(str(source)))
    notebook.metadata.setdefault("kernelspec", {"display_name": "Python 3", "language": "python", "name": "python3"})
    # how the text was read, with jupytext's version; the rest is what jupytext itself puts into a pair
    notebook.metadata.get("jupytext", {}).pop("text_representation", None)
    notebook.metadata["lipnb"] = provenance(root, source)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:03d}"
    return notebook


def is_fresh(root, source):
    """Whether the last run of a page in _build saw the same inputs as now."""
    stamp = root / EXECUTED / f"{source.stem}.sha256"
    return stamp.exists() and stamp.read_text() == fingerprint(root, source)


def write_if_changed(path, content):
    """Write bytes only where they differ, so that Sphinx reads again only what changed."""
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
