"""Where points run: kernels on this machine, or the workers of a Dask cluster. One seam: tasks in, outcomes out.

On this machine a thread waits for each kernel; the kernels are the processes. (A point costs its thread 0.03 s of
work and its kernel 0.5 s at least, so threads do not stand in each other's way.) On a cluster the worker sends the
executed notebook back, and only the one who began the sweep writes: nothing can be written twice.
"""

import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager
from queue import SimpleQueue

from lipnb.sweeps.kernel import execute, stop

__all__ = ["cores", "devices", "environment", "on_dask", "on_this_machine", "opened"]

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
           "VECLIB_MAXIMUM_THREADS")


def cores():
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def environment(threads):
    """Variables that keep the kernels of one machine from fighting for its cores.

    Parameters
    ----------
    threads : int
        Of each kernel.

    Returns
    -------
    dict
        Name -> value.
    """
    # waiting threads that spin slow their neighbours down, up to a hundred times
    return {**dict.fromkeys(THREADS, str(threads)), "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}


def devices(wanted=None):
    """The GPUs to share out.

    Parameters
    ----------
    wanted : int, list or None
        How many, or which; None takes those that CUDA_VISIBLE_DEVICES names, else all of this machine.

    Returns
    -------
    list of str
        Values for CUDA_VISIBLE_DEVICES.

    Raises
    ------
    ValueError
        "there are only ... GPUs".
    """
    if isinstance(wanted, list):
        return [str(device) for device in wanted]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        there = [name.strip() for name in visible.split(",") if name.strip()]
    elif shutil.which("nvidia-smi"):
        listed = subprocess.run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], capture_output=True,
                                text=True, check=False)
        there = listed.stdout.split() if listed.returncode == 0 else []
    else:
        there = []
    if wanted is not None and wanted > len(there):
        raise ValueError(f"there are only {len(there)} GPUs here, not {wanted}: say a smaller number of 'gpus'.")
    return there[:wanted]


def on_this_machine(tasks, workers, gpus=()):
    """Run points on this machine.

    Parameters
    ----------
    tasks : list of dict
        As `lipnb.sweeps.kernel.execute` takes them.
    workers : int
        How many at the same time.
    gpus : sequence of str
        Shared out among the workers; empty leaves CUDA_VISIBLE_DEVICES as it is.

    Yields
    ------
    int, dict
        Place in `tasks` and outcome, as points end. Closing the generator kills the kernels.
    """
    slots = SimpleQueue()
    for number in range(workers):
        slots.put(gpus[number % len(gpus)] if gpus else None)

    def one(task):
        device = slots.get()
        own = {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
        try:
            return execute({**task, "environment": {**task["environment"], **own}})
        finally:
            slots.put(device)

    pool = ThreadPoolExecutor(workers)
    waiting = {pool.submit(one, task): place for place, task in enumerate(tasks)}
    try:
        for future in as_completed(list(waiting)):
            yield waiting.pop(future), future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        while running := [future for future in waiting if future.running()]:
            stop(tasks[0]["sweep"])  # again and again: a kernel may only now be starting
            wait(running, timeout=0.2)
        pool.shutdown()


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
        raise RuntimeError("Dask is not installed: pip install 'lipnb[sweeps]'.") from None
    if scheduler:
        try:
            client = distributed.Client(scheduler, timeout="10s", set_as_default=False)
        except (OSError, ValueError) as error:
            raise OSError(f"there is no Dask scheduler at {scheduler} ({type(error).__name__}): start one with `dask "
                          "scheduler`, which prints its address.") from None
        with client:
            yield client
        return
    if cluster["kind"] == "LocalCluster":
        home = distributed
    else:
        try:
            import dask_jobqueue as home
        except ImportError:
            raise RuntimeError("dask-jobqueue is not installed: pip install 'lipnb[sweeps]'.") from None
    quiet = {"n_workers": 0} if cluster["kind"] == "LocalCluster" else {}
    try:
        own = getattr(home, cluster["kind"])(**{**quiet, **cluster["options"]})
    except (TypeError, ValueError) as error:
        raise ValueError(f"the cluster could not be started: {cluster['kind']}: {error}") from None
    with own, distributed.Client(own, set_as_default=False) as client:
        own.scale(jobs=cluster["jobs"]) if home is not distributed else own.scale(cluster["jobs"])
        yield client


def on_dask(tasks, client):
    """Run points on the workers of a Dask cluster; Dask gives those of a lost worker to another one.

    Parameters
    ----------
    tasks : list of dict
        As for `on_this_machine`.
    client : distributed.Client
        See `opened`.

    Yields
    ------
    int, dict
        As from `on_this_machine`.

    Raises
    ------
    RuntimeError
        "a worker could not run its point", "the scheduler ... went away".
    """
    from distributed import as_completed as completed
    from distributed.scheduler import KilledWorker

    # keys of this run alone: a scheduler may remember points of an earlier one
    sweep = tasks[0]["sweep"]
    waiting = {client.submit(execute, task, key=f"{sweep}-{place}", pure=False): place
               for place, task in enumerate(tasks)}
    try:
        for future in completed(list(waiting), loop=client.loop):
            place = waiting.pop(future)
            if future.status == "finished":
                yield place, future.result()
            elif future.status == "error" and isinstance(error := future.exception(), KilledWorker):
                yield place, _lost(tasks[place], error)
            elif future.status == "error":
                raise RuntimeError(f"a worker could not run its point: {type(error).__name__}: {error}")
            else:
                raise RuntimeError(f"the scheduler {client.scheduler.address} went away: start it and its workers "
                                   "again, then give the same command.")
            future.release()
    finally:
        if waiting and client.status == "running":
            client.cancel(list(waiting), force=True)
            client.run(stop, sweep)


def _lost(task, error):
    """The outcome of a point that took several workers with it."""
    attempts = getattr(error, "allowed_failures", 3) + 1
    return {"ok": False, "values": {}, "notebook": task["notebook"], "log": "", "seconds": 0.0, "host": "",
            "error": f"WorkerLost: {attempts} workers died while they ran it, most often for want of memory",
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
