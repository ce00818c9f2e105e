"""Stopping rules of a Lanczos run: by the residual of its Ritz pair alone, or by a certificate."""

from typing import NamedTuple, Protocol

import numpy as np

from lipnb.spectral.certificate import Certificate
from lipnb.spectral.krylov import Krylov, Ritz

LOOK_WITHIN = 3  # most steps between two looks at the Ritz values while settled items await their proof
MARGIN = 4  # without a certificate the estimated error must be this much smaller than rtol
ESTIMATE_NOISE = 16  # rounding units below which a coupling of an estimate counts as rounding


class Decision(NamedTuple):
    """Decision for each row after a look at the Ritz pairs.

    Attributes
    ----------
    ritz : Ritz
        The Ritz pairs.
    theta : ndarray, shape (b,)
        Largest Ritz values, at least 0.
    done : ndarray of bool, shape (b,)
        Whether the stopping rule is met.
    proved : ndarray of bool, shape (b,)
        Whether the certificate excludes an eigenvalue above ``theta (1 + rtol)^2``; never without a certificate.
    precision_limited : ndarray of bool, shape (b,)
        Whether products of this precision cannot prove more: the item stops without proof.
    restart : ndarray, shape (b,)
        Length of the random direction to add if the space became invariant before anything was proved; NaN: none.
    """

    ritz: Ritz
    theta: np.ndarray
    done: np.ndarray
    proved: np.ndarray
    precision_limited: np.ndarray
    restart: np.ndarray


class Policy(Protocol):
    """Rule when to look at the Ritz pairs, when to stop, and which upper bound is proved at the end."""

    def decide(self, krylov: Krylov, last: bool) -> Decision | None:
        """Decide after a step; None if a look at the Ritz values is not worth its cost yet."""

    def upper(self, krylov: Krylov, decision: Decision, closing: np.ndarray) -> np.ndarray:
        """Upper bounds on the largest eigenvalues, shape (b,), of the rows that are `closing`."""


class Estimated:
    """Stopping by the estimated error alone: it may accept a smaller singular value, and nothing is proved."""

    def __init__(self, rtol: float, eps: float) -> None:
        self.rtol, self.tiny = rtol, ESTIMATE_NOISE * eps

    def decide(self, krylov, last):
        """As `Policy.decide`."""
        ritz = krylov.ritz()
        done = krylov.breakdown(self.tiny) | (ritz.error <= self.rtol / MARGIN)
        never, none = np.zeros_like(done), np.full(len(done), np.nan)
        return Decision(ritz, np.maximum(ritz.values[:, -1], 0), done, never, never, none)

    def upper(self, krylov, decision, closing):
        """As `Policy.upper`: infinite."""
        return np.full(len(closing), np.inf)


class Certified:
    """Stopping once the Ritz value is settled and the certificate excludes a larger eigenvalue.

    Parameters
    ----------
    certificate : Certificate
        The test of upper bounds.
    batch, size : int
        Number of items, and dimension N of their vectors.
    rtol : float
        Relative tolerance on the singular value.
    """

    def __init__(self, certificate: Certificate, batch: int, size: int, rtol: float) -> None:
        self.certificate, self.size, self.rtol = certificate, size, rtol
        self.settled_theta = np.full(batch, np.nan)  # Ritz values of the settled items that await their proof
        self.looked = 0

    def decide(self, krylov, last):
        """As `Policy.decide`."""
        certificate, breakdown = self.certificate, krylov.breakdown(self.certificate.noise)
        due = last or (breakdown | krylov.lost).any() or krylov.steps - self.looked > LOOK_WITHIN
        if not due and not self._may_be_proved(krylov):
            return None
        ritz, self.looked = krylov.ritz(), krylov.steps
        theta, settled = np.maximum(ritz.values[:, -1], 0), ritz.error <= self.rtol
        self.settled_theta[krylov.items] = np.where(settled, theta, np.nan)
        limit = theta * (1 + self.rtol) ** 2
        # both conditions of the certificate, each only where it can still matter: `enough` without `certified` means
        # that rounding may hide the start
        enough = settled & (settled.any() and certificate.christoffel(krylov, limit))
        certified = enough & (enough.any() and certificate.above_rounding(krylov, limit))
        # the value is exact up to rounding: in N vectors, all checked to be orthonormal when the item closes, J^T J is
        # T, whatever restarts drew; or the operator is zero
        exact = (krylov.steps == self.size) | ((theta == 0) & (krylov.off_diagonal[:, -1] == 0))
        done = certified | exact
        # more steps would increase the sum further, but rounding would still hide the start; a breakdown restarts
        # instead, with a random vector that rounding would have to hide too
        limited = enough & ~done & ~breakdown
        again = breakdown & ~done & ~limited & ~krylov.lost & (not last)
        return Decision(ritz, theta, done, done, limited, np.where(again, certificate.noise * theta, np.nan))

    def _may_be_proved(self, krylov):
        """Whether some open item has no settled Ritz value yet, or its last settled one would be proved by now."""
        theta = self.settled_theta[krylov.items]
        if np.isnan(theta[krylov.open]).any():
            return True
        theta = np.where(krylov.open, theta, 1)
        return (self.certificate.christoffel(krylov, theta * (1 + self.rtol) ** 2) & krylov.open).any()

    def upper(self, krylov, decision, closing):
        """As `Policy.upper`: rtol above the Ritz value if proved, else the least point that can be proved."""
        theta, lost = decision.theta, krylov.lost
        upper = np.where(decision.proved & ~lost, theta * (1 + self.rtol) ** 2, np.inf)
        unproved = closing & ~decision.proved & ~lost
        if unproved.any():
            upper[unproved] = self.certificate.upper(krylov, theta)[unproved]
        return upper
