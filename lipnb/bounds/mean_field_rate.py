r"""Exact exponential rate of attention on measures in a ball, for every A, and bounds with this rate. Ours.

.. math:: \gamma^*(A) = \tfrac12 \max_{|x| \le 1} \big(|A x| - x \cdot A x\big), \qquad
    \log \mathrm{Lip}^{W_2}(F_{|\mathcal P(B_R)}) \sim \gamma^* R^2 .

The proofs are on the page of the book on the exact rate.
"""

import math
from typing import NamedTuple

import torch
from scipy.optimize import brentq

from lipnb.bounds.mean_field import log_masked_sharp, log_mean_field_optimal
from lipnb.bounds.norms import answer, log_of, log_sum, logit_bound, norms
from lipnb.checks import as_double, count, radius, square

__all__ = [
    "MeanFieldRate",
    "general_lower_pair",
    "masked_mean_field_upper_exact",
    "mean_field_lower_exact",
    "mean_field_rate",
    "mean_field_upper_exact",
]

BISECTIONS = 60  # of an interval of logarithms of length log 8
BALANCES = (1.0, 1 / 3)  # best c of the lower bounds for values alone, and for keys alone with V = I
LARGEST = torch.finfo(torch.float64).max  # a lower bound must not become infinite
ROUNDING = 64 * torch.finfo(torch.float64).eps  # per dimension, of an eigenvalue in units of the norm of A


class MeanFieldRate(NamedTuple):
    r"""The rate :math:`\gamma^*` of a matrix: lower and upper bounds, and the pair that attains it.

    Attributes
    ----------
    lower : float
        :math:`(|A x| - x \cdot A x) / 2` at the pair: attained.
    upper : float
        At least :math:`\gamma^*`, with rounding: the certificate that the maximum is global.
    x, y : Tensor, shape (d,)
        The pair in the unit ball; ``y = A x / |A x|``.
    """

    lower: float
    upper: float
    x: torch.Tensor
    y: torch.Tensor


def mean_field_rate(A: torch.Tensor) -> MeanFieldRate:
    r"""Exact exponential rate in :math:`R^2` of the constant on measures in a ball, for every A.

    .. math:: \gamma^*(A) = \tfrac12 \max_{|x| \le 1} \big(|A x| - x \cdot A x\big)
        = \tfrac12 \min_{\mu > 0} \Big(\frac\mu2 + \lambda_{\max}^+\Big(\frac{A^\top A}{2 \mu}
        - \frac{A + A^\top}2\Big)\Big)

    with :math:`\lambda^+ = \max(\lambda, 0)`. Any :math:`\mu` gives an upper bound, so the maximum needs no search.

    Parameters
    ----------
    A : Tensor, shape (d, d)
        :math:`A = K^\top Q / \sqrt k`.

    Returns
    -------
    MeanFieldRate
        Lower and upper bounds, which differ by rounding only, and the pair (x, y).

    Raises
    ------
    ValueError
        If A is not a finite square matrix.

    Notes
    -----
    Ours. :math:`\|A\|_2 / 8 \le \gamma^* \le \|A\|_2`, never below `growth_rate`; the first is attained by symmetric
    positive semidefinite A, the second where :math:`-\|A\|_2` is an eigenvalue. The minimum is convex in
    :math:`1/\mu`; for :math:`A \ne 0` some top eigenvector x at its minimiser has :math:`|A x| = \mu`, and then both
    sides agree. For A = 0 the rate is 0, the infimum.

    Examples
    --------
    >>> turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    >>> nilpotent = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    >>> [round(mean_field_rate(A).lower, 6) for A in (-torch.eye(2), torch.eye(2), turn, nilpotent)]
    [1.0, 0.125, 0.5, 0.649519]
    """
    A = square(A).detach()
    d, size = len(A), A.abs().max()
    if not size:
        zero = torch.zeros_like(A[0])
        return MeanFieldRate(0.0, 0.0, zero, zero)
    U, S, Vh = torch.linalg.svd(A / size)
    rank = int((S > d * torch.finfo(S.dtype).eps * S[0]).sum())
    # directions orthogonal to the images of A and of its transpose change nothing
    basis = (
        torch.linalg.qr(torch.cat([U[:, :rank], Vh[:rank].mT], 1)).Q
        if 2 * rank < d
        else torch.eye(d, device="cpu").to(A)
    )
    B = basis.mT @ (A / size) @ basis / S[0]  # of norm 1
    gram, symmetric = B.mT @ B, (B + B.mT) / 2

    def top(mu):
        values, vectors = torch.linalg.eigh(gram / (2 * mu) - symmetric)
        return values[-1].clamp_min(0).item(), vectors[:, -1] if values[-1] > 0 else torch.zeros_like(vectors[0])

    def length(x):
        return torch.linalg.vector_norm(B @ x).item()

    low, high = 1 / 8, 1.0  # |A x| at the maximum, in units of the norm
    for _ in range(BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if length(top(middle)[1]) > middle else (low, middle)
    upper = min(mu / 2 + top(mu)[0] for mu in (low, high)) + d * ROUNDING
    candidates = _between(top(low)[1], top(high)[1], high, length)
    gain, x = max(((length(x) - (x @ B @ x).item(), x) for x in candidates), key=lambda one: one[0])
    x = basis @ x
    lower, upper = ((half / 2 * S[0] * size).item() for half in (gain, upper))  # the norm of A may be beyond float64
    if upper < torch.finfo(torch.float64).tiny:  # products of subnormal numbers may round to 0: the norm is a bound too
        upper = math.nextafter((S[0] * size).item(), math.inf)
    return MeanFieldRate(min(lower, LARGEST), upper, x, _unit(A / size @ x))


def _between(first, second, mu, length):
    """Points of the unit ball: two top eigenvectors, and a point between them with |A x| = mu if there is one."""
    points = [first, second]
    if not second.any():
        points.append(first * min(1.0, mu / length(first)))
    elif (across := second - (first @ second) * first).norm() > 1e-8:
        across = across / across.norm()
        end = math.atan2((second @ across).item(), (second @ first).item())

        def beyond(angle):
            return length(math.cos(angle) * first + math.sin(angle) * across) - mu

        if beyond(0) > 0 > beyond(end):
            angle = brentq(beyond, 0, end)
            points.append(math.cos(angle) * first + math.sin(angle) * across)
    return [point / max(1.0, point.norm().item()) for point in points]


def _unit(vector):
    return vector / torch.linalg.vector_norm(vector)


def mean_field_upper_exact(A: torch.Tensor, V: torch.Tensor, R: float, log: bool = False) -> float:
    r"""Lipschitz constant of the mean-field map on measures in a ball: upper bound with the exact exponent.

    .. math:: \mathrm{Lip}^{W_2}(F_{|\mathcal P(B_R)}) \le \|V\|_2 \big(t + \min\{(1 + t^2)^{1/2}\, \tau,\,
        \min\{\cosh t, \tau\} + t \min\{e^t, (\tfrac{27}{64} e^{2t} + 1)^{1/2}, \tau\}\}\big)

    with :math:`t = \|A\|_2 R^2`, :math:`\tau = e^{\gamma^* R^2}` and :math:`\gamma^*` from `mean_field_rate`.

    Parameters
    ----------
    A, V, R, log
        As for `lipnb.bounds.mean_field_upper`.

    Returns
    -------
    float
        An upper bound for every width d, never above `mean_field_upper_sharp`: its exponent is exact for every A, its
        order for :math:`V = I`, and its leading constant where :math:`-\|A\|_2` is an eigenvalue of A whose
        eigenvector V stretches most.

    Notes
    -----
    Ours. The norms of A and V and :math:`\gamma^*` are rounded upwards; the rounding of the formula itself is not
    counted.

    Examples
    --------
    >>> eye = torch.eye(2)
    >>> [round(mean_field_upper_exact(A, eye, 6.0, log=True), 2) for A in (-eye, eye)]
    [39.17, 8.09]
    """
    A_norm, V_norm = norms(A, V)
    return answer(log_mean_field_exact(square(A), logit_bound(A_norm, R), V_norm, R), log)


def masked_mean_field_upper_exact(A: torch.Tensor, V: torch.Tensor, R: float, log: bool = False) -> float:
    r"""Lipschitz constant of the masked mean-field map on measures in a ball: upper bound with the exact exponent.

    .. math:: \mathrm{Lip}^{d_2}(F^m_{|\mathcal P([0,1] \times B_R)}) \le
        \|V\|_2 \big(t + (2 + \sqrt 6\, t)\, \tau\big), \qquad \tau = e^{3 \kappa} \Big(\sum_c E_c\Big)^{1/2} ,
        \qquad \kappa = R^2 \Big(\sum_j \sigma_j^2 / N_j^2\Big)^{1/2} ,

    with :math:`t = \|A\|_2 R^2` and the singular values :math:`\sigma_j` of A. The ball is cut into :math:`\prod_j N_j`
    boxes c along the right singular vectors, for any whole numbers :math:`N_j \ge 1`, and :math:`E_c` is the largest
    :math:`e^{R |A x| - x \cdot A x}` in c; the largest of all is :math:`e^{2 \gamma^* R^2}`, from `mean_field_rate`.

    Parameters
    ----------
    A, V, R, log
        As for `lipnb.bounds.mean_field_upper`.

    Returns
    -------
    float
        An upper bound in the conditional distance of order 2, for any law of the positions, with or without atoms, and
        for masked sequences of any length with any weights; never above `masked_mean_field_upper_sharp` with p = 2.

    Notes
    -----
    Ours, rounded as `mean_field_upper_exact`. Values alone are bounded by the norms where that is less than 2 tau, and
    values and keys together by `masked_mean_field_upper_sharp` where that is less than their sum.

    The sum over boxes is not evaluated but bounded in closed form, from above for every A, by what is known of
    the length :math:`|A x|` at a best x. For a matrix A of rank r, and R large, the bound is at most of order
    :math:`t^{1 + r/2 - 1/4} e^{\gamma^* R^2}`: its exponent is exact for every A, and for A = 1 in one dimension its
    order :math:`t^{5/4} e^{t/8}` too. The sum itself can be smaller: where finitely many x are best, and
    :math:`|A x| - x \cdot A x` falls at least like the square of the distance around them, the theorem has at most the
    order :math:`t^{1 + r/4} e^{\gamma^* R^2}`. What is returned has it for rank one, and the order :math:`t\,
    e^{\gamma^* R^2}` where :math:`-\|A\|_2` is an eigenvalue.

    Examples
    --------
    >>> eye = torch.eye(2)
    >>> [round(masked_mean_field_upper_exact(A, eye, 6.0, log=True), 2) for A in (-eye, eye)]
    [40.35, 14.65]
    """
    A_norm, V_norm = norms(A, V)
    return answer(log_mean_field_exact(square(A), logit_bound(A_norm, R), V_norm, R, masked=True), log)


def log_mean_field_exact(A, t, V, R, bias=0.0, masked=False):
    """Logarithm of `mean_field_upper_exact`, or the masked one: the matrix A, the largest logit t, the norm V.

    A query bias, whose image under the keys has the norm `bias`, is included in t and adds to the differences of
    logits.
    """
    by_norm = log_masked_sharp if masked else log_mean_field_optimal
    if not (math.isfinite(6 * t) and t):  # numbers of boxes are up to 6 t
        return by_norm(t, V)
    log_tau = log_masked_tau(A, R) if masked else logit_bound(mean_field_rate(A).upper, R)
    return by_norm(t, V, log_tau=log_tau + bias * R)


def log_masked_tau(A, R):
    r"""Logarithm of tau of the masked bound, for the best of some numbers of boxes.

    .. math:: 3 \kappa + \tfrac12 \log \sum_c E_c, \qquad \kappa = \Big(\sum_j s_j^2 / N_j^2\Big)^{1/2}, \qquad
        s_j = \sigma_j R^2 .

    The sum over the N boxes is bounded in three ways, each N times the largest :math:`E_c` times a share of boxes. With
    lengths :math:`\rho = R^2 |A x|` at :math:`|x| \le 1` and :math:`H_\alpha` the largest
    :math:`R^2 (\alpha |A x|^2 - x \cdot A x)`, of at least 0,

    1. :math:`\log E_c \le 2 \gamma^* R^2`, share 1;
    2. :math:`\log E_c \le m/2 + H_{1/(2\mu)} - (\rho - m)^2 / (2 m)` with :math:`m = \mu R^2`, for any :math:`\mu > 0`;
    3. :math:`\log E_c \le \rho + H_0`, as good where :math:`-\|A\|_2` is an eigenvalue, or A turns by a right angle.

    In a box lengths differ by at most :math:`2 \kappa`. So a share is the mean, over the solid of all boxes that meet
    the ball, of the factor beside the largest E, which falls from 1 outside of a window; it is at most the density of
    lengths times the integral of the factor, and :math:`e^{-\text{slack}}` for lengths outside of a wider window.
    """
    A, size = A.detach(), A.detach().abs().max()
    if size == 0:  # one box, and E = 1
        return 0.0
    S = torch.linalg.svdvals(A / size)
    B, s = A / size / S[0], S * logit_bound(size.item(), R)  # B of norm 1
    rate, most = mean_field_rate(A), s[0].item()
    first = torch.arange(1, len(s) + 1, device="cpu").to(s)
    # without shares the best N_j, were they real, are 6 s_j / sqrt(m) for the first m directions, and 1 for the others
    N = (6 * s / first[:, None].sqrt()).round().clamp_min(1)
    kappa = (s / N).norm(dim=1)

    def top(alpha):
        """H of the docstring, rounded upwards."""
        form = alpha * B.mT @ B - (B + B.mT) / 2
        return most * (max(torch.linalg.eigvalsh(form)[-1].item(), 0.0) + len(B) * ROUNDING)

    def share(center, spread, window, slack):
        """Logarithm of a share: the factor has the integral `window`, and is e^-slack at the distance `spread`."""
        low, high = (center + sign * (spread + 2 * kappa) for sign in (-1, 1))
        log_density = _log_density_of_lengths(s / most, N > 1, low / most, high.clamp_max(most + 2 * kappa) / most)
        return torch.logaddexp(log_density + torch.log((window + 4 * kappa) / most), -slack + 0 * kappa)

    mu = (B @ rate.x.to(B)).norm().item()
    m, logs = mu * most, [2 * logit_bound(rate.upper, R) + 0 * kappa]
    at_mu, at_end = m / 2 + top(1 / (2 * mu)), most + top(0)
    for slack in math.log1p(most) * torch.tensor([1, 2, 4, 16, math.inf], dtype=s.dtype, device="cpu").to(s):
        logs.append(at_mu + share(m, torch.sqrt(2 * m * slack), math.sqrt(2 * math.pi * m), slack))
        logs.append(at_end + share(most, slack, 1.0, slack))
    return (3 * kappa + (N.log().sum(1) + torch.stack(logs).amin(0)) / 2).min().item()


def _log_density_of_lengths(sides, cut, low, high):
    r"""Logarithm of a bound of the density of :math:`|y|` at lengths from `low` to `high`, y uniform in a box.

    .. math:: \frac{S_k\, \rho^{k - 1}}{\prod_{j \le k} 2 s_j} \ (k \ge 2), \qquad \frac1{s_1} \Big(1 -
        \sum_{j \ge 2} s_j^2 / \rho^2\Big)^{-1/2} \ (k = 1), \qquad S_k = \frac{2 \pi^{k/2}}{\Gamma(k/2)} .

    The box has the half sides s_j in the directions that are cut, shape (m, d), the first ones; the least over k. Given
    the other coordinates, of length e, the first k have the density :math:`S_k \rho (\rho^2 - e^2)^{k/2 - 1}` over the
    product at most.
    """
    k = torch.arange(1, len(sides) + 1, device="cpu").to(sides)
    log_sphere = math.log(2) + k / 2 * math.log(math.pi) - torch.lgamma(k / 2)
    logs = log_sphere - torch.log(2 * sides).cumsum(0) + (k - 1) * high.log()[:, None]
    rest = torch.where(cut, sides, 0)[:, 1:].norm(dim=1)
    logs[:, 0] -= torch.log1p(-torch.where(rest == 0, rest, rest / low.clamp_min(rest)).square()) / 2
    return torch.where(cut, logs, math.inf).amin(1)


def mean_field_lower_exact(A: torch.Tensor, V: torch.Tensor, R: float, log: bool = False) -> float:
    r"""Lipschitz constant of the mean-field map on measures in a ball: lower bound with the exact exponent.

    .. math:: \mathrm{Lip}^{W_2}(F_{|\mathcal P(B_R)}) \ge \max\Big(\|V\|_2,\ e^{\gamma^* R^2} \max_{c = 1, 1/3}
        \frac{\sqrt c}{1 + c} \Big|V \Big(y + \frac{R^2 |A x|}{1 + c} (y - x)\Big)\Big|\Big)

    with :math:`\gamma^*` and the unit pair (x, y) from `mean_field_rate`; any :math:`c > 0` and any pair would do.

    Parameters
    ----------
    A, V, R, log
        As for `lipnb.bounds.mean_field_upper`.

    Returns
    -------
    float
        A lower bound for every A and R, with or without real eigenvalues, and never below the spectral norm of V. For
        :math:`V = I` at least :math:`3 \sqrt 3 / 64`, a thirteenth, of `mean_field_upper_exact`, for all A and R in
        every width.

    Notes
    -----
    Ours. The larger of two local constants. A single token, which sees itself alone, has :math:`\|V\|_2`; at R = 0 this
    is the norm of the derivative, though the ball is one point. Two atoms R y and R x, whose weights have the ratio
    :math:`c\, e^{-2 \gamma^* R^2}` to 1, have at least the other. The rounding of the formula is not counted.

    Examples
    --------
    >>> turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    >>> round(mean_field_lower_exact(turn, torch.eye(2), 4.0, log=True), 2)
    10.04
    >>> mean_field_lower_exact(turn, torch.eye(2), 0.1)
    1.0
    """
    half_gap, log_norm, log_block = _at_pair(A, V, R)
    blocks = (math.log(math.sqrt(c) / (1 + c)) + log_block(-math.log1p(c)) for c in BALANCES)
    return answer(max(log_norm, min(half_gap + max(blocks), LARGEST)), log)


def general_lower_pair(A: torch.Tensor, V: torch.Tensor, n: int, R: float) -> float:
    r"""Lipschitz constant of one head on sequences of n tokens in a ball: lower bound for any A and V.

    .. math:: \mathrm{Lip}(f_{|B_R^n}) \ge \max\Big(\|V\|_2,\ \max_m \sqrt{\frac{n - m}m}\; q_m\, \big|V \big(y +
        (1 - q_m) R^2 |A x| (y - x)\big)\big|\Big), \qquad q_m = \frac m{m + (n - m) e^{-2 \gamma^* R^2}} ,

    with :math:`\gamma^*` and the unit pair (x, y) from `mean_field_rate`. Any whole number m from 1 to n - 1 would do;
    two are tried, those nearest to the weights of the atoms of `mean_field_lower_exact`.

    Parameters
    ----------
    A, V, n, R
        As for `lipnb.bounds.general_upper`; A need not have a real eigenvalue.

    Returns
    -------
    float
        A lower bound, never below the spectral norm of V, which tends to `mean_field_lower_exact` as n grows. With
        :math:`V = I` it is never below `general_lower`, at least :math:`\sqrt{n - 1} / 2` up to the length
        :math:`1 + e^{2s}` with :math:`s = \gamma^* R^2`, and from there on at least
        :math:`\frac{\sqrt 2}3 e^s (1 + \frac{2s}3)`, a 26th of `mean_field_upper_exact`.

    Notes
    -----
    Ours, after castin2024smooth, Prop. 3.4. The inputs are n equal tokens, and m tokens R y with n - m tokens R x. The
    rounding of the formula is not counted.

    Examples
    --------
    >>> turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    >>> round(general_lower_pair(turn, torch.eye(2), 101, 2.0), 4)
    15.6206
    >>> minus = -torch.eye(1)
    >>> [round(general_lower_pair(minus, -minus, n, 2.0), 1) for n in (10**2, 10**4, 10**12)]
    [12.1, 164.5, 165.5]
    """
    half_gap, log_norm, log_block = _at_pair(A, V, R)
    n, logs = count(n), [log_norm]
    for w in (c * math.exp(-2 * half_gap) for c in BALANCES):
        m = max(1, round(n * w / (1 + w)))
        ratio = log_of(n - m) - log_of(m)
        rest = ratio - 2 * half_gap  # log of (1 - q) / q
        q, left = -log_sum([0, rest]), -log_sum([0, -rest])
        logs.append(ratio / 2 + q + log_block(left))
    return answer(min(max(logs), math.log(LARGEST)), log=False)


def _at_pair(A, V, R):
    r"""Quantities of the lower bounds, for the pair (x, y) of the exact rate.

    Half the gap of logits, :math:`\gamma^* R^2`; the logarithm of the norm of V; and a function of log c: the logarithm
    of :math:`|V (y + c R^2 |A x| (y - x))|`. Logarithms, because scores and entries of V may be near the limits of
    float64.
    """
    norms(A, V)  # validates the matrices
    A, V, R, rate = square(A).detach(), as_double("V", V).detach(), radius(R), mean_field_rate(A)
    half_gap, (size, width) = logit_bound(rate.lower, R), (part.abs().max().item() for part in (A, V))
    log_norm = math.log(width) + torch.linalg.matrix_norm(V / width, 2).log().item() if width else -math.inf
    if not (size and width):
        return half_gap, log_norm, lambda left: -math.inf
    stretch = _log_length(A / size @ rate.x) + math.log(size) + 2 * log_of(R)
    value, key = V / width @ rate.y, V / width @ (rate.y - rate.x)

    def log_block(left):
        more = left + stretch
        both = value + math.exp(more) * key if more < 0 else math.exp(-more) * value + key
        return math.log(width) + max(more, 0) + _log_length(both)

    return half_gap, log_norm, log_block


def _log_length(vector):
    """Logarithm of the Euclidean length, after division by the largest entry: squares may leave float64."""
    size = vector.abs().max().item()
    return log_of(size) + math.log(torch.linalg.vector_norm(vector / size).item()) if size else -math.inf
