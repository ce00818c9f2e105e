"""Batches of vectors, one for each operator: start vectors, norms and multiples."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

__all__ = ["start_vectors"]

SEED_OFFSET = 0x5EED_0F_A_57A27  # distinct from common seeds of data, such as torch.manual_seed(0)


def start_vectors(batch: int, size: int, *, seed: int, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """A Gaussian unit start vector, the same for every item, so that no answer depends on other items.

    Parameters
    ----------
    batch : int
        Number of items b.
    size : int
        Dimension N of one vector.
    seed : int
        Seed of a separate generator; the global random state is neither read nor changed. The numbers differ from
        those after ``torch.manual_seed(seed)``, with which a user may have drawn the tokens: a certificate needs a
        start that is independent of the input.
    dtype, device
        Type and device of the vectors.

    Returns
    -------
    Tensor, shape (b, N)
        Unit vectors, drawn on the CPU in float64 so that every device and precision starts alike.

    Examples
    --------
    >>> import torch
    >>> from lipnb.spectral import start_vectors
    >>> start = start_vectors(2, 3, seed=0, dtype=torch.float64, device="cpu")
    >>> start.shape, torch.equal(start[0], start[1]), round(start[0].norm().item(), 6)
    (torch.Size([2, 3]), True, 1.0)
    """
    generator = torch.Generator().manual_seed((seed + SEED_OFFSET) % 2**64)
    start = torch.randn(size, generator=generator, dtype=torch.float64, device="cpu")
    return (start / start.norm()).to(dtype=dtype, device=device).expand(batch, size)


def norms(vectors: Tensor) -> Tensor:
    """Euclidean norms, shape (b,), of `vectors`, shape (b, ...), accumulated in float64."""
    return torch.linalg.vector_norm(vectors.flatten(1), dim=1, dtype=torch.float64)


def least_norm(dtype: torch.dtype) -> float:
    """The least norm with all its digits: below it entries underflow, or their squares in float64."""
    kind = torch.finfo(dtype)
    return max(kind.tiny, torch.finfo(torch.float64).tiny ** 0.5) / kind.eps


def scaled(factors: Tensor, vectors: Tensor) -> Tensor:
    """`vectors` (b, ...), each times its entry of `factors` (b,)."""
    return vectors * factors.to(vectors.dtype).view(-1, *[1] * (vectors.ndim - 1))


def inverse(numbers: Tensor) -> Tensor:
    """1 / numbers, and 0 where a number is 0."""
    return torch.where(numbers > 0, 1 / numbers.clamp_min(torch.finfo(numbers.dtype).tiny), 0)


class NotFinite(ValueError):
    """Error for a product that is NaN or infinite, at these `items` of a batch; without items, at the only input."""

    items: Sequence[int] = ()

    @classmethod
    def of(cls, items: Sequence[int]) -> "NotFinite":
        """Make the error for these items."""
        which = f", of item {items[0]}" if items else ""
        error = cls(
            f"a Jacobian product is NaN or infinite{which}: the map is not differentiable at this input, or overflows "
            "or underflows in its precision."
        )
        error.items = items
        return error

    def among(self, places: Sequence[int]) -> "NotFinite":
        """The same error for the batch that has these items at `places`; without places, for the only input."""
        return self.of([places[item] for item in self.items] if places else ())


def check_finite(numbers: Tensor | np.ndarray, items: np.ndarray | None = None) -> None:
    """Raise `NotFinite` unless all `numbers` (b, ...) are finite; `items` are the places of the rows in a batch."""
    finite = torch.isfinite(numbers) if isinstance(numbers, Tensor) else torch.from_numpy(np.isfinite(numbers))
    if not finite.all():
        rows = (~finite).nonzero()[:, 0].unique().tolist()
        raise NotFinite.of(rows if items is None else items[rows].tolist())
