"""Sweeps, one notebook with many values of its parameters: a door to `lipscan.sweeps`, opened when asked.

In a notebook: ``from lipnb.sweeps import record`` and ``record(slope=slope)``; importing this module imports nothing
heavy. Outside: `run` makes or continues a sweep, `load` gives the table of one that was run.
"""

from lipscan.sweeps import __all__, __dir__, __getattr__, record  # noqa: F401
