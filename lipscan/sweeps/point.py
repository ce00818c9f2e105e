"""Program around one point of a sweep: it runs papermill on the notebook and ends every process that this started.

`lipscan.sweeps.execution` starts it with a task on its standard input, and reads from its output how the point ended.
It imports psutil and nothing else, so that a point costs little more than papermill and the kernel. On Linux it adopts
the processes whose parents have ended, so that daemons of a notebook are among its descendants.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

RUN = """
import json, sys
sys.modules["pyarrow"] = None  # papermill imports it to read from HDFS, which takes 0.4 s and 40 MB
import papermill
try:
    papermill.execute_notebook(
        "point.ipynb", "executed.ipynb", json.load(open("parameters.json")), cwd=sys.argv[1],
        progress_bar=False, autosave_cell_every=0, start_timeout=120, iopub_timeout=600,
    )
except Exception as error:
    with open("raised", "w", encoding="utf-8") as file:
        file.write(f"{type(error).__name__}: {error}")
    raise
"""
LOOK = 0.25  # seconds between two looks at limits and memory
SAVING = 5  # seconds that papermill may take to save the executed part, once its kernel is killed at the time limit
LEAVING = 60  # seconds that killed processes may take to end; the system cannot end one that waits for a device
OUTPUT = 500_000_000  # bytes of memory of papermill, which holds all that the notebook prints
FULL = 90  # per cent of the memory of the machine; above, a point that holds more than its share is ended
KEPT = 10_000_000  # characters of an executed notebook; a larger one loses its largest outputs
ERROR = 20_000  # characters that are kept of an error in such a notebook
TAIL = 2000  # bytes that are kept of what papermill and the kernel wrote outside the notebook
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
DROPPED = (
    "[{:.1f} MB of output dropped: a sweep keeps executed notebooks of up to "
    f"{KEPT / 1e6:g} MB; of a larger one its errors and what it recorded]"
)
prctl = getattr(ctypes.CDLL(None), "prctl", lambda *_: None)  # Linux only


def main() -> None:
    """Read a task from the standard input, run the point, and print how it ended, both in JSON."""
    task, stopped = json.load(sys.stdin), []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    with TemporaryDirectory(prefix="lipnb-point-") as name:
        folder = Path(name)
        folder.joinpath("point.ipynb").write_text(task["notebook"], encoding="utf-8")
        folder.joinpath("parameters.json").write_text(json.dumps(task["parameters"]))
        ended = run(folder, task, stopped)
    print(json.dumps(ended))


def run(folder, task, stopped):
    """Run papermill until it ends or the point meets a limit; returns a description of how it ended."""
    began, kernel, status, why = time.monotonic(), None, None, None
    with open(folder / "log", "wb") as log:
        papermill = subprocess.Popen(
            [sys.executable, "-P", "-c", RUN, task["cwd"]],
            cwd=folder,
            env={**os.environ, **task["environment"]},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )
    known, ends = psutil.Process(papermill.pid), [*end_of(papermill.pid)]
    while why is None and papermill.poll() is None:
        if kernel is None and (kernel := started_by(known)):
            ends += end_of(kernel)
        if select.select(ends, [], [], LOOK)[0] and kernel and status is None:
            status, ends = exit_status(kernel), ends[:1]
        why = reason(task, known, time.monotonic() - began, stopped)
    if why == "timeout":
        kill_descendants(spare=papermill.pid)
        with suppress(subprocess.TimeoutExpired):
            papermill.wait(SAVING)
    if papermill.poll() is None:
        papermill.kill()
    code = papermill.wait()
    end_descendants()
    raised, log = folder / "raised", folder / "log"
    if why is None and not log.exists():
        why = "deleted"
    return {
        "why": why,
        "code": code,
        "kernel": status,
        "raised": raised.read_text(encoding="utf-8")[:TAIL] if raised.exists() else "",
        "log": log.read_bytes()[-TAIL:].decode(errors="replace").strip() if log.exists() else "",
        "notebook": kept(folder / "executed.ipynb", task["keep"]),
        "seconds": round(time.monotonic() - began, 3),
    }


def reason(task, papermill, seconds, stopped):
    """Why the point must end now: "stopped", "timeout", "output" or "memory"; None if it may go on."""
    if stopped or os.getppid() != task["worker"]:
        return "stopped"
    if task["timeout"] is not None and seconds > task["timeout"]:
        return "timeout"
    with suppress(psutil.Error):
        if papermill.memory_info().rss > OUTPUT:
            return "output"
    return "memory" if psutil.virtual_memory().percent > FULL and memory_held() > task["share"] else None


def memory_held():
    """Bytes that the descendants hold; what they share counts once."""
    held = 0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            memory = process.memory_full_info()
            held += getattr(memory, "pss", memory.uss)
    return held


# --- processes --------------------------------------------------------------------------------------------------------


def started_by(papermill):
    """Process id of the kernel, the child of papermill that leads its own session; None before it starts."""
    with suppress(psutil.Error, ProcessLookupError):
        return next((child.pid for child in papermill.children() if os.getsid(child.pid) == child.pid), None)


def end_of(pid):
    """A descriptor that becomes readable when a process ends, in a list; empty where the system has none."""
    with suppress(OSError, AttributeError):  # before Linux 5.3, and elsewhere
        return [os.pidfd_open(pid)]
    return []


def exit_status(pid):
    """Exit status of a process whose parent has not yet waited for it, as from `os.waitpid`; None if unknown."""
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[49]) if fields[0] == "Z" else None


def kill_descendants(spare=None):
    """Kill the process groups of all descendants but one; whole groups, so that nothing forks meanwhile."""
    groups = set()
    for child in psutil.Process().children(recursive=True):
        with suppress(ProcessLookupError):
            groups.add(os.getpgid(child.pid))
    for group in groups - {os.getpgrp(), spare}:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def end_descendants():
    """Kill descendants and wait for them, until none is left."""
    until = time.monotonic() + LEAVING
    while time.monotonic() < until:
        kill_descendants()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.02)


# --- the executed notebook --------------------------------------------------------------------------------------------


def kept(path, mime):
    """The executed notebook as text; None if it was never saved whole.

    One of more than `KEPT` characters loses outputs, the largest first; errors, and outputs of the type `mime`, stay.
    """
    try:
        text = path.read_text(encoding="utf-8")
        notebook = json.loads(text)
    except (OSError, ValueError):
        return None
    size, cells = len(text), {n: len(json.dumps(cell.get("outputs"))) for n, cell in enumerate(notebook["cells"])}
    for n in sorted(cells, key=cells.get, reverse=True):
        if size <= KEPT:
            break
        stay = [{"output_type": "stream", "name": "stderr", "text": DROPPED.format(cells[n] / 1e6)}]
        for output in notebook["cells"][n]["outputs"]:
            if output["output_type"] == "error":
                output["evalue"] = output["evalue"][:ERROR]
                output["traceback"] = "\n".join(output["traceback"])[-ERROR:].split("\n")
                stay.append(output)
            elif mime in output.get("data", {}):
                stay.append(output)
        notebook["cells"][n]["outputs"], size = stay, size - cells[n]
    return text if size == len(text) else json.dumps(notebook, indent=1)


if __name__ == "__main__":
    main()
