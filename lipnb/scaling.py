"""Power laws: how a quantity grows with sequence length."""

from typing import NamedTuple

import numpy as np
from scipy import stats

__all__ = ["PowerLaw", "power_law"]


class PowerLaw(NamedTuple):
    """A fit y = constant * x ** exponent.

    Attributes
    ----------
    constant : float
        Value of the fitted law at x = 1.
    exponent : float
        Slope in log-log coordinates.
    low, high : float
        Confidence interval of the exponent.
    confidence : float
        Level of the interval.
    points : int
        Number of points fitted.
    """

    constant: float
    exponent: float
    low: float
    high: float
    confidence: float
    points: int

    def __call__(self, x):
        """The fitted law at `x`."""
        return self.constant * np.asarray(x, dtype=float) ** self.exponent

    def __str__(self):
        return f"{self.constant:.3g} n^{self.exponent:.3f} [{self.low:.3f}, {self.high:.3f}]"


def power_law(x, y, *, confidence=0.95):
    r"""Least-squares fit of :math:`\log y = \log c + p \log x`, with an interval for the exponent.

    Parameters
    ----------
    x, y : array_like, shape (points,)
        Positive data, at least three points at two or more different `x`.
    confidence : float
        Level of the interval, between 0 and 1.

    Returns
    -------
    PowerLaw
        The interval is Student's, for independent errors of equal spread in log-log coordinates. It says how well
        a line is determined by these points, not whether a line is the right curve.

    Raises
    ------
    ValueError
        "a power law needs positive finite x and y", "... at least three points at two different x".
    """
    x, y = np.asarray(x, dtype=float).ravel(), np.asarray(y, dtype=float).ravel()
    if x.shape != y.shape:
        raise ValueError(f"x and y must have as many entries, got {x.size} and {y.size}.")
    if x.size < 3 or np.unique(x).size < 2:
        raise ValueError("a power law needs at least three points at two different x.")
    if not (np.isfinite(x).all() and np.isfinite(y).all() and (x > 0).all() and (y > 0).all()):
        raise ValueError("a power law needs positive finite x and y: leave out zeros, NaN and infinities.")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}.")
    line = stats.linregress(np.log(x), np.log(y))
    half = line.stderr * stats.t.ppf((1 + confidence) / 2, x.size - 2)
    return PowerLaw(float(np.exp(line.intercept)), float(line.slope), float(line.slope - half),
                    float(line.slope + half), confidence, x.size)
