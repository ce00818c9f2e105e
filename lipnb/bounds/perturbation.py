r"""Bounds on the change of the output when the tokens move by at most a given amount, computed at one input.

With :math:`\ell_{ij} = s\, q_i \cdot k_j`, :math:`b_i = s W_K^\top q_i`, :math:`a_j = s W_Q^\top k_j`,
:math:`w_j = W_O v_j`, :math:`M = \|W_O W_V\|_2`, :math:`N = \|s W_Q^\top W_K\|_2` of a head, everything below bounds
the spread of a and w under the attention of each token, and how that attention can change in the ball.

The bound `taylor`, line by line. Let :math:`Y_t = X + t \Delta`, :math:`\|\Delta\|_F \le \epsilon`.

1. *Taylor's formula.* :math:`\|f(X + \Delta) - f(X)\| \le \|J \Delta\| + \int_0^1 (1 - t) \|\ddot f(Y_t)\|\, dt`, and
   :math:`\|J \Delta\| \le \epsilon L`, L the certified upper bound of `lipnb.bounds.columns`. The rest comes from
   the change of the Jacobian over the ball: with :math:`\|\ddot f(Y)\| \le H(r) \|\Delta\|^2` for all
   :math:`\|Y - X\| \le r`, it is at most
   :math:`\epsilon^2 \sum_p H(p \epsilon / 8) \int_{(p - 1) / 8}^{p / 8} (1 - t)\, dt`.
2. *Attention in the ball of radius r.* Logits of row i differ from those at X, up to a number for the row, by at most
   :math:`\omega_i = r\, (\mathrm{diam}(a) + \sqrt 2\, |b_i| + \sqrt 2 N r)`, as :math:`|\delta_i| \le r` and
   :math:`|\delta_j - \delta_l| \le \sqrt 2 r`. So :math:`P_{ij}(Y) \le \min(1, e^{\omega_i} P_{ij}) =: p_{ij}`.
3. *Its spreads.* About any point, deviations under P(Y) are at most :math:`e^{\omega_i / 2}` times those under P, and
   half the diameter; moving the points adds M r or N r. With the deviations :math:`\sigma_i(X)` of w and :math:`s_i(X)`
   of a, those at Y are at most :math:`\sigma_i = \min(e^{\omega_i / 2} \sigma_i(X), \mathrm{diam}(w) / 2) + M r` and
   :math:`s_i = \min(e^{\omega_i / 2} s_i(X), \mathrm{diam}(a) / 2) + N r`. Slopes: :math:`|b_i(Y)| \le \beta_i = |b_i|
   + N r`. Values: :math:`|w_j(Y) - o_i(Y)| \le D_i = \min(\max_j |w_j - o_i| + (e^{\omega_i} - 1) \sigma_i(X),
   \mathrm{diam}(w)) + \sqrt 2 M r`, because the mean under P(Y) of the old w moves by at most :math:`|e^{\omega_i} -
   1|` times their mean absolute deviation in some direction.
4. *Second derivative of row i of one head*, :math:`\dot w_j = W_O W_V \delta_j`,
   :math:`\dot\ell_j = \delta_i \cdot a_j + b_i \cdot \delta_j`, :math:`\ddot\ell_j = 2 \delta_i^\top A^\top \delta_j`:
   :math:`2\,\mathrm{Cov}(\dot w, \dot\ell) + \mathrm{Cov}(w, \ddot\ell) + \mathrm{E}[(w - o)(\dot\ell - \mathrm{E}
   \dot\ell)^2]`. With E the sum with weights :math:`p_i` its length is at most
   :math:`2\, (\mathrm{E} |\dot w|^2)^{1/2} S + 2 \sigma_i N |\delta_i| (\mathrm{E} |\delta|^2)^{1/2} + D_i S^2`, where
   :math:`S = (\delta_i^\top \mathrm{Cov}(a)\, \delta_i)^{1/2} + (\mathrm{E} (b_i \cdot \delta)^2)^{1/2}`.
5. *As a sum over tokens.* By :math:`2 x y \le z x^2 + y^2 / z` for the two products and in :math:`S^2`, with any
   positive weights, here :math:`m_i = \max_j p_{ij}^{1/2}` and :math:`\zeta_i = s_i + \beta_i m_i`, it is at most
   :math:`\sum_j \delta_j^\top K_{ij} \delta_j` with positive semidefinite

   .. math::
        K_{ij} = p_{ij} \Big[\frac{\zeta_i}{M m_i} (W_O W_V)^\top W_O W_V + \Big(M + \frac{D_i \zeta_i}{m_i}\Big)
            \frac{b_i b_i^\top}{\beta_i} + \frac{\sigma_i N}{m_i} I\Big]
            + \delta_{ij} \Big[(M m_i + D_i \zeta_i) \frac{\mathrm{Cov}(a)}{s_i} + \sigma_i N m_i I\Big].

   The slope and the covariance in it are those at Y. By the same inequality :math:`b b^\top / \beta_i` is at most
   :math:`b_i b_i^\top / |b_i| + N r I` at X, and :math:`\mathrm{Cov}(a) / s_i` at most :math:`e^{\omega_i}
   \mathrm{Cov}_X(a) / (s_i - N r) + N r I` where :math:`s_i - N r = e^{\omega_i / 2} s_i(X)`; if it is half the
   diameter, at most :math:`s_i I`. The norms in step 6 are those of the matrices after these substitutions.
6. *All rows and heads.* :math:`\sum_i \big(\sum_j \delta_j^\top K_{ij} \delta_j\big)^2`, K now summed over heads, is
   convex in the matrices :math:`\delta_j \delta_j^\top`, positive semidefinite and of total trace
   :math:`\|\Delta\|^2`: it is largest if one token j moves. With :math:`k_{ij} \ge \|K_{ij}\|_2`, the sum
   of the norms of its parts,

   .. math:: H(r) = \max_j \min\Big(\sum_i k_{ij}^2,\ \Big\|\sum_i k_{ij} K_{ij}\Big\|_2\Big)^{1/2} .

7. *Rounding.* M, N, :math:`|b_i|`, spreads, diameters and distances are computed as upper bounds with their rounding,
   and so is :math:`p_{ij}`, from probabilities enlarged by their errors. Step 5 holds for any positive weights, so
   for the computed ones. :math:`\sum_i k_{ij} K_{ij} = F^\top F + c I` with rows of F that are known up to the errors
   of :math:`W_O W_V`, of b and of a: the Frobenius norm of all these errors is added to the norm of F. The remaining
   operations are sums and products of positive numbers: `MORE`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from lipnb.attention import Attention
from lipnb.attention.features import active_heads
from lipnb.attention.units import in_units
from lipnb.bounds.castin import biased_upper
from lipnb.bounds.columns import sizes_of_columns, upper_by_columns
from lipnb.bounds.norms import check_sequence, plain_heads
from lipnb.bounds.rounded_linearization import RoundedLinearization
from lipnb.bounds.rounding import MORE, TINY, RoundingErrors, sums_counted
from lipnb.checks import as_double, at_once
from lipnb.scaling import shifted
from lipnb.spectral.answer import table_of
from lipnb.spectral.upper_norms import gamma, largest_singular, length, triangle

__all__ = ["Nearby", "nearby_upper"]

PARTS = 8  # parts of the radius, each with the bound on the second derivative at its outer end
WORK = 1e11  # floating point operations allowed for all norms of columns of the second derivative together
MAX_CHANGE = 700.0  # change of the logits beyond which its exponential leaves float64


class Nearby(NamedTuple):
    r"""Upper bounds on the change of the output over balls around an input, for each radius.

    Attributes
    ----------
    jacobian : Tensor, shape (r,)
        Radius times a bound on :math:`\|D_Y f\|_2` for every Y in the ball.
    taylor : Tensor, shape (r,)
        First order at the input, from its certified constant, plus bounds on the second derivative on the way.
    outputs : Tensor, shape (r,)
        Bound for any change of attention, since every output is a mean of values.
    general : Tensor, shape (r,)
        Radius times the general bound for all tokens as large as those of the ball, summed over heads.
    local : Tensor, shape ()
        Bound on the local constant at the input, used by `taylor`: `upper` of `lipnb.certify`, or smaller.
    """

    jacobian: torch.Tensor
    taylor: torch.Tensor
    outputs: torch.Tensor
    general: torch.Tensor
    local: torch.Tensor

    @property
    def table(self) -> Any:
        """The bounds as a pandas table, one row for each radius."""
        return table_of(self)

    @property
    def best(self):
        """The smallest of the bounds, shape (r,)."""
        return torch.stack([self.jacobian, self.taylor, self.outputs, self.general]).amin(0)


@torch.no_grad()
def nearby_upper(attention: Attention, x: torch.Tensor, radii: torch.Tensor) -> Nearby:
    r"""Change of the output of attention over a ball around its input: upper bounds.

    .. math:: \|f(X + \Delta) - f(X)\|_F \le \min\Big(\epsilon\, G(\epsilon),\
        \epsilon\, L + \epsilon^2 \int_0^1 (1 - t) H(t \epsilon)\, dt,\ O(\epsilon)\Big)
        \qquad \text{for all } \|\Delta\|_F \le \epsilon ,

    where L bounds the local constant at X (as `lipnb.certify` does), G the Jacobian and H the second derivative in
    balls, and O the difference of outputs as means of values. The integral is bounded by a sum.

    Parameters
    ----------
    attention : Attention
        Plain heads with dot-product scores; any biases, shared keys, output matrices and mask.
    x : Tensor, shape (n, d)
        Tokens of one sequence. Computed in float64 whatever their type.
    radii : Tensor, shape (r,)
        Radii :math:`\epsilon` of the balls, 0 or more, in the Euclidean norm of all coordinates.

    Returns
    -------
    Nearby
        Upper bounds, rounding included; infinite if numbers at the input leave the range of float64, and for a bound
        beyond it.

    Raises
    ------
    ValueError
        As `Attention.check_input`; if the map has L2 scores or features other than shared keys, `x` is not one
        sequence, or radii are not finite numbers of at least 0 in shape (r,).

    Notes
    -----
    Ours, proved in the book. The cost is one `lipnb.certify` plus some norms of (d, d) matrices for each radius;
    for long and wide inputs sums of norms replace them. Rounding: probabilities, values and keys with bounds on their
    errors, see `lipnb.bounds.rounding`; spreads are taken about the mean of each row, with the largest probabilities
    allowed by these errors. `general` is castin2024smooth, Thm 3.3 or E.3 (with query biases, our reconstruction), with
    Lemma 3.8.

    Examples
    --------
    >>> f = Attention.from_matrices(torch.eye(2).double(), torch.eye(2).double())
    >>> bounds = nearby_upper(f, torch.eye(2).double(), [0.0, 0.1])
    >>> [round(bound, 4) for bound in bounds.best.tolist()], round(bounds.local.item(), 4)
    ([0.0, 0.1819], 1.4536)
    """
    attention = plain_heads("nearby_upper", attention)
    check_sequence(attention, x)
    radii = as_double("radii", radii).to(x.device)
    if radii.ndim != 1 or not len(radii) or not torch.isfinite(radii).all() or not (radii >= 0).all():
        raise ValueError("radii must be finite numbers, 0 or more, shape (r,) with r >= 1, such as [0.1].")
    if not active_heads(attention).any():
        none = torch.zeros_like(radii)
        return Nearby(none, none, none, none, radii.new_zeros(()))
    unknown = torch.full_like(radii, torch.inf)
    nothing = Nearby(unknown, unknown, unknown, unknown, radii.new_full((), torch.inf))
    attention, x, tokens, outputs = in_units(attention.to(dtype=torch.float64), x.double())
    if attention is None:
        return nothing
    eps = torch.nextafter(shifted(radii, -tokens), radii.new_tensor(torch.inf))
    try:
        at = RoundedLinearization(attention, x)
        if not sums_counted(at):
            return nothing
        J, taylor, outer, general, L = _in_units(at, x, eps)
    except torch.linalg.LinAlgError:  # numbers that are not finite, or no convergence
        return nothing
    J, taylor, outer, general = (_out_of_units(one, outputs) for one in (J, taylor, outer, general))
    return Nearby(J, taylor, outer, general, _out_of_units(L, outputs - tokens))


def _in_units(at, x, eps):
    """The four bounds, each (r,), and the local one, in the units of `at` and before the last rounding."""
    errors = RoundingErrors(at)
    head = _heads(at, errors)
    M, N, diam_w, diam_a = (one[:, None] for one in (head.M, head.N, head.diam_w, head.diam_a))
    sigma_w, sigma_a, beta = (one.amax(-1)[:, None] for one in (head.sigma_w, head.sigma_a, head.beta))
    column = MORE * head.P.sum(1).amax(-1)[:, None]
    n = len(x)
    omega = _logit_change(eps, diam_a, beta, N)  # (h, r)
    grow = torch.where(omega < MAX_CHANGE, omega.exp() * MORE, torch.inf)
    c = (column * grow).clamp_max(n).sqrt()
    spread_w, spread_a = (
        _spread_in_ball(sigma, diam, omega) + norm * eps
        for sigma, diam, norm in ((sigma_w, diam_w, M), (sigma_a, diam_a, N))
    )
    slope = beta + N * eps
    G = (spread_w * (spread_a + slope * c) + M * c).sum(0)
    L = (sigma_w * (sigma_a + beta * column.sqrt()) + M * column.sqrt()).sum()
    if errors.resolved():
        certified = upper_by_columns(at, errors, sizes_of_columns(at.attention, *x.shape))
        L = torch.fmin(certified.upper, L)
    return (
        eps * G,
        eps * L + _remainder(head, eps),  # step 1
        head.farthest.sum(0).norm() + eps * (M * c).sum(0),
        eps * _general(at, x, M, N, eps),
        L,
    )


def _logit_change(r, diam_a, beta, N):
    """omega of step 2: bound on the change of logits of a row, up to a number for the row, in a ball of radius r."""
    return MORE * r * (diam_a + 2**0.5 * beta + 2**0.5 * N * r)


def _spread_in_ball(sigma, diameter, omega):
    """Step 3: spreads min(e^(omega / 2) sigma, diameter / 2) of fixed points when logits change by omega."""
    grown = sigma * MORE * (omega.clamp_max(MAX_CHANGE) / 2).exp()
    return torch.where(omega < MAX_CHANGE, torch.minimum(grown, diameter / 2), diameter / 2)


def _remainder(head, eps):
    """Step 1, (r,): eps^2 sum_p H(p eps / 8) int (1 - t) dt, the integral of part p (2 (8 - p) + 1) / (2 8^2)."""
    h, n, d = head.slopes.shape
    column = d * d * (h * (2 * n + head.maps.shape[1]) + 10 * d)  # operations, about
    most = int(WORK / (len(eps) * PARTS * column))
    found = []
    for radius in eps:
        total = torch.zeros_like(radius)
        for part in range(1, PARTS + 1):
            total = total + _second_derivative(head, radius * part / PARTS * MORE, most) * (2 * (PARTS - part) + 1)
        found.append(radius**2 * total / (2 * PARTS**2))
    return torch.stack(found) if found else eps


def _second_derivative(head, r, most):
    """H(r) of step 6; by the norm of a matrix for at most `most` tokens j, those with the largest sums."""
    ball = _in_ball(head, r)
    if ball is None:
        return torch.full_like(r, torch.inf)
    sums = length(ball.k, 0) * MORE  # (sum_i k_ij^2)^(1/2)
    largest = torch.zeros_like(r)
    for count, j in enumerate(sums.argsort(descending=True).tolist()):
        if count == most or not torch.isfinite(sums[j]):
            return torch.maximum(largest, sums[j])
        if sums[j] <= largest:
            break
        largest = torch.maximum(largest, torch.minimum(_norm_at_token(head, ball, r, j), sums[j]))
    return largest


class _Ball(NamedTuple):
    r"""Quantities of steps 2 to 5 for a ball of radius r, each (h, n): for head and row i.

    m, zeta, sigma and beta are those of the proof; grow, `e^omega`; p, (h, n, n), the probabilities; `spread_a`, s_i
    without N r; `along` and `own` the factors M + D zeta / m of slopes and M m + D zeta of Cov(a); k, (n, n), summed
    over heads.
    """

    grow: torch.Tensor
    p: torch.Tensor
    m: torch.Tensor
    zeta: torch.Tensor
    sigma: torch.Tensor
    spread_a: torch.Tensor
    along: torch.Tensor
    own: torch.Tensor
    k: torch.Tensor


def _in_ball(head, r):
    """`_Ball` of this radius; None if some logits change too much."""
    M, N, diam_w, diam_a = (one[:, None] for one in (head.M, head.N, head.diam_w, head.diam_a))
    omega = _logit_change(r, diam_a, head.beta, N)  # step 2
    if not (omega < MAX_CHANGE).all():
        return None
    grow = omega.exp() * MORE
    p = (MORE * grow[..., None] * head.P).clamp_max(1)
    m = p.amax(-1).sqrt()
    # step 3
    sigma, spread_a = _spread_in_ball(head.sigma_w, diam_w, omega) + M * r, _spread_in_ball(head.sigma_a, diam_a, omega)
    mean_moved = torch.expm1(omega) * MORE * head.sigma_w
    D = torch.minimum(head.farthest + mean_moved, diam_w) + 2**0.5 * M * r
    s, beta = spread_a + N * r, head.beta + N * r
    zeta = s + beta * m
    # step 5: k_ij = p_ij (zeta M / m + (M + D zeta / m) beta + sigma N / m) + delta_ij ((M m + D zeta) s + sigma N m)
    along, own = M + D * zeta / m, M * m + D * zeta
    k = torch.einsum("hij,hi->ij", p, zeta * M / m + along * beta + sigma * N / m)
    k = MORE * (k + torch.diag((own * s + sigma * N * m).sum(0)))
    return _Ball(grow, p, m, zeta, sigma, spread_a, along, own, k)


def _norm_at_token(head, ball, r, j):
    r"""Step 6 for a token j: bound on :math:`\|\sum_i k_{ij} K_{ij}\|_2^{1/2} = (\|F\|_2^2 + c)^{1/2}` of step 7."""
    N, m, k = head.N[:, None], ball.m, ball.k
    weights = k[:, j] * ball.p[..., j]  # k_ij p_ij, (h, i)
    # rows of F: zeta / (M m) (W_O W_V)^T W_O W_V, and (M + D zeta / m) b b^T / |b|
    by_map = ((weights * ball.zeta / m).sum(1) / head.M).sqrt()  # (h,)
    by_slope = (weights * ball.along / head.beta).sqrt()
    # (M m + D zeta) e^omega Cov(a) / (s - N r) where its growth is known, else s I: all directions
    known = head.sigma_a[:, j] * ball.grow[:, j].sqrt() <= ball.spread_a[:, j] * MORE
    own = k[j, j] * ball.own[:, j]
    by_key = torch.where(known, own * ball.grow[:, j] / ball.spread_a[:, j], 0).sqrt()
    # c: the coefficient of I
    c = (weights * (ball.along * N * r + ball.sigma * N / m)).sum()
    c_own = own * torch.where(known, head.N * r, ball.spread_a[:, j] + head.N * r)
    c = c + (c_own + k[j, j] * (ball.sigma * N * m)[:, j]).sum()
    F = torch.cat(
        [
            (by_map[:, None, None] * head.maps).flatten(0, 1),
            (by_slope[..., None] * head.slopes).flatten(0, 1),
            (by_key[:, None, None] * head.centred_a(j)).flatten(0, 1),
        ]
    )
    F_errors = torch.stack(
        [
            length(by_map * head.maps_error),
            length(by_slope * head.slopes_error, (0, 1)),
            length(by_key * head.centred_error),
        ]
    )
    F_norm = largest_singular(F) + MORE * (F_errors.sum() + gamma(64) * length(F, (0, 1)))
    return MORE * (F_norm**2 + c).sqrt()


def _out_of_units(bound, power):
    """Convert a bound from units: enlarge it for rounding of positive numbers and underflow, then rescale."""
    bound = torch.where(torch.isnan(bound), torch.inf, bound)
    return torch.nextafter(shifted(MORE**4 * bound + TINY, power), bound.new_tensor(torch.inf))


class _Heads(NamedTuple):
    """Quantities of each head at the input: upper bounds with their rounding, each at least `TINY`."""

    M: torch.Tensor  # |W_O W_V|, (h,)
    N: torch.Tensor  # |s W_Q^T W_K|, (h,)
    diam_w: torch.Tensor  # diameters of w and a, (h,)
    diam_a: torch.Tensor
    sigma_w: torch.Tensor  # spreads of w and a under row i, (h, n)
    sigma_a: torch.Tensor
    beta: torch.Tensor  # |b_i|, (h, n)
    farthest: torch.Tensor  # max_j |w_j - o_i| over the tokens that row i sees, (h, n)
    P: torch.Tensor  # attention, (h, n, n)
    maps: torch.Tensor  # W_O W_V up to a rotation, (h, p, d): not a bound, in error by up to `maps_error`, (h,)
    maps_error: torch.Tensor
    slopes: torch.Tensor  # b_i, (h, n, d): not a bound, in error by up to `slopes_error`, (h, n)
    slopes_error: torch.Tensor
    centred_a: Callable[[int], torch.Tensor]  # for token j, rows P_jl^(1/2) (a_l - mean), (h, n, d): not a bound,
    centred_error: torch.Tensor  # in error by up to this for all rows together, (h,)


def _heads(at, errors):
    att, P = at.attention, MORE * (at.P + errors.E)
    # |W_O v| = |R v| and |s W_Q^T k| = |S k|: triangular factors, small
    R, S = triangle(at.output), triangle(att.query.mT)
    M, maps_error, diam_w, sigma_w, _, maps = _norms(at, errors, R, att.value, at.value, errors.value)
    N, _, diam_a, sigma_a, a_error, _ = _norms(at, errors, S, att.key, at.key, errors.key, abs(att.scale))

    def centred_a(j):
        away = at.key - at.P[:, j, None] @ at.key
        return P[:, j].sqrt()[..., None] * (att.scale * away @ att.query)

    return _Heads(
        M=M,
        N=N,
        diam_w=diam_w,
        diam_a=diam_a,
        sigma_w=sigma_w,
        sigma_a=sigma_a,
        beta=length(at.slope) * MORE + errors.slope + TINY,
        farthest=_farthest(at, errors, diam_w) + TINY,
        P=P,
        maps=maps,
        maps_error=maps_error,
        slopes=at.slope,
        slopes_error=errors.slope,
        centred_a=centred_a,
        centred_error=2 * a_error * P.sum(-1).amax(-1).sqrt(),
    )


def _norms(at, errors, factor, matrix, points, points_error, unit=1.0):
    """Norms of the map, factor times matrix, and of the points z_j = factor times point j, in this unit.

    Norm and error of the map, (h,), diameter and spreads of z, (h,) and (h, n), error of z, (h,), and the map.
    """
    frobenius, longest = length(factor, (-2, -1)), length(points).amax(-1)
    gamma_n = gamma(16 * (len(at.x) + sum(matrix.shape) + at.attention.output_width) + 256)
    product = factor @ matrix
    product_error = gamma_n * frobenius * length(matrix, (-2, -1))
    norm = largest_singular(product) + product_error
    z = points @ factor.mT
    z_error = MORE * frobenius * (length(points_error).amax(-1) + gamma_n * longest)
    diameter = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist").amax((1, 2)) * MORE + 2 * z_error
    sigma = _spread(at, errors, z, z_error)
    norm, diameter, sigma = (unit * one + TINY for one in (norm, diameter, sigma))
    return norm, product_error, diameter, sigma, unit * z_error, product


def _spread(at, errors, points, error):
    r"""Standard deviations (h, n), in any direction, of points (h, n, k), known to `error` (h,), under the rows of P.

    .. math:: \mathrm{Var}_P(z) \le \sum_j P_j (z_j - c)^2 \quad \text{for any } c,

    so that c may be the computed mean of a row. A difference of second moments would lose the variance of nearly hard
    attention.
    """
    found = []
    step = at_once(points.numel())
    for rows in torch.arange(at.n, device=points.device).split(step):
        upper = (at.P[:, rows] + errors.E[:, rows]).sqrt()  # (h, i, j)
        away = points[:, None] - (at.P[:, rows] @ points)[:, :, None]
        found.append(largest_singular(upper[..., None] * away))
    return MORE * (torch.cat(found, -1) + error[:, None] * (1 + errors.e.amax(-1, keepdim=True)).sqrt())


def _farthest(at, errors, diameter):
    """Bound on the move of each row of each head under any other attention to the same values, (h, n)."""
    w = torch.einsum("hmv,hjv->hjm", at.output, at.value)
    distance = torch.cdist(at.P @ w, w, compute_mode="donot_use_mm_for_euclid_dist")
    longest = length(w).amax(-1)[:, None]
    gamma_n = gamma(16 * (at.n + at.value.shape[-1]) + 256)
    lost = (length(errors.value).amax(-1) + gamma_n * length(at.value).amax(-1))[:, None]
    error = errors.e * longest + 4 * lost * length(at.output, (-2, -1))[:, None]
    distance = torch.minimum(MORE * (distance + error[..., None]), diameter[:, None, None])
    if at.hidden is not None:
        distance = distance.masked_fill(at.hidden, 0)
    return distance.amax(-1)


def _general(at, x, M, N, eps):
    """Sum over heads of the general bound, from norms of their maps, for tokens as large as any in the balls."""
    att, largest = at.attention, length(x).max() * MORE
    bias = 0 * M[:, 0]
    if att.query_bias is not None:
        c = length(att.scale * torch.einsum("hkd,hk->hd", att.key, att.query_bias))
        lost = length(att.key, (-2, -1)) * length(att.query_bias)
        bias = MORE * c + gamma(att.key_width + 8) * abs(att.scale) * lost
    sizes = [(largest + e).item() * MORE for e in eps]
    return eps.new_tensor(
        [
            sum(
                biased_upper(A[None], value[None], len(x), size, c[None])
                for A, value, c in zip(N, M, bias, strict=True)
            )
            if math.isfinite(size)
            else math.inf
            for size in sizes
        ]
    )
