"""Run what is missing of a sweep, and write its tables."""

import os
import signal
import threading
import time
import uuid
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lipnb.origin import versions
from lipnb.sweeps import pages, source
from lipnb.sweeps import spec as specs
from lipnb.sweeps.folder import claimed, load
from lipnb.sweeps.planning import key, plan, state
from lipnb.sweeps.progress import Sign, status

__all__ = ["Sweep", "run"]


@dataclass(frozen=True)
class Sweep:
    """A sweep that was run.

    Parameters
    ----------
    folder : Path
        Where everything is.
    table : DataFrame
        A row for each finished point.
    failures : list of dict
        ``point``, the parameters, ``error`` and ``notebook`` of each point that failed, now or before.
    ran, left : int
        Points run now, and points that are still to be run.
    recorded : bool
        Whether any point recorded a value.
    stale : int
        Rows of an earlier notebook, package or spec: they are in ``stale.csv``, or with ``keep_stale`` in the table,
        with the reason in its column ``stale``.
    failed_again : int
        How many of these stay because the re-run of their point failed.
    """

    folder: Path
    table: object
    failures: list
    ran: int
    left: int
    recorded: bool
    stale: int = 0
    failed_again: int = 0


def run(
    spec: str | os.PathLike | specs.Spec, *, scheduler: str | None = None, progress: bool = True, **options: Any
) -> Sweep:
    """Make or continue a sweep: each point is one papermill execution, and only what is missing or stale runs.

    Parameters
    ----------
    spec : path-like or Spec
        What to sweep; a notebook is a sweep of one point.
    scheduler : str, optional
        Address of a Dask scheduler; default: the spec's cluster, else this machine.
    progress : bool
        Whether to show the progress bar and what runs where.
    **options
        As for `lipnb.sweeps.planning.plan`, such as ``workers=4``, ``limit=2`` or ``output=Path("elsewhere")``.

    Returns
    -------
    Sweep
        A failed point is in ``failures`` and stops nothing.

    Raises
    ------
    FileNotFoundError, ValueError
        As `plan`, before anything runs.
    RuntimeError, OSError
        "another sweep is running in ...", "... cannot be written", and those of `lipnb.sweeps.clusters`.
    """
    where = plan(spec, **options).spec.output  # a spec with a mistake makes no folder
    with claimed(Path(where)) as folder:
        now = plan(spec, **options)
        folder.planned(now.spec.notebook, key(now.source), now.states)
        pages.index(status(folder.path))
        say = _say if progress else lambda *_: None
        for found in now.states.values():
            if found.startswith("damaged"):
                say(f"{found.removeprefix('damaged: ')}: that point runs again")
        ran = _run(now, folder, scheduler, progress, say) if now.todo else 0
        entries, left, *old = _tables(now, folder)
    failures = [
        {
            "point": entry["id"],
            **entry["parameters"],
            "error": entry["error"],
            "notebook": str(folder.notebook(point, False)),
        }
        for point, entry in entries.items()
        if not entry["ok"]
    ]
    recorded = any(entry["values"] for entry in entries.values())
    return Sweep(folder.path, load(folder.path), failures, ran, left, recorded, *old)


def _say(words):
    """A line above the progress bar."""
    from tqdm import tqdm

    tqdm.write(words)


def _tables(now, folder):
    """Write the tables and pages from the entries that hold now.

    Gives these entries, how many points are still to run, and the counts of `Folder.tables`.
    """
    entries, stale, made_from = {}, [], key(now.source)
    for point in now.states:
        found = state(folder, point, made_from)
        if found in ("done", "failed"):
            entries[point] = folder.entry(point)
        elif found.startswith("stale"):
            stale.append((found.removeprefix("stale: "), folder.entry(point)))
    kept = sum(entry["ok"] for _, entry in stale) if now.keep_stale else 0
    stale += [("not a point of this spec", entry) for entry in folder.others(now.states)]
    counts = folder.tables(entries.values(), stale, now.keep_stale)
    pages.index(status(folder.path))
    return entries, len(now.states) - len(entries) - kept, *counts


def _tasks(now, threads):
    from lipnb.sweeps.executors import environment

    common = {
        "sweep": f"sweep-{uuid.uuid4().hex[:12]}",
        "package": source.package(),
        "notebook": now.source.text,
        "kernel": None,
        "cwd": str(now.spec.notebook.parent),
        "environment": environment(threads),
        "timeout": now.spec.timeout,
    }
    return [{**common, "parameters": point.parameters} for point in now.todo]


@contextmanager
def _outcomes(now, scheduler, say):
    """The generator of outcomes, and where they come from in words."""
    from lipnb.sweeps import clusters, executors

    spec = now.spec
    if scheduler or spec.cluster:
        with clusters.opened(scheduler, spec.cluster) as client:
            address = client.scheduler.address
            workers = len(clusters.workers_of(client))
            if not workers:
                say(f"no worker at {address} yet: waiting (start some with `dask worker {address}`)")
            words = f"Dask at {address}, {workers} workers at the start"
            with closing(clusters.on_dask(_tasks(now, spec.threads or 1), client, say)) as outcomes:
                yield outcomes, words
        return
    gpus = executors.devices(spec.gpus)
    hidden = [""] if spec.gpus == 0 else gpus
    workers = min(spec.workers or len(gpus) or executors.cores(), len(now.todo))
    threads = spec.threads or max(1, executors.cores() // workers)
    words = f"{workers} local worker{'s' * (workers > 1)} of {threads} thread{'s' * (threads > 1)}"
    words += f", GPU {', '.join(gpus)}" if gpus else ""
    with closing(executors.on_this_machine(_tasks(now, threads), workers, hidden)) as outcomes:
        yield outcomes, words


def _run(now, folder, scheduler, progress, say):
    """Run the points to be run; how many ended."""
    from tqdm import tqdm

    made_from, ran, failed = key(now.source), 0, 0
    there = sum(found in ("done", "failed") for found in now.states.values())
    with _outcomes(now, scheduler, say) as (outcomes, words):
        points = f"{len(now.states)} point{'s' * (len(now.states) != 1)}"
        say(f"{points} of {now.spec.notebook.name}: {there} there, {len(now.todo)} to run; {words}")
        with (
            _born(now, folder, words),
            Sign(folder.path, words) as sign,
            tqdm(total=len(now.todo), unit="point", disable=not progress, smoothing=0.1) as bar,
        ):
            for place, outcome in outcomes:
                point = now.todo[place]
                if isinstance(outcome, str):
                    sign.began(point, outcome)
                    continue
                with _undisturbed():
                    folder.keep(point, made_from, outcome)
                    pages.point(folder.path, point, outcome)
                    sign.ended(point)
                ran, failed = ran + 1, failed + (not outcome["ok"])
                if failed:
                    bar.set_postfix(failed=failed, refresh=False)
                bar.update()
    return ran


@contextmanager
def _undisturbed():
    """Let Ctrl-C, and whatever else Python code answers, wait until a finished point is kept with its page.

    What it interrupts may be an import or a destructor, where Python lets the interruption fall.
    """
    if threading.current_thread() is not threading.main_thread():  # no signal comes here
        yield
        return
    came, answers = [], {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    answers = {number: answer for number, answer in answers.items() if callable(answer)}
    for number in answers:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, answer in answers.items():
            signal.signal(number, answer)
    if came:
        signal.raise_signal(came[0])


@contextmanager
def _born(now, folder, words):
    """Provenance: written at the start, and again with the end; tables too when the run is stopped."""
    from lipnb.sweeps.executors import cores

    birth = {
        "spec": now.spec.text,
        "parameters": now.spec.parameters,
        "notebook": str(now.spec.notebook),
        "key": key(now.source),
        "points": len(now.states),
        "to_run": len(now.todo),
        "where": words,
        "cores": cores(),
        "versions": versions(),
        "started": _now(),
        "finished": None,
    }
    try:
        folder.provenance(birth)
        yield
        folder.provenance({**birth, "finished": _now()})
    except OSError as error:
        raise OSError(
            f"{folder.path} cannot be written any more ({error.strerror or error}): what is finished is "
            "kept. Make room, then give the same command again."
        ) from None
    except KeyboardInterrupt:
        with suppress(OSError):
            _tables(now, folder)
        raise


def _now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
