"""Query biases in bounds that know none: one more coordinate, the same for all tokens."""

import torch

from lipnb.attention import Attention
from lipnb.bounds.units import with_own_keys

__all__ = ["without_query_bias"]


def without_query_bias(attention: Attention, x: torch.Tensor, size: float) -> tuple[Attention, torch.Tensor]:
    r"""The same map without a query bias, on tokens with one constant coordinate more.

    .. math:: W_Q x + b_Q = (W_Q, b_Q / t)\,(x, t), \qquad \|D_x f\|_2 \le \|D_{(x, t)} f'\|_2 .

    Parameters
    ----------
    attention : Attention
        Any heads and biases. Key, value and output biases change no derivative and are left out.
    x : Tensor, shape (..., n, d)
        Tokens.
    size : float
        The constant t, positive. Bounds depend on it; each is valid.

    Returns
    -------
    Attention, Tensor
        The map f' of width d + 1 and its tokens, shape (..., n, d + 1); the arguments where there is no query bias.

    Notes
    -----
    Compare castin2024smooth, Thm E.3, where the tokens are moved instead.

    Examples
    --------
    >>> eye = torch.eye(2)[None]
    >>> f = Attention(eye, eye, eye, query_bias=torch.ones(1, 2))
    >>> same, wider = without_query_bias(f, torch.zeros(3, 2), 1.0)
    >>> same.width, same.query_bias, wider.shape
    (3, None, torch.Size([3, 3]))
    """
    attention = with_own_keys(attention)
    attention.check_plain("without_query_bias")
    if attention.query_bias is None:
        return attention, x
    if not size > 0:
        raise ValueError(f"size must be positive, got {size!r}.")
    blank = torch.zeros_like(attention.query_bias[..., None])

    def wider(matrix, column):
        return torch.cat([matrix, column], dim=-1)

    same = attention.replace(
        query=wider(attention.query, attention.query_bias[..., None] / size),
        key=wider(attention.key, blank),
        value=wider(attention.value, attention.value.new_zeros(*attention.value.shape[:2], 1)),
        query_bias=None,
        key_bias=None,
        value_bias=None,
        output_bias=None,
    )
    return same, wider(x, torch.full_like(x[..., :1], size))
