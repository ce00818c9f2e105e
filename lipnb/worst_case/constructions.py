"""Inputs that make one head rough, in closed form: the constructions of castin2024smooth, and a fork for any A."""

import math

import torch

from lipnb.bounds.norms import growth_rate, norms
from lipnb.checks import as_double, count, number, radius, square, whole

__all__ = ["eigenvector", "fork_input", "quadratic_input", "tight_input", "two_diracs"]

PAIRS = 8  # singular pairs that `fork_input` compares


def eigenvector(A: torch.Tensor) -> tuple[float, torch.Tensor]:
    r"""The eigenvalue and unit eigenvector on which the constructions are based.

    The smallest real eigenvalue :math:`\gamma_{\min}` if :math:`-\gamma_{\min} \ge \gamma_{\max} / 8`, else the
    largest.

    Parameters
    ----------
    A : Tensor, shape (d, d)
        Matrix with at least one real eigenvalue.

    Returns
    -------
    float, Tensor of shape (d,)

    Raises
    ------
    ValueError
        If A has no real eigenvalue.

    Examples
    --------
    >>> value, u = eigenvector(torch.diag(torch.tensor([-1.0, 4.0])))
    >>> value, u.abs().tolist()
    (-1.0, [1.0, 0.0])
    """
    A, rate = square(A), growth_rate(A)
    values, vectors = torch.linalg.eig(A)
    real = values.imag.abs() <= 1e-10 * values.abs().max()
    candidates = values.real.masked_fill(~real, math.inf)
    lowest = candidates.argmin()
    if rate > 0 and -candidates[lowest] < rate:
        lowest = values.real.masked_fill(~real, -math.inf).argmax()
    u = vectors[:, lowest]
    u = (u * (u.abs().max() / u[u.abs().argmax()])).real  # removes a complex factor
    return values.real[lowest].item(), u / u.norm()


def tight_input(A: torch.Tensor, n: int, R: float) -> torch.Tensor:
    r"""Tokens in a ball at which the local constant grows like :math:`\sqrt n`.

    .. math:: R\,(u, \tfrac u2, \dots, \tfrac u2) \ \text{ if } \lambda \ge 0, \qquad
        R\,(-u, u, \dots, u) \ \text{ if } \lambda < 0,

    with :math:`\lambda, u` from `eigenvector`.

    Parameters
    ----------
    A : Tensor, shape (d, d)
        With at least one real eigenvalue.
    n : int
        Number of tokens.
    R : float
        Radius.

    Returns
    -------
    Tensor, shape (n, d)
        Tokens, float64. With :math:`V = I` the local constant is at least `lipnb.bounds.general_lower`.

    Notes
    -----
    castin2024smooth, Lemma C.7 (our reconstruction).

    Examples
    --------
    >>> tight_input(torch.eye(1), 3, 2.0).abs().flatten().tolist()
    [2.0, 1.0, 1.0]
    """
    n, R = count(n), radius(R)
    eigenvalue, u = eigenvector(A)
    first, rest = (1.0, 0.5) if eigenvalue >= 0 else (-1.0, 1.0)
    factors = u.new_full((n, 1), rest)
    factors[0] = first
    return R * factors * u


def two_diracs(A: torch.Tensor, R: float, *, share: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    r"""A measure of two points at which the mean-field map reaches its lower bound.

    .. math:: p\,\delta_{R u} + (1 - p)\,\delta_{R u / 2},\ p = s\,e^{-\lambda R^2 / 4} \ \text{ if } \lambda \ge 0;
        \qquad p\,\delta_{-R u} + (1 - p)\,\delta_{R u},\ p = s\,e^{-2 |\lambda| R^2} \ \text{ if } \lambda < 0 .

    Parameters
    ----------
    A : Tensor, shape (d, d)
        With at least one real eigenvalue.
    R : float
        Radius.
    share : float
        The factor s: 1 for the weight of the paper; 1/3 is best for large R, and increases the constant by a factor
        :math:`3 \sqrt 3 / 4`.

    Returns
    -------
    Tensor, shape (2, d), and Tensor, shape (2,)
        Points and weights, float64.

    Raises
    ------
    ValueError
        As `lipnb.bounds.mean_field_lower`; if a weight underflows or vanishes, or `share` is not in (0, 1].

    Notes
    -----
    castin2024smooth, Prop. C.8 (our reconstruction); the best weight is ours.

    Examples
    --------
    >>> points, weights = two_diracs(torch.eye(1), 2.0)
    >>> points.abs().flatten().tolist(), round(weights[0].item(), 6)
    ([2.0, 1.0], 0.367879)
    """
    R = radius(R)
    if not 0 < number("share", share) <= 1:
        raise ValueError(f"share must be above 0 and at most 1, got {share!r}.")
    eigenvalue, u = eigenvector(A)
    exponent = -eigenvalue * R * R / 4 if eigenvalue >= 0 else 2 * eigenvalue * R * R
    if exponent + math.log(share) < -700:
        raise ValueError(f"the weight exp({exponent:.4g}) is below the smallest float: take a smaller R.")
    p = share * math.exp(exponent)
    weights = u.new_tensor([p, -math.expm1(exponent + math.log(share))])
    if weights[1] <= 0:
        raise ValueError("both points need weight: take a larger R, or share below 1.")
    first, rest = (1.0, 0.5) if eigenvalue >= 0 else (-1.0, 1.0)
    return R * torch.stack([first * u, rest * u]), weights


def quadratic_input(n: int, R: float, direction: torch.Tensor) -> torch.Tensor:
    r"""Tokens at which the constant of :math:`A = V = I` grows like :math:`R^2`, for every odd number of them.

    .. math:: X = (0,\, R u, \dots, R u,\, -R u, \dots, -R u), \qquad
        \mathrm{Lip}_X(f) \ge \frac{n - 1}{n} R^2 + \frac 1 n .

    Parameters
    ----------
    n : int
        Odd number of tokens, 3 or more: one at 0, half of the others on each side.
    R : float
        Radius.
    direction : Tensor, shape (d,)
        The direction u, of any positive length.

    Returns
    -------
    Tensor, shape (n, d)
        Tokens, float64.

    Raises
    ------
    ValueError
        If n is even or less than 3, or the direction is not a finite nonzero vector.

    Notes
    -----
    castin2024smooth, section C.7 and Figure 3 (our reconstruction); the token at 0 is that of kim2021lipschitz.

    Examples
    --------
    >>> quadratic_input(5, 2.0, torch.ones(1)).flatten().tolist()
    [0.0, 2.0, 2.0, -2.0, -2.0]
    """
    if count(n) % 2 == 0 or n < 3:
        raise ValueError(f"n must be odd, 3 or more, got {n!r}.")
    u = as_double("direction", direction)
    if u.ndim != 1 or not u.norm() > 0 or not torch.isfinite(u).all():
        raise ValueError("direction must be a finite vector other than 0, shape (d,).")
    half = u.new_ones((n - 1) // 2, 1)
    return radius(R) * torch.cat([u.new_zeros(1, 1), half, -half]) * u / u.norm()


def fork_input(A: torch.Tensor, V: torch.Tensor, n: int, R: float, *, angles: int = 33) -> tuple[torch.Tensor, float]:
    r"""Tokens at which the local constant of any A grows like :math:`R^2 \sqrt n`, without a real eigenvalue.

    With a singular pair :math:`A v = \sigma k` and a unit :math:`e \perp k`: n - 2 tokens at R v and two prongs,

    .. math:: R\,(c k + s e),\ R\,(c k - s e),\ R v, \dots, R v, \qquad c^2 + s^2 = 1 .

    Each of the n - 2 gives each prong the attention q; moving the prongs by :math:`\pm k / \sqrt 2` moves it by
    :math:`\sqrt 2 s \tau q\, V e`, so that

    .. math:: \mathrm{Lip}_X(f) \ge \sqrt{2 (n - 2)}\; s\, \tau\, q\, |V e|, \qquad \tau = \sigma R^2, \quad
        q = \frac 1 {2 + (n - 2)\, e^{-(c - k \cdot v) \tau}} .

    Parameters
    ----------
    A, V : Tensor, shape (d, d) and (m, d)
        Matrices of one head, masked or not: with a mask the prongs, which come first, get at least as much attention.
    n : int
        Number of tokens, 3 or more.
    R : float
        Radius.
    angles : int
        Number of values of c between 0 and 1 to compare by the bound, for each of the eight largest singular pairs.

    Returns
    -------
    Tensor, shape (n, d), and float
        The tokens, float64, and the lower bound on their local constant.

    Raises
    ------
    ValueError
        As `lipnb.bounds.general_upper`; if n is less than 3 or the width less than 2, or the bound exceeds the largest
        float.

    Examples
    --------
    >>> x, lower = fork_input(torch.eye(2), torch.eye(2), 10, 2.0)
    >>> x.shape, round(lower, 4)
    (torch.Size([10, 2]), 0.5093)
    """
    A, V, angles = square(A), as_double("V", V), whole("angles", angles, 1)
    norms(A, V)
    R = radius(R)
    if count(n) < 3 or len(A) < 2:
        raise ValueError(f"n must be 3 or more and tokens of width 2 or more, got n = {n!r}, width {len(A)}.")
    left, sigma, right = torch.linalg.svd(A)  # rows v of `right` and columns k of `left`: A v = sigma k
    c = torch.linspace(0, 1, angles + 1, dtype=A.dtype, device=A.device)[:-1]
    s, best, best_x = (1 - c**2).sqrt(), -1.0, A.new_empty(0)
    for k, size, v in zip(left.T[:PAIRS], sigma[:PAIRS], right[:PAIRS], strict=True):
        off = torch.eye(len(A), dtype=A.dtype, device=A.device) - torch.outer(k, k)
        e = off @ torch.linalg.svd(V @ off).Vh[0]  # |V e| is largest, e orthogonal to k
        e = e / e.norm()
        tau = size * R * R
        q = 1 / (2 + (n - 2) * torch.exp(-(c - k @ v) * tau))
        stated = (2 * (n - 2)) ** 0.5 * s * tau * q * (V @ e).norm()
        if not stated.isfinite().all():
            raise ValueError(f"the bound at R = {R:g} is above the largest float: take a smaller R.")
        at = stated.argmax()
        if stated[at] > best:
            prongs = c[at] * k + torch.stack([s[at] * e, -s[at] * e])
            best, best_x = stated[at].item(), R * torch.cat([prongs, v.expand(n - 2, -1)])
    return best_x, best
