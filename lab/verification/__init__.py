"""Thousands of inputs against each upper bound: no measured constant may exceed it.

`draws` makes the inputs, each again from its seed; `ascent` makes them worse by gradients, along the `goals`; `checks`
lists the bounds, what is measured against each and how; `table` runs them all and keeps the worst. `digits` holds the
guarantees that include rounding against `truth` in fifty digits, on the cases of `cancelling`; `balls` the bound on a
ball against ascents of thousands of layers; `families` the maps of models against the modules of transformers.
``python -m lab verify`` makes the tables ``verify`` and ``verify-digits``, ``-in-use``, ``-ball``, ``-ball-in-use`` and
``-families``.
"""

from lab.verification.checks import CHECKS, NOT_CHECKED, Check
from lab.verification.draws import KINDS, Problem, draw
from lab.verification.table import BLOCKS, HOT, again, measure, worst_case

__all__ = [
    "BLOCKS",
    "CHECKS",
    "HOT",
    "KINDS",
    "NOT_CHECKED",
    "Check",
    "Problem",
    "again",
    "draw",
    "measure",
    "worst_case",
]
