"""Bounds of castin2024smooth on sequences of n tokens, in a ball and at an input, and tighter forms of their proofs.

First each formula, once, on the numbers that it needs (norms of A and V, the largest logit t); then the bounds of one
head from its matrices. `heads` has the same formulas for all heads of an attention, `mean_field` the formulas on
measures.
"""

import math
from collections.abc import Sequence

import torch

from lipnb.bounds.norms import answer, growth_rate, log_of, logit_bound, norms, or_infinite, product
from lipnb.checks import as_double, check_finite_tokens, count, radius
from lipnb.spectral.upper_norms import largest_singular, length

__all__ = [
    "biased_upper",
    "column_upper",
    "general_lower",
    "general_upper",
    "general_upper_exact",
    "general_upper_optimal",
    "general_upper_sharp",
    "multi_head_upper",
    "spread_upper",
]


def general(t, key, V_norm, n):
    r"""Theorems 3.3 and E.3: :math:`t = \|A\|_2 R^2`, `key` at least :math:`R\, |A x_i + c|`, norm of V."""
    return product(math.sqrt(3), V_norm, math.hypot(t, 2 * math.sqrt(n) * key, math.sqrt(n)))


def general_sharp(t, V_norm, n):
    """`general_upper_sharp` on numbers: the largest logit t, the norm of V, n tokens."""
    return product(V_norm, t + math.sqrt(n) * (1 + t))


def general_optimal(t, V_norm, n):
    """`general_upper_optimal` on the same numbers; the root of a sum is a hypot, which does not overflow."""
    rho = math.hypot(1, t / math.sqrt(2))
    by_terms = t + math.sqrt(n) * rho
    whole = math.hypot(
        math.sqrt(n) * rho, math.sqrt(2) * t, math.sqrt(2 * math.sqrt(2)) * math.sqrt(t) * math.sqrt(rho)
    )
    return product(V_norm, min(by_terms, whole))


def log_general_exact(log_t, V_norm, n):
    """Logarithm of `general_upper_exact`, from log t; divided by max(t, 1), so that no square overflows."""
    if n == 1:  # the map is x -> V x
        return log_of(V_norm)
    scale = max(log_t, 0.0)
    t, one = math.exp(log_t - scale), math.exp(-scale)
    rho = math.hypot(one, t / math.sqrt(2))
    corner, side = n * rho**2 + 2 * math.sqrt(2) * t * rho, math.sqrt(n - 2) * t * rho
    top = (corner + math.hypot(corner, 2 * side)) / 2  # eigenvalue of [[0, side], [side, corner]]
    return log_of(V_norm) + scale + math.log(t**2 + top) / 2


def column(t, key, V_norm, P):
    r"""`column_upper` of heads: :math:`t = \|A\|_2 R^2`, `key` at least :math:`R\, |A x_i + c|`, probabilities P."""
    return V_norm * (t + P.sum(-2).amax(-1).sqrt() * (1 + key))


def spread(A_norm, V_norm, r, reach, n):
    """`spread_upper` of heads: norms of A and V, the radius r of the tokens, the largest |A x_i + c|, n of them."""
    return math.sqrt(3) * V_norm * (A_norm**2 * r**4 + n * (4 * reach**2 * r**2 + 1)).sqrt()


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
        An upper bound in the Euclidean norm of all coordinates, unmasked and masked alike; infinite beyond the range
        of float64, as every upper bound here.

    Raises
    ------
    ValueError
        If A is not square, V does not fit it, entries are not finite, n is not a positive integer, or R is negative.

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
    r"""Lipschitz constant of one head in a ball: a tighter form of the general upper bound.

    .. math:: \mathrm{Lip}(f_{|B_R^n}) \le \|V\|_2 \big(t + \sqrt n\, (1 + t)\big), \qquad t = \|A\|_2 R^2 .

    Parameters
    ----------
    A, V, n, R
        As for `general_upper`.

    Returns
    -------
    float
        An upper bound, unmasked and masked alike, never above `general_upper`.

    Notes
    -----
    Ours. The proof of castin2024smooth, Thm 3.3, with attention as the weights of the Cauchy-Schwarz inequality for
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


def general_upper_optimal(A: torch.Tensor, V: torch.Tensor, n: int, R: float) -> float:
    r"""Lipschitz constant of one head in a ball: a closed form with the exact leading constant of long sequences.

    .. math:: \mathrm{Lip}(f_{|B_R^n}) \le \|V\|_2 \min\Big\{ t + \sqrt n\, \rho,\
        \big(n \rho^2 + 2 \sqrt 2\, t \rho + 2 t^2\big)^{1/2} \Big\}, \qquad
        t = \|A\|_2 R^2, \quad \rho^2 = 1 + \frac{t^2}2 .

    Parameters
    ----------
    A, V, n, R
        As for `general_upper`.

    Returns
    -------
    float
        An upper bound, unmasked and masked alike, never above `general_upper_sharp`.

    Notes
    -----
    Ours. For large t it is :math:`t \sqrt{n/2 + 4}`, from five tokens on, and up to 5.8 % (at five tokens) above
    `general_upper_exact`, of which it is a corollary.

    Examples
    --------
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> general_upper_optimal(eye, eye, 4, 1.0) < general_upper_sharp(eye, eye, 4, 1.0)
    True
    >>> round(general_upper_optimal(eye, eye, 400, 6.0), 2), round(general_upper_sharp(eye, eye, 400, 6.0), 2)
    (514.57, 776.0)
    """
    A_norm, V_norm = norms(A, V)
    return general_optimal(logit_bound(A_norm, R), V_norm, count(n))


def general_upper_exact(A: torch.Tensor, V: torch.Tensor, n: int, R: float, *, log: bool = False) -> float:
    r"""Lipschitz constant of one head in a ball: an upper bound with the exact leading constant for every n.

    .. math:: \mathrm{Lip}(f_{|B_R^n}) \le \|V\|_2\, (t^2 + \mu)^{1/2}, \qquad
        t = \|A\|_2 R^2, \quad \rho^2 = 1 + \frac{t^2}2,

    where :math:`\mu` is the larger eigenvalue of

    .. math:: \begin{pmatrix} 0 & \sqrt{n - 2}\; t \rho \\
        \sqrt{n - 2}\; t \rho & n \rho^2 + 2 \sqrt 2\, t \rho \end{pmatrix} .

    Parameters
    ----------
    A, V, n, R
        As for `general_upper`. For one token the bound is :math:`\|V\|_2`.
    log : bool
        Whether to return the natural logarithm.

    Returns
    -------
    float
        An upper bound, unmasked and masked alike, never above `general_upper_optimal`; the norms are upper bounds, the
        rounding of the formula after them, a few units in the last place, is not counted.

    Raises
    ------
    ValueError
        As `general_upper`.
    OverflowError
        If the bound exceeds the largest float: use ``log=True``.

    Notes
    -----
    Ours. It is at most :math:`\|V\|_2 (\lambda_n (t^2 + 2))^{1/2}` with
    :math:`\lambda_n = \frac12 \big(\frac n2 + 4 + ((\frac n2 + 4)^2 - 16)^{1/2}\big)`, and no bound from the norms of A
    and V, R and n has a smaller leading constant than :math:`\sqrt{\lambda_n}`: without a mask, and for tokens of width
    3 or more, `lipnb.worst_case.even_fork_input` reaches it as t tends to infinity.

    Examples
    --------
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> round(general_upper_exact(eye, eye, 4, 10.0), 3), round(general_upper_optimal(eye, eye, 4, 10.0), 3)
    (228.838, 241.435)
    >>> round(general_upper_exact(eye, eye, 4, 1e200, log=True), 3)
    921.862
    """
    A_norm, V_norm = norms(A, V)
    log_t = log_of(A_norm) + 2 * log_of(radius(R))
    return answer(log_general_exact(log_t, V_norm, count(n)), log)


def general_lower(A: torch.Tensor, n: int, R: float) -> float:
    r"""Lipschitz constant of one head with :math:`V = I` on sequences of n tokens in a ball: the lower bound.

    .. math:: \mathrm{Lip}(f_{|B_R^n}) \ge \frac{\sqrt{n - 1}}{1 + (n - 1) e^{-2 \gamma R^2}}

    with :math:`\gamma` from `growth_rate`; at least :math:`\sqrt{n - 1} / 2` while :math:`n \le 1 + e^{2\gamma R^2}`.

    Parameters
    ----------
    A : Tensor, shape (d, d)
        Matrix with at least one real eigenvalue.
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
        As `general_upper`, and if A has no real eigenvalue.

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
        If `output` does not have shape (h, m, v), or `head_bounds` are not h numbers of at least 0.

    Notes
    -----
    castin2024smooth, Lemma 3.8.

    Examples
    --------
    >>> output = torch.eye(2).expand(3, 2, 2)
    >>> round(multi_head_upper(output, [1.0, 2.0, 3.0]), 6)
    6.0
    """
    output = as_double("output", output)
    bounds = as_double("head_bounds", head_bounds).to(output.device)
    if output.ndim != 3:
        raise ValueError(f"output must have shape (h, m, v), got {tuple(output.shape)}.")
    if bounds.shape != output.shape[:1]:
        raise ValueError(
            f"head_bounds must have one entry for each of the {len(output)} heads, got {tuple(bounds.shape)}."
        )
    if not (bounds >= 0).all():
        raise ValueError("head_bounds must be 0 or more, without NaN.")
    return or_infinite((largest_singular(output) * bounds).sum().item())


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
        As `general_upper`, and if c is not a finite vector of shape (d,).

    Notes
    -----
    castin2024smooth, Thm E.3 (our reconstruction).

    Examples
    --------
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> round(biased_upper(eye, eye, 4, 1.0, torch.tensor([1.0, 0.0])), 6)
    14.387495
    """
    A_norm, V_norm = norms(A, V)
    c = as_double("c", c)
    if c.shape != as_double("A", A).shape[:1] or not torch.isfinite(c).all():
        raise ValueError(f"c must have shape (d,) = ({len(A)},) and finite entries, got {tuple(c.shape)}.")
    reach = A_norm * radius(R) + length(c).item()
    return general(logit_bound(A_norm, R), product(R, reach), V_norm, count(n))


@torch.no_grad()
def column_upper(A: torch.Tensor, V: torch.Tensor, x: torch.Tensor, *, masked: bool = False) -> torch.Tensor:
    r"""Local Lipschitz constant of one head at an input, from the largest column sum of its attention matrix.

    .. math:: \|D_X f\|_2 \le \|V\|_2 \big(t + \sqrt{c(P)}\, (1 + t)\big), \qquad
        c(P) = \max_j \sum_i P_{ij} \le n, \quad t = \|A\|_2 \max_i |x_i|^2 .

    Parameters
    ----------
    A, V : Tensor, shapes (d, d) and (m, d)
        As for `general_upper`.
    x : Tensor, shape (..., n, d)
        Tokens.
    masked : bool
        Whether token i attends to tokens j <= i only.

    Returns
    -------
    Tensor, shape of the batch
        An upper bound up to the rounding of the logits, float64, never above `general_upper_sharp` with the radius of
        the input.

    Raises
    ------
    ValueError
        As `general_upper`, and if `x` does not hold finite tokens (..., n, d).

    Notes
    -----
    Ours, the local form of `general_upper_sharp`.

    Examples
    --------
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> round(column_upper(eye, eye, eye).item(), 6), round(column_upper(eye, eye, eye, masked=True).item(), 6)
    (3.0, 3.252946)
    """
    A_norm, V_norm = norms(A, V)
    A, x = as_double("A", A), _tokens(x, len(A))
    logits = x @ A.mT @ x.mT
    if masked:
        logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), -torch.inf)
    t = A_norm * x.square().sum(-1).amax(-1)
    return or_infinite(column(t, t, V_norm, logits.softmax(-1)) * (1 + 1e-12))


@torch.no_grad()
def spread_upper(A: torch.Tensor, V: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    r"""Local Lipschitz constant of one head at an input, from the spread of its tokens.

    .. math:: \|D_X f\|_2 \le \sqrt 3\, \|V\|_2 \big(\|A\|_2^2 r^4 + n (4 R^2 r^2 + 1)\big)^{1/2}, \qquad
        r = \max_i |x_i - x_0|, \quad R = \max_i |A x_i|

    for any :math:`x_0`; the point used is near the centre of the smallest ball that contains the tokens.

    Parameters
    ----------
    A, V : Tensor, shapes (d, d) and (m, d)
        As for `general_upper`.
    x : Tensor, shape (..., n, d)
        Tokens.

    Returns
    -------
    Tensor, shape of the batch
        An upper bound up to the rounding of the logits, float64, unmasked and masked alike.

    Raises
    ------
    ValueError
        As `general_upper`, and if `x` does not hold finite tokens (..., n, d).

    Notes
    -----
    castin2024smooth, Thm C.3, in the form that its proof gives (our reconstruction). With distances between tokens and
    :math:`|A x_i|` alone, as in the released code, the bound fails.

    Examples
    --------
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> round(spread_upper(eye, eye, eye).item(), 4)
    4.3301
    """
    A_norm, V_norm = norms(A, V)
    A, x = as_double("A", A), _tokens(x, len(A))
    r = (x - enclosing_center(x)[..., None, :]).norm(dim=-1).amax(-1)
    reach = (x @ A.mT).norm(dim=-1).amax(-1)
    return or_infinite(spread(A_norm, V_norm, r, reach, x.shape[-2]) * (1 + 1e-12))


def _tokens(x, d):
    """Tokens (..., n, d) in float64; ValueError if they are invalid."""
    x = as_double("x", x)
    if x.ndim < 2 or x.shape[-1] != d or not x.numel():
        raise ValueError(f"x must have shape (..., n, d) with d = {d} and n >= 1, got {tuple(x.shape)}.")
    check_finite_tokens(x)
    return x


def enclosing_center(x):
    """A point near the centre of the smallest ball around tokens (..., n, d): repeated steps to the farthest one."""
    center = x.mean(-2)
    for step in range(1, 201):
        far = (x - center[..., None, :]).norm(dim=-1).argmax(-1)
        farthest = x.gather(-2, far[..., None, None].expand(*far.shape, 1, x.shape[-1]))[..., 0, :]
        center = center + (farthest - center) / (step + 1)
    return center
