r"""Largest singular value of an operator known by its products, batched, with the residual of every answer.

Nothing here knows of attention: the solvers take a function ``gram``, the product with :math:`J^\top J`, and a
start vector; `dense_norm` takes matrices.
"""

from lipnb.spectral.answer import SpectralNorm, each_field, evaluate, joined, put
from lipnb.spectral.dense import dense_norm
from lipnb.spectral.lanczos import lanczos
from lipnb.spectral.power import power_iteration
from lipnb.spectral.vectors import start_vectors

__all__ = [
    "SpectralNorm",
    "dense_norm",
    "each_field",
    "evaluate",
    "joined",
    "lanczos",
    "power_iteration",
    "put",
    "start_vectors",
]
