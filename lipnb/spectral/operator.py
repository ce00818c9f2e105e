r"""Interface between solvers and a batch of matrices J: the product with :math:`J^\top J`, and little else."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

__all__ = ["FunctionGram", "GramOperator", "MatrixGram"]


class GramOperator(ABC):
    r"""The operator :math:`J^\top J / \mathrm{unit}^2` for b matrices J of shape (M, N) at once.

    Attributes
    ----------
    name : str
        How products are computed, such as "cached": the `route` of an answer.
    unit : float or Tensor of shape (b,)
        Divisor of the matrices in `gram`, a power of two that keeps squares in the range of the type.
    eps : float
        Rounding unit of the products if it is coarser than that of the vectors.
    error : float or Tensor of shape (b,)
        Bound on the norm of the difference between the matrices multiplied with, times `unit`, and the true ones; 0 if
        nothing is known or nothing is rounded. Solvers do not use it.
    """

    name = ""
    unit: float | Tensor = 1.0
    eps: float = 0.0
    error: float | Tensor = 0.0

    @abstractmethod
    def gram(self, u: Tensor) -> Tensor:
        """Products, shape (b, N), with vectors `u`, shape (b, N); may be overwritten by the next product."""

    def restrict(self, index: Tensor) -> "GramOperator | None":
        """The operator of the items `index` (increasing) only, or None if the batch cannot be made smaller."""
        return None

    def heuristic_start(self) -> Tensor | None:
        """Unit vectors (b, N), often near the top right singular vectors, without proof; None without a guess."""
        return None


class FunctionGram(GramOperator):
    """Operator given by a function for its products, (b, N) -> (b, N)."""

    def __init__(self, gram: Callable[[Tensor], Tensor]) -> None:
        self._gram = gram

    def gram(self, u):
        return self._gram(u)


class MatrixGram(GramOperator):
    """Operator of explicit matrices, shape (b, M, N)."""

    name = "dense"

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def gram(self, u):
        return (self.matrix.mT @ (self.matrix @ u[..., None]))[..., 0]

    def restrict(self, index):
        return MatrixGram(self.matrix[index])
