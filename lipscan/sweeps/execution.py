"""Execution of one point: papermill runs the notebook in a separate kernel, which is always killed at the end.

Papermill has limits for cells and none for a notebook, lets a kernel's children live, and keeps all that a cell prints.
So its engine and its client are extended, as it provides for: the client hands out the process of its kernel, which
a timer kills with all it started, and keeps no more output than `KEPT`.
"""

import json
import logging
import os
import platform
import re
import signal
import threading
import time
from contextlib import suppress
from tempfile import TemporaryFile
from typing import Any

import nbformat
import psutil
from jupyter_core.utils import ensure_event_loop
from nbclient.exceptions import DeadKernelError
from papermill import PapermillExecutionError, execute_notebook
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines

from lipscan.sweeps import cells, source
from lipscan.sweeps.folder import now_utc
from lipscan.sweeps.recorded import MIME, recorded
from lipscan.sweeps.spec import COLUMNS

KEPT = 1_000_000  # characters of output that a point keeps; what it records is never cut
ERROR = 20_000  # characters of a traceback, its last ones
CUT = f"[cut here: a sweep keeps {KEPT:,} characters of the output of a point]"
REPLACING = ("update_display_data", "comm_open", "comm_msg", "comm_close")  # what is shown already changes
PRINTING = ("stream", "display_data", "execute_result", *REPLACING)
IOPUB = 600  # seconds that the last words of a cell may take to arrive, once it has ended: it can have printed much
TAIL = 2000  # bytes of a kernel's own last words that are kept
LIVE: dict = {}  # sweep -> its kernels in this process
quiet = logging.getLogger("lipscan.sweeps")
quiet.addHandler(logging.NullHandler())
quiet.propagate = False
logging.getLogger("papermill").setLevel(logging.ERROR)  # it warns of parameters that share a line


class NeverStarted(RuntimeError):
    """A kernel ended before it answered, for example because another process took its port: no cell has run."""


class Kernel:
    """Process in which a notebook runs, with the means to kill it."""

    def __init__(self, notebook):
        self.notebook, self.why = notebook, None
        self.process = self.parent = None  # as it was started, and as psutil knows it from a later one of its number
        self.family, self.over = set(), threading.Event()

    def note_family(self):
        """Record the child processes of the notebook: after the kernel has ended they cannot be traced to it."""
        with suppress(psutil.Error):
            self.family.update(self.parent.children(recursive=True))

    def kill(self, why):
        """Kill the kernel and its child processes until papermill has given up."""
        self.why = self.why or why
        while not self.over.is_set():  # it may be only starting
            self.sweep_away()
            self.over.wait(0.1)

    def sweep_away(self):
        """Kill remaining processes: the recorded ones, and the process group of the kernel."""
        if self.parent is None:
            return
        self.note_family()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for process in self.family:
            with suppress(psutil.Error):
                process.kill()


class Client(PapermillNotebookClient):
    """Papermill's client, which exposes the process of its kernel and limits the stored output.

    A point can print without end, and then this process must neither fill the memory nor the disk.
    """

    def __init__(self, manager, kernel, **options):
        super().__init__(manager, **options)
        self._kernel, self._used, self._cut = kernel, {}, set()

    def start_new_kernel(self, **options):
        """Start the kernel and record its process."""
        super().start_new_kernel(**options)
        self._kernel.process = self.km.provisioner.process
        self._kernel.parent = psutil.Process(self._kernel.process.pid)

    def start_new_kernel_client(self):
        """Connect to the kernel; raises `NeverStarted` if no cell has run yet."""
        try:
            super().start_new_kernel_client()
        except RuntimeError as error:
            if self._kernel.why is None:
                raise NeverStarted(str(error)) from None
            raise

    def papermill_execute_cells(self):
        """Execute the cells, and record the processes that they leave running."""
        try:
            super().papermill_execute_cells()
        finally:
            self._kernel.note_family()

    def process_message(self, msg, cell, cell_index):
        """Process one message of the kernel, truncated to the remaining space."""
        kind, content = msg["msg_type"], msg["content"]
        if kind == "clear_output":  # an animation keeps its last picture only
            self._used.pop((cell_index, False), None)
            self._cut.discard((cell_index, False))
        elif kind == "error":
            traceback = "\n".join(content["traceback"])[-ERROR:]
            content.update(evalue=content["evalue"][:ERROR], traceback=traceback.split("\n"))
        elif kind in PRINTING and MIME not in (content.get("data") or {}):
            place = (cell_index, kind in REPLACING)
            if kind == "stream" and "\r" in content["text"] and place not in self._cut:
                self._join(cell, content, place)
            left = KEPT - sum(used for (_, replacing), used in self._used.items() if replacing == place[1])
            text = content.get("text") or json.dumps(content.get("data", ""), default=str)
            size = len(text)
            if size > left:
                if place in self._cut or kind.startswith("comm"):
                    return None
                self._cut.add(place)
                cut = f"{text[:left]}\n{CUT}\n"
                content.update({"text": cut} if kind == "stream" else {"data": {"text/plain": CUT}, "metadata": {}})
                size = left if kind == "stream" else 0
            self._used[place] = self._used.get(place, 0) + size
        return super().process_message(msg, cell, cell_index)

    def _join(self, cell, content, place):
        """Continue a stream after its last line, which a carriage return overwrites, as progress bars do.

        (`coalesce_streams` of nbclient does that too, in a time that grows with the square of a line: 1.7 s for 40,000
        characters, a quarter of an hour for a million.)
        """
        last, text = cell.outputs[-1] if cell.outputs and not self.clear_before_next_output else {}, content["text"]
        if last.get("name") == content["name"]:
            text = cell.outputs.pop()["text"] + text
            self._used[place] -= len(last["text"])
        content["text"] = _written_over(text, text.rfind("\n", 0, len(text) - len(content["text"])) + 1)


def _written_over(text, start=0):
    """Text in which lines after `start` keep only the last state that carriage returns leave."""
    lines = text[start:].replace("\r\n", "\n").split("\n")
    # what follows the last return; one at the end stays, for what comes next
    return text[:start] + "\n".join(line[line.rstrip("\r").rfind("\r") + 1 :] for line in lines)


class Engine(NBClientEngine):
    """Papermill's engine with this client."""

    @classmethod
    def execute_managed_notebook(cls, nb_man, kernel_name, *, kernel, options, start_timeout, **_):
        """Entry point that papermill calls on an engine; `options` are those of the kernel's start."""
        kernel.notebook = nb_man.nb
        client = Client(
            nb_man,
            kernel,
            kernel_name=kernel_name,
            startup_timeout=start_timeout,
            timeout=None,
            iopub_timeout=IOPUB,
            log=quiet,
        )
        client.execute(**options)


papermill_engines.register("lipnb-sweeps", Engine)


def stop(sweep: str) -> None:
    """Kill every kernel of a sweep in this process."""
    for kernel in [kernel for kernel in list(LIVE.get(sweep, ())) if kernel.why is None]:
        threading.Thread(target=kernel.kill, args=("stopped",), daemon=True).start()


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
    NeverStarted
        Its kernel ended before it answered.
    RuntimeError
        "... has lipnb ..., the sweep was begun with ...", "... has no folder ...": on a worker of another machine.
    """
    if source.package() != task["package"]:
        raise RuntimeError(
            f"{platform.node()} has lipnb {source.package()}, this sweep was begun with "
            f"{task['package']}: give all machines the same one, and start the workers again."
        )
    if not os.path.isdir(task["cwd"]):
        raise RuntimeError(
            f"{platform.node()} has no folder {task['cwd']}, where the notebook lies: let all machines "
            "see it at the same place."
        )
    kernel, began, values = Kernel(nbformat.reads(task["notebook"], as_version=4)), time.monotonic(), {}
    kernels = LIVE.setdefault(task["sweep"], set())
    kernels.add(kernel)
    limit = threading.Timer(task["timeout"] or threading.TIMEOUT_MAX, kernel.kill, args=("timeout",))
    limit.daemon = True
    limit.start()
    try:
        error = _run(kernel, task)
    finally:
        limit.cancel()
        kernels.discard(kernel)
    if error is None:
        try:
            values = _merged(recorded(kernel.notebook), task["parameters"])
            error = _left(kernel.notebook, values)
        except ValueError as problem:
            error = str(problem)
    return {
        "ok": error is None,
        "values": values,
        "error": error,
        "notebook": nbformat.writes(kernel.notebook),
        "seconds": round(time.monotonic() - began, 3),
        "host": platform.node(),
        "finished": now_utc(),
    }


def _run(kernel, task):
    """Execute with papermill; returns the error in one line, or None."""
    loop = ensure_event_loop()  # the one of this thread, which papermill will use
    with TemporaryFile() as log:
        options = {"cwd": task["cwd"], "env": {**os.environ, **task["environment"]}, "stdout": log, "stderr": log}
        try:
            execute_notebook(
                kernel.notebook,
                None,
                task["parameters"],
                engine_name="lipnb-sweeps",
                progress_bar=False,
                request_save_on_cell_execute=False,
                start_timeout=120,
                kernel=kernel,
                options=options,
            )
        except PapermillExecutionError as error:
            failed = [n for n, cell in _code(kernel.notebook) if cell.metadata.get("papermill", {}).get("exception")]
            where = f"{cells.shown(kernel.notebook.cells, failed[0])}: " if failed else ""
            return _line(f"{where}{error.ename}: {error.evalue}")
        except NeverStarted:
            raise
        except Exception as error:  # a kernel that died: one failed point
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL))
            return _died(kernel, error, task["timeout"], log.read().decode(errors="replace").strip())
        finally:
            loop.close()
            kernel.over.set()
            kernel.sweep_away()
            kernel.notebook.metadata.get("papermill", {}).pop("input_path", None)  # the whole notebook once more
    return None


def _code(notebook):
    """Code cells with their indices among all cells."""
    return [(n, cell) for n, cell in enumerate(notebook.cells) if cell.cell_type == "code"]


def _line(text):
    """First line of a text, without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text).strip().split("\n")[0][:300]


def _died(kernel, error, timeout, words):
    """Reason why a point has no result; also added to the running cell, with the last output of the kernel."""
    code = getattr(kernel.process, "returncode", None)
    if kernel.why == "timeout":
        name, text = "Timeout", f"stopped after {timeout:g} s, the limit of a point"
    elif kernel.why:
        name, text = "Stopped", "the sweep was stopped"
    elif isinstance(error, DeadKernelError) and code is not None and code < 0:
        often = ", most often for want of memory" if code == -signal.SIGKILL else ""
        name, text = "KernelDied", f"its kernel was killed by {signal.Signals(-code).name}{often}"
    elif isinstance(error, DeadKernelError):
        name, text = "KernelDied", f"its kernel ended with exit code {code}"
    else:
        name, text = type(error).__name__, str(error) or "no reason given"
    started = [n for n, cell in _code(kernel.notebook) if cell.metadata.get("papermill", {}).get("start_time")]
    if not started:
        return _line(f"{name}: {text}")
    output = nbformat.v4.new_output(
        "error", ename=name, evalue=text, traceback=[*words.splitlines(), f"{name}: {text}"]
    )
    kernel.notebook.cells[started[-1]].outputs.append(output)
    return _line(f"{cells.shown(kernel.notebook.cells, started[-1])}: {name}: {text}")


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
    """Recorded values without those that repeat a parameter unchanged."""
    for name in [name for name in values if name in parameters]:
        if values[name] != parameters[name]:
            raise ValueError(f"{name!r} is a parameter of the sweep: record its other value under another name.")
        del values[name]
    for name in COLUMNS:
        if name in values:
            raise ValueError(f"{name!r} is the name of a column of the tables: record the value under another name.")
    return values
