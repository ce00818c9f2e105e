"""The local bound of yudin2025attention, from the attention matrix at the input."""

import torch

from lipnb.attention import Attention
from lipnb.bounds.rounding import largest_singular

__all__ = ["yudin_upper"]


@torch.no_grad()
def yudin_upper(attention: Attention, x: torch.Tensor) -> torch.Tensor:
    r"""Local Lipschitz constant of attention at an input: upper bound from the two largest probabilities of each row.

    .. math::
        \|D_X f\|_2 \le \sum_h \|W_O^{(h)} W_V^{(h)}\|_2 \Big(\|P^{(h)}\|_2
            + 2 \|X\|_2^2 \|A^{(h)}\|_2 \max_i g_1(P^{(h)}_{i\cdot})\Big), \qquad
        g_1(p) = p_{(1)} (1 - p_{(1)} + p_{(2)}),

    with :math:`p_{(1)} \ge p_{(2)}` the two largest entries and :math:`A = K^\top Q / \sqrt k`.

    Parameters
    ----------
    attention : Attention
        Heads without query bias, masked or not. The sum over heads is the triangle inequality.
    x : Tensor, shape (..., n, d)
        Tokens; leading dimensions are a batch.

    Returns
    -------
    Tensor, shape of the batch
        An upper bound on the norm, float64.

    Raises
    ------
    ValueError
        As `Attention.check_input`; "this bound is for attention without query biases ...".

    Notes
    -----
    yudin2025attention, Thm 3 and Cor. 1, for one head. Biases of keys and values change no derivative.

    Examples
    --------
    >>> f = Attention.from_matrices(torch.eye(2).double(), torch.eye(2).double())
    >>> round(yudin_upper(f, torch.eye(2).double()).item(), 6)
    1.786448
    """
    attention.check_dot("yudin_upper")
    attention.check_input(x)
    if attention.query_bias is not None and attention.query_bias.any():
        raise ValueError(
            "this bound is for attention without query biases: use lipnb.certify, or "
            "lipnb.bounds.without_query_bias first."
        )
    attention, x = attention.to(dtype=torch.float64), x.double()
    query, key, _ = attention.project(x)
    P = attention.probabilities_of(query, key)
    first, second = _two_largest(P)
    spread = (first * (1 - first + second)).amax(-1)  # g1, worst row: (..., h)
    value = attention.value if attention.output is None else attention.output @ attention.value
    logits = largest_singular(abs(attention.scale) * attention.key.mT @ attention.query)  # (h,)
    tokens = largest_singular(x)[..., None]
    heads = largest_singular(P) + 2 * tokens**2 * logits * spread
    return (largest_singular(value) * heads).sum(-1)


def _two_largest(P):
    """Largest and second largest entry of each row, the second 0 where there is one token."""
    top = P.topk(min(2, P.shape[-1]), dim=-1).values
    return top[..., 0], top[..., 1] if top.shape[-1] > 1 else torch.zeros_like(top[..., 0])
