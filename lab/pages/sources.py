"""Sources of the pages: the tables that each loads, the dependencies of its run, the notebook made from it."""

import csv
import hashlib
import json
import os
import re
import sys
from pathlib import Path

import jupytext

from lipscan.origin import cache_folder

ROOT = Path(__file__).resolve().parents[2]
EXECUTED = "_build/notebooks"
LOADED_TABLE = re.compile(r"""results\.load\(\s*["']([\w.-]+)["']""")
FORMED_NAME = re.compile(r"""results\.load\(\s*f["']([^"']+)["']""")  # f"bench-{name}": every matching table
# calls that load every table with a prefix
MANY = {
    "layer_growth.stored()": "atlas-",
    "layer_growth.of_other_models(": ("atlas-", "released-map-"),
    "all_counts()": ("atlas-", "paper-range", "released-map", "sublayer-texts", "unseen-"),
}
# variables for places outside the repository that a page may read
ENVIRONMENT = ("NLTK_DATA", "LIPNB_DATA", "LIPNB_RESULTS", "HF_HOME", "HF_HUB_CACHE")
# code that only checks, lays out or starts, and so does not change a page
BESIDE = {("lab", "cli"), ("lab", "pages"), ("lab", "statements.csv")}


def sources(root, names=()):
    """Sources of the pages, in the order of the book; with `names`, only those that contain one of them."""
    found = sorted((root / "notebooks").glob("[0-9]*.py"))
    chosen = [source for source in found if not names or any(name in source.stem for name in names)]
    if names and not chosen:
        raise ValueError(f"no page has {' or '.join(map(repr, names))} in its name: see notebooks/.")
    return chosen


def rows(path):
    """Rows of a list such as lab/statements.csv, as dictionaries; none if the list is missing."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def digest(path):
    """sha256 of a file, in hexadecimal; None if the file is missing."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def tables(root, source):
    """Tables that a page loads: name -> path, as found by lab.results."""
    folder = Path(os.environ.get("LIPNB_RESULTS") or root / "data" / "results")
    text = source.read_text(encoding="utf-8")
    # a name may reach the call through a variable: every quoted name of a table counts
    there = [path.stem for path in folder.glob("*.csv")]
    named = [name for name in there if re.search(rf"""["']{re.escape(name)}["']""", text)]
    named += [name for call, start in MANY.items() if call in text for name in there if name.startswith(start)]
    for formed in FORMED_NAME.findall(text):
        pattern = re.compile(r"[\w.-]+".join(map(re.escape, re.split(r"\{[^}]*\}", formed))))
        named += filter(pattern.fullmatch, there)
    return {name: folder / f"{name}.csv" for name in sorted({*named, *LOADED_TABLE.findall(text)})}


def code(path):
    """sha256 of a file, in hexadecimal; for Python, without blank lines and comment lines."""
    lines = path.read_bytes().splitlines(keepends=True)
    if path.suffix == ".py":
        lines = [line for line in lines if line.strip() and not line.lstrip().startswith(b"#")]
    return hashlib.sha256(b"".join(lines)).hexdigest()


def inputs(root, source):
    """One hash of everything in the repository that can change a page: code, tables, checkpoints, statements."""
    houses = [root / name for name in ("lipnb", "lipscan", "lab")]
    package = [path for house in houses for path in house.rglob("*") if path.suffix != ".pyc"]
    package = [path for path in package if path.relative_to(root).parts[:2] not in BESIDE or path.stem == "running"]
    package = [path for path in package if path.parent.suffix != ".egg-info"]  # written by pip, differs between clones
    made = [file for table in tables(root, source).values() for file in (table, table.with_suffix(".json"))]
    found = [source, root / "constraints.txt", *package, *made, *(root / "data" / "models").rglob("*")]
    known, text = hashlib.sha256(), source.read_text(encoding="utf-8")
    # the statements that it gives verdicts on; a page may prepend the part before the point by code
    named = [row for row in rows(root / "lab" / "statements.csv") if row["id"].partition(".")[2] in text]
    known.update(json.dumps(named).encode())
    for path in sorted(filter(Path.is_file, found)):
        content = digest(path) if path == source else code(path)  # the prose of a page is in comments
        known.update(f"{os.path.relpath(path, root)}\0{content}\0".encode())
    return known.hexdigest()


def fingerprint(root, source):
    """One hash of all dependencies of a page's run: its inputs, the Python version, data locations, fetched models."""
    known = hashlib.sha256(f"{inputs(root, source)}\0{sys.version}\0".encode())
    for name in ENVIRONMENT:
        known.update(f"{name}={os.environ.get(name, '')}\0".encode())
    fetched = [path.name for kind in ("models", "texts") for path in (cache_folder() / kind).glob("[!.]*")]
    known.update(json.dumps(sorted(fetched)).encode())
    return known.hexdigest()


def run_of(executed):
    """Record of the run that made an executed page; empty if missing."""
    note = executed.with_suffix(".run.json")
    return json.loads(note.read_text(encoding="utf-8")) if note.is_file() else {}


def is_fresh(root, source):
    """Whether the last run of a page in _build had the present inputs."""
    return run_of(root / EXECUTED / f"{source.stem}.ipynb").get("inputs") == fingerprint(root, source)


def plain(source):
    """Source of a page as a notebook without outputs."""
    return jupytext.read(source, config=jupytext.config.load_jupytext_config(str(source)))


def convert(root, source):
    """Source of a page as a notebook without outputs, the same bytes every time; it names its tables, with SHA-256."""
    notebook = plain(source)
    notebook.metadata.setdefault("kernelspec", {"display_name": "Python 3", "language": "python", "name": "python3"})
    # how the text was read, with jupytext's version; the rest is what jupytext itself puts into a pair
    notebook.metadata.get("jupytext", {}).pop("text_representation", None)
    named = {name: digest(path) for name, path in tables(root, source).items()}
    notebook.metadata["lipnb"] = {"tables": named}
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:03d}"
    return notebook


def write_if_changed(path, content):
    """Write bytes only if they differ, so that Sphinx reads only changed files again."""
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
