"""Rows of the Jacobian of attention, block by block; differentiable, unlike the cached products."""

import torch
from torch import Tensor

from lipnb.attention import Attention
from lipnb.checks import at_once
from lipnb.jacobian.parts import Parts, parts_of

__all__ = ["infinity_norm", "row_blocks"]


def row_blocks(attention: Attention, parts: Parts, first: int = 0, last: int | None = None) -> Tensor:
    r"""Blocks of the Jacobian in the rows of tokens first <= i < last.

    .. math::
        J_{ij} = \sum_h W_O^{(h)} \Big[P_{ij}\big(W_V + (v_j - o_i)\, b_{ij}^\top\big)
                 + \delta_{ij} \sum_l P_{il} (v_l - o_i)\, c_{il}^\top\Big],

    with :math:`b_{ij} = \sigma K_j^\top q_i` and :math:`\sigma = s` for dot products, :math:`b_{ij} = \sigma K_j^\top
    (q_i - k_j)` and :math:`\sigma = 2s` for L2 scores, and :math:`c_{il} = \sigma Q_i^\top k_l`. The derivatives of
    queries and keys in their tokens, :math:`Q_i` and :math:`K_j`, are :math:`W_Q` and :math:`W_K` for plain heads; a
    cap multiplies b and c by its slope. Keys and values that heads share are repeated here.

    Parameters
    ----------
    attention : Attention
        The map.
    parts : Parts
        From `lipnb.jacobian.parts.parts_of`.
    first, last : int
        The tokens i.

    Returns
    -------
    Tensor, shape (..., last - first, m, n, d)

    Notes
    -----
    castin2024smooth, Lemma C.2, D.1, E.2; kim2021lipschitz, the Jacobian of L2 attention.
    """
    times = attention.heads // attention.groups
    query, P, heads = (part[..., first:last, :] for part in (parts.query, parts.probabilities, parts.heads))
    key, value = (part.repeat_interleave(times, -3) for part in (parts.key, parts.value))
    of_query = parts.local[0].matrices(attention.query)  # (..., h, n or 1, k, d)
    of_key = parts.local[1].matrices(attention.key).repeat_interleave(times, -4)
    of_query = of_query[..., first:last, :, :] if of_query.shape[-3] > 1 else of_query
    slope = torch.einsum("...hik,...hjkd->...hijd", query, of_key)
    curve = attention.slope * torch.einsum("...hlk,...hikd->...hild", key, of_query)
    spread = P[..., None] * (value[..., None, :, :] - heads[..., None, :])  # P_ij (v_j - o_i)
    if parts.bend is not None:
        spread = spread * parts.bend[..., first:last, :, None]
    matrix = attention.value.repeat_interleave(times, 0)
    blocks = torch.einsum("...hij,hvd->...hivjd", P, matrix) + torch.einsum(
        "...hijv,...hijd->...hivjd", spread, slope.expand(*spread.shape[:-1], -1)
    )
    if attention.score == "l2":
        ends = attention.slope * (key[..., None, :] @ of_key)[..., 0, :]
        blocks = blocks - torch.einsum("...hijv,...hjd->...hivjd", spread, ends)
    own = torch.einsum("...hilv,...hild->...hvdi", spread, curve.expand(*spread.shape[:-1], -1))
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
    parts, n = parts_of(attention, x), x.shape[-2]
    step = at_once(x[..., 0].numel() * attention.heads * attention.value_width * attention.width)
    largest = [
        row_blocks(attention, parts, first, min(first + step, n)).abs().sum((-2, -1)).amax((-2, -1))
        for first in range(0, n, step)
    ]
    return torch.stack(largest).amax(0)
