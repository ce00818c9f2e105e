"""Execution of one point on a Dask worker: in a separate process, with its outcome in words."""

import json
import os
import platform
import re
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

import nbformat
import psutil

from lipscan.sweeps import cells, point, source
from lipscan.sweeps.folder import now_utc
from lipscan.sweeps.recorded import MIME, recorded
from lipscan.sweeps.spec import COLUMNS

STARTS = 3  # kernels that are started before one has run a cell: another process may take their port
LEFT = (("SystemExit", ""), ("SystemExit", "0"))  # errors that papermill does not count
LIMITS = {
    "timeout": ("Timeout", "stopped after {timeout:g} s, the limit of a point"),
    "output": (
        "OutputLimit",
        f"stopped when its outputs filled {point.OUTPUT / 1e6:g} MB of memory: print less, or to a file",
    ),
    "memory": (
        "MemoryLimit",
        "stopped when little memory was left and it held more than {gigabytes:.1f} GB, its share of this machine: use "
        "fewer workers, or a machine with more",
    ),
    "deleted": ("FolderDeleted", "its notebook deleted the temporary folder in which it runs: let it delete less"),
    "stopped": ("Stopped", "the sweep, or the process that ran it, was told to stop"),
}


def execute(task: dict[str, Any]) -> dict[str, Any]:
    """Run one point.

    Parameters
    ----------
    task : dict
        ``sweep``, ``package``, ``notebook`` (JSON), ``parameters``, ``cwd``, ``environment``, ``timeout``.

    Returns
    -------
    dict
        ``ok``, ``values`` recorded, ``error`` in one line or None, ``notebook`` (JSON, executed as far as it came),
        ``seconds``, ``host``, ``finished``.

    Raises
    ------
    RuntimeError
        "... has lipnb ..., the sweep was begun with ...", "... has no folder ...": on a worker of another machine. Or
        the process of the point could not run, for example because the disk is full.
    """
    if source.package() != task["package"]:
        raise RuntimeError(
            f"{platform.node()} has lipnb {source.package()}, but this sweep was begun with {task['package']}: "
            "install the same version on all machines, and start the workers again."
        )
    if not os.path.isdir(task["cwd"]):
        raise RuntimeError(
            f"{platform.node()} has no folder {task['cwd']}, where the notebook lies: make it visible to all "
            "machines under the same path."
        )
    task = {**task, "share": _share(), "worker": os.getpid(), "keep": MIME}
    for _ in range(STARTS):
        ended = _ended(task)
        notebook = nbformat.reads(ended["notebook"] or task["notebook"], as_version=4)
        if ended["why"] or ended["code"] <= 0 or _started(notebook):
            break
    values, error = {}, _error(task, ended, notebook)
    if error is None:
        try:
            values = _merged(recorded(notebook), task["parameters"])
            error = _left(notebook, values)
        except ValueError as problem:
            error = str(problem)
    return {
        "ok": error is None,
        "values": values,
        "error": error and re.sub(r"\x1b\[[0-9;]*m", "", error).strip().split("\n")[0][:300],
        "notebook": nbformat.writes(notebook),
        "seconds": ended["seconds"],
        "host": platform.node(),
        "finished": now_utc(),
    }


def stop(sweep: str) -> None:
    """End every point of a sweep that runs on this worker."""
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if sweep in child.cmdline():
                child.terminate()


def _share():
    """Bytes of memory for each point that may run on this worker at the same time."""
    from distributed import get_worker
    from distributed.system import MEMORY_LIMIT

    worker = get_worker()
    return (worker.memory_manager.memory_limit or MEMORY_LIMIT) / worker.state.nthreads


def _ended(task):
    """How a point ended, as its process says; RuntimeError if that process could not run."""
    run = subprocess.run(
        [sys.executable, "-P", point.__file__, task["sweep"]],
        input=json.dumps(task),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # Ctrl-C in the terminal is for the command alone
    )
    if run.returncode < 0:
        return {"why": None, "code": run.returncode, "raised": "", "log": "", "notebook": None, "seconds": 0.0}
    ended = json.loads(run.stdout) if run.returncode == 0 else {"log": run.stderr.strip()}
    if run.returncode or (ended["code"] > 0 and ended["why"] is None and ended["notebook"] is None):
        raise RuntimeError(ended.get("raised") or ended["log"].split("\n")[-1] or "it ended without a message")
    return ended


def _code(notebook):
    """Code cells with their indices among all cells."""
    return [(n, cell) for n, cell in enumerate(notebook.cells) if cell.cell_type == "code"]


def _started(notebook):
    """Indices of the code cells that papermill has begun to run."""
    return [n for n, cell in _code(notebook) if cell.metadata.get("papermill", {}).get("start_time")]


def _error(task, ended, notebook):
    """Why a point has no result, or None; an error that no cell raised is also added to the cell that ran last."""
    if ended["why"] is None and ended["code"] == 0:
        return None
    if ended["raised"].startswith("PapermillExecutionError"):
        errors = [(n, output) for n, cell in _code(notebook) for output in cell.outputs if "ename" in output]
        n, output = [(n, output) for n, output in errors if (output.ename, output.evalue) not in LEFT][-1]
        return f"{cells.shown(notebook.cells, n)}: " + ": ".join(filter(None, (output.ename, output.evalue)))
    started = _started(notebook)
    name, text = _reason(task, ended, started)
    if not started:
        return f"{name}: {text}"
    traceback = [*ended["log"].splitlines(), f"{name}: {text}"]
    notebook.cells[started[-1]].outputs.append(
        nbformat.v4.new_output("error", ename=name, evalue=text, traceback=traceback)
    )
    return f"{cells.shown(notebook.cells, started[-1])}: {name}: {text}"


def _reason(task, ended, started):
    """Name and text of an error that no cell raised."""
    if ended["why"]:
        name, text = LIMITS[ended["why"]]
        return name, text.format(timeout=task["timeout"], gigabytes=task["share"] / 1e9)
    if ended["code"] < 0:
        return "KernelDied", f"the process that ran it was {_killed(-ended['code'])}"
    name, _, text = ended["raised"].partition(": ")
    if not started:
        return "KernelNeverStarted", text
    if name != "DeadKernelError":
        return name or "PapermillFailed", text or "see the end of its traceback"
    if ended["kernel"] is None:
        return "KernelDied", "its kernel ended"
    code = os.waitstatus_to_exitcode(ended["kernel"])
    return "KernelDied", f"its kernel was {_killed(-code)}" if code < 0 else f"its kernel ended with exit code {code}"


def _killed(number):
    name = {known.value: known.name for known in signal.Signals}.get(number, f"signal {number}")
    return f"killed by {name}{', most often for lack of memory' if number == signal.SIGKILL else ''}"


def _left(notebook, values):
    """Error of a notebook that ended by sys.exit(0), which papermill takes for success, before recording; or None."""
    for place, cell in _code(notebook):
        if any(output.get("ename") == "SystemExit" for output in cell.outputs):
            if values and not any(re.search(r"\brecord\(", later.source) for n, later in _code(notebook) if n > place):
                return None
            return (
                f"{cells.shown(notebook.cells, place)}: SystemExit: it left by sys.exit before it recorded "
                f"{'all its values' if values else 'a value'}: record first, or raise an error that says why not"
            )
    return None


def _merged(values, parameters):
    """Recorded values, except values that repeat a parameter unchanged."""
    for name in [name for name in values if name in parameters]:
        if values[name] != parameters[name]:
            raise ValueError(f"{name!r} is a parameter of the sweep: record its other value under another name.")
        del values[name]
    for name in COLUMNS:
        if name in values:
            raise ValueError(f"{name!r} is the name of a column of the tables: record the value under another name.")
    return values


def lost(task: dict[str, Any], worker: str) -> dict[str, Any]:
    """Outcome of a point whose workers ended while they ran it, as often as Dask tries; `worker` was the last one."""
    error = f"WorkerLost: several workers ended while they ran it, the last one {worker}: see what ended them"
    told = {"ok": False, "values": {}, "error": error, "notebook": task["notebook"], "seconds": 0.0}
    return {**told, "host": worker, "finished": now_utc()}
