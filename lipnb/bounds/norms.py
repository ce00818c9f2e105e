"""The numbers by which bounds on a ball know a head: the norms of A and V, the largest logit, the growth rate."""

import math

import numpy as np
import torch

from lipnb.bounds.rounding import largest_singular
from lipnb.checks import as_double, radius, square

__all__ = ["answer", "growth_rate", "heat", "log_sum", "norms", "product"]


def norms(A, V):
    """Spectral norms of A (d, d) and V (m, d), as upper bounds with their rounding."""
    A, V = square(A), as_double(V)
    if V.ndim != 2 or V.shape[1] != A.shape[0] or not V.numel():
        raise ValueError(
            f"A must be square, shape (d, d), and V of shape (m, d), got {tuple(A.shape)} and {tuple(V.shape)}."
        )
    if not torch.isfinite(V).all():
        raise ValueError("A or V holds NaN or infinite values: remove them first.")
    return largest_singular(A).item(), largest_singular(V).item()


def heat(A_norm, R):
    r""":math:`t = \|A\|_2 R^2`, the largest logit on the ball: bounds know A and R by it; infinite beyond float64."""
    return product(A_norm, radius(R), R)


def product(*factors):
    """The product of numbers, 0 or more: zero with any that is zero, infinite where it leaves the range of float64."""
    return math.prod(map(float, factors)) if all(factors) else 0.0


def log_sum(logs):
    """Logarithm of the sum of numbers, from their logarithms."""
    return float(np.logaddexp.reduce(list(logs)))


def answer(logarithm, log):
    """The bound or its logarithm; a bound beyond the largest float is a request for `log=True`."""
    if math.isnan(logarithm):  # zero times infinity: the map is constant
        logarithm = -math.inf
    if log:
        return logarithm
    try:
        return math.exp(logarithm)
    except OverflowError:
        raise OverflowError(f"the bound is exp({logarithm:.6g}), beyond the largest float: use log=True.") from None


def growth_rate(A: torch.Tensor) -> float:
    r"""How fast the worst inputs make the constant grow with :math:`R^2`.

    .. math:: \gamma = \max(-\gamma_{\min}, \gamma_{\max} / 8)

    over the real eigenvalues of A; the lower bounds hold up to lengths :math:`1 + e^{2 \gamma R^2}`.

    Parameters
    ----------
    A : Tensor, shape (d, d)
        :math:`A = K^\top Q / \sqrt k`.

    Returns
    -------
    float
        0 or more.

    Raises
    ------
    ValueError
        "A has no real eigenvalue ...": the constructions need a real eigenvector.

    Notes
    -----
    castin2024smooth, Prop. 3.4 and 3.6.

    Examples
    --------
    >>> round(growth_rate(torch.diag(torch.tensor([-1.0, 4.0]))), 6)
    1.0
    """
    real = real_eigenvalues(A)
    return max(-real.min().item(), real.max().item() / 8, 0.0)


def real_eigenvalues(A):
    """Real eigenvalues of A, shape (r,), r >= 1, increasing; one sentence where there are none."""
    A = square(A)
    values = torch.linalg.eigvals(A)
    real = values.real[values.imag.abs() <= 1e-10 * values.abs().max()]
    if not len(real):
        raise ValueError(
            "A has no real eigenvalue, and the construction follows a real eigenvector: there is no "
            "statement for such a matrix."
        )
    return real.sort().values
