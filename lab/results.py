"""The stored tables that the book's pages load, each with its provenance: ``NAME.csv`` and ``NAME.json``."""

import json
import os
from functools import cache
from pathlib import Path

import pandas as pd

import lipscan.recording
from lab import described
from lipscan.origin import checkout

FIX = "set LIPNB_RESULTS to a folder that can"  # for a results folder that cannot be written


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
    """Every table of the book, whether finished or not.

    Returns index name; columns as in `lab.described.tables`.
    """
    return pd.DataFrame.from_dict(described.tables(), orient="index").rename_axis("name")


def load(name):
    """A finished table.

    `name`: name of the table, without ending. Returns one row for each measurement.
    """
    return pd.read_csv(_found(name))


def provenance(name):
    """Provenance of a finished table: settings, versions, commit, seconds, as a dictionary."""
    return json.loads(_found(name).with_suffix(".json").read_text())


def _found(name):
    """Path of a finished table; raises the error of `load` if it is missing."""
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
    """Make or continue a table of the results folder, one process at a time, by `lipscan.recording.recording`."""
    return lipscan.recording.recording(name, settings, folder(), fix=FIX)


def make(name, settings, units, **options):
    """Make a table of the results folder from its units, by `lipscan.recording.make`."""
    return lipscan.recording.make(name, settings, units, folder(), fix=FIX, **options)
