"""Bounds of castin2024smooth on measures in a ball, in the 2-Wasserstein distance, for any number of tokens."""

import math

import torch
from scipy.special import beta, betainc

from lipnb.bounds.norms import answer, growth_rate, log_of, log_sum, logit_bound, norms
from lipnb.checks import number

__all__ = [
    "masked_mean_field_upper",
    "masked_mean_field_upper_sharp",
    "mean_field_lower",
    "mean_field_upper",
    "mean_field_upper_sharp",
]


def _exponent(p):
    if not number("p", p) > 1:
        raise ValueError(f"p must be greater than 1, got {p!r}: at p = 1 no bound is uniform in the measure.")


def log_mean_field(t, V_norm):
    """Logarithm of `mean_field_upper` on numbers: the largest logit t, the norm of V."""
    return log_of(V_norm) + math.log1p(3 * t) + 2 * t


def log_mean_field_sharp(t, V_norm):
    """Logarithm of `mean_field_upper_sharp` on these numbers."""
    return log_of(V_norm) + log_sum([log_of(t), math.log1p(t) + t])


def log_mean_field_optimal(t, V_norm, log_tau=math.inf):
    """Logarithm of `mean_field_upper_exact` on these numbers; `log_tau` (log of tau) needs more of A than its norm."""
    value = t + math.log1p(math.exp(-2 * t)) - math.log(2)  # cosh t
    key = min(t, log_sum([2 * t + math.log(27 / 64), 0]) / 2)
    apart = log_sum([min(value, log_tau), log_of(t) + min(key, log_tau)])
    together = log_of(math.hypot(1, t)) + min(t, log_tau)
    return log_of(V_norm) + log_sum([log_of(t), min(apart, together)])


def log_masked(t, V_norm, p=2):
    """Logarithm of `masked_mean_field_upper` on these numbers."""
    hardy = 0.0 if math.isinf(p) else math.log(p / (p - 1))
    return log_of(V_norm) + log_sum([log_of(t), hardy + math.log1p(2 * t) + 2 * t])


def log_masked_sharp(t, V_norm, p=2, log_tau=math.inf):
    """Logarithm of `masked_mean_field_upper_sharp`; with p = 2 and `log_tau`, of `masked_mean_field_upper_exact`."""
    values, keys = (2 * t / p + log_of(average) for average in _past_averages(t, p))
    past = log_sum(
        [values, math.log(2) + log_of(t) + keys]
    )  # one majorant W of the sum: its second part bounds no keys
    if log_tau < math.inf:  # keys by tau, which is less than what the norms give for keys alone: page 32 of the book
        past = min(past, log_sum([min(values, math.log(2) + log_tau), log_of(t) + math.log(6) / 2 + log_tau]))
    return log_of(V_norm) + log_sum([log_of(t), past])


def mean_field_upper(A: torch.Tensor, V: torch.Tensor, R: float, log: bool = False) -> float:
    r"""Lipschitz constant of the mean-field map on measures in a ball: upper bound.

    .. math:: \mathrm{Lip}^{W_2}(F_{|\mathcal P(B_R)}) \le \|V\|_2\, (1 + 3 t)\, e^{2 t}, \qquad t = \|A\|_2 R^2 .

    Parameters
    ----------
    A, V : Tensor, shapes (d, d) and (m, d)
        As for `general_upper`.
    R : float
        Radius of the ball that contains the supports.
    log : bool
        Whether to return the natural logarithm: at realistic radii the bound overflows.

    Returns
    -------
    float
        An upper bound in W_2, hence also for sequences of any length in the ball.

    Raises
    ------
    ValueError
        As `general_upper`.
    OverflowError
        If the bound exceeds the largest float: use ``log=True``.

    Notes
    -----
    castin2024smooth, Thm 3.5 and eq. (1).

    Examples
    --------
    >>> eye = torch.eye(2)
    >>> round(mean_field_upper(eye, eye, 1.0), 6), round(mean_field_upper(eye, eye, 100.0, log=True), 2)
    (29.556224, 20010.31)
    """
    A_norm, V_norm = norms(A, V)
    return answer(log_mean_field(logit_bound(A_norm, R), V_norm), log)


def mean_field_upper_sharp(A: torch.Tensor, V: torch.Tensor, R: float, log: bool = False) -> float:
    r"""Lipschitz constant of the mean-field map on measures in a ball: upper bound with half the exponent.

    .. math:: \mathrm{Lip}^{W_2}(F_{|\mathcal P(B_R)}) \le \|V\|_2 \big(t + (1 + t)\, e^{t}\big) .

    Parameters
    ----------
    A, V, R, log
        As for `mean_field_upper`.

    Returns
    -------
    float
        An upper bound, never above `mean_field_upper`.

    Notes
    -----
    Ours. In :math:`L^2(\mu)` the attention operator has norm at most
    :math:`(\sup_j \sum_i a_i P_{ij} / a_j)^{1/2} \le e^{t}`, where the proof of castin2024smooth, Thm 3.5, uses
    :math:`e^{2t}`.

    Examples
    --------
    >>> eye = torch.eye(2)
    >>> round(mean_field_upper_sharp(eye, eye, 1.0), 6)
    6.436564
    """
    A_norm, V_norm = norms(A, V)
    return answer(log_mean_field_sharp(logit_bound(A_norm, R), V_norm), log)


def mean_field_lower(A: torch.Tensor, R: float, log: bool = False) -> float:
    r"""Lipschitz constant of the mean-field map with :math:`V = I` on measures in a ball: lower bound.

    .. math:: \mathrm{Lip}^{W_2}(F_{|\mathcal P(B_R)}) \ge \theta(R)\, \frac{\gamma R^2}{2} e^{\gamma R^2}, \qquad
        \theta(R) \to 1,

    with :math:`\gamma` from `growth_rate`. Returned without the factor :math:`\theta`, which can be taken above 1.

    Parameters
    ----------
    A : Tensor, shape (d, d)
        Matrix with at least one real eigenvalue.
    R, log
        As for `mean_field_upper`.

    Returns
    -------
    float
        A lower bound for every R, exceeded by the local constant at `lipnb.worst_case.two_diracs`. With another V:
        times :math:`|V u|`, u the unit eigenvector used. 0 if :math:`\gamma = 0`.

    Raises
    ------
    ValueError, OverflowError
        As `mean_field_upper`; ValueError also if A has no real eigenvalue.

    Notes
    -----
    castin2024smooth, Prop. 3.6 (our reconstruction). That :math:`\theta > 1` for every R is ours.

    Examples
    --------
    >>> round(mean_field_lower(-torch.eye(2), 2.0), 6)
    109.1963
    """
    t = min(logit_bound(growth_rate(A), R), torch.finfo(torch.float64).max)  # a lower bound must not become infinite
    return answer(log_of(t / 2) + t, log)


def masked_mean_field_upper(A: torch.Tensor, V: torch.Tensor, R: float, p: float = 2, log: bool = False) -> float:
    r"""Lipschitz constant of the masked mean-field map on measures in a ball: corrected upper bound.

    .. math:: \mathrm{Lip}^{d_p}(F^m_{|\mathcal P([0,1] \times B_R)}) \le
        \|V\|_2 \Big(t + \frac{p}{p - 1} (1 + 2 t)\, e^{2 t}\Big), \qquad t = \|A\|_2 R^2 .

    Parameters
    ----------
    A, V, R, log
        As for `mean_field_upper`.
    p : float
        Exponent of the distance, more than 1, infinity included.

    Returns
    -------
    float
        An upper bound in the conditional distance of order p; `masked_mean_field_upper_sharp` is never above it.

    Raises
    ------
    ValueError
        As `mean_field_upper`, and if p is not more than 1: at p = 1 no bound is uniform in the measure.
    OverflowError
        As `mean_field_upper`.

    Notes
    -----
    castin2024smooth, Thm 4.4, corrected: the reconstructed form, `mean_field_upper`, fails for small t. The factor
    :math:`p/(p-1)` is the constant of Hardy's inequality (hardy1934inequalities).

    Examples
    --------
    >>> eye = torch.eye(2)
    >>> round(masked_mean_field_upper(eye, eye, 1.0), 6)
    45.334337
    """
    _exponent(p)
    A_norm, V_norm = norms(A, V)
    return answer(log_masked(logit_bound(A_norm, R), V_norm, p), log)


def masked_mean_field_upper_sharp(A: torch.Tensor, V: torch.Tensor, R: float, p: float = 2, log: bool = False) -> float:
    r"""Lipschitz constant of the masked mean-field map on measures in a ball: upper bound with half the exponent.

    .. math:: \mathrm{Lip}^{d_p}(F^m_{|\mathcal P([0,1] \times B_R)}) \le \|V\|_2 \Big(t + e^{2t/p} \int_0^1
        \big(1 + 2 t \max(1 - 2q,\, 2\rho - 1)\big) \Big(\frac{1 - (1 - e^{-2t})\, q}{q}\Big)^{1/p} dq \Big)

    with :math:`t = \|A\|_2 R^2` and :math:`1 + 2 t \rho^2 = \sqrt{1 + t^2}`; at most
    :math:`\|V\|_2 \big(t + \frac{p}{p - 1} (1 + 2^{1/p} t)\, e^{2t/p}\big)`.

    Parameters
    ----------
    A, V, R, p, log
        As for `masked_mean_field_upper`.

    Returns
    -------
    float
        An upper bound in the conditional distance of order p, for any law of the positions, with or without atoms;
        hence for p = 2 also for masked sequences of any length, with any weights. Never above
        `masked_mean_field_upper`.

    Notes
    -----
    Ours. A row of attention averages over the past with a density that varies by at most :math:`e^{2t}`, so it is at
    most a Hardy average (hardy1934inequalities) of the decreasing rearrangement of the perturbation. The norms of A
    and V are rounded upwards; the rounding of the formula itself, about 1e-14, is not counted.

    Examples
    --------
    >>> eye = torch.eye(2)
    >>> [round(masked_mean_field_upper_sharp(eye, eye, R), 6) for R in (0.0, 1.0)]
    [2.0, 10.224517]
    """
    _exponent(p)
    A_norm, V_norm = norms(A, V)
    return answer(log_masked_sharp(logit_bound(A_norm, R), V_norm, p), log)


def _past_averages(t, p):
    r"""The two integrals of `masked_mean_field_upper_sharp`, of :math:`f(q) = ((1 - \eta q)/q)^{1/p}` over [0, 1].

    .. math:: \int_0^1 f\, dq, \qquad \int_0^1 \max(1 - 2q,\, 2\rho - 1)\, f\, dq, \qquad \eta = 1 - e^{-2t} .

    Both are incomplete beta functions.
    """
    t = max(t, 1e-16)  # below it the bound is constant, and powers of eta would underflow
    eta, rho = -math.expm1(-2 * t), math.sqrt(0.5 / (1 / t + math.hypot(1, 1 / t)))

    conjugate = 1.0 if math.isinf(p) else (p - 1) / p  # 1 - 1/p, which cancels for p near 1

    def moment(k, end):
        """Integral of q^k f from 0 to `end`."""
        a, b = k + conjugate, 1 + 1 / p
        return float(beta(a, b) * betainc(a, b, eta * end)) / eta**a

    values, bend = moment(0, 1), 1 - rho
    return values, (2 * rho - 1) * values + 2 * (bend * moment(0, bend) - moment(1, bend))
