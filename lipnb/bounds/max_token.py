r"""Bounds in the norm of the largest token, :math:`|X|_{\infty} = \max_i |x_i|`: no number of tokens enters.

Output token i moves by :math:`\sum_h W_O [\sum_j P_{ij} W_V \varepsilon_j + \sum_j P_{ij} (v_j - o_i)\,
(b_i \cdot \varepsilon_j) + C_i\, s W_Q \varepsilon_i]` with the letters of
`lipnb.bounds.term_bounds`, and a row of P sums to one.
"""

import torch

from lipnb.attention import Attention
from lipnb.bounds.norms import head_norms, triangle
from lipnb.bounds.rounding import largest_singular, largest_singular_of_each
from lipnb.checks import at_once, radius

__all__ = ["max_token_terms", "max_token_upper"]


def max_token_upper(attention: Attention, R: float) -> float:
    r"""Lipschitz constant of attention on a ball, in the norm of the largest token: upper bound for every length.

    .. math:: \sup_{X \in B_R^n} \max_{|U|_\infty \le 1} |D_X f\, U|_\infty
        \le \sum_h \|W_O W_V\|_2\, \big(1 + 2 \|A\|_2 R^2 + |c| R\big), \qquad |X|_\infty = \max_i |x_i|,

    with :math:`A = s W_K^\top W_Q` and :math:`c = s W_K^\top b_Q`; for concatenated heads the root of the sum of
    squares over heads.

    Parameters
    ----------
    attention : Attention
        Any heads and biases, shared keys, relative positions, masked or not, windows too.
    R : float
        Radius: every token has Euclidean norm at most R.

    Returns
    -------
    float
        An upper bound up to rounding, in the norm of the largest token of inputs and outputs. In the Euclidean norm of
        all coordinates it is none: there the constant grows like the root of n.

    Raises
    ------
    ValueError
        "max_token_upper knows dot-product scores only ...", "R must be ...".

    Notes
    -----
    Ours; large2024scalable has it for queries, keys and values of unit size. The variance of tokens in the ball is at
    most R squared, so :math:`\sum_j P_{ij} |x_j - m_i| \le R`: the key term of a row is at most
    :math:`R |A x_i + c|`, its query term at most :math:`\|A\| R^2`. The 2 is attained in the limit: at R e, -R e and
    R u with :math:`A = -I` and u orthogonal to e, the third token can move by :math:`2 R^2 / (1 + e^{-R^2} / 2)`.

    Examples
    --------
    >>> f = Attention.from_matrices(torch.eye(2).double(), torch.eye(2).double())
    >>> round(max_token_upper(f, 3.0), 6)
    19.0
    """
    attention = attention.expand_groups()
    attention.check_plain("max_token_upper", also=("relative positions",))
    # what is added by distance changes no derivative of the logits
    norms, R = head_norms(attention.replace(relative=None)), radius(R)
    heads = norms.WV * (1 + 2 * norms.A * R * R + norms.c * R)
    return _joined(attention, heads).item() * (1 + 1e-12)


@torch.no_grad()
def max_token_terms(attention: Attention, x: torch.Tensor) -> torch.Tensor:
    r"""Local Lipschitz constant of attention in the norm of the largest token: upper bound at an input.

    .. math:: \max_{|U|_\infty \le 1} |D_X f\, U|_\infty \le \max_i \sum_h \Big( \|W_O W_V\|_2
        + |b_i| \sum_j P_{ij} |W_O (v_j - o_i)| + \|s\, W_O C_i W_Q\|_2 \Big),

    for concatenated heads again with the root of the sum of squares.

    Parameters
    ----------
    attention : Attention
        Any heads and biases, shared keys, relative positions, masked or not, windows too.
    x : Tensor, shape (n, d)
        Tokens of one sequence; computed in float64.

    Returns
    -------
    Tensor, shape ()
        An upper bound up to the rounding of the logits, never above `max_token_upper` with the radius of the
        input.

    Raises
    ------
    ValueError
        As `Attention.check_input`; "x must hold one sequence ..."; as `max_token_upper`.

    Notes
    -----
    Ours. budzinskiy2025numerical bounds local constants without the length too; its formulas were not seen.

    Examples
    --------
    >>> f = Attention.from_matrices(torch.eye(2).double(), torch.eye(2).double())
    >>> round(max_token_terms(f, torch.eye(2).double()).item(), 4)
    1.9493
    """
    attention = attention.expand_groups()
    attention.check_plain("max_token_terms", also=("relative positions",))
    attention.check_input(x)
    if x.ndim != 2:
        raise ValueError(f"x must hold one sequence, shape (n, d), got {tuple(x.shape)}.")
    att, x = attention.to(dtype=torch.float64), x.double()
    query, key, value = att.project(x)
    P = att.probabilities_of(query, key)
    maps = att.value if att.output is None else att.output @ att.value
    # triangular factors keep the norms of W_O y, W_K^T y and M W_Q, and are small
    eye = torch.eye(att.value_width, dtype=x.dtype, device=x.device).expand(att.heads, -1, -1)
    out = eye if att.output is None else triangle(att.output)
    slopes = torch.linalg.vector_norm(query @ triangle(att.key.mT).mT, dim=-1)
    W_Q = att.slope * triangle(att.query.mT).mT
    value, alone = value @ out.mT, largest_singular(maps)
    rows = x.new_zeros(att.heads, len(x))
    for h in range(att.heads):
        for some in torch.arange(len(x), device=x.device).split(at_once(len(x) * out.shape[-2])):
            gap = value[h] - (P[h, some] @ value[h])[:, None]  # W_O (v_j - o_i), (rows, n, v)
            keys = slopes[h, some] * (P[h, some] * torch.linalg.vector_norm(gap, dim=-1)).sum(-1)
            covariance = (P[h, some, :, None] * gap).mT @ key[h] @ W_Q[h]
            rows[h, some] = alone[h] + keys + largest_singular_of_each(covariance)
    return _joined(att, rows).amax() * (1 + 1e-12)


def _joined(attention, heads):
    """What all heads do, of what each does at most, shape (h, ...): side by side, squares of lengths add up."""
    return torch.linalg.vector_norm(heads, 2 if attention.output is None else 1, dim=0)
