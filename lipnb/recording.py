"""Tables in the making, and the one writer of files: what is measured is kept, whatever stops the run.

A table is ``NAME.csv`` with ``NAME.json`` beside it. While it is made, finished units of work are appended to
``NAME.partial.jsonl``, one line each, so that a killed run continues where it was.
"""

import json
import os
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pandas as pd
from filelock import FileLock, Timeout

from lipnb.origin import versions

__all__ = ["Recording", "kept", "recording", "write", "write_all"]

FLOAT_FORMAT = "%.6g"  # more digits differ between processors


class Recording:
    """A table in the making; see `recording`."""

    def __init__(self, path, settings):
        self._path, self._settings = path, settings
        self._units = {}
        self._read()

    def _read(self):
        if not self._path.exists():
            self._append({"settings": self._settings})
            return
        raw = self._path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]  # a killed run can leave half a line
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
        except ValueError:
            raise ValueError(
                f"{self._path} is damaged: a line of it is not JSON. Mend or delete that line and give "
                "the same command again, or delete the file to begin again."
            ) from None
        if lines and lines[0]["settings"] != self._settings:
            raise ValueError(
                f"{self._path.name} was begun with other settings: finish it with those "
                f"({json.dumps(lines[0]['settings'])}), or delete it to begin again."
            )
        os.truncate(self._path, len(whole))
        if not lines:
            self._append({"settings": self._settings})
        for line in lines[1:]:
            self._units[line["unit"]] = line

    def _append(self, line):
        with kept(self._path), self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def rows(self, unit):
        """Rows of a finished unit, as dictionaries, or None when it is still to be measured."""
        line = self._units.get(unit)
        return None if line is None else line["rows"]

    def add(self, unit, rows, seconds):
        """Save the rows of a finished unit at once.

        Parameters
        ----------
        unit : str
            Key of the unit of work.
        rows : list of dict
            Its measurements.
        seconds : float
            What they took.
        """
        self._units[unit] = {"unit": unit, "seconds": seconds, "rows": rows}
        self._append(self._units[unit])

    def finish(self, join=None):
        """Write the table and its provenance; drop the partial file.

        Parameters
        ----------
        join : callable, optional
            Makes the table from that of all units' rows, in the order they were added; default: that table itself.
        """
        table = pd.DataFrame([row for unit in self._units.values() for row in unit["rows"]])
        table = table if join is None else join(table)
        seconds = sum(unit["seconds"] for unit in self._units.values())
        birth = {
            "settings": self._settings,
            "rows": len(table),
            "seconds": round(seconds, 1),
            "finished": time.strftime("%Y-%m-%d", time.gmtime()),
            "versions": versions(),
        }
        final = self._path.with_name(self._path.name.replace(".partial.jsonl", ".csv"))
        with kept(final):
            write_all(
                {
                    final: table.to_csv(index=False, float_format=FLOAT_FORMAT),
                    final.with_suffix(".json"): json.dumps(birth, indent=1) + "\n",
                }
            )
            self._path.unlink()
        return table


def write(path, text):
    """Replace a file in one step: a reader never sees half of it; on a full disk the old one stays, and nothing else.

    Parameters
    ----------
    path : Path
        Of the file.
    text : str
        Written as UTF-8.
    """
    write_all({path: text})


def write_all(texts):
    """Replace several files of a folder, path -> text, none before all are on the disk: they belong together."""
    beside = {path: path.with_name(f".{path.name}.new") for path in texts}
    try:
        for path, text in texts.items():
            with beside[path].open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        for path, new in beside.items():
            new.replace(path)
    except BaseException:
        for new in beside.values():
            with suppress(OSError):
                new.unlink()
        raise


@contextmanager
def kept(path):
    """A sentence where a file of a table cannot be written: what is finished is in the partial file."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"{path} cannot be written any more ({error.strerror or error}): what is measured is kept. Make "
            "room, then give the same command again."
        ) from error


@contextmanager
def recording(name, settings, where, *, fix="name another one"):
    """Make or continue a table, one process at a time.

    Parameters
    ----------
    name : str
        Name of the table, without ending.
    settings : dict
        What the rows depend on; a partial table with other settings is refused, never mixed.
    where : str or path
        Folder of the table.
    fix : str
        What to do where that folder cannot be written, for the sentence that says so.

    Yields
    ------
    Recording
        `rows(unit)` tells what is already there, `add` saves a unit, `finish` writes the table.

    Raises
    ------
    OSError
        "the folder ... cannot be written".
    ValueError
        "... was begun with other settings".
    RuntimeError
        "another run is making the table ...".
    """
    where = Path(where)
    try:
        where.mkdir(parents=True, exist_ok=True)
        probe = where / f".{name}.partial.probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OSError(f"the folder {where} cannot be written ({error.strerror}): {fix}.") from None
    try:
        with FileLock(where / f".{name}.partial.lock", timeout=0):
            yield Recording(where / f"{name}.partial.jsonl", json.loads(json.dumps(settings)))
    except Timeout:
        raise RuntimeError(
            f"another run is making {name!r} in the folder {where.name!r}: wait for it, or stop it first."
        ) from None
