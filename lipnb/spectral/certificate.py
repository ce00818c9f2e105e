r"""Proof that `upper` holds with the stated probability, and the code of each of its steps (as in book/solver.md).

With rounded products the proof holds under the assumption in 5.

Let :math:`\lambda` be the largest eigenvalue of :math:`J^\top J`, of size N x N, with unit eigenvector u; let
:math:`v_1, v_2, \dots` be the Lanczos vectors, from a start :math:`v_1` drawn uniformly from the sphere
(`start_vectors`), T the matrix of coefficients :math:`a_i, b_i`, :math:`\theta` its largest eigenvalue, and
:math:`\delta` = 1 - confidence.

1. *Probability.* :math:`\langle u, v_1 \rangle^2` follows Beta(1/2, (N - 1)/2). Except on an event of probability
   :math:`\delta` it is at least the quantile :math:`\eta^2`: `least_log_mass`. Nothing else is random (the vectors
   that `Krylov.restart` draws count as rounding, in 5), so the following holds at every step at once, and a run may
   stop because the bound is small.
2. *Christoffel function*, the reciprocal of the sum below. :math:`v_{i+1} = q_i(J^\top J) v_1` with the orthonormal
   polynomials q_i of T. So
   :math:`\langle u, v_{i+1} \rangle = q_i(\lambda) \langle u, v_1 \rangle`, and by Bessel's inequality
   :math:`\langle u, v_1 \rangle^2 \le 1 / \sum_{i \le j} q_i(\lambda)^2`: the sum is `log_christoffel`.
3. *Together.* The sum increases beyond :math:`\theta`. If it has reached :math:`1 / \eta^2` at a point t,
   :math:`\lambda > t` contradicts 1: `Certificate.christoffel`; `Certificate.upper` finds the least such t.
4. *Vectors that are orthonormal up to e in each entry of their Gram matrix* turn the 1 of Bessel's inequality into
   :math:`1 + (j + 1) e`: `Certificate.christoffel` counts :math:`e` = `krylov.LOST` eps, which
   `Krylov.check_orthonormal` checks for all vectors but the last, up to the rounding of the check.
5. *Rounded products* are assumed to be off by at most :math:`\nu` = `krylov.NOISE` eps :math:`\lambda` along u; a
   direction added by `Krylov.restart` has the same length, and counts as rounding too. Then :math:`\langle u, v_1
   \rangle = \langle u, v_{i+1} \rangle / q_i(\lambda) + r_i`, where r_i consists of rounding (theorem in the notes of
   `lanczos`), and the probability of failure is :math:`\delta` plus a term from r_i stated there: proved in float64 if
   rtol is far above eps, else assumed to vanish ("rounding acts like noise"). Where this assumption is certainly wrong,
   because rounding hides part of a product entirely, nothing is certified: no coupling counts as less than :math:`\nu`
   (`Certificate.christoffel`), and the contribution :math:`\eta (\lambda - a_1)` of the least component that 1 relies
   on must exceed its share :math:`\nu / \sqrt N` of the rounding of the first product
   (`Certificate.above_rounding`). Both use :math:`\lambda = t`, which covers all :math:`\lambda > t`.
6. *Exact.* After N steps T is :math:`J^\top J` in another basis, and the value exact up to rounding; so it is for a
   zero operator: `stopping.Certified.decide`. `lanczos` confirms each Ritz value by one more product.

Restarts need no union bound, since they are not a second start. Each item of a batch fails with probability at most
:math:`\delta`, hence any of B items with at most :math:`B \delta`, whether or not they share a start.
"""

import numpy as np
from scipy.special import betaincinv

from lipnb.spectral.krylov import LOST, NOISE, Krylov

__all__ = ["Certificate"]

SMALLEST = np.finfo(float).tiny


def least_log_mass(size: int, confidence: float) -> float:
    r"""Log of :math:`\eta^2`, which a squared component of a random unit vector exceeds with this probability."""
    return float(np.log(betaincinv(0.5, (size - 1) / 2, 1 - confidence))) if size > 1 else 0.0


def log_christoffel(diagonal: np.ndarray, off_diagonal: np.ndarray, t: np.ndarray) -> np.ndarray:
    r"""Log of :math:`\sum_{i=0}^{j} q_i(t)^2`, shape (b,): the reciprocal of the Christoffel function.

    The q_i are the orthonormal polynomials of the coefficients:

    .. math:: q_0 = 1, \qquad b_i\, q_i(t) = (t - a_i)\, q_{i-1}(t) - b_{i-1}\, q_{i-2}(t)

    Parameters
    ----------
    diagonal, off_diagonal : ndarray, shape (b, j)
        Lanczos coefficients a_1..a_j and b_1..b_j; a zero b_i means an invariant space, and gives an infinite sum.
    t : ndarray, shape (b,)
        Points to the right of the Ritz values, where the sum increases: all zeros of all q_i lie at or below them.
    """
    # p_i = b_i q_i / (t q_{i-1}) are the pivots of 1 - T / t = L D L^T, positive to the right of all Ritz values:
    # p_i = 1 - a_i / t - (b_{i-1} / t)^2 / p_{i-1}; in units of t no square of a tiny or huge coupling is lost
    unit = np.where(t > 0, t, 1.0)[:, None]
    t, diagonal, off_diagonal = t / unit[:, 0], diagonal / unit, off_diagonal / unit
    squares: np.ndarray = off_diagonal**2
    pivots = np.empty_like(diagonal)
    pivot: np.ndarray = np.full(len(t), np.inf)
    with np.errstate(divide="ignore", over="ignore"):
        for i in range(diagonal.shape[1]):
            pivot = t - diagonal[:, i] - (squares[:, i - 1] / pivot if i else 0)
            # a negative pivot, possible where a coupling was raised to the noise, is harmless: q_i^2 alone is summed
            pivot = np.where(np.abs(pivot) < SMALLEST, SMALLEST, pivot)
            pivots[:, i] = np.abs(pivot)
        logs = 2 * np.cumsum(np.log(pivots) - np.log(off_diagonal), axis=1)  # of q_i^2 = (p_i t / b_i)^2 q_{i-1}^2
    return np.logaddexp.reduce(logs, axis=1, initial=0)  # q_0^2 = 1


class Certificate:
    r"""Test whether a run has shown, with the requested confidence, that no eigenvalue exceeds a point t.

    Parameters
    ----------
    size : int
        Dimension N.
    confidence : float
        Probability over the random start.
    eps : float
        Rounding unit of the products and vectors, `torch.finfo(dtype).eps`.
    """

    def __init__(self, size: int, confidence: float, eps: float) -> None:
        log_mass = least_log_mass(size, confidence)
        self.log_threshold = -log_mass  # of 1 / eta^2
        self.noise = NOISE * eps  # nu / lambda
        self.not_orthonormal = LOST * eps  # e
        self.log_eta_root = (np.log(size) + log_mass) / 2  # of eta sqrt(N)

    def christoffel(self, krylov: Krylov, t: np.ndarray) -> np.ndarray:
        r"""Steps 3 and 4: whether the sum at t, shape (b,), is at least :math:`(1 + (j + 1) e) / \eta^2`.

        No coupling counts as smaller than :math:`\nu(t)`: a smaller one is rounding, and not a sign that the space is
        invariant. The sum still increases in t: in units of t all coefficients decrease, or stay at the noise.
        """
        couplings = np.maximum(krylov.coupling, self.noise * np.maximum(t, 0)[:, None])
        bessel = np.log1p((krylov.steps + 1) * self.not_orthonormal)
        return log_christoffel(krylov.diagonal, couplings, t) >= self.log_threshold + bessel

    def above_rounding(self, krylov: Krylov, t: np.ndarray) -> np.ndarray:
        r"""Step 5: whether the least component that counts exceeds the rounding of a product, shape (b,).

        A vector with component :math:`\eta` along u contributes :math:`\eta (\lambda - a_1)` to its product along u.
        The rounding there, spread evenly over N dimensions, is :math:`\nu / \sqrt N`, and must not exceed it:
        :math:`\nu / (\lambda - a_1) \le \eta \sqrt N`, where the left side decreases in :math:`\lambda`. In a run
        with restarts, rounding would have to hide each random vector: their ratios, each at most 1, multiply. A
        coefficient :math:`a_i = \|J v_i\|^2` below :math:`-\nu` shows more rounding than is assumed: nothing is
        certified. One between :math:`-\nu` and 0 is 0 up to rounding, and counts as 0.
        """
        # on the safe side: an a_i below 0 would make the ratio smaller, and more would count as shown. The sum of
        # `christoffel` uses the computed coefficients: the theorem on rounding is about these
        noise, t = self.noise * t[:, None], t[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.log(noise / (t - np.maximum(krylov.diagonal, 0)))  # NaN, and so not shown, where t <= a_i
        hidden = np.where(krylov.random, np.minimum(ratio, 0), 0).sum(axis=1)
        return (hidden <= self.log_eta_root) & (krylov.diagonal >= -noise).all(axis=1)

    def proves(self, krylov: Krylov, t: np.ndarray) -> np.ndarray:
        """Whether both conditions hold at t, shape (b,)."""
        return self.christoffel(krylov, t) & self.above_rounding(krylov, t)

    def upper(self, krylov: Krylov, theta: np.ndarray) -> np.ndarray:
        """The least point beyond the Ritz values theta at which both hold, shape (b,), by bisection.

        Infinite if they fail at the upper end of the bracket too, or theta is 0.
        """
        low, high = np.full(len(theta), -40.0), np.full(len(theta), 60.0)  # log of (t - theta) / theta
        shown = (theta > 0) & self.proves(krylov, theta * (1 + np.exp(high)))
        for _ in range(60):
            middle = (low + high) / 2
            enough = self.proves(krylov, theta * (1 + np.exp(middle)))
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return np.where(shown, theta * (1 + np.exp(high)), np.inf)
