"""Where points run: kernels on this machine. Tasks in, outcomes out; `lipnb.sweeps.clusters` does the same on Dask.

A thread waits for each kernel; the kernels are the processes. (A point costs its thread 0.03 s of
work and its kernel 0.5 s at least, so threads do not stand in each other's way.)
"""

import os
import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor, wait
from queue import Empty, SimpleQueue

from lipnb.sweeps.execution import execute, stop

__all__ = ["cores", "devices", "environment", "on_this_machine"]

THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
LOOK = 0.5  # seconds between looks for a signal: one that comes just before a wait, or to another thread, wakes nobody


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
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], capture_output=True, text=True, check=False
        )
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
        As `lipnb.sweeps.execution.execute` takes them.
    workers : int
        How many at the same time.
    gpus : sequence of str
        Shared out among the workers; empty leaves CUDA_VISIBLE_DEVICES as it is.

    Yields
    ------
    int, str or dict
        Place in `tasks`, and as the point begins where it runs, as it ends its outcome. Closing the generator kills the
        kernels.
    """
    slots, events = SimpleQueue(), SimpleQueue()
    for number in range(workers):
        slots.put(gpus[number % len(gpus)] if gpus else None)

    def one(place, task):
        device = slots.get()
        events.put((place, platform.node() + (f", GPU {device}" if device else "")))
        own = {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
        try:
            return execute({**task, "environment": {**task["environment"], **own}})
        finally:
            slots.put(device)

    pool = ThreadPoolExecutor(workers)
    waiting = {pool.submit(one, place, task): place for place, task in enumerate(tasks)}
    for future in waiting:
        future.add_done_callback(lambda ended: events.put((waiting[ended], ended)))
    try:
        left = len(waiting)
        while left:
            try:
                place, event = events.get(timeout=LOOK)
            except Empty:
                continue
            if isinstance(event, str):
                yield place, event
            else:
                left -= 1
                yield place, event.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        while running := [future for future in waiting if future.running()]:
            stop(tasks[0]["sweep"])  # again and again: a kernel may only now be starting
            wait(running, timeout=0.2)
        pool.shutdown()
