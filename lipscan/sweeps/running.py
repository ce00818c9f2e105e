"""Runs of a sweep: execute missing points on a Dask cluster, by default on this machine, and write the tables.

On this machine the cluster is one worker with a thread for each point, within this process: it starts in 0.03 s, opens
no port to others, and needs no ``if __name__ == "__main__"`` in a script that calls `run`. The points are the
processes. Only this process writes the folder of a sweep: workers send their notebooks back.
"""

import logging
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections import deque
from concurrent.futures import Future, wait
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from lipscan.origin import versions
from lipscan.sweeps import source
from lipscan.sweeps import spec as specs
from lipscan.sweeps.folder import Folder, claimed, load, now_utc, sign

__all__ = ["Plan", "Sweep", "plan", "run"]

HERE = "127.0.0.1:0"  # a dashboard for this machine, at any free port
PLAIN = r"[^A-Za-z0-9._=+-]+"  # what no folder is named by
LOOK = 0.5  # seconds between looks for a signal, which wakes nobody where it comes to another thread
EVERY = 2  # seconds between looks at the workers of a cluster
GONE = 120  # seconds without a worker, where there were some: a nanny has started a new one long before
NEVER = 24 * 3600  # seconds that a first worker may take: jobs wait in their queue
CONNECT = 10  # seconds that a scheduler or a worker may take to answer
_NOBODY = "there is no Dask scheduler at {} ({}): start one with `dask scheduler`, which prints its address."
THREADS = ("OMP", "MKL", "OPENBLAS", "NUMEXPR")


@dataclass(frozen=True)
class Plan:
    """Finished and missing points of a sweep.

    Parameters
    ----------
    spec : lipnb.sweeps.Spec
        With the options of this run.
    source : lipscan.sweeps.source.Source
        Its notebook.
    states : dict
        Point -> "done", "failed", "new", why it runs again, as in "stale: the notebook changed", or why its row is
        marked: "kept: the notebook changed".
    todo : list of Point
        Those to run now.
    keep_stale : bool
        As given to `plan`.
    """

    spec: specs.Spec
    source: source.Source
    states: dict
    todo: list
    keep_stale: bool = False

    @property
    def key(self) -> dict[str, str]:
        """Hashes on which its points depend; a point with other hashes is stale."""
        return {"notebook": self.source.hash, "package": source.package()}


@dataclass(frozen=True)
class Sweep:
    """Result of a sweep that was run.

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
        Good rows of an earlier notebook, package or spec, or whose point failed since: ``stale.csv`` has them.
    """

    folder: Path
    table: object
    failures: list
    ran: int
    left: int
    recorded: bool
    stale: int


def plan(
    spec: str | os.PathLike | specs.Spec,
    *,
    parameters: dict[str, Any] | None = None,
    retry_failed: bool = False,
    keep_stale: bool = False,
    limit: int | None = None,
    **options: Any,
) -> Plan:
    """Read a spec, its notebook and its folder, and determine which points would run.

    Parameters
    ----------
    spec : path-like or Spec
        What to sweep; a notebook is a sweep of one point.
    parameters : dict, optional
        Values for every point that override the spec's, see `lipscan.sweeps.spec.overridden`.
    retry_failed : bool
        Whether points that failed run again.
    keep_stale : bool
        Whether points that finished with an earlier notebook or package stay, marked in the column ``stale``.
    limit : int, optional
        Run at most so many now.
    **options
        Fields of `Spec` that replace the spec's own, where not None.

    Returns
    -------
    Plan
        Nothing is written.

    Raises
    ------
    FileNotFoundError, ValueError
        The sentences of `lipnb.sweeps.read`, of `expand`, and those on values that the notebook would not get.
    """
    name = getattr(spec, "notebook", spec)
    spec = spec if isinstance(spec, specs.Spec) else specs.read(spec)
    if parameters and (spec.grid or spec.zipped) and options.get("output") is None:  # the table of the whole grid stays
        named = "-".join(f"{parameter}={value}" for parameter, value in parameters.items())
        spec = replace(spec, output=spec.output.with_name(f"{spec.output.name}-{re.sub(PLAIN, '-', named)[:80]}"))
    spec = replace(spec, **{option: value for option, value in options.items() if value is not None})
    try:
        spec = specs.overridden(spec, parameters or {})
        points = specs.expand(spec)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    notebook = source.read(spec.notebook, spec.kernel)
    source.check(notebook, [point.parameters for point in points])
    if other := next((one for one in ("scan.json", "windows.json") if (Path(spec.output) / one).is_file()), None):
        raise ValueError(f"{name}: the output {spec.output} holds {other} of a scan or a drift: name another folder.")
    now, folder = Plan(spec, notebook, {}, []), Folder(spec.output)
    states = {point: folder.state(point, now.key, keep_stale) for point in points}
    runs = ("new", "stale", "failed") if retry_failed else ("new", "stale")
    return replace(
        now,
        states=states,
        todo=[point for point, found in states.items() if found.startswith(runs)][:limit],
        keep_stale=keep_stale,
    )


def run(
    spec: str | os.PathLike | specs.Spec, *, scheduler: str | None = None, progress: bool = True, **options: Any
) -> Sweep:
    """Make or continue a sweep: each point is one papermill execution, and only missing or stale points run.

    Parameters
    ----------
    spec : path-like or Spec
        What to sweep; a notebook is a sweep of one point.
    scheduler : str, optional
        Address of a Dask scheduler; default: the spec's cluster, else this machine.
    progress : bool
        Whether to show the progress bar, and which point runs on which worker.
    **options
        As for `plan`, such as ``workers=4``, ``keep_stale=True`` or ``output=Path("elsewhere")``.

    Returns
    -------
    Sweep
        A failed point is in ``failures`` and stops nothing.

    Raises
    ------
    FileNotFoundError, ValueError
        As `plan`, before anything runs.
    RuntimeError, OSError
        "another sweep is running in ...", "... cannot be written", "there is no Dask scheduler at ...".
    """
    from tqdm import tqdm

    if scheduler:
        _answers(scheduler)
    say = tqdm.write if progress else lambda _: None  # above the progress bar
    where = plan(spec, **options).spec.output  # a spec with a mistake makes no folder
    with claimed(Path(where)) as folder:
        for line in folder.damaged:
            say(f"points.jsonl: line {line} is damaged: its point runs again")
        now = plan(spec, **options)
        try:
            ran = _run(now, folder, scheduler, progress, say)
        except BaseException:
            with suppress(OSError):
                _tables(now, folder)
            raise
        done, failed, stale, left = _tables(now, folder)
    failures = [{**row, "notebook": str(folder.path / row["notebook"])} for row in failed]
    recorded = any(folder.last[row["point"]]["values"] for row in done)
    return Sweep(folder.path, load(folder.path), failures, ran, left, recorded, len(stale))


def _tables(now, folder):
    """Write the tables; returns their rows, and the number of points still to run."""
    states = {point: folder.state(point, now.key, now.keep_stale) for point in now.states}
    return *folder.tables(states), sum(found.startswith(("new", "stale")) for found in states.values())


def _run(now, folder, scheduler, progress, say):
    """Run the missing points; returns how many ended."""
    points = {point.id: point.parameters for point in now.states}
    notebook = {"notebook": str(now.spec.notebook), "kernel": now.spec.kernel}
    birth = {**notebook, "key": now.key, "spec": now.spec.text, "points": points}
    if not now.todo:
        with suppress(FileNotFoundError, ValueError):  # what is known of the run before stays
            birth = {**folder.plan(), **birth, "run": None}
        folder.planned(birth)
        return 0
    kept = [found.split(":")[0] for point, found in now.states.items() if point not in {*now.todo}]
    before = "".join(f"{kept.count(found)} {found} before, " for found in ("done", "failed") if found in kept)
    before += f"{kept.count('kept')} kept of an earlier notebook or package, " * ("kept" in kept)
    with _opened(now, scheduler) as (client, workers, words):
        birth |= {"where": words, "cores": cores(), "versions": versions(), "started": now_utc(), "finished": None}
        folder.planned(birth | {"run": sign(words)})
        shown = f"{len(points)} point{'s' * (len(points) != 1)} of {now.spec.notebook.name}"
        say(f"{shown}: {before}{len(now.todo)} to run; {words}")
        try:
            ran = _heeding(partial(_gather, now, folder, client, workers, progress, say))
            birth["finished"] = now_utc()
        finally:
            with suppress(OSError):
                folder.planned(birth)
    return ran


def _gather(now, folder, client, workers, progress, say, stopped):
    """Keep what points begin and how they end; returns how many ended."""
    from tqdm import tqdm

    ran, failed = 0, 0
    with (
        closing(_outcomes(now, client, workers, stopped, say)) as outcomes,
        tqdm(total=len(now.todo), unit="point", disable=not progress, smoothing=0.1) as bar,
    ):
        for point, outcome in outcomes:
            if isinstance(outcome, str):
                folder.began(point, outcome)
                continue
            folder.keep(point, now.key, outcome)
            ran, failed = ran + 1, failed + (not outcome["ok"])
            if failed:
                bar.set_postfix(failed=failed, refresh=False)
            bar.update()
    return ran


def _heeding(work):
    """Result of ``work(stopped)``, which runs in a thread: Ctrl-C ends only the wait for it, wherever it falls.

    `work` asks ``stopped()`` at the head of its loop, and so keeps what has ended. A second Ctrl-C does not wait.
    """
    stopped, done = threading.Event(), Future()

    def call():
        try:
            done.set_result(work(stopped.is_set))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    try:
        while not wait([done], LOOK).done:
            pass
    except KeyboardInterrupt:
        stopped.set()
        while not wait([done], LOOK).done:
            pass
        done.result()
        raise
    return done.result()


# --- where points run -------------------------------------------------------------------------------------------------


def cores():
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def devices(wanted=None):
    """GPUs to distribute, as named in CUDA_VISIBLE_DEVICES: `wanted` of them, or the listed ones; None: all.

    ValueError ("there are only ... GPUs here") if this machine has fewer.
    """
    if isinstance(wanted, list):
        return [str(device) for device in wanted]
    visible, there = os.environ.get("CUDA_VISIBLE_DEVICES"), []
    if visible is not None:
        there = [name.strip() for name in visible.split(",") if name.strip()]
    elif shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        there = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
    if wanted is not None and wanted > len(there):
        raise ValueError(f"there are only {len(there)} GPUs here, not {wanted}: give a smaller number of 'gpus'.")
    return there[:wanted]


@contextmanager
def _opened(now, scheduler):
    """Context with a client, the environments of its local workers (None for a cluster), and a description of both."""
    import distributed

    spec, gpus, own = now.spec, [], None
    with ExitStack() as stack:
        stack.push(_quiet("distributed.client", "distributed.worker"))
        if scheduler:
            server = scheduler
        elif spec.cluster:
            server = stack.enter_context(_cluster(**spec.cluster))
        else:
            gpus = devices(spec.gpus)
            workers = min(spec.workers or len(gpus) or cores(), len(now.todo))
            threads = spec.threads or max(1, cores() // workers)
            hidden = [""] if spec.gpus == 0 else gpus
            own = [
                _threads(threads) | ({"CUDA_VISIBLE_DEVICES": hidden[n % len(hidden)]} if hidden else {})
                for n in range(workers)
            ]
            shape = {"n_workers": 1, "threads_per_worker": workers, "processes": False, "memory_limit": 0}
            shape["silence_logs"] = logging.ERROR  # warnings would stand in the progress bar
            ports = {"dashboard_address": HERE, "worker_dashboard_address": HERE}
            server = stack.enter_context(distributed.LocalCluster(**shape, **ports))
        try:
            client = distributed.Client(server, timeout=CONNECT, set_as_default=False)
        except (OSError, ValueError) as error:
            raise ConnectionError(_NOBODY.format(scheduler, type(error).__name__)) from None
        words = f"Dask at {client.scheduler.address}, {len(client.nthreads())} workers at the start"
        if own:
            words = f"{workers} local worker{'s' * (workers > 1)} of {threads} thread{'s' * (threads > 1)}"
        yield stack.enter_context(client), own, words + (f", GPU {', '.join(gpus)}" if gpus else "")


def _quiet(*names):
    """Silence loggers of Dask; returns what makes them speak again unless an error or Ctrl-C ends the work.

    Of a scheduler that goes away they write forty lines; of a worker that is stopped, a traceback after all has closed.
    """
    levels = {log: log.level for log in map(logging.getLogger, names)}
    for log in levels:
        log.setLevel(logging.CRITICAL)

    def again(error, *_):
        for log, level in levels.items() if error is None else ():
            log.setLevel(level)

    return again


def _answers(scheduler):
    """Refuse an address without a scheduler, before a folder is made or anything waits."""
    kind, _, place = str(scheduler).partition("://")
    host, _, port = place.rpartition(":")
    if kind not in ("tcp", "tls") or not host or not port.isdecimal():
        raise ValueError(f"a Dask scheduler has an address such as tcp://10.0.0.1:8786; got {scheduler!r}.")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT) as peer:
            if kind == "tcp" and not peer.recv(1):  # Dask's client waits for a scheduler's greeting without end
                raise ConnectionError
    except (OSError, OverflowError) as error:
        raise ConnectionError(_NOBODY.format(scheduler, type(error).__name__)) from None


def _threads(count):
    """Environment variables that keep the kernels of one machine from competing for its cores."""
    # waiting threads that spin slow their neighbours down, up to a hundred times
    wait = {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
    return {f"{name}_NUM_THREADS": str(count) for name in THREADS} | wait


def _cluster(kind, jobs, options):
    """The cluster that a spec names, which ends with the sweep; its class defines the options."""
    import distributed

    ctrl_c = signal.getsignal(signal.SIGINT)
    import dask_jobqueue  # which makes Ctrl-C end the process without a word

    signal.signal(signal.SIGINT, ctrl_c)
    there = {name: value for name, value in vars(dask_jobqueue).items() if name.endswith("Cluster")}
    there["LocalCluster"] = distributed.LocalCluster
    if kind not in there:
        raise ValueError(f"'cluster': there is no kind {kind!r}: choose one of {', '.join(sorted(there))}.")
    if kind == "LocalCluster":
        options = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": HERE, **options}
    try:
        cluster = there[kind](**options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"'cluster': {kind} could not be started: {error}") from None
    if kind != "LocalCluster":
        submit = there[kind].job_cls.submit_command
        if shutil.which(submit.split()[0]) is None:  # else it would wait for workers without end
            cluster.close()
            raise ValueError(
                f"'cluster': {kind} submits its jobs with the command {submit!r}, which this machine does not have: "
                "start the sweep where it is installed, or leave 'cluster' out."
            )
        cluster.scale(jobs=jobs)
    return cluster


def _outcomes(now, client, workers, stopped, say):
    """Iterator of points as they begin, with their place in words, and as they end, with the outcome of `execute`.

    No more points are in work than there are threads of workers, so that a point given to Dask is one that runs.
    """
    from distributed import CancelledError
    from distributed.scheduler import KilledWorker

    from lipscan.sweeps import execution

    sweep = f"sweep-{uuid.uuid4().hex[:12]}"  # a scheduler may remember points of an earlier run
    common = {
        "sweep": sweep,
        "package": source.package(),
        "notebook": now.source.text,
        "cwd": str(now.spec.notebook.parent),
        "timeout": now.spec.timeout,
    }
    todo, waiting, ended = deque(now.todo), {}, SimpleQueue()
    free = None if workers is None else deque(workers)
    pool = _Pool(client, say) if workers is None else None
    try:
        while todo or waiting:
            if stopped():
                raise KeyboardInterrupt
            if client.status not in ("running", "connecting"):
                raise RuntimeError(_away(client))
            places = pool.look() if pool else {}
            yield from ((point, places[future.key]) for future, (point, _) in waiting.items() if future.key in places)
            while todo and (free if pool is None else len(waiting) < pool.size):
                point, own = todo.popleft(), free.popleft() if free else _threads(now.spec.threads or 1)
                task = {**common, "parameters": point.parameters, "environment": own}
                future = client.submit(execution.execute, task, key=f"{sweep}-{point.id}", pure=False)
                waiting[future] = point, own
                future.add_done_callback(ended.put)
                device = own.get("CUDA_VISIBLE_DEVICES")
                yield point, (platform.node() if pool is None else "") + (f", GPU {device}" if device else "")
            with suppress(Empty):
                ended.get(timeout=LOOK)
            for future in [future for future in waiting if future.done()]:
                try:
                    outcome = future.result(timeout=CONNECT)
                except KilledWorker as error:
                    outcome = execution.lost(common, error.last_worker.address)
                except CancelledError:
                    raise RuntimeError(_away(client)) from None
                except Exception as error:
                    if isinstance(error, OSError) and future.status != "error":
                        continue  # lost before it came here: Dask makes it again, or the scheduler is lost too
                    raise RuntimeError(f"a worker could not run its point: {type(error).__name__}: {error}") from error
                point, own = waiting.pop(future)
                if free is not None:
                    free.append(own)
                yield point, outcome
                future.release()
    finally:
        if waiting and client.status == "running":
            client.cancel(list(waiting), force=True)
            # `run` hands the limit on to `Client.sync`, not to `stop`
            with suppress(OSError):  # a worker that does not answer
                client.run(execution.stop, sweep, callback_timeout=CONNECT)


def _away(client):
    return f"the scheduler {client.scheduler.address} is gone: start it and its workers, then run the same command."


class _Pool:
    """Workers of a cluster, polled now and then: lost workers are reported, and losing all of them is an error."""

    def __init__(self, client, say):
        self._client, self._say, self._address = client, say, client.scheduler.address
        self._there, self._given, self._last, self._looked, self._seen = {}, {}, None, -EVERY, time.monotonic()
        self.look()
        if not self.size:
            say(f"no worker at {self._address} yet: waiting (start some with `dask worker {self._address}`)")

    @property
    def size(self):
        """Number of points that can run at once."""
        return sum(self._there.values())

    def look(self):
        """New places of tasks since the last look: key -> worker; RuntimeError if no worker is present for too long."""
        now = time.monotonic()
        if now - self._looked < EVERY or self._client.status != "running":
            return {}
        try:
            there, processing = self._client.nthreads(), self._client.processing()
        except OSError:  # the scheduler went away, of which the client will hear too
            return {}
        self._looked, before, self._there = now, self._there, there
        for worker in before.keys() - self._there.keys():
            self._say(f"the worker {worker} is gone: its points go to another one")
            self._last = worker
        if self._there:
            self._seen = now
        elif now - self._seen >= (GONE if self._last else NEVER):
            raise RuntimeError(
                f"there has been no worker at {self._address} for {now - self._seen:.0f} s"
                + (f"; the last one was {self._last}" if self._last else "")
                + ". Finished points are kept: find out what ended the workers (memory, time limit), start new ones "
                "with "
                f"`dask worker {self._address}`, then run the same command again."
            )
        given = {key: worker for worker, keys in processing.items() for key in keys}
        news, self._given = dict(given.items() - self._given.items()), given
        return news
