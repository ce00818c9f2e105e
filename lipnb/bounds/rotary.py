r"""Bounds for attention with rotary positions, for which none was published: the proofs that survive the rotation.

Tokens at places i and j meet as :math:`s\, \tilde q_i \cdot \tilde k_j` with :math:`\tilde q_i = R_i (W_Q x_i + b_Q)`
and :math:`\tilde k_j = R_j (W_K x_j + b_K)`. There is no one matrix A, so :math:`\|A\|_2` is replaced by norms that a
rotation keeps. Networks compute cosines and sines in float32: their :math:`R_i` are rotations to seven digits only, and
:math:`g = \max_i \|R_i\|_2`, next to 1, is taken of the very numbers that the map has.
"""

import math

import torch

from lipnb.attention import Attention
from lipnb.attention.rope_norm import rotation
from lipnb.bounds.norms import triangle
from lipnb.bounds.rounding import largest_singular, largest_singular_of_each
from lipnb.checks import at_once

__all__ = ["rotary_terms", "rotary_upper"]


def _checked(attention, what):
    """The map in float64, or one sentence unless it is plain but for rotary positions and shared keys."""
    if attention.frequencies is None or not {*attention.more} <= {"rotary positions", "shared keys"}:
        raise ValueError(
            f"{what} is for rotary positions, with or without shared keys, got an attention with "
            f"{', '.join(attention.more) or 'plain heads'}."
        )
    return attention.to(dtype=torch.float64)


def _sizes(att, n):
    """Norms of W_Q, W_K, W_O W_V and of the biases of queries and keys, (h,) each, and g of n places."""
    times = att.heads // att.groups
    value = triangle(att.value.mT).mT.repeat_interleave(times, 0)  # (h, v, v), of the same products
    joint = largest_singular(value) if att.output is None else largest_singular(att.output @ value)
    blank = torch.zeros_like(joint)
    query_bias = blank if att.query_bias is None else torch.linalg.vector_norm(att.query_bias, dim=-1)
    key_bias = (
        blank if att.key_bias is None else torch.linalg.vector_norm(att.key_bias, dim=-1).repeat_interleave(times)
    )
    cos, sin = rotation(att.frequencies, n, torch.float64)
    gain = max(1.0, (cos.square() + sin.square()).amax().sqrt().item())
    return (
        largest_singular(att.query),
        largest_singular(att.key).repeat_interleave(times),
        joint,
        query_bias,
        key_bias,
        gain,
    )


def rotary_upper(attention: Attention, n: int, R: float) -> float:
    r"""Lipschitz constant of rotary attention on sequences of n tokens in a ball: upper bound.

    .. math:: \mathrm{Lip}(f_{|B_R^n}) \le \sum_h \|W_O W_V\|_2 \big(t_k + \sqrt n\, (1 + t_q)\big), \qquad
        t_k = s g^2 \|W_Q\|_2 R\, (\|W_K\|_2 R + |b_K|), \quad t_q = s g^2 \|W_K\|_2 R\, (\|W_Q\|_2 R + |b_Q|) .

    Parameters
    ----------
    attention : Attention
        With `frequencies`; any heads and biases, shared keys, masked or not.
    n : int
        Number of tokens.
    R : float
        Radius.

    Returns
    -------
    float
        An upper bound, up to rounding. Without biases it is `general_upper_sharp` with :math:`s g^2 \|W_Q\| \|W_K\|` in
        place of :math:`\|A\|`.

    Raises
    ------
    ValueError
        "rotary_upper is for rotary positions, with or without shared keys, got ...".

    Notes
    -----
    Ours; the proof of castin2024smooth, Thm 3.3, as for `general_upper_sharp`. The query term of token i is the
    covariance under :math:`P_i` of :math:`x_j`, of spread at most R, and :math:`\tilde k_j`, of spread at most
    :math:`g (\|W_K\| R + |b_K|)`, times :math:`s R_i W_Q`. The key term is
    :math:`\sum_j P_{ij} (x_j - m_i)\, s\, \tilde q_i \cdot R_j W_K \varepsilon_j`: Cauchy-Schwarz with weights
    :math:`P_{ij}`. No rotation makes a norm larger than g times.

    Examples
    --------
    >>> from lipnb import Attention
    >>> eye = torch.eye(2).double()
    >>> f = Attention.from_matrices(eye, eye).replace(frequencies=torch.ones(1))
    >>> round(rotary_upper(f, 4, 1.0), 6)
    5.0
    """
    att = _checked(attention, "rotary_upper")
    Q, K, WV, bq, bk, gain = _sizes(att, n)
    s = abs(att.scale) * gain**2
    query, key = s * Q * R * (K * R + bk), s * K * R * (Q * R + bq)
    return (WV * (query + math.sqrt(n) * (1 + key))).sum().item() * (1 + 1e-12)


@torch.no_grad()
def rotary_terms(attention: Attention, x: torch.Tensor) -> float:
    r"""Local Lipschitz constant of rotary attention at an input: upper bound, each term of the Jacobian as a norm.

    .. math:: \|D_X f\|_2 \le \sum_h \Big( \|P\|_2 \|W_O W_V\|_2 + \max_i \|s\, W_O C_i R_i W_Q\|_2
        + \|(\rho_i\, s\, \tilde q_i)_i\|_2\, g \|W_K\|_2 \Big),

    with :math:`C_i = \sum_j P_{ij} (v_j - o_i) \tilde k_j^\top`, :math:`\rho_i = \|W_O Z_i^\top\|_2` and
    :math:`Z_i = (P_{ij} (v_j - o_i))_j`.

    Parameters
    ----------
    attention : Attention
        With `frequencies`; any heads and biases, shared keys, masked or not.
    x : Tensor, shape (n, d)
        Tokens of one sequence; computed in float64.

    Returns
    -------
    float
        An upper bound, up to rounding.

    Raises
    ------
    ValueError
        "rotary_terms is for rotary positions, with or without shared keys, got ...".

    Notes
    -----
    Ours, as `lipnb.bounds.three_terms`, heads summed. Key term: with :math:`u_j = R_j W_K \varepsilon_j`, the rows of
    U, output i moves by :math:`W_O Z_i^\top U s \tilde q_i`, at most :math:`\rho_i |s\, U \tilde q_i|`; squares summed
    over i are at most :math:`\|(\rho_i s \tilde q_i)_i\|_2^2 \|U\|_F^2`, and
    :math:`\|U\|_F \le g \|W_K\|_2 \|\varepsilon\|_F`.

    Examples
    --------
    >>> from lipnb import Attention
    >>> eye = torch.eye(2).double()
    >>> f = Attention.from_matrices(eye, eye).replace(frequencies=torch.ones(1))
    >>> round(rotary_terms(f, eye), 4)
    1.6413
    """
    att, x = _checked(attention, "rotary_terms"), x.double()
    _, K, WV, *_, gain = _sizes(att, len(x))
    query, key, value = att.project(x)  # the scale is in the query
    P = att.probabilities_of(query, key)
    key, value = (part.repeat_interleave(att.heads // att.groups, 0) for part in (key, value))
    eye = torch.eye(att.value_width, dtype=x.dtype, device=x.device).expand(att.heads, -1, -1)
    output = eye if att.output is None else triangle(att.output)  # |W_O y| = |R y|
    W_Q = triangle(att.query.mT).mT  # (h, k, k'): |M W_Q| = |M R^T|
    turned = att.local(x)[0].matrices(W_Q)  # (h, n, k, k')
    step = at_once(len(x) * max(att.value_width, att.key_width))
    total = 0.0
    for h in range(att.heads):
        largest, rho = x.new_zeros(()), []
        for rows in torch.arange(len(x), device=x.device).split(step):
            gap = value[h] - (P[h, rows] @ value[h])[:, None]  # v_j - o_i, (rows, n, v)
            Z = P[h, rows, :, None] * gap
            rho.append(largest_singular_of_each(Z @ output[h].mT))
            C = output[h] @ (Z.mT @ key[h]) @ turned[h, rows]
            largest = torch.maximum(largest, largest_singular_of_each(abs(att.scale) * C).max())
        keys = largest_singular(torch.cat(rho)[:, None] * query[h]) * gain * K[h]
        total += (largest_singular(P[h]) * WV[h] + largest + keys).item()
    return total * (1 + 1e-12)
