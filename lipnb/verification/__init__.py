"""Thousands of inputs against each upper bound: no measured constant may exceed it.

`draws` makes the inputs, each again from its seed; `ascent` makes them worse by gradients; `checks` lists the bounds,
what is measured against each and how; `table` runs them all and keeps the worst. ``python -m lipnb.verification``
makes the table ``verify`` of the results folder.
"""

from lipnb.verification.checks import CHECKS, Check
from lipnb.verification.draws import KINDS, Problem, draw
from lipnb.verification.table import BLOCKS, HOT, again, make_table, measure, remeasure

__all__ = ["BLOCKS", "CHECKS", "HOT", "KINDS", "Check", "Problem", "again", "draw", "make_table", "measure",
           "remeasure"]
