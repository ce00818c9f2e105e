"""What the solvers share: the answer they give, start vectors, and the quotient evaluated afresh."""

from typing import NamedTuple

import torch

__all__ = ["SpectralNorm", "evaluate", "start_vectors"]


class SpectralNorm(NamedTuple):
    r"""Largest singular values of a batch of operators, and how the computation went.

    Attributes
    ----------
    value : Tensor, shape (b,)
        Square root of a Rayleigh quotient of :math:`J^\top J`: a lower bound on the norm, up to rounding.
    residual : Tensor, shape (b,)
        :math:`\|J^\top J v - \sigma^2 v\| / \sigma^2` at the vector v of `value`. Some singular value lies
        within ``residual / 2`` of `value`, relatively; the residual alone does not say that it is the largest.
    steps : Tensor of int, shape (b,)
        Products with :math:`J^\top J` until the item stopped.
    converged : Tensor of bool, shape (b,)
        Whether the stopping rule was met within the allowed steps.
    upper : Tensor, shape (b,)
        Upper bound on the norm that goes with the answer, infinite where the method proves none.
    vector : Tensor, shape (b, N), or None
        Right singular vectors that go with `value`, where they were asked for.
    stuck : Tensor of bool, shape (b,), or None
        Whether the item stopped because products of this precision can prove no more; None where that is not asked.
    """

    value: torch.Tensor
    residual: torch.Tensor
    steps: torch.Tensor
    converged: torch.Tensor
    upper: torch.Tensor
    vector: torch.Tensor | None = None
    stuck: torch.Tensor | None = None


def start_vectors(batch, size, *, seed, dtype, device):
    """A Gaussian unit start vector, the same for every item, so that no answer depends on its neighbours.

    Parameters
    ----------
    batch : int
        Number of items b.
    size : int
        Dimension N of one vector.
    seed : int
        Seed of a generator of its own; the global random state is neither read nor changed.

    Returns
    -------
    Tensor, shape (b, N)
        Unit vectors, drawn on the CPU in float64 so that every device and precision starts alike.
    """
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(size, generator=generator, dtype=torch.float64)
    return (start / start.norm()).to(dtype=dtype, device=device).expand(batch, size)


def norms(vectors):
    """Euclidean norms, shape (b,), of `vectors`, shape (b, ...), accumulated in float64."""
    return torch.linalg.vector_norm(vectors.flatten(1), dim=1, dtype=torch.float64)


def scaled(factors, vectors):
    """`vectors` (b, ...), each times its entry of `factors` (b,)."""
    return vectors * factors.to(vectors.dtype).view(-1, *[1] * (vectors.ndim - 1))


def inverse(numbers):
    """1 / numbers, and 0 where the number is 0."""
    return torch.where(numbers > 0, 1 / numbers.clamp_min(torch.finfo(numbers.dtype).tiny), 0)


def check_finite(numbers):
    """Raise one sentence unless all `numbers` are finite."""
    if not torch.isfinite(numbers).all():
        raise ValueError(
            "a Jacobian product is NaN or infinite: the map is not differentiable at this input, or "
            "overflows in its precision."
        )


def evaluate(gram, vectors):
    r"""The quotient :math:`\|J v\| / \|v\|` and its relative residual at given vectors.

    Parameters
    ----------
    gram : callable
        Products with :math:`J^\top J`.
    vectors : Tensor, shape (b, N)
        Approximate right singular vectors, of any norm.

    Returns
    -------
    value, residual : Tensor, shape (b,)
        A lower bound on the spectral norm, and :math:`\|J^\top J v - \sigma^2 v\| / \sigma^2` for unit v.
    """
    vectors = scaled(inverse(norms(vectors)), vectors)
    image = gram(vectors)
    square = (vectors * image).sum(1, dtype=torch.float64).clamp_min(0)
    residual = norms(image - scaled(square, vectors)) * inverse(square)
    check_finite(residual)
    return square.sqrt(), residual
