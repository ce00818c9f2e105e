"""The stored tables that the book's pages load, each with its birth certificate: ``NAME.csv`` and ``NAME.json``."""

import ast
import json
import os
from functools import cache
from pathlib import Path

import pandas as pd

import lipnb.recording
from lab.benchmarks import BENCHMARKS
from lipnb.origin import checkout

__all__ = ["folder", "listed", "load", "make", "names", "provenance", "recording"]

# tables of `lipnb scan`, copied from its folder: of which model, with what options, and which of `PARTS`
ALL, WHOLE = ("", "-heads", "-whole"), ("", "-whole")
SCANS = {
    "smollm2": ("SmolLM2", "smollm2 --text alice --lengths 32,128,512", ALL),
    "dinov2-small": ("DINOv2", "dinov2-small --text pictures --lengths 26,122,485", ALL),
    "minilm": ("MiniLM", "minilm --text python_reference --lengths 32,128", WHOLE),
    "gpt2-mini": ("gpt2-mini", "gpt2-mini --text python_reference --lengths 32,128,512", WHOLE),
    "stories260k": ("stories260K", "LIPNB_DATA/models/stories260K --text python_reference --lengths 32,128,512", WHOLE),
}
PARTS = {
    "": "every layer of {}: certified, beside the bounds and baselines",
    "-heads": "every head of {} alone, at the shortest length",
    "-whole": "whole layers of {} and the network from end to end, at the shortest length",
}
FIX = "set LIPNB_RESULTS to a folder that can"  # where the results folder cannot be written


def folder():
    """The results folder: ``LIPNB_RESULTS``, else ``data/results`` of the checkout, else of the current folder."""
    if chosen := os.environ.get("LIPNB_RESULTS"):
        return Path(chosen)
    return (checkout() or Path.cwd()) / "data" / "results"


def names():
    """Names of the finished tables, sorted."""
    return sorted(path.stem for path in folder().glob("*.csv"))


@cache
def listed():
    """Every table that the book knows, there or not.

    Those of experiments and verification are read from the decorators `lab.experiments.table.table` in their source:
    help and figures need the list, and neither torch nor seconds.

    Returns
    -------
    DataFrame
        Index name; columns command (what makes it), trains (whether networks are trained for it), about (what it
        holds, in a few words), module (the file that describes it, from the root, or empty).
    """
    lab, found = Path(__file__).parent, {}
    for path in sorted([*lab.glob("experiments/*.py"), *lab.glob("verification/*.py")]):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "table":
                name, about = map(ast.literal_eval, call.args)
                more = {one.arg: one.value.value for one in call.keywords if one.arg in ("command", "trains")}
                where = {"about": about, "module": path.relative_to(lab.parent).as_posix()}
                found[name] = {"command": f"python -m lab tables {name}", "trains": False} | more | where
    rest = [(f"bench-{name.replace('_', '-')}", "make bench", about) for name, about in BENCHMARKS.items()]
    rest += [("gpt2-mini-training", "make model", "losses of gpt2-mini while it was trained")]
    for name, (model, options, parts) in SCANS.items():
        rest += [(f"scan-{name}{part}", f"lipnb scan {options}", PARTS[part].format(model)) for part in parts]
    for name, command, about in rest:
        trains = name == "gpt2-mini-training"
        found[name] = {"command": command, "trains": trains, "about": about, "module": ""}
    return pd.DataFrame.from_dict(found, orient="index").rename_axis("name")


def load(name):
    """A finished table.

    Parameters
    ----------
    name : str
        Name of the table, without ending.

    Returns
    -------
    DataFrame
        One row for each measurement.

    Raises
    ------
    FileNotFoundError
        "the table ... is not there": names the command that makes it; "there is no table ...": names those there are.
    """
    return pd.read_csv(_found(name))


def provenance(name):
    """How a finished table was made: settings, versions, commit, seconds, as a dictionary."""
    return json.loads(_found(name).with_suffix(".json").read_text())


def _found(name):
    """Path of a finished table; raises the sentence of `load` when there is none."""
    path = folder() / f"{name}.csv"
    if not path.is_file() and name in listed().index:
        raise FileNotFoundError(f"the table {name!r} is not in {folder()}: `{listed().command[name]}` makes it.")
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no table {name!r} (there are: {', '.join(names()) or 'none'}): "
            "data/README.md says how each is made."
        )
    return path


def recording(name, settings):
    """Make or continue a table of the results folder, one process at a time: `lipnb.recording.recording` there."""
    return lipnb.recording.recording(name, settings, folder(), fix=FIX)


def make(name, settings, units, **options):
    """Make a table of the results folder from its units: `lipnb.recording.make` there."""
    return lipnb.recording.make(name, settings, units, folder(), fix=FIX, **options)
