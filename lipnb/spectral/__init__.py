r"""Largest singular values of batches of operators given by their products, with the residual of every answer.

The package is independent of attention: solvers take a `GramOperator`, or the product with :math:`J^\top J` as a
function, and a start vector; `baselines.dense_norm` takes matrices. `krylov` extends the basis,
`certificate` proves bounds, `stopping` decides when to stop, and `lanczos` is the loop. `upper_norms` bounds
norms of small matrices from above, their rounding counted.
"""

from lipnb.spectral.answer import SpectralNorm
from lipnb.spectral.baselines import power_iteration
from lipnb.spectral.lanczos import lanczos
from lipnb.spectral.operator import FunctionGram, GramOperator, MatrixGram
from lipnb.spectral.vectors import start_vectors

__all__ = ["FunctionGram", "GramOperator", "MatrixGram", "SpectralNorm", "lanczos", "power_iteration", "start_vectors"]
