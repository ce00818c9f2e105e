"""How far a sweep is: what each point came to, and what is being run, where and by whom."""

import getpass
import json
import os
import platform
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from lipnb.recording import write
from lipnb.sweeps.folder import Folder
from lipnb.sweeps.planning import state
from lipnb.sweeps.points import Point

__all__ = ["Sign", "Status", "status"]

SIGN = "running.json"


class Sign:
    """The file ``running.json``, which is there while a sweep runs: by whom, since when, and the points in work.

    Parameters
    ----------
    folder : Path
        Of the sweep.
    where : str
        The workers, in words.
    """

    def __init__(self, folder, where):
        self._path = folder / SIGN
        self._points = {}
        self._said = {
            "user": _user(),
            "host": platform.node(),
            "process": os.getpid(),
            "born": psutil.Process().create_time(),
            "started": time.time(),
            "where": where,
        }

    def __enter__(self):
        self._write()
        return self

    def __exit__(self, *_):
        self._path.unlink(missing_ok=True)

    def began(self, point, where):
        """Note that a point is in work."""
        self._points[point.id] = {"since": time.time(), "where": where}
        self._write()

    def ended(self, point):
        """Note that it is no more."""
        if self._points.pop(point.id, None):
            self._write()

    def _write(self):
        write(self._path, json.dumps({**self._said, "points": self._points}, indent=1) + "\n")


@dataclass(frozen=True)
class Status:
    """How far a sweep is.

    Parameters
    ----------
    folder : Path
        Of the sweep.
    notebook : str
        What it runs.
    points : list of dict
        In the order of the sweep: ``point``, ``state`` ("done", "failed", "running", "left", "stale: ...",
        "damaged: ..."), ``parameters``, and as far as they are known ``values``, ``error``, ``seconds``, ``where``,
        ``finished``.
    run : dict or None
        The run that is or was at work: ``user``, ``host``, ``process``, ``started`` (seconds since 1970), ``where``.
        None where no run has begun without ending.
    alive : bool or None
        Whether that run still is; None on another machine, whose processes cannot be seen from here.
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
        """Seconds that each finished point took, those that failed included."""
        return [point["seconds"] for point in self.points if point["state"] in ("done", "failed")]

    @property
    def remaining(self) -> float | None:
        """Seconds until the end, were all other points as long as the median one; None where that cannot be said."""
        working = self.count("running")
        if self.alive is False or not working or not self.seconds:
            return None
        todo = working / 2 + self.count("left") + self.count("stale") + self.count("damaged")  # half of each is done
        return todo * statistics.median(self.seconds) / working


def status(folder: str | os.PathLike) -> Status:
    """How far the sweep in a folder is; nothing is written, and a run that is at work is not disturbed.

    Parameters
    ----------
    folder : path-like
        Its output folder.

    Returns
    -------
    Status
        As the run that was last begun there planned it.

    Raises
    ------
    FileNotFoundError
        "there is no sweep in ...".
    ValueError
        "... is damaged".
    """
    home = Folder(folder)
    try:
        plan = json.loads((home.path / "plan.json").read_bytes())
        planned = [Point(name, dict(parameters)) for name, parameters in plan["points"].items()]
        made_from, notebook = dict(plan["key"]), str(plan["notebook"])
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            f"there is no sweep in {folder}: no plan.json, which `lipnb sweep SPEC.yml --output FOLDER` writes first."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            f"{home.path / 'plan.json'} is damaged: the same `lipnb sweep` command makes it anew."
        ) from None
    run = _run(home.path)
    alive = _alive(run)
    begun = run["points"] if run and alive is not False else {}
    points = [_described(home, point, made_from, begun.get(point.id)) for point in planned]
    return Status(home.path, notebook, points, run, alive)


def _described(folder, point, made_from, begun):
    """What is known of one point."""
    found = state(folder, point, made_from)
    known = {"point": point.id, "parameters": point.parameters}
    if begun is not None:
        return {**known, "state": "running", "seconds": time.time() - begun["since"], "where": begun["where"]}
    if found == "new":
        return {**known, "state": "left"}
    if found.startswith("damaged"):
        return {**known, "state": found}
    entry = folder.entry(point)
    told = {name: entry[name] for name in ("values", "error", "seconds", "finished")}
    return {**known, "state": found, "where": entry["host"], **told}


def _run(folder):
    """What ``running.json`` says; None where it is not there, or not whole."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        said = json.loads((folder / SIGN).read_bytes())
        return {name: said[name] for name in ("user", "host", "process", "born", "started", "where", "points")}
    return None


def _alive(run):
    if run is None:
        return False
    if run["host"] != platform.node():
        return None
    try:
        process = psutil.Process(run["process"])
        same = abs(process.create_time() - run["born"]) < 1  # not a later one of that number
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _user():
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container that has no name for it
        return f"user {os.getuid()}"
