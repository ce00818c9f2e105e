r"""What a Lanczos run proves about the largest eigenvalue, with the rounding of its products taken into account."""

import numpy as np
from scipy.special import betaincinv

from lipnb.spectral.krylov import Krylov

__all__ = ["NOISE", "Certificate", "least_log_mass", "log_christoffel", "noisy_log_christoffel"]

SMALLEST = np.finfo(float).tiny
NOISE = 4  # rounding of one product, in units of eps times the largest eigenvalue: assumed, not measured


def least_log_mass(size: int, confidence: float) -> float:
    r"""Log of :math:`\gamma^2`: a random unit vector's squared component along a fixed direction is at least that.

    Parameters
    ----------
    size : int
        Dimension N of the space; the squared component follows Beta(1/2, (N - 1)/2).
    confidence : float
        The probability.

    Returns
    -------
    float
    """
    return float(np.log(betaincinv(0.5, (size - 1) / 2, 1 - confidence))) if size > 1 else 0.0


def log_christoffel(diagonal: np.ndarray, off_diagonal: np.ndarray, t: np.ndarray) -> np.ndarray:
    r"""log of :math:`\sum_{i=0}^{j} q_i(t)^2`, with q_i the orthonormal polynomials of the Lanczos coefficients.

    The spectral measure of the start vector has mass at most one over this sum at the point t. The zeros of all q_i lie
    at or below the largest Ritz value, so the sum increases beyond it: where it has reached :math:`1 / \gamma^2`, a
    larger eigenvalue would have less mass than :math:`\gamma^2`.

    Parameters
    ----------
    diagonal, off_diagonal : ndarray, shape (b, j)
        Lanczos coefficients a_1..a_j and b_1..b_j; a zero b_i means an invariant space, and gives an infinite sum.
    t : ndarray, shape (b,)
        Points to the right of the Ritz values, where the sum increases.

    Returns
    -------
    ndarray, shape (b,)
    """
    # 1 - T / t = L D L^T has the pivots b_i q_i / (t q_{i-1}), positive to the right of all Ritz values; no square of a
    # coupling in units of t is lost where all are tiny or huge
    unit = np.where(t > 0, t, 1.0)[:, None]
    t, diagonal, off_diagonal = t / unit[:, 0], diagonal / unit, off_diagonal / unit
    squares: np.ndarray = off_diagonal**2
    pivots = np.empty_like(diagonal)
    pivot: np.ndarray = np.full(len(t), np.inf)
    with np.errstate(divide="ignore", over="ignore"):
        for i in range(diagonal.shape[1]):
            pivot = t - diagonal[:, i] - (squares[:, i - 1] / pivot if i else 0)
            pivot = np.where(np.abs(pivot) < SMALLEST, SMALLEST, pivot)
            pivots[:, i] = np.abs(pivot)
        logs = 2 * np.cumsum(np.log(pivots) - np.log(off_diagonal), axis=1)
    return np.logaddexp.reduce(logs, axis=1, initial=0)


def noisy_log_christoffel(krylov: Krylov, theta: np.ndarray, t: np.ndarray, noise: float) -> np.ndarray:
    """`log_christoffel` of a run at t, shape (b,), with no coupling smaller than the noise times theta.

    A smaller one is rounding, and no sign that the space is invariant: a space that is used up proves nothing.
    """
    floor = noise * np.maximum(theta, 0)
    return log_christoffel(krylov.diagonal, np.maximum(krylov.coupling, floor[:, None]), t)


class Certificate:
    r"""When a run has shown, with the confidence asked for, that no eigenvalue lies beyond a point t.

    With that confidence, the squared component of the start along the top vector is at least :math:`\gamma^2`
    (`least_log_mass`). Two conditions.

    `christoffel`: the Christoffel sum at t is at least :math:`1 / \gamma^2`. No coupling counts as smaller than the
    noise :math:`\nu = 4\, \mathrm{eps}\, \theta` in this sum: a smaller one is rounding, and no sign that the space is
    invariant.

    `above_rounding`: the weakest start that the confidence counts on would still be heard. Spread evenly over the N
    dimensions, the rounding of the first product has a component :math:`4\, \mathrm{eps} \sqrt{t a_1} / \sqrt N`
    along the top vector; the start's own part in that product beyond :math:`a_1` is :math:`\gamma (t - a_1)`. The
    first must not exceed the second. Where a run was begun again from fresh random directions (`Krylov.restart`),
    rounding has to hide each of them: the ratios multiply.

    Parameters
    ----------
    size : int
        Dimension N.
    confidence : float
        Probability over the random start.
    eps : float
        Rounding unit of the products, `torch.finfo(dtype).eps`.
    """

    def __init__(self, size: int, confidence: float, eps: float) -> None:
        log_mass = least_log_mass(size, confidence)
        self.log_threshold = -log_mass  # of 1 / gamma^2
        self.noise = NOISE * eps  # relative to the largest eigenvalue
        self.log_gamma_root = (np.log(size) + log_mass) / 2  # of gamma sqrt(N)

    def christoffel(self, krylov: Krylov, theta: np.ndarray, t: np.ndarray) -> np.ndarray:
        """Whether the Christoffel sum is large enough at t, for a run whose largest Ritz value is theta, shape (b,)."""
        return noisy_log_christoffel(krylov, theta, t, self.noise) >= self.log_threshold

    def above_rounding(self, krylov: Krylov, t: np.ndarray) -> np.ndarray:
        """Whether the weakest start that counts stands above the rounding of the products, shape (b,)."""
        own = np.maximum(krylov.diagonal, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.log(self.noise * np.sqrt(t[:, None] * own) / (t[:, None] - own))
        return np.where(krylov.random, np.minimum(ratio, 0), 0).sum(axis=1) <= self.log_gamma_root

    def proves(self, krylov: Krylov, theta: np.ndarray, t: np.ndarray) -> np.ndarray:
        """Both conditions at t, shape (b,)."""
        return self.christoffel(krylov, theta, t) & self.above_rounding(krylov, t)

    def upper(self, krylov: Krylov, theta: np.ndarray) -> np.ndarray:
        """The least point beyond theta at which both hold, by bisection, shape (b,); infinite where theta is 0."""
        low, high = np.full(len(theta), -40.0), np.full(len(theta), 60.0)  # log of (t - theta) / theta
        for _ in range(60):
            middle = (low + high) / 2
            enough = self.proves(krylov, theta, theta * (1 + np.exp(middle)))
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return np.where(theta > 0, theta * (1 + np.exp(high)), np.inf)
