"""The folder of a sweep: one entry for each point, its notebook, the tables. Its only writer.

Each file is written beside its place and then put there in one step, so that a reader, or a run that continues after
a power cut, finds it whole or not at all. One entry a point, and not one list: what spoils an entry spoils one point.
"""

import csv
import hashlib
import json
import os
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from lipnb.recording import alone, write
from lipnb.sweeps.points import canonical

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Folder", "claimed", "load"]


def _signed(entry):
    return hashlib.sha256(canonical(entry).encode()).hexdigest()[:16]


class Folder:
    """Results of a sweep; see `claimed`."""

    def __init__(self, path):
        self.path = Path(path)

    def entry(self, point):
        """What is known of a point.

        Parameters
        ----------
        point : Point
            One point of the sweep.

        Returns
        -------
        dict or None
            None when it never ran.

        Raises
        ------
        ValueError
            "... is damaged": it cannot be read, or its content is not what was written.
        """
        entry = self._read(point)
        return entry if entry is not None and self.notebook(point, entry["ok"]).is_file() else None

    def _read(self, point):
        """The entry of a point, as `entry`, whether or not its notebook is there."""
        path = self.path / "points" / f"{point.id}.json"
        try:
            entry = json.loads(path.read_bytes())
            sign = entry.pop("check")
            good = sign == _signed(entry) and entry["parameters"] == json.loads(canonical(point.parameters))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            good = False
        if not good:
            raise ValueError(f"points/{path.name} is damaged")
        return entry

    def notebook(self, point, ok):
        """Where the executed notebook of a point lies."""
        return self.path / ("notebooks" if ok else "failed") / f"{point.id}.ipynb"

    def keep(self, point, key, outcome):
        """Save a finished point: its notebook first, then the entry that counts.

        Where it failed, an earlier row that is good stays, with its notebook, until a run succeeds: the entry of the
        failure holds it as ``earlier``.

        Parameters
        ----------
        point : Point
            Which one.
        key : dict
            What it was made from.
        outcome : dict
            As `lipnb.sweeps.execution.execute` gives it.
        """
        entry = {
            "id": point.id,
            "parameters": point.parameters,
            "key": key,
            **{name: outcome[name] for name in ("ok", "values", "error", "log", "seconds", "host", "finished")},
        }
        if not entry["ok"]:
            with suppress(ValueError):  # a damaged entry holds no row
                before = self._read(point) or {}
                if earlier := before if before.get("ok") else before.get("earlier"):
                    entry["earlier"] = earlier
        write(self.notebook(point, outcome["ok"]), outcome["notebook"])
        write(
            self.path / "points" / f"{point.id}.json", json.dumps({**entry, "check": _signed(entry)}, indent=1) + "\n"
        )
        if "earlier" not in entry:  # the notebook of an earlier run that ended otherwise
            self.notebook(point, not outcome["ok"]).unlink(missing_ok=True)

    def others(self, points):
        """Entries of points that are not, or no longer, among these: those of an earlier spec; damaged ones are not.

        Parameters
        ----------
        points : iterable of Point
            The sweep's.

        Returns
        -------
        list of dict
            By name of the point.
        """
        mine, found = {point.id for point in points}, []
        for path in sorted((self.path / "points").glob("*.json")):
            if path.stem not in mine:
                with suppress(ValueError, KeyError, TypeError, AttributeError, OSError):
                    entry = json.loads(path.read_bytes())
                    sign = entry.pop("check")
                    if sign == _signed(entry) and entry["id"] == path.stem:
                        found.append(entry)
        return found

    def tables(self, entries, stale=(), keep=False):
        """Write ``table.csv``, ``failures.csv``, and ``stale.csv`` where a row of an earlier version is kept.

        Parameters
        ----------
        entries : list of dict
            One for each point that ran, in the order of the sweep.
        stale : list of (str, dict)
            Why an entry counts no more, and the entry.
        keep : bool
            Whether rows of an earlier version stay in ``table.csv``, after the others and with the reason in the
            column ``stale``, instead of in a file of their own.

        Returns
        -------
        stale, failed_again : int
            Rows of an earlier version, and how many of them stand for a point whose re-run failed.
        """
        kept = [(why, entry) for why, entry in stale if entry["ok"]]
        again = [
            (f"the re-run failed: {entry['error']}", entry["earlier"])
            for entry in (*entries, *(entry for _, entry in stale))
            if "earlier" in entry
        ]
        apart = [] if keep else kept + again
        if apart:  # before the table loses a row
            old = [_row(entry, why=why, finished=entry["finished"]) for why, entry in apart]
            write(self.path / "stale.csv", _csv(old, ["point", "why", "finished"]))
        good = [entry for entry in entries if entry["ok"]]
        done = [_row(entry, stale="") for entry in good] if keep else [_row(entry) for entry in good]
        done += [_row(entry, stale=why) for why, entry in kept + again] if keep else []
        failed = [
            {
                "point": entry["id"],
                **entry["parameters"],
                "error": entry["error"],
                "notebook": f"failed/{entry['id']}.ipynb",
            }
            for entry in entries
            if not entry["ok"]
        ]
        write(self.path / "table.csv", _csv(done, ["point", "stale"] if keep else ["point"]))
        write(self.path / "failures.csv", _csv(failed, ["point", "error", "notebook"]))
        if not apart:
            (self.path / "stale.csv").unlink(missing_ok=True)
        return len(kept) + len(again), len(again)

    def planned(self, notebook, key, points):
        """Write ``plan.json``: the points of the sweep, in its order, and what they are to be made from."""
        plan = {"notebook": str(notebook), "key": key, "points": {point.id: point.parameters for point in points}}
        write(self.path / "plan.json", json.dumps(plan, indent=1) + "\n")

    def provenance(self, birth):
        """Write ``sweep.json``."""
        write(self.path / "sweep.json", json.dumps(birth, indent=1) + "\n")


def _row(entry, **more):
    """A row of a table: the point, what is said of it, its parameters, what it recorded."""
    return {"point": entry["id"], **more, **entry["parameters"], **entry["values"]}


def _csv(rows, columns):
    """Rows as text; a list or a mapping as JSON, so that equal tables are equal files on every machine."""
    columns = list(dict.fromkeys([name for row in rows for name in row] or columns))
    out = StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {name: canonical(value) if isinstance(value, list | dict) else value for name, value in row.items()}
        )
    return out.getvalue()


@contextmanager
def claimed(path):
    """The folder of a sweep, for one run at a time.

    Parameters
    ----------
    path : Path
        Made where it is missing.

    Yields
    ------
    Folder
        Ready to be written.

    Raises
    ------
    OSError
        "... cannot be written": another folder can be given.
    RuntimeError
        "another sweep is running in ...".
    """
    busy = f"another sweep is running in {path}: wait for it, or give this one another folder with --output."
    with alone(path, ".lock", fix="give another one with --output", busy=busy):
        for part in ("points", "notebooks", "failed"):
            (path / part).mkdir(exist_ok=True)
        for left in path.glob("**/.*.new"):  # of a run that was killed while it wrote
            left.unlink()
        yield Folder(path)


def load(folder: str | os.PathLike) -> "pd.DataFrame":
    """The table of a sweep.

    Parameters
    ----------
    folder : path-like
        Where it ran.

    Returns
    -------
    DataFrame
        One row for each finished point: its id, its parameters, what it recorded.

    Raises
    ------
    FileNotFoundError
        "there is no table of a sweep in ...".
    """
    import pandas as pd

    path = Path(folder) / "table.csv"
    if not path.is_file():
        raise FileNotFoundError(f"there is no table of a sweep in {folder}: `lipnb sweep SPEC.yml` makes one.")
    return pd.read_csv(path, dtype={"point": str})
