"""The local bound of yudin2025attention, from the attention matrix at the input, and with the norm of the softmax."""

import torch

from lipnb.attention import Attention
from lipnb.bounds.rounding import largest_singular
from lipnb.bounds.softmax import softmax_norm
from lipnb.bounds.units import with_own_keys

__all__ = ["yudin_upper", "yudin_upper_sharp"]


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
    attention = with_own_keys(attention)
    attention.check_plain("yudin_upper")
    attention.check_input(x)
    if attention.query_bias is not None and attention.query_bias.any():
        raise ValueError(
            "this bound is for attention without query biases: use lipnb.certify, or "
            "lipnb.bounds.without_query_bias first."
        )
    _, _, value, logits, tokens, P = _parts(attention, x)
    first, second = _two_largest(P)
    spread = (first * (1 - first + second)).amax(-1)  # g1, worst row: (..., h)
    return (value * (largest_singular(P) + 2 * tokens**2 * logits * spread)).sum(-1)


@torch.no_grad()
def yudin_upper_sharp(attention: Attention, x: torch.Tensor) -> torch.Tensor:
    r"""Local Lipschitz constant of attention at an input: upper bound from the norm of the softmax of each row.

    .. math::
        \|D_X f\|_2 \le \sum_h \|W_O^{(h)} W_V^{(h)}\|_2 \Big(\|P^{(h)}\|_2
            + \max_i \|S^{(h)}_i\|_2\, \|X\|_2\, \big(\|X\|_2 \|A^{(h)}\|_2 + \|B^{(h)}\|_2\big)\Big),

    with the Jacobian :math:`S_i = \mathrm{diag}(P_{i\cdot}) - P_{i\cdot}^\top P_{i\cdot}` of the softmax in row i, and
    rows :math:`A x_i + c` of B, :math:`c = s W_K^\top b_Q`.

    Parameters
    ----------
    attention : Attention
        Any heads and biases, masked or not. The sum over heads is the triangle inequality.
    x : Tensor, shape (..., n, d)
        Tokens; leading dimensions are a batch.

    Returns
    -------
    Tensor, shape of the batch
        An upper bound on the norm, float64, up to the rounding of the logits; without query biases never above
        `yudin_upper` but for rounding. The softmax gains little: in 100,000 random rows :math:`g_1` was at most 1.12
        times the norm.

    Raises
    ------
    ValueError
        As `Attention.check_input`; "yudin_upper_sharp knows dot-product scores only ...".

    Notes
    -----
    Ours, in the proof of yudin2025attention, Thm 3, with `softmax_norm`. The query term of row i is
    :math:`W_V X^\top S_i X A`; the key terms are :math:`W_V X^\top S_i\, \varepsilon\, B_i`, whose squares sum to at
    most :math:`(\max_i \|S_i\| \|W_V\| \|X\|)^2 \|\varepsilon B^\top\|_F^2`.

    Examples
    --------
    >>> f = Attention.from_matrices(torch.eye(2).double(), torch.eye(2).double())
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]).double()
    >>> round(yudin_upper(f, x).item(), 4), round(yudin_upper_sharp(f, x).item(), 4)
    (2.5432, 2.4848)
    """
    attention = with_own_keys(attention)
    attention.check_plain("yudin_upper_sharp")
    attention.check_input(x)
    query, key, value, logits, tokens, P = _parts(attention, x)
    slopes = largest_singular(query @ torch.linalg.qr(key.mT, mode="r").R.mT)  # |W_K^T q| = |R q|
    heads = largest_singular(P) + softmax_norm(P).amax(-1) * tokens * (tokens * logits + slopes)
    return (value * heads).sum(-1) * (1 + 1e-12)


def _parts(attention, x):
    """Queries, key matrices, norms of the value maps and of A, (h,), and of X, (..., 1); probabilities."""
    attention, x = attention.to(dtype=torch.float64), x.double()
    query, key, _ = attention.project(x)
    value = attention.value if attention.output is None else attention.output @ attention.value
    logits = largest_singular(abs(attention.scale) * attention.key.mT @ attention.query)
    tokens = largest_singular(x)[..., None]
    return query, attention.key, largest_singular(value), logits, tokens, attention.probabilities_of(query, key)


def _two_largest(P):
    """Largest and second largest entry of each row, the second 0 where there is one token."""
    top = P.topk(min(2, P.shape[-1]), dim=-1).values
    return top[..., 0], top[..., 1] if top.shape[-1] > 1 else torch.zeros_like(top[..., 0])
