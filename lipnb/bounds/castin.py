"""Bounds of castin2024smooth on all sequences of n tokens in a ball, and the sharper forms their proof allows."""

import math
from collections.abc import Sequence

import torch

from lipnb.bounds.norms import growth_rate, logit_bound, norms, product
from lipnb.bounds.rounding import largest_singular, length
from lipnb.checks import as_double, count, radius

__all__ = [
    "biased_upper",
    "general",
    "general_lower",
    "general_sharp",
    "general_upper",
    "general_upper_sharp",
    "multi_head_upper",
]


def general(t, key, V, n):
    r"""Theorems 3.3 and E.3 on numbers: :math:`t = \|A\|_2 R^2`, `key` at least :math:`R\, |A x_i + c|`, |V|."""
    return product(math.sqrt(3), V, math.hypot(t, 2 * math.sqrt(n) * key, math.sqrt(n)))


def general_sharp(t, V, n):
    """`general_upper_sharp` on numbers: the largest logit t, the norm of V."""
    return product(V, t + math.sqrt(n) * (1 + t))


def general_upper(A: torch.Tensor, V: torch.Tensor, n: int, R: float) -> float:
    r"""Lipschitz constant of one head on sequences of n tokens in a ball: the general upper bound.

    .. math:: \mathrm{Lip}(f_{|B_R^n}) \le \sqrt 3\, \|V\|_2 \big(\|A\|_2^2 R^4 (4n + 1) + n\big)^{1/2}

    Parameters
    ----------
    A : Tensor, shape (d, d)
        :math:`A = K^\top Q / \sqrt k`.
    V : Tensor, shape (m, d)
        Value matrix.
    n : int
        Number of tokens.
    R : float
        Radius: every token has Euclidean norm at most R.

    Returns
    -------
    float
        An upper bound in the Euclidean norm of all coordinates, unmasked and masked alike; infinite where it leaves
        the range of float64, as every upper bound here.

    Raises
    ------
    ValueError
        "A must be square ...", "n must be ...", "R must be ...".

    Notes
    -----
    castin2024smooth, Thm 3.3 and, masked, Thm 4.3. Several heads: `multi_head_upper`; query biases: `biased_upper`.

    Examples
    --------
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> round(general_upper(eye, eye, 4, 1.0), 6)
    7.937254
    """
    A_norm, V_norm = norms(A, V)
    t = logit_bound(A_norm, R)
    return general(t, t, V_norm, count(n))


def general_upper_sharp(A: torch.Tensor, V: torch.Tensor, n: int, R: float) -> float:
    r"""Lipschitz constant of one head in a ball: the general upper bound, sharpened.

    .. math:: \mathrm{Lip}(f_{|B_R^n}) \le \|V\|_2 \big(t + \sqrt n\, (1 + t)\big), \qquad t = \|A\|_2 R^2 .

    Parameters
    ----------
    A, V, n, R
        As for `general_upper`.

    Returns
    -------
    float
        An upper bound, unmasked and masked alike, never above `general_upper`.

    Raises
    ------
    ValueError
        As `general_upper`.

    Notes
    -----
    Ours. The proof of castin2024smooth, Thm 3.3, with the weights of the attention in the Cauchy-Schwarz inequality of
    the key term, which bounds it by t in place of 2 t, and the triangle inequality in place of squares.

    Examples
    --------
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> general_upper_sharp(eye, eye, 4, 1.0) < general_upper(eye, eye, 4, 1.0)
    True
    >>> round(general_upper_sharp(eye, eye, 4, 1.0), 6)
    5.0
    """
    A_norm, V_norm = norms(A, V)
    return general_sharp(logit_bound(A_norm, R), V_norm, count(n))


def general_lower(A: torch.Tensor, n: int, R: float) -> float:
    r"""Lipschitz constant of one head with :math:`V = I` on sequences of n tokens in a ball: the lower bound.

    .. math:: \mathrm{Lip}(f_{|B_R^n}) \ge \frac{\sqrt{n - 1}}{1 + (n - 1) e^{-2 \gamma R^2}}

    with :math:`\gamma` from `growth_rate`; at least :math:`\sqrt{n - 1} / 2` while :math:`n \le 1 + e^{2\gamma R^2}`.

    Parameters
    ----------
    A : Tensor, shape (d, d)
        With at least one real eigenvalue.
    n, R
        As for `general_upper`.

    Returns
    -------
    float
        A lower bound on the Lipschitz constant of the *ball*; `lipnb.worst_case.tight_input` attains it. With another
        V: times :math:`|V u|`, u the unit eigenvector used.

    Raises
    ------
    ValueError
        As `general_upper`, and "A has no real eigenvalue ...".

    Notes
    -----
    castin2024smooth, Prop. 3.4.

    Examples
    --------
    >>> round(general_lower(-torch.eye(2), 5, 2.0), 6)
    1.99732
    """
    n, rate = count(n), growth_rate(A)
    return math.sqrt(n - 1) / (1 + (n - 1) * math.exp(-2 * logit_bound(rate, R)))


def multi_head_upper(output: torch.Tensor, head_bounds: Sequence[float]) -> float:
    r"""Lipschitz constant of several heads from bounds on each.

    .. math:: \mathrm{Lip}(f^{MH}) \le \sum_h \|W^{(h)}\|_2\, \mathrm{Lip}(f^{(h)})

    Parameters
    ----------
    output : Tensor, shape (h, m, v)
        Output matrices.
    head_bounds : sequence of float, length h
        Upper bounds on the heads, local or on a ball.

    Returns
    -------
    float
        An upper bound of the same kind.

    Raises
    ------
    ValueError
        "output must have shape (h, m, v) ...", "there must be one bound ...".

    Notes
    -----
    castin2024smooth, Lemma 3.8.

    Examples
    --------
    >>> output = torch.eye(2).expand(3, 2, 2)
    >>> round(multi_head_upper(output, [1.0, 2.0, 3.0]), 6)
    6.0
    """
    output = as_double(output)
    bounds = as_double(head_bounds).to(output.device)
    if output.ndim != 3:
        raise ValueError(f"output must have shape (h, m, v), got {tuple(output.shape)}.")
    if bounds.shape != output.shape[:1]:
        raise ValueError(f"there must be one bound for each of the {len(output)} heads, got {tuple(bounds.shape)}.")
    if not (bounds >= 0).all():
        raise ValueError("the bounds of the heads must be 0 or more, and no NaN.")
    return (largest_singular(output) * bounds).sum().item()


def biased_upper(A: torch.Tensor, V: torch.Tensor, n: int, R: float, c: torch.Tensor) -> float:
    r"""Lipschitz constant of one head with a query bias on sequences of n tokens in a ball.

    .. math:: \mathrm{Lip}(f_{|B_R^n}) \le
        \sqrt 3\, \|V\|_2 \big(\|A\|_2^2 R^4 + 4 n R^2 (\|A\|_2 R + |c|)^2 + n\big)^{1/2}

    Parameters
    ----------
    A, V, n, R
        As for `general_upper`.
    c : Tensor, shape (d,)
        :math:`K^\top b_Q / \sqrt k`. Key and value biases change no derivative.

    Returns
    -------
    float
        An upper bound, unmasked and masked alike; `general_upper` at c = 0.

    Raises
    ------
    ValueError
        As `general_upper`, and "c must have shape (d,) ...".

    Notes
    -----
    castin2024smooth, Thm E.3 (as recovered).

    Examples
    --------
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> round(biased_upper(eye, eye, 4, 1.0, torch.tensor([1.0, 0.0])), 6)
    14.387495
    """
    A_norm, V_norm = norms(A, V)
    c = as_double(c)
    if c.shape != as_double(A).shape[:1] or not torch.isfinite(c).all():
        raise ValueError(f"c must have shape (d,) = ({len(A)},) and finite entries, got {tuple(c.shape)}.")
    reach = A_norm * radius(R) + length(c).item()
    return general(logit_bound(A_norm, R), product(R, reach), V_norm, count(n))
