r"""What a solver knows of a batch of matrices J: the product with :math:`J^\top J`, and little else."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

__all__ = ["FunctionGram", "GramOperator", "MatrixGram"]


class GramOperator(ABC):
    r""":math:`J^\top J / \mathrm{unit}^2` for b matrices J of shape (M, N) at once.

    Attributes
    ----------
    name : str
        How products are made, such as "cached": the `route` of an answer.
    unit : float or Tensor of shape (b,)
        What the matrices are divided by in `gram`, a power of two that keeps squares in the range of the type.
    eps : float
        Rounding unit of the products where it is coarser than that of the vectors.
    """

    name = ""
    unit: float | Tensor = 1.0
    eps: float = 0.0

    @abstractmethod
    def gram(self, u: Tensor) -> Tensor:
        """Products, shape (b, N), with vectors `u`, shape (b, N); may be overwritten by the next product."""

    def restrict(self, index: Tensor) -> "GramOperator | None":
        """The operator of the items `index` (increasing) alone, or None where the batch cannot be made smaller."""
        return None

    def heuristic_start(self) -> Tensor | None:
        """Unit vectors (b, N) not far from the top right singular vectors, often; nothing is proved. None: no idea."""
        return None


class FunctionGram(GramOperator):
    """Products by a function, (b, N) -> (b, N)."""

    def __init__(self, gram: Callable[[Tensor], Tensor]) -> None:
        self._gram = gram

    def gram(self, u):
        return self._gram(u)


class MatrixGram(GramOperator):
    """Products by matrices that are there as a whole, shape (b, M, N)."""

    name = "dense"

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def gram(self, u):
        return (self.matrix.mT @ (self.matrix @ u[..., None]))[..., 0]

    def restrict(self, index):
        return MatrixGram(self.matrix[index])
