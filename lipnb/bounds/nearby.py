r"""How far the output can move when the tokens move by at most a given amount: bounds that are computed, at one input.

With :math:`\ell_{ij} = s\, q_i \cdot k_j`, :math:`b_i = s W_K^\top q_i`, :math:`a_j = s W_Q^\top k_j`,
:math:`w_j = W_O v_j`, :math:`M = \|W_O W_V\|_2`, :math:`N = \|s W_Q^\top W_K\|_2` of a head, everything below bounds
the spread of a and w under the attention of each token, and how that attention can change in the ball.
"""

import math
from typing import NamedTuple

import torch

from lipnb.attention import Attention
from lipnb.bounds.accuracy import MORE, TINY, Accuracy
from lipnb.bounds.castin import biased_upper
from lipnb.bounds.pieces import Pieces
from lipnb.bounds.rounding import gamma, largest_singular, length
from lipnb.bounds.terms import three_terms
from lipnb.bounds.units import alive, in_units, scaled, with_own_keys
from lipnb.checks import at_once

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
def nearby_upper(attention: Attention, x: torch.Tensor, radii: torch.Tensor) -> Nearby:
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
        `jacobian`, `taylor`, `outputs`, `general`, each of shape (r,), and `best`; upper bounds, rounding
        included; infinite where float64 resolves nothing, and where a bound leaves its range.

    Raises
    ------
    ValueError
        As `Attention.check_input`; "nearby_upper knows dot-product scores only ..."; "x must hold one sequence ...";
        "radii must be ...".

    Notes
    -----
    Ours, proved in the book. Rounding: probabilities, values and keys with their distances from the truth, see
    `lipnb.bounds.accuracy`; spreads are taken about the mean of each row, with the largest probabilities that the truth
    may have. `general` is castin2024smooth, Thm 3.3 or E.3 (with query biases, as recovered), with
    Lemma 3.8.

    Examples
    --------
    >>> f = Attention.from_matrices(torch.eye(2).double(), torch.eye(2).double())
    >>> bounds = nearby_upper(f, torch.eye(2).double(), [0.0, 0.1])
    >>> [round(bound, 4) for bound in bounds.best.tolist()], round(bounds.local.item(), 4)
    ([0.0, 0.2384], 1.7864)
    """
    attention = with_own_keys(attention)
    attention.check_plain("nearby_upper")
    attention.check_input(x)
    if x.ndim != 2:
        raise ValueError(f"x must hold one sequence, shape (n, d), got {tuple(x.shape)}.")
    radii = torch.as_tensor(radii, dtype=torch.float64, device=x.device)
    if radii.ndim != 1 or not torch.isfinite(radii).all() or not (radii >= 0).all():
        raise ValueError("radii must be finite numbers, 0 or more, shape (r,).")
    if not alive(attention).any():
        none = torch.zeros_like(radii)
        return Nearby(none, none, none, none, radii.new_zeros(()))
    unknown = torch.full_like(radii, torch.inf)
    nothing = Nearby(unknown, unknown, unknown, unknown, radii.new_full((), torch.inf))
    attention, x, tokens, outputs = in_units(attention.to(dtype=torch.float64), x.double())
    if attention is None:
        return nothing
    eps = torch.nextafter(scaled(radii, -tokens), radii.new_tensor(torch.inf))
    try:
        J, taylor, outer, general, L = _in_units(Pieces(attention, x), x, eps)
    except torch.linalg.LinAlgError:  # of numbers that are not finite, or an iteration without end
        return nothing
    J, taylor, outer, general = (_whole(one, outputs) for one in (J, taylor, outer, general))
    return Nearby(J, taylor, outer, general, _whole(L, outputs - tokens))


def _in_units(pieces, x, eps):
    """The four bounds, each (r,), and the local one, before units and the last rounding."""
    accuracy = Accuracy(pieces)
    M, N, sigma_w, sigma_a, diam_w, diam_a, beta, column = (one[:, None] for one in _heads(pieces, accuracy))
    n, root = len(x), math.sqrt(2)
    omega = MORE * eps * (diam_a + root * beta + root * N * eps)  # (h, r): how far a row of logits can change
    grow = torch.where(omega < 700, omega.exp() * MORE, torch.inf)
    c = (column * grow).clamp_max(n).sqrt()
    spread_w, spread_a = (
        torch.where(omega < 700, torch.minimum(sigma * omega.clamp_max(700).exp().sqrt(), diam / 2), diam / 2)
        + norm * eps
        for sigma, diam, norm in ((sigma_w, diam_w, M), (sigma_a, diam_a, N))
    )
    slope, wide = beta + N * eps, diam_w + root * M * eps
    G = (spread_w * (spread_a + slope * c) + M * c).sum(0)
    H = (2 * M * (spread_a + slope * c) + 2 * N * spread_w + wide * (spread_a + slope) * (spread_a + slope * c)).sum(0)
    L = (sigma_w * (sigma_a + beta * column.sqrt()) + M * column.sqrt()).sum()
    if accuracy.resolved():
        size, relative = accuracy.arithmetic()
        L = torch.minimum(sum(three_terms(pieces)) + accuracy.change() + 2 * relative * size, L)
    return (
        eps * G,
        eps * (L + eps * H / 2),
        _reach(pieces, accuracy, diam_w) + eps * (M * c).sum(0),
        eps * _general(pieces, x, M, N, eps),
        L,
    )


def _whole(bound, power):
    """A bound in units as a bound: rounding of what was done with positive numbers, underflow, and the units."""
    bound = torch.where(torch.isnan(bound), torch.inf, bound)
    return torch.nextafter(scaled(MORE**4 * bound + TINY, power), bound.new_tensor(torch.inf))


def _heads(pieces, accuracy):
    """M, N, the largest spreads and diameters of w and a, the longest slope and the largest column sum, each (h,)."""
    att = pieces.attention
    # |W_O v| = |R v| and |s W_Q^T k| = |S k|: triangular factors, small
    R, S = (torch.linalg.qr(matrix, mode="r").R for matrix in (pieces.output, att.query.mT))
    found = []
    for factor, points, errors, matrix, unit in (
        (R, pieces.values, accuracy.values, att.value, 1.0),
        (S, pieces.keys, accuracy.keys, att.key, abs(att.scale)),
    ):
        whole, longest = length(factor, (-2, -1)), length(points).amax(-1)
        few = gamma(16 * (len(pieces.x) + sum(matrix.shape) + att.output_width) + 256)
        norm = largest_singular(factor @ matrix) + few * whole * length(matrix, (-2, -1))
        z = points @ factor.mT
        error = MORE * whole * (length(errors).amax(-1) + few * longest)
        diameter = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist").amax((1, 2)) * MORE + 2 * error
        sigma = _spread(pieces, accuracy, z, error)
        found.append([unit * one + TINY for one in (norm, sigma, diameter)])
    (M, sigma_w, diam_w), (N, sigma_a, diam_a) = found
    beta = (length(pieces.slopes) * MORE + accuracy.slopes).amax(-1)
    return M, N, sigma_w, sigma_a, diam_w, diam_a, beta, MORE * (pieces.P + accuracy.E).sum(1).amax(-1)


def _spread(pieces, accuracy, points, error):
    r"""Largest standard deviation in any direction of points (h, n, k), known to `error` (h,), under any row of P.

    .. math:: \mathrm{Var}_P(z) \le \sum_j P_j (z_j - c)^2 \quad \text{for any } c,

    so that the computed mean of a row may take the place of c: no difference of second moments, which would lose the
    variance of nearly hard attention.
    """
    largest = []
    step = at_once(points.numel())
    for rows in torch.arange(pieces.n, device=points.device).split(step):
        upper = (pieces.P[:, rows] + accuracy.E[:, rows]).sqrt()  # (h, i, j)
        away = points[:, None] - (pieces.P[:, rows] @ points)[:, :, None]
        largest.append(largest_singular(upper[..., None] * away).amax(-1))
    return MORE * (torch.stack(largest).amax(0) + error * (1 + accuracy.e.amax(-1)).sqrt())


def _reach(pieces, accuracy, diameter):
    """Length of all the changes that another attention to the same values could make, at most."""
    w = torch.einsum("hmv,hjv->hjm", pieces.output, pieces.values)
    distance = torch.cdist(pieces.P @ w, w, compute_mode="donot_use_mm_for_euclid_dist")
    longest = length(w).amax(-1)[:, None]
    few = gamma(16 * (pieces.n + pieces.values.shape[-1]) + 256)
    lost = (length(accuracy.values).amax(-1) + few * length(pieces.values).amax(-1))[:, None]
    error = accuracy.e * longest + 4 * lost * length(pieces.output, (-2, -1))[:, None]
    distance = torch.minimum(MORE * (distance + error[..., None]), diameter[..., None])
    if pieces.hidden is not None:
        distance = distance.masked_fill(pieces.hidden, 0)
    return distance.amax(-1).sum(0).norm()


def _general(pieces, x, M, N, eps):
    """The general bound of each head, from the norms of its maps, on tokens as large as any in the balls, summed."""
    att, largest = pieces.attention, length(x).max() * MORE
    bias = 0 * M[:, 0]
    if att.query_bias is not None:
        c = length(att.scale * torch.einsum("hkd,hk->hd", att.key, att.query_bias))
        lost = length(att.key, (-2, -1)) * length(att.query_bias)
        bias = MORE * c + gamma(att.key_width + 8) * abs(att.scale) * lost
    sizes = [(largest + e).item() * MORE for e in eps]
    return eps.new_tensor(
        [
            sum(
                biased_upper(heat[None], value[None], len(x), size, c[None])
                for heat, value, c in zip(N, M, bias, strict=True)
            )
            if math.isfinite(size)
            else math.inf
            for size in sizes
        ]
    )
