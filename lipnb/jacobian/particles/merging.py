"""Particles at the same position are one particle."""

import torch
from torch import Tensor

from lipnb.checks import check_weights

__all__ = ["merge"]


def merge(x: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Particles identical in position, merged with their weights summed.

    The measure stays the same, and so does the attention map of it. The local constant may fall, never rise: merged
    particles can only be moved together.

    Parameters
    ----------
    x : Tensor, shape (n, d)
        Particles.
    weights : Tensor, shape (n,), optional
        Positive weights; default all 1.

    Returns
    -------
    x : Tensor, shape (r, d)
        The distinct positions, in lexicographic order.
    weights : Tensor, shape (r,)
        Their weights.

    Raises
    ------
    ValueError
        "x must be a tensor of shape (n, d)", "weights must be positive ...".

    Examples
    --------
    >>> import torch
    >>> from lipnb.jacobian.particles import merge
    >>> merge(torch.tensor([[2.0], [1.0], [2.0]]))
    (tensor([[1.],
            [2.]]), tensor([1., 2.]))
    """
    if not isinstance(x, torch.Tensor) or x.ndim != 2:
        raise ValueError("x must be a tensor of shape (n, d), one set of particles.")
    if weights is None:
        weights = x.new_ones(len(x))
    check_weights(weights, x)
    distinct, place = torch.unique(x, dim=0, return_inverse=True)
    return distinct, weights.new_zeros(len(distinct)).index_add_(0, place, weights)
