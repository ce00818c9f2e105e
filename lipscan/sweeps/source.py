"""The notebook of a sweep and the package it runs on, each with a hash that tells when a point is out of date."""

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import lipnb
from lipnb.extras import extra
from lipscan.origin import checkout
from lipscan.sweeps import cells

FLAGS = ("y", "n", "yes", "no", "on", "off", "t", "f", "true", "false")  # texts that probably mean true or false


@dataclass(frozen=True)
class Source:
    """A notebook without outputs.

    Parameters
    ----------
    path : Path
        Path that it was read from.
    text : str
        Notebook format 4, JSON.
    hash : str
        Hash of its code cells, their tags and its kernel; prose and outputs do not count.
    defaults : dict or None
        Defaults in its ``parameters`` cell: name -> default, as from `lipscan.sweeps.cells.defaults`.
    """

    path: Path
    text: str
    hash: str
    defaults: dict | None


def read(path: Path, kernel: str | None = None) -> Source:
    """Read a notebook to sweep, ``.ipynb`` or ``.py`` in jupytext's percent format, and drop its outputs.

    `kernel` is the kernel to run it with; default: the notebook's own, else ``python3``. FileNotFoundError or
    ValueError if the notebook or kernel does not exist.
    """
    with extra("sweeps"):
        import jupytext
        import nbformat
        from jupyter_client.kernelspec import KernelSpecManager

    if path.suffix not in (".py", ".ipynb"):
        raise ValueError(f"{path.name} is not a notebook: give a .ipynb, or a .py in the percent format.")
    if not path.is_file():
        raise FileNotFoundError(f"there is no notebook {path}: its path is taken from the folder of the spec.")
    try:
        notebook = nbformat.v4.upgrade(jupytext.read(path))
        nbformat.validate(notebook)
    except Exception as error:  # each reader has its own errors
        raise ValueError(f"{path.name} is not a notebook: {str(error).splitlines()[0]}") from None
    if not any(cell.cell_type == "code" for cell in notebook.cells):
        raise ValueError(f"{path.name} has no code cell.")
    kernel = kernel or notebook.metadata.get("kernelspec", {}).get("name", "python3")
    known = KernelSpecManager().find_kernel_specs()
    if kernel not in known:
        raise ValueError(
            f"there is no kernel {kernel!r} here (there are: {', '.join(sorted(known)) or 'none'}): name "
            "one of them with 'kernel'."
        )
    language = notebook.metadata.get("kernelspec", {}).get("language", "python")
    notebook.metadata["kernelspec"] = {"display_name": kernel, "language": language, "name": kernel}
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:03d}"
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    code = [(cell.source, cell.metadata.get("tags", [])) for cell in notebook.cells if cell.cell_type == "code"]
    hashed = hashlib.sha256(json.dumps([kernel, code]).encode()).hexdigest()
    try:
        defaults = cells.defaults(notebook, language)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}.") from None
    return Source(path, nbformat.writes(notebook), hashed, defaults)


def check(source: Source, points: list[dict]) -> None:
    """Raise ValueError if the notebook lacks a parameter of the points, or a value would have no effect in it."""
    import nbformat

    if (known := source.defaults) is None:
        return
    if unknown := [name for name in points[0] if name not in known]:
        there = f"it has {', '.join(known)}" if known else "it has no cell tagged 'parameters'"
        raise ValueError(f"{source.path.name} has no parameter {unknown[0]!r}: {there}.")
    for name, value in (item for point in points for item in point.items()):
        flag = isinstance(getattr(known[name], "value", None), bool)
        if flag and isinstance(value, str) and value.lower() in FLAGS:
            raise ValueError(
                f"{source.path.name}: {name!r} is true or false there, and the text {value!r} would count as true: "
                "write true or false."
            )
    try:
        cells.refuse(nbformat.reads(source.text, as_version=4), list(points[0]))
    except ValueError as error:
        raise ValueError(f"{source.path.name}: {error}.") from None


@lru_cache
def package() -> str:
    """Installed version of lipnb; in a checkout with a hash of its files, such as ``0.1.0+3f2a91c0b7de``."""
    if (own := checkout()) is None:
        return lipnb.__version__
    files = (path for name in ("lipnb", "lipscan") for path in (own / name).rglob("*") if path.is_file())
    found = hashlib.sha256()
    for path in sorted(path for path in files if "__pycache__" not in path.parts):
        found.update(f"{path.relative_to(own)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return f"{lipnb.__version__}+{found.hexdigest()[:12]}"
