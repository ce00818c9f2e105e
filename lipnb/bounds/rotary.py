r"""Bounds for attention with rotary positions, for which none was published: the proofs that survive the rotation.

Tokens at places i and j meet as :math:`s\, \tilde q_i \cdot \tilde k_j` with :math:`\tilde q_i = R_i (W_Q x_i + b_Q)`,
:math:`\tilde k_j = R_j (W_K x_j + b_K)` and rotations times a gain, :math:`\|R_i\|_2 = g`. There is no one matrix A, so
:math:`\|A\|_2` is replaced by norms that a rotation keeps.
"""

import math

import torch

from lipnb.bounds.rounding import largest_singular, largest_singular_of_each
from lipnb.checks import at_once

__all__ = ["rotary_terms", "rotary_upper"]


def _sizes(rotary):
    """Norms of W_Q, W_K, W_O W_V and of the biases of queries and keys, (h,) each, and |s| g^2."""
    att = rotary.attention.to(dtype=torch.float64)
    joint = largest_singular(att.value) if att.output is None else largest_singular(att.output @ att.value)
    blank = torch.zeros_like(joint)
    biases = [
        blank if bias is None else torch.linalg.vector_norm(bias, dim=-1) for bias in (att.query_bias, att.key_bias)
    ]
    return largest_singular(att.query), largest_singular(att.key), joint, *biases, abs(att.scale) * rotary.gain**2


def rotary_upper(rotary, n: int, R: float) -> float:
    r"""Lipschitz constant of rotary attention on sequences of n tokens in a ball: upper bound.

    .. math:: \mathrm{Lip}(f_{|B_R^n}) \le \sum_h \|W_O W_V\|_2 \big(t_k + \sqrt n\, (1 + t_q)\big), \qquad
        t_k = s g^2 \|W_Q\|_2 R\, (\|W_K\|_2 R + |b_K|), \quad t_q = s g^2 \|W_K\|_2 R\, (\|W_Q\|_2 R + |b_Q|) .

    Parameters
    ----------
    rotary : lipnb.models.RotaryAttention
        Any heads and biases, masked or not.
    n : int
        Number of tokens.
    R : float
        Radius.

    Returns
    -------
    float
        An upper bound, up to rounding. Without biases it is `general_upper_sharp` with :math:`s g^2 \|W_Q\| \|W_K\|` in
        place of :math:`\|A\|`.

    Notes
    -----
    Ours; the proof of castin2024smooth, Thm 3.3, as for `general_upper_sharp`. The query term of token i is the
    covariance under :math:`P_i` of :math:`x_j`, of spread at most R, and :math:`\tilde k_j`, of spread at most
    :math:`g (\|W_K\| R + |b_K|)`, times :math:`s R_i W_Q`. The key term is
    :math:`\sum_j P_{ij} (x_j - m_i)\, s\, \tilde q_i \cdot R_j W_K \varepsilon_j`: Cauchy-Schwarz with weights
    :math:`P_{ij}`. No rotation changes a norm.

    Examples
    --------
    >>> from lipnb import Attention, models
    >>> eye = torch.eye(2).double()
    >>> f = models.RotaryAttention(Attention.from_matrices(eye, eye), torch.ones(1))
    >>> round(rotary_upper(f, 4, 1.0), 6)
    5.0
    """
    Q, K, WV, bq, bk, s = _sizes(rotary)
    query, key = s * Q * R * (K * R + bk), s * K * R * (Q * R + bq)
    return (WV * (query + math.sqrt(n) * (1 + key))).sum().item() * (1 + 1e-12)


@torch.no_grad()
def rotary_terms(rotary, x: torch.Tensor) -> float:
    r"""Local Lipschitz constant of rotary attention at an input: upper bound, each term of the Jacobian as a norm.

    .. math:: \|D_X f\|_2 \le \sum_h \Big( \|P\|_2 \|W_O W_V\|_2 + \max_i \|s\, W_O C_i R_i W_Q\|_2
        + \|(\rho_i\, s\, \tilde q_i)_i\|_2\, g \|W_K\|_2 \Big),

    with :math:`C_i = \sum_j P_{ij} (v_j - o_i) \tilde k_j^\top`, :math:`\rho_i = \|W_O Z_i^\top\|_2` and
    :math:`Z_i = (P_{ij} (v_j - o_i))_j`.

    Parameters
    ----------
    rotary : lipnb.models.RotaryAttention
        Any heads and biases, masked or not.
    x : Tensor, shape (n, d)
        Tokens of one sequence; computed in float64.

    Returns
    -------
    float
        An upper bound, up to rounding.

    Notes
    -----
    Ours, as `lipnb.bounds.three_terms`, heads summed. Key term: with :math:`u_j = R_j W_K \varepsilon_j`, the rows of
    U, output i moves by :math:`W_O Z_i^\top U s \tilde q_i`, at most :math:`\rho_i |s\, U \tilde q_i|`; squares summed
    over i are at most :math:`\|(\rho_i s \tilde q_i)_i\|_2^2 \|U\|_F^2`, and
    :math:`\|U\|_F \le g \|W_K\|_2 \|\varepsilon\|_F`.

    Examples
    --------
    >>> from lipnb import Attention, models
    >>> eye = torch.eye(2).double()
    >>> f = models.RotaryAttention(Attention.from_matrices(eye, eye), torch.ones(1))
    >>> round(rotary_terms(f, eye), 4)
    1.6413
    """
    rotary, x = rotary.to(dtype=torch.float64), x.double()
    att = rotary.attention
    query, key, value, P = rotary.parts(x)  # the scale is in the query
    _, K, WV, *_ = _sizes(rotary)
    eye = torch.eye(att.value_width, dtype=x.dtype, device=x.device).expand(att.heads, -1, -1)
    output = eye if att.output is None else torch.linalg.qr(att.output, mode="r").R  # |W_O y| = |R y|
    W_Q = torch.linalg.qr(att.query.mT, mode="r").R.mT  # (h, k, k'): |M W_Q| = |M R^T|
    turned = rotary.rotate(W_Q.movedim(-1, -2)[..., None, :].expand(-1, -1, len(x), -1)).movedim(1, -1)  # (h, n, k, k')
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
        keys = largest_singular(torch.cat(rho)[:, None] * query[h]) * rotary.gain * K[h]
        total += (largest_singular(P[h]) * WV[h] + largest + keys).item()
    return total * (1 + 1e-12)
