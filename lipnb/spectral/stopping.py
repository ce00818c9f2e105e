"""When a Lanczos run stops: by the residual of its Ritz pair alone, or by a certificate."""

from typing import NamedTuple, Protocol

import numpy as np

from lipnb.spectral.certificate import Certificate
from lipnb.spectral.krylov import Krylov, Ritz

LOOK_WITHIN = 3  # most steps without a look at the Ritz values while settled items wait for their proof
MARGIN = 4  # without a certificate the estimated error must be this much smaller than rtol
ESTIMATE_NOISE = 16  # rounding units below which a coupling of an estimate counts as rounding


class Decision(NamedTuple):
    """What a look at the Ritz pairs says of each row.

    Attributes
    ----------
    ritz : Ritz
        What was looked at.
    theta : ndarray, shape (b,)
        Largest Ritz values, at least 0.
    done : ndarray of bool, shape (b,)
        Whether the stopping rule is met.
    precision_limited : ndarray of bool, shape (b,)
        Whether products of this precision can prove no more: the item stops, unproved.
    restart : ndarray, shape (b,)
        Length of the random direction that is added where the space was used up before anything is proved; NaN: none.
    """

    ritz: Ritz
    theta: np.ndarray
    done: np.ndarray
    precision_limited: np.ndarray
    restart: np.ndarray


class Policy(Protocol):
    """When to look at the Ritz pairs, what they say, and what is proved of an item that stops."""

    def decide(self, krylov: Krylov, last: bool) -> Decision | None:
        """The decision after a step; None: no Ritz value can have changed the answer."""

    def upper(self, krylov: Krylov, decision: Decision, closing: np.ndarray) -> np.ndarray:
        """Upper bounds on the eigenvalues, shape (b,), of the rows that are `closing`."""


class Estimated:
    """Stop by the estimated error alone, which can sit on a smaller singular value; nothing is proved."""

    def __init__(self, rtol: float, eps: float) -> None:
        self.rtol, self.tiny = rtol, ESTIMATE_NOISE * eps

    def decide(self, krylov, last):
        """As `Policy.decide`."""
        ritz = krylov.ritz()
        done = krylov.breakdown(self.tiny) | (ritz.error <= self.rtol / MARGIN)
        none = np.full(len(done), np.nan)
        return Decision(ritz, np.maximum(ritz.values[:, -1], 0), done, np.zeros_like(done), none)

    def upper(self, krylov, decision, closing):
        """As `Policy.upper`: infinite."""
        return np.full(len(closing), np.inf)


class Certified:
    """Stop where the Ritz value is settled and the certificate shows that no larger eigenvalue hides.

    Parameters
    ----------
    certificate : Certificate
        What proves it.
    batch, size : int
        Number of items, and dimension N of their vectors.
    rtol : float
        Relative tolerance on the singular value.
    """

    def __init__(self, certificate: Certificate, batch: int, size: int, rtol: float) -> None:
        self.certificate, self.size, self.rtol = certificate, size, rtol
        self.settled_at = np.full(batch, np.nan)  # Ritz values of the items that wait for their proof
        self.looked = 0

    def decide(self, krylov, last):
        """As `Policy.decide`."""
        certificate, breakdown = self.certificate, krylov.breakdown(self.certificate.noise)
        due = last or (breakdown | krylov.lost).any() or krylov.steps - self.looked > LOOK_WITHIN
        if not due and not self._may_be_proved(krylov):
            return None
        ritz, self.looked = krylov.ritz(), krylov.steps
        theta, settled = np.maximum(ritz.values[:, -1], 0), ritz.error <= self.rtol
        self.settled_at[krylov.items] = np.where(settled, theta, np.nan)
        limit = theta * (1 + self.rtol) ** 2
        # both conditions of the certificate, the dearer one where the other holds
        enough = settled & (settled.any() and certificate.christoffel(krylov, limit))
        certified = enough & (enough.any() and certificate.above_rounding(krylov, limit))
        # the value is exact up to rounding: in N vectors, all of them checked to be orthonormal as the item closes,
        # J^T J is T whatever restarts drew; or the operator is zero
        exact = (krylov.steps == self.size) | ((theta == 0) & (krylov.off_diagonal[:, -1] == 0))
        done = certified | exact
        # more steps lower the Christoffel function further, but rounding hides the start all the same
        limited = enough & ~done & ~breakdown
        again = breakdown & ~done & ~limited & ~krylov.lost & (not last)
        return Decision(ritz, theta, done, limited, np.where(again, certificate.noise * theta, np.nan))

    def _may_be_proved(self, krylov):
        """Whether some open item has no settled Ritz value yet, or the one it had would be proved by now."""
        theta = self.settled_at[krylov.items]
        if np.isnan(theta[krylov.open]).any():
            return True
        theta = np.where(krylov.open, theta, 1)
        return (self.certificate.christoffel(krylov, theta * (1 + self.rtol) ** 2) & krylov.open).any()

    def upper(self, krylov, decision, closing):
        """As `Policy.upper`: rtol above the Ritz value where proved, else the least point at which anything is."""
        theta, lost = decision.theta, krylov.lost
        upper = np.where(decision.done & ~lost, theta * (1 + self.rtol) ** 2, np.inf)
        unproved = closing & ~decision.done & ~lost
        if unproved.any():
            upper[unproved] = self.certificate.upper(krylov, theta)[unproved]
        return upper
