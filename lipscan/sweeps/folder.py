"""The folder of a sweep: its plan, the outcomes of points, the tables, and its status.

``points.jsonl`` only grows: one line when a point begins, one when it ends; the last end counts. So a killed run loses
only the points in progress, and no good row is lost if a later run of its point fails.
"""

import csv
import getpass
import json
import os
import platform
import statistics
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from lipscan.recording import kept, write
from lipscan.recording.files import Lines, alone
from lipscan.sweeps import source
from lipscan.sweeps.spec import Point, canonical

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Status", "load", "status"]


def now_utc():
    """Current time in the format of the tables."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Folder:
    """Results of a sweep, as stored now; `claimed` gives the right to write.

    Parameters
    ----------
    path : path-like
        Path of the folder, which need not exist.

    Raises
    ------
    ValueError
        "... holds a sweep that was begun with lipnb 0.3": its lines are signed.
    """

    def __init__(self, path):
        self.path = Path(path)
        self._lines = Lines(self.path / "points.jsonl")
        self.last, self.good, self.begun, self.damaged = {}, {}, {}, []  # all but the last by the point's id
        signed = False
        for number, raw in enumerate(self._lines.raw(), 1):
            try:
                signed |= "check" in (line := json.loads(raw))
                self._take(line)
            except (ValueError, KeyError, TypeError):
                self.damaged.append(number)
        if signed:
            raise ValueError(
                f"{self.path} holds a sweep that was begun with lipnb 0.3: finish it with that version, or begin it "
                "again in another folder (--output)."
            )

    def _take(self, line):
        if "begun" in line:
            self.begun[line["point"]] = line
            return
        self.begun.pop(line["point"], None)
        self.last[line["point"]] = line
        if line["ok"]:
            self.good[line["point"]] = line

    def _write(self, path, text):
        with kept(path):
            write(path, text)

    def _add(self, line):
        self._lines.append(line)
        self._take(line)

    def tidy(self):
        """Keep only the lines that count: drop incomplete and damaged lines, and the lines of points in progress."""
        lines = {id(line): line for line in (*self.good.values(), *self.last.values())}.values()
        self._write(self._lines.path, "".join(json.dumps(line) + "\n" for line in lines))
        self.begun.clear()

    def notebook(self, point, ok):
        """Path of the executed notebook of a point, given by its id."""
        return self.path / ("notebooks" if ok else "failed") / f"{point}.ipynb"

    def state(self, point, made_from, keep_stale=False):
        """State of a point: "done", "failed", "new", or why it runs again, such as "stale: the notebook changed".

        With `keep_stale` a good point does not run again: "kept: the notebook changed".
        """
        entry = self.last.get(point.id)
        if entry is None or not self.notebook(point.id, entry["ok"]).is_file():
            return "new"
        if changed := [part for part in made_from if entry["key"].get(part) != made_from[part]]:
            kept = keep_stale and entry["ok"]
            return f"{'kept' if kept else 'stale'}: the {' and the '.join(changed)} changed"
        return "done" if entry["ok"] else "failed"

    def began(self, point, where):
        """Record that a point is in progress, and where."""
        self._add({"point": point.id, "begun": time.time(), "where": where})

    def keep(self, point, made_from, outcome):
        """Save the outcome of a finished point, see `execute`: its notebook first, then the line that counts."""
        told = {name: outcome[name] for name in ("ok", "values", "error", "seconds", "host", "finished")}
        self._write(self.notebook(point.id, outcome["ok"]), outcome["notebook"])
        self._add({"point": point.id, "parameters": point.parameters, "key": made_from, **told})
        if outcome["ok"]:
            self.notebook(point.id, False).unlink(missing_ok=True)

    def planned(self, plan):
        """Write ``sweep.json``: the points in their order, the hashes that they depend on, and the run."""
        self._write(self.path / "sweep.json", json.dumps(plan, indent=1) + "\n")

    def plan(self):
        """Contents of ``sweep.json``; FileNotFoundError if it is missing, ValueError if it is damaged."""
        try:
            plan = json.loads((self.path / "sweep.json").read_bytes())
            points = [Point(name, dict(parameters)) for name, parameters in plan["points"].items()]
            return {**plan, "points": points, "key": dict(plan["key"]), "notebook": str(plan["notebook"])}
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(
                f"there is no sweep in {self.path}: no sweep.json, which `lipnb sweep SPEC.yml --output FOLDER` "
                "writes first."
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(
                f"{self.path / 'sweep.json'} is damaged: the same `lipnb sweep` command writes it again."
            ) from None

    def tables(self, states):
        """Write ``table.csv``, ``failures.csv``, and ``stale.csv`` if a good row is not, or no longer, in the table.

        `states` maps the points to their states, in the order of the sweep; returns the rows of the three tables.
        """
        known = [(point, found, self.last.get(point.id)) for point, found in states.items()]
        marks = [found.removeprefix("kept: ") for _, found, _ in known if found.startswith("kept")]
        done = [
            _row(entry, **({"stale": found.removeprefix("kept: ").replace("done", "")} if marks else {}))
            for _, found, entry in known
            if found == "done" or found.startswith("kept")
        ]
        failed = [
            {**_row(entry), "error": entry["error"], "notebook": f"failed/{point.id}.ipynb"}
            for point, found, entry in known
            if found == "failed"
        ]
        why = {point.id: found.removeprefix("stale: ") for point, found in states.items()}
        for point, found, entry in known:
            if entry is not None and not entry["ok"]:
                why[point.id] = f"the re-run failed: {entry['error']}"
            elif found == "new":
                why[point.id] = "its notebook is gone"
        mine = {row["point"] for row in done}
        old = [(point, entry) for point, entry in self.good.items() if point not in mine]
        stale = [_row(entry, stale=why.get(point, "not a point of this spec")) for point, entry in old]
        if stale:  # before the table loses a row
            self._write(self.path / "stale.csv", _csv(stale, ["point", "stale"]))
        self._write(self.path / "table.csv", _csv(done, ["point"]))
        self._write(self.path / "failures.csv", _csv(failed, ["point", "error", "notebook"]))
        if not stale:
            (self.path / "stale.csv").unlink(missing_ok=True)
        return done, failed, stale


def _row(entry, **more):
    """A row of a table: the point, further columns, its parameters, its recorded values."""
    return {"point": entry["point"], **more, **entry["parameters"], **entry["values"]}


def _csv(rows, columns):
    """Rows as CSV, with lists and mappings as JSON, so that equal tables are equal files on every machine."""
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
    """Context with the folder of a sweep for one run; OSError if not writable, RuntimeError if another run has it."""
    busy = f"another sweep is running in {path}: wait for it, or give this one another folder with --output."
    with alone(path, ".lock", fix="give another one with --output", busy=busy):
        for part in ("notebooks", "failed"):
            (path / part).mkdir(exist_ok=True)
        for left in [*path.glob(".*.new"), *path.glob("*/.*.new")]:  # of a run that was killed while it wrote
            left.unlink()
        folder = Folder(path)
        folder.tidy()
        yield folder


def load(folder: str | os.PathLike) -> "pd.DataFrame":
    """Table of a sweep: one row for each finished point, with its id, its parameters and its recorded values.

    `folder` is the output folder; FileNotFoundError if it holds no table.
    """
    import pandas as pd

    path = Path(folder) / "table.csv"
    if not path.is_file():
        raise FileNotFoundError(f"there is no table of a sweep in {folder}: `lipnb sweep SPEC.yml` makes one.")
    return pd.read_csv(path, dtype={"point": str})


# --- status -----------------------------------------------------------------------------------------------------------


def sign(where):
    """Description of this run: user, process, host, start, and the workers in words."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a user name
        user = f"user {os.getuid()}"
    mine = {"process": os.getpid(), "born": psutil.Process().create_time(), "host": platform.node()}
    return {"user": user, **mine, "since": time.time(), "where": where}


@dataclass(frozen=True)
class Status:
    """Progress of a sweep.

    Parameters
    ----------
    folder : Path
        Output folder of the sweep.
    notebook : str
        Notebook that it runs.
    points : list of dict
        In the order of the sweep: ``point``, ``state`` ("done", "failed", "running", "left", "stale: ..."),
        ``parameters`` and, if known, ``values``, ``error``, ``seconds``, ``where``, ``finished``.
    run : dict or None
        The active run, or one that was interrupted: ``user``, ``host``, ``process``, ``since`` (seconds since 1970),
        ``where``. None if every run that began has ended.
    alive : bool or None
        Whether that run is still active; None on another machine, which cannot see its processes.
    """

    folder: Path
    notebook: str
    points: list
    run: dict | None
    alive: bool | None

    def count(self, state: str) -> int:
        """Number of points in a state, such as "done" or "stale"."""
        return sum(point["state"].split(":")[0] == state for point in self.points)

    @property
    def seconds(self) -> list[float]:
        """Seconds that each finished point took, failed ones included."""
        return [point["seconds"] for point in self.points if point["state"] in ("done", "failed")]

    @property
    def remaining(self) -> float | None:
        """Seconds until the end if all other points took the median time; None if unknown."""
        working = self.count("running")
        if self.alive is False or not working or not self.seconds:
            return None
        todo = working / 2 + self.count("left") + self.count("stale")  # on average, running points are half done
        return todo * statistics.median(self.seconds) / working


def status(folder: str | os.PathLike) -> Status:
    """Progress of the sweep in a folder; writes nothing and does not disturb an active run.

    A change of the spec since the last run is only detected by the next run. FileNotFoundError if the folder holds no
    sweep, ValueError if its plan is damaged.
    """
    home = Folder(folder)
    plan = home.plan()
    run = plan.get("run")
    alive = _alive(run)
    key, points = plan["key"] if alive else _key_now(plan), []
    for point in plan["points"]:
        found, entry = home.state(point, key), home.last.get(point.id)
        row = {"point": point.id, "parameters": point.parameters, "state": "left" if found == "new" else found}
        begun = home.begun.get(point.id) if run and alive is not False else None
        if begun is not None and begun["begun"] >= run["since"]:
            row |= {"state": "running", "seconds": time.time() - begun["begun"], "where": begun["where"]}
        elif found != "new":
            row |= {name: entry[name] for name in ("values", "error", "seconds", "finished")} | {"where": entry["host"]}
        points.append(row)
    return Status(home.path, plan["notebook"], points, run, alive)


def _key_now(plan):
    """Hashes that points would have now, as the next run computes them; the stored ones if the notebook is missing."""
    with suppress(FileNotFoundError, ValueError, ImportError, KeyError):  # an older sweep.json names no kernel
        return {"notebook": source.read(Path(plan["notebook"]), plan["kernel"]).hash, "package": source.package()}
    return plan["key"]


def _alive(run):
    if run is None:
        return False
    if run["host"] != platform.node():
        return None
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(run["process"])
        same = abs(process.create_time() - run["born"]) < 1  # not a later process with the same number
        return same and process.status() != psutil.STATUS_ZOMBIE
    return False
