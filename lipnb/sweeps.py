"""Sweeps of one notebook over values of its parameters: `lipscan.sweeps`, imported on first access.

In a notebook: ``from lipnb.sweeps import record`` and ``record(slope=slope)``; importing this module imports nothing
heavy. Outside: `run` starts or continues a sweep, `load` returns the table of a finished one.
"""

from lipscan.sweeps import __all__, __dir__, __getattr__, record  # noqa: F401
