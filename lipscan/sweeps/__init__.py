"""Sweeps: one notebook, many values of its parameters, one table; the only part of lipscan with papermill and Dask.

In a notebook: ``from lipnb.sweeps import record`` and ``record(slope=slope)``; importing this package imports nothing
heavy. Outside: `run` makes or continues a sweep, `load` reads the table of one that was run.
"""

from importlib import import_module

from lipnb.extras import extra
from lipscan.sweeps.recorded import record

HOMES = {
    "Spec": "spec",
    "Status": "folder",
    "Sweep": "running",
    "expand": "spec",
    "load": "folder",
    "read": "spec",
    "run": "running",
    "status": "folder",
}
__all__ = ["record", *HOMES]


def __getattr__(name):
    """Import other names on first use, so that a notebook that only records values does not pay for them."""
    if name in HOMES:
        with extra("sweeps"):
            return getattr(import_module(f"lipscan.sweeps.{HOMES[name]}"), name)
    raise AttributeError(f"module 'lipscan.sweeps' has no attribute {name!r}")


def __dir__():
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
