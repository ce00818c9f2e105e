"""What the Jacobian of attention at an input is made of."""

from typing import NamedTuple

from torch import Tensor

from lipnb.attention import Attention, Local

__all__ = ["Parts", "parts_of"]


class Parts(NamedTuple):
    """Queries, keys, values, attention and head outputs at tokens (..., n, d), and how they depend on them.

    Attributes
    ----------
    query, key, value : Tensor, shape (..., h, n, k), (..., g, n, k) and (..., g, n, v)
        Queries (slope folded in) and keys, both centred, and values.
    probabilities : Tensor, shape (..., h, n, n)
        Attention probabilities.
    bend : Tensor, shape (..., h, n, n), or None
        Slopes of the cap of the logits; None without a cap.
    heads : Tensor, shape (..., h, n, v)
        Head outputs.
    local : tuple of Local
        Derivatives of queries and of keys in their projections.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    probabilities: Tensor
    bend: Tensor | None
    heads: Tensor
    local: tuple[Local, Local]


def parts_of(attention: Attention, x: Tensor, weights: Tensor | None = None) -> Parts:
    """The parts at tokens `x`, shape (..., n, d), with optional token weights (..., n). Differentiable.

    Examples
    --------
    >>> import torch
    >>> from lipnb import Attention
    >>> from lipnb.jacobian.parts import parts_of
    >>> parts = parts_of(Attention.from_matrices(torch.zeros(2, 2), torch.eye(2)), torch.eye(2))
    >>> parts.heads
    tensor([[[0.5000, 0.5000],
             [0.5000, 0.5000]]])
    """
    query, key, value = attention.project(x)
    query, key = attention.centred(query, key)
    P, bend = attention.probabilities_of(query, key, weights), None
    if attention.cap is not None:
        _, bend = attention.capped(attention.products(query, key))
    return Parts(query, key, value, P, bend, attention.average(P, value), attention.local(x))
