"""Bounds at one input from a few of its numbers: how far its tokens spread, how unevenly it attends."""

import math

import torch

from lipnb.bounds.norms import norms
from lipnb.checks import as_double

__all__ = ["column", "column_upper", "enclosing_center", "spread", "spread_upper"]


def column(t, key, V, P):
    r"""`column_upper` of heads: :math:`t = \|A\|_2 R^2`, `key` at least :math:`R\, |A x_i + c|`, probabilities P."""
    return V * (t + P.sum(-2).amax(-1).sqrt() * (1 + key))


def spread(A, V, r, reach, n):
    """`spread_upper` of heads: norms of A and V, the radius r of the tokens, the largest |A x_i + c|, n of them."""
    return math.sqrt(3) * V * (A**2 * r**4 + n * (4 * reach**2 * r**2 + 1)).sqrt()


@torch.no_grad()
def column_upper(A: torch.Tensor, V: torch.Tensor, x: torch.Tensor, *, masked: bool = False) -> torch.Tensor:
    r"""Local Lipschitz constant of one head at an input, from the largest column sum of its attention matrix.

    .. math:: \|D_X f\|_2 \le \|V\|_2 \big(t + \sqrt{c(P)}\, (1 + t)\big), \qquad
        c(P) = \max_j \sum_i P_{ij} \le n, \quad t = \|A\|_2 \max_i |x_i|^2 .

    Parameters
    ----------
    A, V : Tensor, shapes (d, d) and (m, d)
        As for `general_upper`.
    x : Tensor, shape (..., n, d)
        Tokens.
    masked : bool
        Whether token i attends to tokens j <= i only.

    Returns
    -------
    Tensor, shape of the batch
        An upper bound up to the rounding of the logits, float64, never above `general_upper_sharp` with the radius of
        the input.

    Raises
    ------
    ValueError
        As `general_upper`, and "x must have shape ...".

    Notes
    -----
    Ours, the local form of `general_upper_sharp`.

    Examples
    --------
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> round(column_upper(eye, eye, eye).item(), 6), round(column_upper(eye, eye, eye, masked=True).item(), 6)
    (3.0, 3.252946)
    """
    A_norm, V_norm = norms(A, V)
    A, x = as_double(A), _tokens(x, len(A))
    logits = x @ A.mT @ x.mT
    if masked:
        logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), -torch.inf)
    t = A_norm * x.square().sum(-1).amax(-1)
    return column(t, t, V_norm, logits.softmax(-1)) * (1 + 1e-12)


@torch.no_grad()
def spread_upper(
    A: torch.Tensor, V: torch.Tensor, x: torch.Tensor, *, center: torch.Tensor | None = None
) -> torch.Tensor:
    r"""Local Lipschitz constant of one head at an input, from the spread of its tokens.

    .. math:: \|D_X f\|_2 \le \sqrt 3\, \|V\|_2 \big(\|A\|_2^2 r^4 + n (4 R^2 r^2 + 1)\big)^{1/2}, \qquad
        r = \max_i |x_i - x_0|, \quad R = \max_i |A x_i| .

    Parameters
    ----------
    A, V : Tensor, shapes (d, d) and (m, d)
        As for `general_upper`.
    x : Tensor, shape (..., n, d)
        Tokens.
    center : Tensor, shape (..., d), optional
        The point :math:`x_0`; any gives a valid bound. Default: close to the centre of the smallest ball that holds
        the tokens.

    Returns
    -------
    Tensor, shape of the batch
        An upper bound up to the rounding of the logits, float64, unmasked and masked alike.

    Raises
    ------
    ValueError
        As `general_upper`, and "x must have shape ...".

    Notes
    -----
    castin2024smooth, Thm C.3, in the form that its proof gives (as recovered). With distances between tokens and
    :math:`|A x_i|` alone, as in the released code, the bound fails.

    Examples
    --------
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> round(spread_upper(eye, eye, eye).item(), 4)
    4.3301
    """
    A_norm, V_norm = norms(A, V)
    A, x = as_double(A), _tokens(x, len(A))
    center = enclosing_center(x) if center is None else as_double(center)
    r = (x - center[..., None, :]).norm(dim=-1).amax(-1)
    reach = (x @ A.mT).norm(dim=-1).amax(-1)
    return spread(A_norm, V_norm, r, reach, x.shape[-2]) * (1 + 1e-12)


def _tokens(x, d):
    """Tokens (..., n, d) in float64, or one sentence."""
    x = as_double(x)
    if x.ndim < 2 or x.shape[-1] != d or not x.numel():
        raise ValueError(f"x must have shape (..., n, d) with d = {d} and n >= 1, got {tuple(x.shape)}.")
    if not torch.isfinite(x).all():
        raise ValueError("x holds NaN or infinite values: remove them first.")
    return x


def enclosing_center(x, steps=200):
    """A point near the centre of the smallest ball around tokens (..., n, d): repeated steps to the farthest one."""
    center = x.mean(-2)
    for step in range(1, steps + 1):
        far = (x - center[..., None, :]).norm(dim=-1).argmax(-1)
        farthest = x.gather(-2, far[..., None, None].expand(*far.shape, 1, x.shape[-1]))[..., 0, :]
        center = center + (farthest - center) / (step + 1)
    return center
