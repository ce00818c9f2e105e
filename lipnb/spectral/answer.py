"""The answer of every solver, operations on batches of answers, and the Rayleigh quotient behind a value."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lipnb.extras import extra
from lipnb.spectral.vectors import check_finite, inverse, norms, scaled

__all__ = ["SpectralNorm"]


def table_of(answer: Any) -> Any:
    """A pandas table with a row for each item of the batch (or radius) and a column for each of its numbers.

    Vectors and matrices are left out; values that all items share are repeated in each row.
    """
    with extra("models"):
        import pandas as pd
    fields = answer._asdict() if hasattr(answer, "_asdict") else vars(answer)
    first = fields.get("value", next(iter(fields.values())))
    shape = first.shape if isinstance(first, Tensor) else torch.Size()
    columns = {}
    for name, field in fields.items():
        if isinstance(field, Tensor) and field.shape == shape:
            columns[name] = field.flatten().tolist()
        elif not isinstance(field, Tensor) or field.ndim == 0:
            columns[name] = [field.item() if isinstance(field, Tensor) else field] * shape.numel()
    return pd.DataFrame(columns)


class SpectralNorm(NamedTuple):
    r"""Largest singular values of a batch of operators, with bounds and the course of the computation.

    Attributes
    ----------
    value : Tensor, shape (b,)
        :math:`\|J v\| / \|v\|` at the vector that was found: a lower bound on the norm, up to rounding.
    residual : Tensor, shape (b,)
        :math:`\|J^\top J v - \sigma^2 v\| / \sigma^2` at the vector v of `value`. If it is
        small, some singular value lies within about ``residual / 2`` of `value`, relatively; the residual alone does
        not show that it is the largest.
    steps : Tensor of int, shape (b,)
        Products with :math:`J^\top J` until the item stopped; Lanczos takes one more for `value`.
    converged : Tensor of bool, shape (b,)
        Whether the stopping rule was met within the allowed steps.
    upper : Tensor, shape (b,)
        Upper bound on the norm; infinite if the method proves none.
    vector : Tensor, shape (b, N), or None
        Right singular vectors of `value`, from Lanczos.
    precision_limited : Tensor of bool, shape (b,), or None
        Whether products of this precision are the limit: they cannot prove more, the Lanczos vectors were not
        orthonormal, a product underflowed, or one more product did not confirm the value.

    Examples
    --------
    >>> import torch
    >>> from lipnb.spectral import lanczos, start_vectors
    >>> factors = torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)
    >>> start = start_vectors(1, 3, seed=0, dtype=torch.float64, device="cpu")
    >>> found = lanczos(lambda u: factors**2 * u, start)
    >>> round(found.value.item(), 3), found.steps.item(), found.converged.item()
    (3.0, 3, True)
    """

    value: Tensor
    residual: Tensor
    steps: Tensor
    converged: Tensor
    upper: Tensor
    vector: Tensor | None = None
    precision_limited: Tensor | None = None

    @property
    def table(self) -> Any:
        """The answer as a pandas table, one row for each item of the batch, without the vectors."""
        return table_of(self)


def each_field(found: SpectralNorm, change: Callable[[Tensor], Tensor]) -> SpectralNorm:
    """Apply `change`, such as ``lambda field: field[index]``, to each field of an answer."""
    return found._replace(**{name: change(field) for name, field in found._asdict().items() if field is not None})


def joined(parts: list[SpectralNorm]) -> SpectralNorm:
    """Concatenate the answers of several batches."""
    first = parts[0]._asdict()
    return SpectralNorm(
        **{name: torch.cat([getattr(part, name) for part in parts]) for name in first if first[name] is not None}
    )


def put(found: SpectralNorm, items: Tensor, new: SpectralNorm) -> SpectralNorm:
    """Replace the `items` of the answer `found`, an index or a mask, by `new`, the answer for these items only."""
    changed = {
        name: field.index_put((items,), getattr(new, name).to(field.dtype))
        for name, field in found._asdict().items()
        if field is not None
    }
    return found._replace(**changed)


def evaluate(gram: Callable[[Tensor], Tensor], vectors: Tensor) -> tuple[Tensor, Tensor]:
    r"""Lower bounds :math:`\|J v\| / \|v\|` and residuals as in `quotient`, each (b,), at `vectors`, (b, N)."""
    vectors = scaled(inverse(norms(vectors)), vectors)
    square, residual = quotient(vectors, gram(vectors))
    return square.sqrt(), residual


def quotient(vectors: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
    """Rayleigh quotients <v, w>, at least 0, and residuals |w - <v, w> v| / <v, w>, each (b,).

    For unit vectors v and their images w, (b, N). If <v, w> is not positive although w is not 0, everything is
    rounding, and the residual is 1.
    """
    square = (vectors * images).sum(1, dtype=torch.float64).clamp_min(0)
    misfit, size = norms(images - scaled(square, vectors)) * inverse(square), norms(images)
    residual = torch.where(square > 0, misfit, (size > 0).double())
    check_finite(size + residual)
    return square, residual
