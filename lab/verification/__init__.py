"""Tests of each upper bound against thousands of inputs: no measured constant may exceed it.

`draws` makes the inputs, reproducibly from a seed; `ascent` makes them worse by gradients, along the `goals`; `checks`
lists the bounds, with the quantity measured against each; `table` runs them all and keeps the worst. `digits` compares
the guarantees that include rounding with `truth` in fifty digits, on the cases of `cancelling`; `balls` the bound on a
ball with ascents of thousands of layers; `families` the maps of models with the modules of transformers.
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
