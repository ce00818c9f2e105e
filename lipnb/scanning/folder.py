"""The folder of a scan: its tables, checked against their checksums when they are read again."""

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lipnb import recording
from lipnb.scanning.summary import summarise

__all__ = ["NEEDED", "SUMS", "TABLES", "Scan", "clear", "folder_of", "load", "seal"]

TABLES = ("scan", "heads", "tokens", "whole")
SUMMARY, SUMS = "summary.csv", "SHA256SUMS"
NEEDED = {
    "scan": ["layer", "length", "window", "passed", "self_check", "radius", "mean_radius"],
    "heads": ["layer", "head", "lipschitz"],
    "tokens": ["layer", "place", "token", "moves"],
    "whole": ["part", "layer", "lipschitz"],
}


@dataclass(frozen=True)
class Scan:
    """What a scan found.

    Attributes
    ----------
    table : DataFrame
        One row for each layer, length and window. `lipnb.scanning.columns` explains its columns and those below.
    summary : DataFrame
        One row for each layer and length: means, ranges, and how many times too high each bound is.
    about : dict
        How it was made: `settings`, `rows`, `seconds`, `finished`, `versions`.
    heads, tokens, whole : DataFrame
        The shortest length looked at closely, at its first window: one row for each head; for each token; for each
        whole layer and for the network. Empty where it was not asked for.
    """

    table: pd.DataFrame
    summary: pd.DataFrame
    about: dict
    heads: pd.DataFrame
    tokens: pd.DataFrame
    whole: pd.DataFrame

    def report(self, path: str | os.PathLike) -> Path:
        """Write the report, one HTML file that opens offline, to `path` (a folder: report.html in it); gives its path.

        Parameters
        ----------
        path : str or path
            A file, or a folder that exists.

        Returns
        -------
        Path
        """
        from lipnb.scanning.report import write  # which imports this module

        return write(self, path)


def folder_of(model: str | os.PathLike) -> Path:
    """Where a scan of a model goes by default: ``scan-<model>``, with plain characters only."""
    name = Path(str(model)).name if Path(str(model)).is_dir() else str(model)
    return Path(f"scan-{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-.') or 'model'}")


def _digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def clear(folder: Path) -> None:
    """Take away what says that a scan in this folder is finished."""
    for name in (SUMS, *(f"{table}.json" for table in TABLES)):
        (folder / name).unlink(missing_ok=True)


def seal(folder: Path) -> None:
    """Write the summary, and the checksums that say that all is there."""
    table = pd.read_csv(folder / "scan.csv")
    with recording.kept(folder / SUMS):
        text = summarise(table).to_csv(index=False, float_format=recording.FLOAT_FORMAT)
        recording.write(folder / SUMMARY, text)
        files = [f"{name}.{kind}" for name in TABLES for kind in ("csv", "json")] + [SUMMARY]
        there = [file for file in files if (folder / file).is_file()]
        recording.write(folder / SUMS, "".join(f"{_digest(folder / file)}  {file}\n" for file in there))


def load(folder: str | os.PathLike) -> Scan:
    """A finished scan from its folder, as `scan` returned it.

    Parameters
    ----------
    folder : str or path
        Holds scan.csv, scan.json and SHA256SUMS.

    Returns
    -------
    Scan

    Raises
    ------
    FileNotFoundError
        "the folder ... holds no finished scan ...".
    ValueError
        "... is damaged ...": one of its files is not what the scan wrote.
    """
    folder = Path(folder)
    if not (folder / SUMS).is_file():
        raise FileNotFoundError(
            f"the folder {folder.name!r} holds no finished scan (scan.csv and {SUMS}): give the command of that scan "
            "again, which finishes it, or name another folder."
        )
    file = SUMS
    try:
        lines = [line.split("  ", 1) for line in (folder / SUMS).read_text(encoding="utf-8").splitlines()]
        sums = {name: digest for digest, name in lines}
        for file in ("scan.csv", "scan.json", SUMMARY):
            if file not in sums:
                raise ValueError(f"{SUMS} does not name it")
        for file, digest in sums.items():
            if Path(file).name != file or _digest(folder / file) != digest:
                raise ValueError("it is not the file that the scan wrote")
        tables = {}
        for name in TABLES:
            file = f"{name}.csv"
            tables[name] = pd.read_csv(folder / file) if file in sums else pd.DataFrame(columns=NEEDED[name])
            if missing := {*NEEDED[name]} - {*tables[name]}:
                raise ValueError(f"it has no column {sorted(missing)[0]!r}")
        file = "scan.json"
        about = json.loads((folder / file).read_text(encoding="utf-8"))
        about["settings"]["layers_scanned"], about["versions"]
        about["seconds"] = round(sum(_seconds(folder / f"{name}.json") for name in TABLES if f"{name}.json" in sums), 1)
        return Scan(tables["scan"], summarise(tables["scan"]), about, *(tables[name] for name in TABLES[1:]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{file} in the folder {folder.name!r} is damaged ({str(error) or type(error).__name__:.90}): measure anew "
            "with --again (again=True in Python), or name another folder."
        ) from None


def _seconds(path):
    return json.loads(path.read_text(encoding="utf-8"))["seconds"]
