"""The numbers of a head that bounds on a ball need: norms of A and V, the largest logit, the growth rate."""

import math
from typing import NamedTuple

import numpy as np
import torch

from lipnb.attention import Attention, Feature
from lipnb.attention.heads import check_attention
from lipnb.checks import as_double, radius, square
from lipnb.spectral.upper_norms import largest_singular, triangle

__all__ = ["HeadNorms", "growth_rate", "head_norms"]

LEAST = 1e-300  # least value for the norm of a nonzero product: entries that underflow are smaller


def norms(A, V):
    """Spectral norms of A (d, d) and V (m, d), as upper bounds with their rounding."""
    A, V = square(A), as_double("V", V)
    if V.ndim != 2 or V.shape[1] != A.shape[0] or not V.numel():
        raise ValueError(
            f"A must be square, shape (d, d), and V of shape (m, d), got {tuple(A.shape)} and {tuple(V.shape)}."
        )
    if not torch.isfinite(V).all():
        raise ValueError("A or V holds NaN or infinite values: remove them first.")
    return largest_singular(A).item(), largest_singular(V).item()


def plain_heads(what: str, attention: Attention, also: tuple[Feature, ...] = ()) -> Attention:
    """The map with expanded keys; ValueError if it has features other than `also`, which `what` supports."""
    check_attention(attention, what)
    attention = attention.expand_groups()
    attention.check_plain(what, also=also)
    return attention


def check_sequence(attention: Attention, x: torch.Tensor) -> None:
    """Raise ValueError unless `x` holds the tokens (n, d) of one sequence for this map."""
    attention.check_input(x)
    if x.ndim != 2:
        raise ValueError(f"x must hold one sequence, shape (n, d), got {tuple(x.shape)}.")


class HeadNorms(NamedTuple):
    r"""Spectral norms of the maps of each head, all that the bounds need.

    Attributes
    ----------
    A : Tensor, shape (h,)
        :math:`\|A\|_2`, :math:`A = s W_K^\top W_Q`.
    V, W, WV : Tensor, shape (h,)
        :math:`\|W_V\|_2`, :math:`\|W_O\|_2` (1 for heads side by side) and :math:`\|W_O W_V\|_2`.
    c : Tensor, shape (h,)
        :math:`|c|`, :math:`c = s W_K^\top b_Q`; 0 without query biases.
    """

    A: torch.Tensor
    V: torch.Tensor
    W: torch.Tensor
    WV: torch.Tensor
    c: torch.Tensor


def head_norms(attention: Attention) -> HeadNorms:
    """`HeadNorms` of an `Attention` with plain heads; float64, up to rounding.

    Examples
    --------
    >>> f = Attention.from_matrices(torch.eye(2).double(), torch.eye(2).double())
    >>> [round(norm.item(), 6) for norm in head_norms(f)]
    [1.0, 1.0, 1.0, 1.0, 0.0]
    """
    att = plain_heads("head_norms", attention).to(dtype=torch.float64)

    def joined(left, right, scale=1.0):  # nonzero products count at least `LEAST`, since they may underflow
        there = (left != 0).any(-1).any(-1) & (right != 0).any(-1).any(-1) & (scale != 0)
        norm = scale * largest_singular(left @ right.mT)
        return torch.where(there, norm.clamp_min(LEAST), norm)

    key, query, value = (triangle(matrix.mT) for matrix in (att.key, att.query, att.value))
    V = largest_singular(value)
    W, WV = torch.ones_like(V), V
    if att.output is not None:
        output = triangle(att.output)
        W, WV = largest_singular(output), joined(output, value)
    c = torch.zeros_like(V)
    if att.query_bias is not None:
        c = joined(key, att.query_bias[:, None], abs(att.scale))
    return HeadNorms(joined(key, query, abs(att.scale)), V, W, WV, c)


def logit_bound(A_norm, R):
    r""":math:`t = \|A\|_2 R^2`, the bound on logits in the ball; infinite beyond float64."""
    return product(A_norm, radius(R), R)


def product(*factors):
    """The product of numbers of at least 0: zero if any is zero, infinite beyond the range of float64."""
    return math.prod(map(float, factors)) if all(factors) else 0.0


def or_infinite(bound):
    """A bound, infinite where its computation left the range of float64 (infinity minus infinity, or times zero)."""
    if isinstance(bound, torch.Tensor):
        return torch.where(bound.isnan(), torch.inf, bound)
    return math.inf if math.isnan(bound) else bound


def log_of(number):
    """The natural logarithm; minus infinity for zero."""
    return math.log(number) if number > 0 else -math.inf


def log_sum(logs):
    """Logarithm of the sum of numbers, from their logarithms."""
    return float(np.logaddexp.reduce(list(logs)))


def answer(logarithm, log):
    """The bound, or with `log` its logarithm; OverflowError for a bound beyond the largest float."""
    if math.isnan(logarithm):  # zero times infinity: the map is constant
        logarithm = -math.inf
    if log:
        return logarithm
    try:
        return math.exp(logarithm)
    except OverflowError:
        raise OverflowError(f"the bound is exp({logarithm:.6g}), beyond the largest float: use log=True.") from None


def growth_rate(A: torch.Tensor) -> float:
    r"""Rate at which the constant grows with :math:`R^2` at the constructed worst inputs.

    .. math:: \gamma = \max(-\gamma_{\min}, \gamma_{\max} / 8)

    over the real eigenvalues of A; the lower bounds hold up to lengths :math:`1 + e^{2 \gamma R^2}`.

    Parameters
    ----------
    A : Tensor, shape (d, d)
        :math:`A = K^\top Q / \sqrt k`.

    Returns
    -------
    float
        The rate, 0 or more.

    Raises
    ------
    ValueError
        If A is not a finite square matrix, or has no real eigenvalue: the constructions need a real eigenvector.

    Notes
    -----
    castin2024smooth, Prop. 3.4 and 3.6.

    Examples
    --------
    >>> round(growth_rate(torch.diag(torch.tensor([-1.0, 4.0]))), 6)
    1.0
    """
    A = square(A)
    values = torch.linalg.eigvals(A)
    real = values.real[values.imag.abs() <= 1e-10 * values.abs().max()]
    if not len(real):
        raise ValueError(
            "A has no real eigenvalue, and the construction needs a real eigenvector: take another lower bound."
        )
    return max(-real.min().item(), real.max().item() / 8, 0.0)
