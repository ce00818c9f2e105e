"""Inputs that make attention rough: explicit constructions, a search by gradient ascent, attacks on a layer."""

from lipnb.worst_case.ascent import adam, ascend, unit_slope
from lipnb.worst_case.constructions import climb, eigenvector, fork_input, quadratic_input, tight_input, two_diracs

__all__ = [
    "adam",
    "ascend",
    "climb",
    "eigenvector",
    "fork_input",
    "quadratic_input",
    "tight_input",
    "two_diracs",
    "unit_slope",
]
