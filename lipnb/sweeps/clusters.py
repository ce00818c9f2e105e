"""Points on the workers of a Dask cluster, one that runs or one that a spec describes."""

import re
import time
from contextlib import contextmanager

__all__ = ["KINDS", "checked", "on_dask", "opened", "workers_of"]

LOCAL = ("dashboard_address", "memory_limit", "processes", "threads_per_worker")
QUEUE = (
    "account",
    "cores",
    "dashboard_address",
    "death_timeout",
    "disk",
    "job_cpu",
    "job_mem",
    "mem",
    "memory",
    "ncpus",
    "processes",
    "project",
    "queue",
    "resource_spec",
    "walltime",
)
KINDS = (
    "LocalCluster",
    "SLURMCluster",
    "PBSCluster",
    "SGECluster",
    "LSFCluster",
    "HTCondorCluster",
    "OARCluster",
    "MoabCluster",
)
WORD = re.compile(r"[A-Za-z0-9_.,:+@%=/\[\]][A-Za-z0-9_.,:+@%=/\[\]-]*")
HERE = "127.0.0.1:0"  # a dashboard for this machine, at any free port
GONE = 120  # seconds without a worker, where there were some: a nanny has started a new one long before
NEVER = 24 * 3600  # seconds that a first worker may take: jobs wait in their queue
EVERY = 2  # seconds between two looks


def checked(cluster):
    """The cluster of a spec, or a ValueError in a sentence.

    A spec can come from somebody else, so it says how much and which queue, and nothing that opens a port to others,
    runs a command, loads a module or names a place on disk: only options known to be harmless pass.

    Parameters
    ----------
    cluster : dict
        ``kind``, ``jobs`` and ``options`` as they were read.

    Returns
    -------
    dict
        With the same keys.
    """
    kind, jobs, options = cluster.get("kind"), cluster.get("jobs", 1), cluster.get("options") or {}
    if not (
        isinstance(kind, str)
        and kind in KINDS
        and set(cluster) <= {"kind", "jobs", "options"}
        and isinstance(options, dict)
    ):
        raise ValueError(f"'cluster' takes kind (one of {', '.join(KINDS)}), jobs (how many) and options.")
    if not (type(jobs) is int and jobs >= 1):
        raise ValueError(f"'jobs' is a whole number from 1 on; got {jobs!r}.")
    allowed = LOCAL if kind == "LocalCluster" else QUEUE
    for name, value in options.items():
        if name not in allowed:
            raise ValueError(
                f"'cluster': the option {name!r} is not taken from a spec (those of {kind} are "
                f"{', '.join(allowed)}): set it in Dask's own configuration, in ~/.config/dask."
            )
        good = WORD.fullmatch(value) if isinstance(value, str) else type(value) in (bool, int, float) and value >= 0
        if not good or name == "dashboard_address" and not re.fullmatch(r"[A-Za-z0-9_.-]*:\d+", str(value)):
            raise ValueError(f"'cluster': {name} is a number or one plain word; got {value!r}.")
    return {"kind": kind, "jobs": jobs, "options": options}


@contextmanager
def opened(scheduler=None, cluster=None):
    """A client of a Dask cluster.

    Parameters
    ----------
    scheduler : str, optional
        Address of one that runs, such as ``tcp://10.0.0.1:8786``.
    cluster : dict, optional
        ``kind``, ``jobs`` and ``options`` of one to start, and to end with the sweep.

    Yields
    ------
    distributed.Client
        Connected.

    Raises
    ------
    RuntimeError
        "Dask is not installed".
    OSError
        "there is no Dask scheduler at ...".
    ValueError
        "the cluster could not be started".
    """
    try:
        import distributed
    except ImportError:
        raise RuntimeError("Dask is not installed: pip install '.[sweeps]' in a clone of lipnb.") from None
    if scheduler:
        try:
            client = distributed.Client(scheduler, timeout="10s", set_as_default=False)
        except (OSError, ValueError) as error:
            raise OSError(
                f"there is no Dask scheduler at {scheduler} ({type(error).__name__}): start one with `dask "
                "scheduler`, which prints its address."
            ) from None
        with client:
            yield client
        return
    local = cluster["kind"] == "LocalCluster"
    if local:
        home = distributed
    else:
        try:
            import dask_jobqueue as home
        except ImportError:
            raise RuntimeError("dask-jobqueue is not installed: pip install '.[sweeps]' in a clone of lipnb.") from None
    try:
        own = getattr(home, cluster["kind"])(**_options(cluster["kind"], cluster["options"]))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the cluster could not be started: {cluster['kind']}: {error}") from None
    with own, distributed.Client(own, set_as_default=False) as client:
        own.scale(cluster["jobs"]) if local else own.scale(jobs=cluster["jobs"])
        yield client


def _options(kind, options):
    """Arguments of a cluster: its dashboard is for this machine alone, unless the spec or Dask's configuration asks."""
    options = dict(options)
    dashboard = options.pop("dashboard_address", None)
    if kind == "LocalCluster":
        return {"n_workers": 0, "dashboard_address": dashboard or HERE, **options}
    from dask import config

    own = config.get(f"jobqueue.{kind.removesuffix('Cluster').lower()}.scheduler-options", None) or {}
    own = {"dashboard_address": HERE, **own} | ({"dashboard_address": dashboard} if dashboard else {})
    return {"scheduler_options": own, **options}


def workers_of(client):
    """Addresses of the workers that a client's scheduler knows now."""
    return set(client.scheduler_info(n_workers=-1)["workers"])


def on_dask(tasks, client, say=print, *, gone=GONE, never=NEVER):
    """Run points on the workers of a Dask cluster; Dask gives those of a lost worker to another one.

    The worker sends the executed notebook back, and only the one who began the sweep writes: nothing can be written
    twice.

    Parameters
    ----------
    tasks : list of dict
        As for `lipnb.sweeps.executors.on_this_machine`.
    client : distributed.Client
        See `opened`.
    say : callable
        Told in a sentence which workers are gone.
    gone, never : float
        Seconds without any worker after which the sweep ends: after there were some, and where none ever came.

    Yields
    ------
    int, str or dict
        As from `on_this_machine`; a point begins, at the latest some seconds later, where a worker was given it.

    Raises
    ------
    RuntimeError
        "a worker could not run its point", "the scheduler ... went away", "there is no worker any more at ...".
    """
    from distributed import as_completed
    from distributed.scheduler import KilledWorker

    from lipnb.sweeps.execution import execute, stop

    # keys of this run alone: a scheduler may remember points of an earlier one
    sweep = tasks[0]["sweep"]
    waiting = {
        client.submit(execute, task, key=f"{sweep}-{place}", pure=False): place for place, task in enumerate(tasks)
    }
    try:
        ended, pool = as_completed(list(waiting), loop=client.loop), _Pool(client, gone, never, say)
        begun = {}
        while waiting:
            if not ended.has_ready():
                if pool.looked():
                    given = {
                        int(key.removeprefix(f"{sweep}-")): worker
                        for worker, keys in client.processing().items()
                        for key in keys
                        if str(key).startswith(f"{sweep}-")
                    }
                    yield from given.items() - begun.items()
                    begun |= given
                time.sleep(0.05)
                continue
            future = next(ended)
            place = waiting.pop(future)
            if future.status == "finished":
                yield place, future.result()
            elif future.status == "error" and isinstance(error := future.exception(), KilledWorker):
                yield place, _lost(tasks[place], error)
            elif future.status == "error":
                raise RuntimeError(f"a worker could not run its point: {type(error).__name__}: {error}")
            else:
                raise RuntimeError(
                    f"the scheduler {client.scheduler.address} went away: start it and its workers "
                    "again, then give the same command."
                )
            future.release()
    finally:
        if waiting and client.status == "running":
            client.cancel(list(waiting), force=True)
            client.run(stop, sweep)


class _Pool:
    """The workers of a client, looked at now and then: one that is gone is named, all of them are not waited for."""

    def __init__(self, client, gone, never, say):
        self._client, self._gone, self._never, self._say = client, gone, never, say
        self._there, self._named, self._looked, self._seen = set(), set(), -EVERY, time.monotonic()

    def looked(self):
        """Whether it was time to look; RuntimeError where there has been no worker for too long."""
        now = time.monotonic()
        if now - self._looked < min(EVERY, self._gone / 2, self._never / 2) or self._client.status != "running":
            return False
        self._looked = now
        workers = workers_of(self._client)
        for worker in sorted((self._there - workers) - self._named):
            self._say(f"the worker {worker} is gone: what it had in work goes to another one")
            self._named.add(worker)
        if workers:
            self._there, self._seen = workers, now
            return True
        address, empty = self._client.scheduler.address, now - self._seen
        if self._there and empty >= self._gone:
            shown = ", ".join(sorted(self._there)[:4]) + (", ..." if len(self._there) > 4 else "")
            raise RuntimeError(
                f"there is no worker any more at {address}, since {empty:.0f} s: the last ones were "
                f"{shown}. What is finished is kept; see what ended them (memory, time limit), start "
                "some, then give the same command again."
            )
        if not self._there and empty >= self._never:
            raise RuntimeError(
                f"no worker came to {address} in {empty:.0f} s: start some with `dask worker {address}`"
                ", or look at the jobs of the batch system; then give the same command again."
            )
        return False


def _lost(task, error):
    """The outcome of a point that took several workers with it."""
    attempts = getattr(error, "allowed_failures", 3) + 1
    last = getattr(getattr(error, "last_worker", None), "address", "unknown")
    return {
        "ok": False,
        "values": {},
        "notebook": task["notebook"],
        "log": "",
        "seconds": 0.0,
        "host": last,
        "error": f"WorkerLost: {attempts} workers died while they ran it, the last one {last}, most often for want of "
        "memory",
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
