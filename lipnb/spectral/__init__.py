"""Largest singular value of an operator known by its products, batched, with the residual of every answer.

Nothing here knows of attention: the solvers take a function ``gram``, the product with :math:`J^\\top J`, and a
start vector.
"""

from lipnb.spectral.lanczos import lanczos
from lipnb.spectral.mixed import mixed_lanczos, share
from lipnb.spectral.power import power_iteration
from lipnb.spectral.products import SpectralNorm, evaluate, start_vectors

__all__ = ["SpectralNorm", "evaluate", "lanczos", "mixed_lanczos", "power_iteration", "share", "start_vectors"]
