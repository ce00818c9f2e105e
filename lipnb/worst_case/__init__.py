"""Inputs that make attention rough: explicit constructions, random ones, a search by gradient ascent, attacks."""

from lipnb.worst_case.ascent import adam, ascend, unit_slope
from lipnb.worst_case.constructions import climb, eigenvector, fork_input, quadratic_input, tight_input, two_diracs
from lipnb.worst_case.starts import gaussian

__all__ = [
    "adam",
    "ascend",
    "climb",
    "eigenvector",
    "fork_input",
    "gaussian",
    "quadratic_input",
    "tight_input",
    "two_diracs",
    "unit_slope",
]
