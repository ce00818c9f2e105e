"""The Jacobian of the softmax at given probabilities: its spectral norm, between the two largest of them."""

import torch

from lipnb.bounds.rounding import gamma
from lipnb.checks import as_double

__all__ = ["softmax_norm"]

HALVINGS = 60  # of the interval that holds the norm: to the last digit of float64


@torch.no_grad()
def softmax_norm(p: torch.Tensor) -> torch.Tensor:
    r"""Spectral norm of the Jacobian of the softmax, at probabilities p.

    .. math:: \|\mathrm{diag}(p) - p p^\top\|_2 = \lambda, \qquad \sum_j \frac{p_j^2}{p_j - \lambda} = 1, \quad
        p_{(2)} \le \lambda \le p_{(1)},

    with the two largest entries :math:`p_{(1)} \ge p_{(2)}`. It is at most :math:`g_1(p) = p_{(1)} (1 - p_{(1)} +
    p_{(2)})`, and that at most 1/2; all three are equal where two entries are 1/2.

    Parameters
    ----------
    p : Tensor, shape (..., n)
        Probabilities; zeros are welcome.

    Returns
    -------
    Tensor, shape (...)
        An upper bound, float64, above the norm by rounding only: at most some :math:`10^{-14} p_{(1)}` for n up to a
        hundred. It holds for the p that is given, whatever its sum; how p was computed is not counted.

    Raises
    ------
    ValueError
        "p must hold probabilities ...".

    Notes
    -----
    yudin2025attention states :math:`g_1`, nair2025softmax the 1/2. The equation is that of golub1973modified for a
    matrix of rank one taken from a diagonal one; its left side increases between :math:`p_{(2)}` and :math:`p_{(1)}`,
    and where it is 1 or more, :math:`\lambda` has been passed. An error of relative size u in each of its terms moves
    its root by at most :math:`u\, p_{(1)}`, because :math:`|p_j - \lambda| \le p_{(1)}`.

    Examples
    --------
    >>> softmax_norm(torch.tensor([[0.5, 0.5, 0.0], [0.9, 0.1, 0.0], [1.0, 0.0, 0.0]]).double()).round(decimals=6)
    tensor([0.5000, 0.1800, 0.0000], dtype=torch.float64)
    """
    p = as_double(p)
    if not p.ndim or not p.shape[-1] or not (p >= 0).all() or not torch.isfinite(p).all() or (p > 1 + 1e-6).any():
        raise ValueError("p must hold probabilities, shape (..., n) with n >= 1, entries from 0 to 1.")
    two = torch.nn.functional.pad(p, (0, 1)).topk(2, dim=-1).values
    high, low = two.unbind(-1)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        gaps = p - middle[..., None]
        passed = torch.where(gaps == 0, 0, p.square() / gaps).sum(-1) >= 1
        # at an entry of p, and where no float lies between, the upper end stays
        inside = (low < middle) & (middle < high)
        high = torch.where(passed & inside, middle, high)
        low = torch.where(~passed & inside, middle, low)
    return high + 4 * gamma(p.shape[-1] + 8) * two[..., 0]
