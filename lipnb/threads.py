"""One lock for the state that all threads share, and settings of the process that last while any thread needs them.

Hooks, buffers and configuration of a network, the global random states and PyTorch's level of forward differentiation
are shared by all threads. Code that uses them takes `turn()`: one lock for all networks, since a thread that waits for
a second lock while it holds the first could deadlock.
"""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

_lock = threading.RLock()


class _Lent(threading.local):
    """Per-thread flag: whether another thread holds the lock on behalf of this one, and waits for it."""

    lent = False


_here = _Lent()


def turn() -> AbstractContextManager:
    """A context that one thread at a time can enter; the same thread may enter it again.

    It is the lock itself, not a wrapper: an interrupt (Ctrl-C) cannot fall between its acquisition and the block.
    """
    return nullcontext() if _here.lent else _lock


def aside(task: Callable, *given: Any) -> Any:
    """Run a task in a new thread and return its result; this thread waits, and the task runs inside its `turn`.

    In the new thread PyTorch's modes (gradients, transforms of `torch.func`, inference) have their defaults.
    """
    with turn(), ThreadPoolExecutor(1, initializer=_borrow) as pool:
        return pool.submit(task, *given).result()


def _borrow():
    _here.lent = True


def _afresh():
    """Replace the lock after a fork: the child has one thread only, so nothing would release the old lock."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_afresh)


class Shared:
    """A context manager for settings of the whole process: the first thread in makes them, the last out undoes them.

    Threads that each saved and restored the settings would restore those of another thread.

    Parameters
    ----------
    settings : callable
        Returns a context manager that makes the settings and undoes them.
    """

    def __init__(self, settings: Callable[[], AbstractContextManager]) -> None:
        self._settings, self._lock, self._inside = settings, threading.Lock(), 0
        self._stack = ExitStack()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Context in which the settings hold."""
        entered = False
        try:
            with self._lock:
                if not self._inside:
                    self._stack.enter_context(self._settings())
                self._inside += 1
                entered = True
            yield
        finally:
            if entered:
                with self._lock:
                    self._inside -= 1
                    if not self._inside:
                        self._stack.close()
