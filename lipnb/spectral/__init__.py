"""Largest singular value of an operator known by its two products, batched, with the residual of every answer.

Nothing here knows of attention: the solvers take two functions, ``jvp`` and ``vjp``, and a start vector.
"""

from lipnb.spectral.golub_kahan import golub_kahan
from lipnb.spectral.power import power_iteration
from lipnb.spectral.products import SpectralNorm, evaluate, start_vectors

__all__ = ["SpectralNorm", "evaluate", "golub_kahan", "power_iteration", "start_vectors"]
