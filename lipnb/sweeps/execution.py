"""One point: a notebook executed by papermill, in a kernel of its own that is gone at the end, whatever happens."""

import logging
import os
import platform
import re
import signal
import threading
import time
import uuid
from contextlib import suppress
from tempfile import TemporaryFile
from typing import Any

import nbformat
import psutil
from jupyter_client import AsyncKernelManager
from jupyter_core.utils import ensure_event_loop, run_sync
from nbclient.exceptions import CellExecutionError, DeadKernelError
from papermill import PapermillExecutionError, execute_notebook
from papermill.engines import Engine, papermill_engines

from lipnb.sweeps import source
from lipnb.sweeps.output import Client
from lipnb.sweeps.recorded import recorded
from lipnb.sweeps.spec import COLUMNS

__all__ = ["execute", "stop"]

MARK = "LIPNB_SWEEP_POINT"
LIVE: dict = {}  # sweep -> its kernels in this process
TAIL = 2000  # bytes of a kernel's own last words that are kept
STARTS = 3  # of a kernel at most: its ports are chosen before it takes them, and another process may be faster
IOPUB = 600  # seconds that the last words of a cell may take to arrive, once it has ended: it can have printed much
quiet = logging.getLogger("lipnb.sweeps")
quiet.addHandler(logging.NullHandler())
quiet.propagate = False
logging.getLogger("papermill").setLevel(logging.ERROR)  # it warns of parameters that share a line


class Kernel:
    """The process in which a notebook runs, and how to be rid of it."""

    def __init__(self):
        self.notebook = self.process = self.group = self.why = None
        self.family, self.mark = set(), uuid.uuid4().hex
        self.over = threading.Event()

    def started(self, manager):
        """Note the process; at the end its manager has forgotten it."""
        self.process = getattr(manager.provisioner, "process", None)
        self.group = getattr(manager.provisioner, "pgid", None)

    def gave_up(self):
        """Whether the process ended by itself, with an error: neither killed nor told to end."""
        return (getattr(self.process, "returncode", None) or 0) > 0

    def note_family(self):
        """Note what the notebook started: once the kernel has ended, nothing says whose child it was."""
        if self.process is not None:
            with suppress(psutil.Error):
                parent = psutil.Process(self.process.pid)
                self.family.update([parent, *parent.children(recursive=True)])

    def kill(self, why):
        """Kill the kernel and all it started, until papermill has given up."""
        self.why = self.why or why
        while not self.over.is_set():  # it may be only starting
            self.sweep_away()
            self.over.wait(0.1)

    def sweep_away(self, orphans=False):
        """Kill whatever is left of the kernel's family; `orphans` too, which a kernel that died leaves behind."""
        if self.process is None:
            return
        self.note_family()
        if orphans:  # they carry the mark in their environment
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    if process.environ().get(MARK) == self.mark:
                        self.family.add(process)
        for process in list(self.family):
            with suppress(psutil.Error):  # psutil knows a process from a later one of the same number
                process.kill()
        if self.group and self.group != os.getpgrp():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.group, signal.SIGKILL)


class PointEngine(Engine):
    """An engine for papermill with a kernel of ours: with an environment, a handle on it, and a limit on its output."""

    @classmethod
    def execute_managed_notebook(cls, nb_man, kernel_name, *, kernel, options, start_timeout, **_):
        """As papermill asks of an engine; `options` are those of the kernel's start."""
        kernel.notebook = nb_man.nb
        for left in reversed(range(STARTS)):
            client, ready = None, False
            manager = AsyncKernelManager(kernel_name=kernel_name)
            try:
                run_sync(manager.start_kernel)(**options)
                kernel.started(manager)
                client = Client(
                    nb_man.nb,
                    km=manager,
                    kernel_name=kernel_name,
                    startup_timeout=start_timeout,
                    timeout=None,
                    log=quiet,
                    iopub_timeout=IOPUB,
                    raise_on_iopub_timeout=True,
                    stopped=lambda: kernel.why is not None,
                )
                with client.setup_kernel(cleanup_kc=False):
                    ready = True
                    cls._cells(nb_man, client)
                return
            except RuntimeError:
                if ready or not left or kernel.why is not None or not kernel.gave_up():
                    raise  # only a kernel that ended before it answered is started again: nothing has run twice
            finally:
                kernel.note_family()
                if client is not None and client.kc is not None:
                    client.kc.stop_channels()
                run_sync(_end)(manager)

    @staticmethod
    def _cells(nb_man, client):
        """Each cell in its turn, until one fails; papermill is told when each begins and ends."""
        for index, cell in enumerate(nb_man.nb.cells):
            try:
                nb_man.cell_start(cell, index)
                client.execute_cell(cell, index)
            except CellExecutionError:
                nb_man.cell_exception(cell, cell_index=index)
                break
            finally:
                nb_man.cell_complete(cell, cell_index=index)
        info = client.wait_for_reply(client.kc.kernel_info())
        nb_man.nb.metadata["language_info"] = info["content"]["language_info"]
        client.set_widgets_metadata()


async def _end(manager):
    """Let a kernel end, and forget what belonged to it."""
    if manager.has_kernel and await manager.is_alive():
        await manager.shutdown_kernel()
    await manager.cleanup_resources()


papermill_engines.register("lipnb-sweeps", PointEngine)


def stop(sweep: str) -> None:
    """Kill every kernel of a sweep in this process.

    Parameters
    ----------
    sweep : str
        Its name in the tasks.
    """
    for kernel in [kernel for kernel in list(LIVE.get(sweep, ())) if kernel.why is None]:
        threading.Thread(target=kernel.kill, args=("stopped",), daemon=True).start()


def execute(task: dict[str, Any]) -> dict[str, Any]:
    """Run one point.

    Parameters
    ----------
    task : dict
        ``sweep``, ``package``, ``notebook`` (JSON), ``parameters``, ``kernel``, ``cwd``, ``environment``, ``timeout``.

    Returns
    -------
    dict
        ``ok``, ``values`` recorded, ``error`` in one line or None, ``notebook`` (JSON, executed as far as it came),
        ``log`` (the kernel's own last words), ``seconds``, ``host``, ``finished``.

    Raises
    ------
    RuntimeError
        "... has lipnb ..., the sweep was begun with ...": on a worker with another package.
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
    kernel, began = Kernel(), time.monotonic()
    kernel.notebook = nbformat.reads(task["notebook"], as_version=4)
    LIVE.setdefault(task["sweep"], set()).add(kernel)
    limit = threading.Timer(task["timeout"] or 0, kernel.kill, args=("timeout",))
    limit.daemon = True
    if task["timeout"]:
        limit.start()
    with TemporaryFile() as log:
        error, values = _run(kernel, task, log), {}
        limit.cancel()
        log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL))
        said = log.read().decode(errors="replace").strip()
    LIVE[task["sweep"]].discard(kernel)
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
        "log": said if error else "",
        "seconds": round(time.monotonic() - began, 3),
        "host": platform.node(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _run(kernel, task, log):
    """Let papermill execute; the error in one line, or None."""
    environment = {**os.environ, **task["environment"], MARK: kernel.mark}
    loop = ensure_event_loop()  # the one of this thread, which papermill will use
    try:
        execute_notebook(
            kernel.notebook,
            None,
            task["parameters"],
            engine_name="lipnb-sweeps",
            kernel_name=task["kernel"],
            progress_bar=False,
            request_save_on_cell_execute=False,
            start_timeout=120,
            kernel=kernel,
            options={"cwd": task["cwd"], "env": environment, "stdout": log, "stderr": log},
        )
    except PapermillExecutionError as error:
        return _line(f"code cell {error.exec_count}: {error.ename}: {error.evalue}")
    except Exception as error:  # a kernel that died or never started: one failed point
        kernel.sweep_away(orphans=True)
        return _died(kernel, error, task["timeout"])
    finally:
        loop.close()
        kernel.over.set()
        kernel.sweep_away()
        kernel.notebook.metadata.get("papermill", {}).pop("input_path", None)  # the whole notebook once more
    return None


def _line(text):
    """One line without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text).strip().split("\n")[0][:300]


def _died(kernel, error, timeout):
    """Say why there is no result, in the running cell too."""
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
    cells = [cell for cell in kernel.notebook.cells if cell.cell_type == "code"]
    running = [number for number, cell in enumerate(cells) if cell.metadata.get("papermill", {}).get("start_time")][-1:]
    if running:
        cells[running[0]].outputs.append(
            nbformat.v4.new_output("error", ename=name, evalue=text, traceback=[f"{name}: {text}"])
        )
    return _line(f"code cell {running[0] + 1}: {name}: {text}" if running else f"{name}: {text}")


def _left(notebook, values):
    """Say where a notebook left by sys.exit(0), which papermill takes for success, before it recorded; or None."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code):
        if any(output.get("ename") == "SystemExit" for output in cell.outputs):
            if values and not any(re.search(r"\brecord\(", later.source) for later in code[number + 1 :]):
                return None
            return (
                f"code cell {cell.execution_count or number + 1}: SystemExit: it left by sys.exit before it recorded "
                f"{'all its values' if values else 'a value'}: record first, or raise an error that says why not"
            )
    return None


def _merged(values, parameters):
    """Recorded values, less parameters recorded as they are."""
    for name in [name for name in values if name in parameters]:
        if values[name] != parameters[name]:
            raise ValueError(f"{name!r} is a parameter of the sweep: record its other value under another name.")
        del values[name]
    for name in COLUMNS:
        if name in values:
            raise ValueError(f"{name!r} is the name of a column of the table: record the value under another name.")
    return values
