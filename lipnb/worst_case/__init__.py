"""Inputs with large local constants: explicit constructions, random inputs, gradient ascent, and attacks."""

from lipnb.worst_case.ascent import adam, ascend, climb, gaussian
from lipnb.worst_case.ball_search import WorstCase, on_ball
from lipnb.worst_case.constructions import (
    eigenvector,
    even_fork_input,
    fork_input,
    quadratic_input,
    tight_input,
    two_diracs,
)
from lipnb.worst_case.forks import Shapes, bulk_directions, forks, two_clusters

__all__ = [
    "Shapes",
    "WorstCase",
    "adam",
    "ascend",
    "bulk_directions",
    "climb",
    "eigenvector",
    "even_fork_input",
    "fork_input",
    "forks",
    "gaussian",
    "on_ball",
    "quadratic_input",
    "tight_input",
    "two_clusters",
    "two_diracs",
]
