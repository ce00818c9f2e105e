"""Rows of the Jacobian of attention, block by block; differentiable, unlike the cached products."""

import torch
from torch import Tensor

from lipnb.attention import Attention
from lipnb.checks import at_once

__all__ = ["infinity_norm", "row_blocks"]


def row_blocks(
    attention: Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: Tensor,
    probabilities: Tensor,
    first: int = 0,
    last: int | None = None,
) -> Tensor:
    r"""Blocks of the Jacobian in the rows of tokens first <= i < last.

    .. math::
        J_{ij} = \sum_h W_O^{(h)} \Big[P_{ij}\big(W_V + (v_j - o_i)\, b_{ij}^\top\big)
                 + \delta_{ij} \sum_l P_{il} (v_l - o_i)\, c_l^\top\Big],
        \qquad c_l = \sigma\, W_Q^\top k_l,

    with :math:`b_{ij} = \sigma W_K^\top q_i` and :math:`\sigma = s` for dot products, and
    :math:`b_{ij} = \sigma W_K^\top (q_i - k_j)` and :math:`\sigma = 2s` for L2 scores.

    Parameters
    ----------
    attention : Attention
        The map.
    query, key, value, heads : Tensor, shape (..., h, n, k) or (..., h, n, v)
        Queries (slope folded in) and keys, both centred; values and head outputs.
    probabilities : Tensor, shape (..., h, n, n)
        Attention probabilities.
    first, last : int
        The tokens i.

    Returns
    -------
    Tensor, shape (..., last - first, m, n, d)

    Notes
    -----
    castin2024smooth, Lemma C.2, D.1, E.2; kim2021lipschitz, the Jacobian of L2 attention.
    """
    P = probabilities[..., first:last, :]
    slope = torch.einsum("...hik,hkd->...hid", query[..., first:last, :], attention.key)
    curve = attention.slope * torch.einsum("...hlk,hkd->...hld", key, attention.query)
    spread = P[..., None] * (value[..., None, :, :] - heads[..., first:last, None, :])  # P_ij (v_j - o_i)
    blocks = torch.einsum("...hij,hvd->...hivjd", P, attention.value) + torch.einsum(
        "...hijv,...hid->...hivjd", spread, slope
    )
    if attention.score == "l2":
        ends = attention.slope * torch.einsum("...hjk,hkd->...hjd", key, attention.key)
        blocks = blocks - torch.einsum("...hijv,...hjd->...hivjd", spread, ends)
    own = torch.einsum("...hilv,...hld->...hvdi", spread, curve)
    torch.diagonal(blocks, offset=first, dim1=-4, dim2=-2).add_(own)
    if attention.output is None:
        return blocks.movedim(-5, -4).flatten(-4, -3)
    return torch.einsum("...hivjd,hmv->...imjd", blocks, attention.output)


def infinity_norm(attention: Attention, x: Tensor) -> Tensor:
    r"""Norm of the Jacobian in the maximum norm of all coordinates, exactly: its largest absolute row sum.

    .. math:: \|J\|_\infty = \max_{i, a} \sum_{j, c} \big|(J_{ij})_{ac}\big|

    Parameters
    ----------
    attention : Attention
        The map.
    x : Tensor, shape (..., n, d)
        Tokens. Gradients flow to them.

    Returns
    -------
    Tensor, shape of the batch
        The local Lipschitz constant in the maximum norm.

    Raises
    ------
    ValueError
        As `Attention.check_input`.

    Examples
    --------
    >>> import torch
    >>> from lipnb import Attention
    >>> from lipnb.jacobian.rows import infinity_norm
    >>> zero, value = torch.zeros(2, 2), torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    >>> infinity_norm(Attention.from_matrices(zero, value), torch.zeros(3, 2)).item()  # uniform: the norm of V
    3.0
    """
    attention.check_input(x)
    query, key, value = attention.project(x)
    query, key = attention.centred(query, key)
    P = attention.probabilities_of(query, key)
    heads, n = P @ value, x.shape[-2]
    step = at_once(x[..., 0].numel() * attention.heads * attention.value_width * attention.width)
    largest = [
        row_blocks(attention, query, key, value, heads, P, first, min(first + step, n))
        .abs()
        .sum((-2, -1))
        .amax((-2, -1))
        for first in range(0, n, step)
    ]
    return torch.stack(largest).amax(0)
