r"""Bounds for all heads of an attention with biases: formulas of one head summed, and the norm of the largest token.

`heads_on_ball` and `heads_at_input` have the formulas of `castin`, `mean_field` and `yudin`. `max_token_upper` and
`max_token_terms` are in the norm of the largest token, :math:`|X|_{\infty} = \max_i |x_i|`, so that no number of
tokens enters: with the letters of `lipnb.bounds.term_bounds`, output token i moves by

.. math:: \sum_h W_O \Big[\sum_j P_{ij} W_V \varepsilon_j + \sum_j P_{ij} (v_j - o_i)\,
    (b_i \cdot \varepsilon_j) + C_i\, s W_Q \varepsilon_i\Big] ,

and a row of P sums to one.
"""

import math
from collections.abc import Iterator

import torch

from lipnb.attention import Attention, Feature
from lipnb.bounds.castin import column, enclosing_center, general, general_sharp, spread
from lipnb.bounds.mean_field import (
    log_masked,
    log_masked_sharp,
    log_mean_field,
    log_mean_field_optimal,
    log_mean_field_sharp,
)
from lipnb.bounds.norms import LEAST, HeadNorms, answer, check_sequence, head_norms, log_of, or_infinite, plain_heads
from lipnb.bounds.yudin import attention_at, g_1, yudin
from lipnb.checks import at_once, count, radius
from lipnb.spectral.upper_norms import largest_singular, largest_singular_of_each, triangle

__all__ = ["heads_on_ball", "max_token_upper"]

# features of transformers, for functions that support them all
TRANSFORMER_FEATURES = (
    *(Feature.SHARED_KEYS, Feature.ROTARY, Feature.NORM),
    *(Feature.CAP, Feature.RELATIVE, Feature.SINKS),
)
ON_BALL = ("general", "general_sharp", "mean_field", "mean_field_sharp", "mean_field_optimal")


def heads_on_ball(norms: HeadNorms, n: int, R: float, masked: bool) -> dict[str, float]:
    r"""Bounds on sequences of n tokens in the ball of radius R, heads summed by Lemma 3.8; natural logarithms.

    Parameters
    ----------
    norms : HeadNorms
        From `head_norms`.
    n, R
        As for `lipnb.bounds.general_upper`.
    masked : bool
        Whether the heads are causal.

    Returns
    -------
    dict
        `general`: Thm 3.3 (masked 4.3), with query biases E.3; `general_sharp`: its tighter form, ours, with the norm
        of :math:`W_O W_V`; `mean_field`: Thm 3.5, or masked the corrected 4.4 with p = 2; `mean_field_sharp`: ours,
        each with half the exponent; with a mask these two need heads that see the whole past, without a window.
        `mean_field_optimal`, only without a mask: the part of `lipnb.bounds.mean_field_upper_exact` that needs only
        the norm of A.

    Notes
    -----
    castin2024smooth. A query bias adds :math:`|c| R` to the logits t: the proofs of the tighter and of the mean-field
    bounds then hold with :math:`\|A\| R^2 + |c| R` in place of t.

    Examples
    --------
    >>> from lipnb.bounds import head_norms
    >>> f = Attention.from_matrices(torch.eye(2).double(), torch.eye(2).double())
    >>> logs = heads_on_ball(head_norms(f), 4, 1.0, False)
    >>> {name: round(log, 2) for name, log in logs.items()}
    {'general': 2.07, 'general_sharp': 1.61, 'mean_field': 3.39, 'mean_field_sharp': 1.86, 'mean_field_optimal': 1.52}
    """
    if not isinstance(norms, HeadNorms):
        raise ValueError(f"norms must come from head_norms(attention), got {type(norms).__name__}.")
    n, R = count(n), radius(R)
    field, field_sharp = (log_masked, log_masked_sharp) if masked else (log_mean_field, log_mean_field_sharp)
    heads = []
    for A, V, W, WV, c in zip(*(norm.tolist() for norm in norms), strict=True):
        t, apart = A * R * R + c * R, max(W * V, LEAST) if W and V else 0.0
        if not all(map(math.isfinite, (t, c, apart))):
            heads.append([math.inf] * (len(ON_BALL) - masked))
            continue
        on_sequences = general(A * R * R, t, apart, n), general_sharp(t, WV, n)
        on_measures = [field(t, apart), field_sharp(t, WV)] + [log_mean_field_optimal(t, WV)] * (not masked)
        heads.append([*map(log_of, on_sequences), *(answer(value, log=True) for value in on_measures)])
    sums = torch.tensor(heads, dtype=torch.float64, device="cpu").logsumexp(0)
    return dict(zip(ON_BALL, sums.tolist(), strict=False))


@torch.no_grad()
def heads_at_input(attention: Attention, norms: HeadNorms, x: torch.Tensor) -> dict[str, float]:
    r"""Bounds at one input, heads summed; natural logarithms.

    Parameters
    ----------
    attention : Attention
        Any heads, biases and mask.
    norms : HeadNorms
        From `head_norms`.
    x : Tensor, shape (n, d)
        Tokens.

    Returns
    -------
    dict
        `spread`: Thm C.3 in the form of its proof; `column`: ours, from the largest column sum of P; `yudin`: Thm 3 of
        yudin2025attention; see `lipnb.bounds.spread_upper`, `column_upper` and `yudin_upper`. Upper bounds up to the
        rounding of the logits.

    Notes
    -----
    A query bias enters these proofs in one place: the key term has :math:`A x_i + c` in place of :math:`A x_i`. So
    `spread` takes :math:`\max_i |A x_i + c|`, `column` :math:`|c| R` more, and `yudin` counts half of :math:`\|X\|_2
    \|A\|_2`, that of the key term, as :math:`\|(A x_i + c)_i\|_2`.

    Examples
    --------
    >>> from lipnb.bounds import head_norms
    >>> f = Attention.from_matrices(torch.eye(2).double(), torch.eye(2).double())
    >>> logs = heads_at_input(f, head_norms(f), torch.eye(2).double())
    >>> {name: round(log, 4) for name, log in logs.items()}
    {'spread': 1.4656, 'column': 1.0986, 'yudin': 0.5802}
    """
    attention = plain_heads("heads_at_input", attention)
    check_sequence(attention, x)
    att, x = attention.to(dtype=torch.float64), x.double()
    P, slopes = attention_at(att, x)
    R, n = torch.linalg.vector_norm(x, dim=-1).max(), len(x)
    r = torch.linalg.vector_norm(x - enclosing_center(x), dim=-1).max()
    reach = torch.linalg.vector_norm(slopes, dim=-1).amax(-1)
    t, tokens = norms.A * R**2, largest_singular(x)
    keys = tokens * norms.A if att.query_bias is None else largest_singular(slopes)
    found = {
        "spread": spread(norms.A, norms.WV, r, reach, n),
        "column": column(t, t + norms.c * R, norms.WV, P),
        "yudin": yudin(P, g_1(P), tokens, norms.A, keys, norms.WV),
    }
    return {name: (bound.sum() * (1 + 1e-12)).log().item() for name, bound in found.items()}


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
        An upper bound up to rounding, in the norm of the largest token of inputs and outputs. It is not an
        upper bound in the Euclidean norm of all coordinates, in which the constant grows like the root of n.

    Raises
    ------
    ValueError
        If the map has L2 scores or features other than shared keys and relative positions, or R is out of range.

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
    attention = plain_heads("max_token_upper", attention, also=(Feature.RELATIVE,))
    # relative positions change no derivative of the logits
    norms, R = head_norms(attention.replace(relative=None)), radius(R)
    heads = norms.WV * (1 + 2 * norms.A * R * R + norms.c * R)
    return or_infinite(_joined(attention, heads).item() * (1 + 1e-12))


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
        As `Attention.check_input` and `max_token_upper`; if `x` is not one sequence.

    Notes
    -----
    Ours. budzinskiy2025numerical also bounds local constants independently of the length; we have not seen its
    formulas.

    Examples
    --------
    >>> f = Attention.from_matrices(torch.eye(2).double(), torch.eye(2).double())
    >>> round(max_token_terms(f, torch.eye(2).double()).item(), 4)
    1.9493
    """
    attention = plain_heads("max_token_terms", attention, also=(Feature.RELATIVE,))
    check_sequence(attention, x)
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
    for h, some, p, gap in rows_of_heads(P, value, out.shape[-2]):  # the gap is W_O (v_j - o_i)
        keys = slopes[h, some] * (p * torch.linalg.vector_norm(gap, dim=-1)).sum(-1)
        covariance = (p[..., None] * gap).mT @ key[h] @ W_Q[h]
        rows[h, some] = alone[h] + keys + largest_singular_of_each(covariance)
    return _joined(att, rows).amax() * (1 + 1e-12)


def _joined(attention, heads):
    """Bound on all heads from bounds on each, (h, ...): the sum, or for concatenated heads the Euclidean norm."""
    return torch.linalg.vector_norm(heads, 2 if attention.output is None else 1, dim=0)


def rows_of_heads(P: torch.Tensor, value: torch.Tensor, width: int) -> Iterator[tuple]:
    """Yield blocks of rows of each head: h, row indices, P (r, n), and v_j - o_i (r, n, v); values (h, n, v)."""
    n = P.shape[-1]
    for h in range(len(P)):
        for some in torch.arange(n, device=P.device).split(at_once(n * width)):
            yield h, some, P[h, some], value[h] - (P[h, some] @ value[h])[:, None]
