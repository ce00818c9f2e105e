r"""How far the output can move when the tokens move by at most a given amount: bounds that are computed, at one input.

With :math:`\ell_{ij} = s\, q_i \cdot k_j`, :math:`b_i = s W_K^\top q_i`, :math:`a_j = s W_Q^\top k_j`,
:math:`w_j = W_O v_j`, :math:`M = \|W_O W_V\|_2`, :math:`N = \|s W_Q^\top W_K\|_2` of a head, everything below bounds
the spread of a and w under the attention of each token, and how that attention can change in the ball.
"""

import math
from typing import NamedTuple

import torch

from lipnb.bounds.castin import biased_upper
from lipnb.bounds.rounding import largest_singular
from lipnb.bounds.terms import Pieces, three_terms

__all__ = ["Nearby", "nearby_upper"]


class Nearby(NamedTuple):
    r"""Upper bounds on the change of the output over balls around an input, for each radius.

    Attributes
    ----------
    jacobian : Tensor, shape (r,)
        Radius times a bound on :math:`\|D_Y f\|_2` for every Y in the ball.
    taylor : Tensor, shape (r,)
        First order at the input plus a bound on the second derivative in the ball.
    outputs : Tensor, shape (r,)
        Every output is a mean of values: what all attention there is could change.
    general : Tensor, shape (r,)
        Radius times the general bound on all tokens as large as those of the ball, summed over heads.
    local : Tensor, shape ()
        Bound on the local constant at the input that `taylor` starts from.
    """

    jacobian: torch.Tensor
    taylor: torch.Tensor
    outputs: torch.Tensor
    general: torch.Tensor
    local: torch.Tensor

    @property
    def best(self):
        """The smallest of the bounds, shape (r,)."""
        return torch.stack([self.jacobian, self.taylor, self.outputs, self.general]).amin(0)


@torch.no_grad()
def nearby_upper(attention, x, radii):
    r"""Change of the output of attention over a ball around its input: upper bounds.

    .. math:: \|f(X + \Delta) - f(X)\|_F \le \min\Big(\epsilon\, G(\epsilon),\
        \epsilon\, L + \tfrac12 \epsilon^2 H(\epsilon),\ O(\epsilon)\Big)
        \qquad \text{for all } \|\Delta\|_F \le \epsilon ,

    where L bounds the local constant at X (`lipnb.bounds.three_terms`), G the Jacobian and H the second derivative in
    the ball, and O is what outputs can differ as means of values.

    Parameters
    ----------
    attention : Attention
        Any heads, biases, projection and mask.
    x : Tensor, shape (n, d)
        Tokens of one sequence. Computed in float64 whatever their type.
    radii : Tensor, shape (r,)
        Radii :math:`\epsilon` of the balls, 0 or more, in the Euclidean norm of all coordinates.

    Returns
    -------
    Nearby
        `jacobian`, `taylor`, `outputs`, `general`, each of shape (r,), and `best`; upper bounds up to rounding.

    Raises
    ------
    ValueError
        As `Attention.check_input`; "x must hold one sequence ..."; "radii must be ...".

    Notes
    -----
    Ours, proved in the book; `general` is castin2024smooth, Thm 3.3 or E.3 (with query biases, as recovered), with
    Lemma 3.8.
    """
    attention.check_input(x)
    if x.ndim != 2:
        raise ValueError(f"x must hold one sequence, shape (n, d), got {tuple(x.shape)}.")
    radii = torch.as_tensor(radii, dtype=torch.float64, device=x.device)
    if radii.ndim != 1 or not torch.isfinite(radii).all() or not (radii >= 0).all():
        raise ValueError("radii must be finite numbers, 0 or more, shape (r,).")
    attention, x = attention.to(dtype=torch.float64), x.double()
    pieces = Pieces(attention, x)
    M, N, sigma_w, sigma_a, diam_w, diam_a, beta, column = (one[:, None] for one in _heads(pieces))
    eps, n, root = radii, len(x), math.sqrt(2)
    omega = eps * (diam_a + root * beta + root * N * eps)  # (h, r): how far a row of logits can change
    grow = omega.clamp_max(700).exp()
    c = (column * grow).clamp_max(n).sqrt()
    spread_w = torch.minimum(sigma_w * grow.sqrt(), diam_w / 2) + M * eps
    spread_a = torch.minimum(sigma_a * grow.sqrt(), diam_a / 2) + N * eps
    slope, wide = beta + N * eps, diam_w + root * M * eps
    G = (spread_w * (spread_a + slope * c) + M * c).sum(0)
    H = (2 * M * (spread_a + slope * c) + 2 * N * spread_w
         + wide * (spread_a + slope) * (spread_a + slope * c)).sum(0)
    L = torch.minimum(sum(three_terms(pieces)), (sigma_w * (sigma_a + beta * column.sqrt()) + M * column.sqrt()).sum())
    outputs = _reach(pieces) + eps * (M * c).sum(0)
    return Nearby(eps * G, eps * (L + eps * H / 2), outputs, eps * _general(pieces, x, M, N, eps), L)


def _heads(pieces):
    """M, N, the largest spreads and diameters of w and a, the longest slope and the largest column sum, each (h,)."""
    att = pieces.attention
    # |W_O v| = |R v| and |s W_Q^T k| = |S k|: triangular factors, small
    R = torch.linalg.qr(pieces.output, mode="r").R
    S = att.scale * torch.linalg.qr(att.query.mT, mode="r").R
    w, a = pieces.values @ R.mT, pieces.keys @ S.mT
    M, N = largest_singular(R @ att.value), largest_singular(S @ att.key)
    sigma_w, sigma_a = (_spread(pieces.P, points) for points in (w, a))
    diam_w, diam_a = (torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist").amax((1, 2)) for z in (w, a))
    return (M, N, sigma_w, sigma_a, diam_w, diam_a, pieces.slopes.norm(dim=-1).amax(-1), pieces.P.sum(1).amax(-1))


def _spread(P, points):
    """Largest standard deviation in any direction of points (h, n, k) under any row of P (h, n, n), shape (h,)."""
    points = points - points.mean(1, keepdim=True)
    mean = P @ points
    moment = P @ (points[..., :, None] * points[..., None, :]).flatten(2)
    covariance = moment.unflatten(2, points.shape[-1:] * 2) - mean[..., :, None] * mean[..., None, :]
    return torch.linalg.eigvalsh(covariance)[..., -1].amax(1).clamp_min(0).sqrt()


def _reach(pieces):
    """Length of all the changes that another attention to the same values could make, at most."""
    w = torch.einsum("hmv,hjv->hjm", pieces.output, pieces.values)
    distance = torch.cdist(torch.einsum("hmv,hiv->him", pieces.output, pieces.means), w,
                           compute_mode="donot_use_mm_for_euclid_dist")
    if pieces.attention.masked:
        distance = distance.tril()
    return distance.amax(-1).sum(0).norm()


def _general(pieces, x, M, N, eps):
    """The general bound of each head, from the norms of its maps, on tokens as large as any in the balls, summed."""
    att, largest = pieces.attention, x.norm(dim=-1).max()
    bias = (0 * M[:, 0] if att.query_bias is None else
            torch.linalg.vector_norm(att.scale * torch.einsum("hkd,hk->hd", att.key, att.query_bias), dim=-1))
    return eps.new_tensor([sum(biased_upper(heat[None], value[None], len(x), (largest + e).item(), c[None])
                               for heat, value, c in zip(N, M, bias, strict=True)) for e in eps])
