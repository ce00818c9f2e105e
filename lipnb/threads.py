"""What the whole process shares, used by one thread at a time, and settings that stay while any thread needs them.

Hooks, buffers and configuration of a network, the global random states and PyTorch's level of forward differentiation
are shared by all threads. Whoever uses them takes `turn()`: one lock for all networks, since a thread that waited for a
second one while it holds the first could wait for ever.
"""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

__all__ = ["Shared", "aside", "turn"]

_lock = threading.RLock()


class _Lent(threading.local):
    """Whether another thread holds the lock for this one, and waits for it."""

    lent = False


_here = _Lent()


def turn() -> AbstractContextManager:
    """A context in which no other thread is inside one; it may be entered again in the same thread.

    The lock itself, not a function around it: an interrupt (Ctrl-C) cannot fall between its acquisition and the block.
    """
    return nullcontext() if _here.lent else _lock


def aside(task: Callable, *given: Any) -> Any:
    """What a task gives in a thread of its own, inside the turn of this one, which waits for it.

    PyTorch's modes (gradients, transforms of `torch.func`, inference) are those of a fresh thread there.
    """
    with turn(), ThreadPoolExecutor(1, initializer=_borrow) as pool:
        return pool.submit(task, *given).result()


def _borrow():
    _here.lent = True


def _afresh():
    """A process that was forked has no thread but one: nobody is left to give back the lock."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_afresh)


class Shared:
    """A context manager for settings of the whole process: the first thread in makes them, the last one undoes them.

    Threads that saved and put back by themselves would put back what another one had set.

    Parameters
    ----------
    settings : callable
        Gives the context manager that makes the settings and undoes them.
    """

    def __init__(self, settings: Callable[[], AbstractContextManager]) -> None:
        self._settings, self._lock, self._inside = settings, threading.Lock(), 0
        self._stack = ExitStack()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Inside, the settings are made."""
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
