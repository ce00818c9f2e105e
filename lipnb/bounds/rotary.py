r"""Bounds for attention with rotary positions, by proofs that survive the rotation; none was published.

Tokens at positions i and j have the logit :math:`s\, \tilde q_i \cdot \tilde k_j` with
:math:`\tilde q_i = R_i (W_Q x_i + b_Q)` and :math:`\tilde k_j = R_j (W_K x_j + b_K)`. A single matrix A does not exist,
so :math:`\|A\|_2` is replaced by norms that rotations preserve. Networks compute cosines and sines in float32: their
:math:`R_i` are rotations to seven digits only, and :math:`g = \max_i \|R_i\|_2`, close to 1, is computed from the
numbers of the map itself. `RotaryNorms` replaces :math:`\|A\|_2` in `lipnb.bounds.ball_upper`: norms at all distances
:math:`i - j`.
"""

import math

import torch

from lipnb.attention import Attention, Feature
from lipnb.attention.heads import check_attention
from lipnb.attention.rope_norm import rotation, turned
from lipnb.bounds.heads import rows_of_heads
from lipnb.bounds.multihead_norms import balanced
from lipnb.bounds.norms import check_sequence, or_infinite
from lipnb.checks import count, radius
from lipnb.spectral.upper_norms import UNIT, largest_singular, largest_singular_of_each, triangle

__all__ = ["rotary_terms", "rotary_upper"]

PLACES = 512  # tokens up to which each distance is treated separately
AT_ONCE = 16  # number of distances whose norms are computed together


def _checked(attention, what):
    """The map in float64; ValueError unless rotary positions, and possibly shared keys, are its only features."""
    check_attention(attention, what)
    if attention.frequencies is None or not {*attention.more} <= {Feature.ROTARY, Feature.SHARED_KEYS}:
        raise ValueError(
            f"{what} is for rotary positions, with or without shared keys, got an attention with "
            f"{', '.join(attention.more) or 'plain heads'}."
        )
    return attention.to(dtype=torch.float64)


def _sizes(att, n):
    """Norms of W_Q, W_K, W_O W_V and of the biases of queries and keys, (h,) each, and g for n positions."""
    times = att.heads // att.groups
    value = triangle(att.value.mT).mT.repeat_interleave(times, 0)  # (h, v, v), with the same norms of products
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
        Map with `frequencies`; any heads and biases, shared keys, masked or not.
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
        If the map has no rotary positions or features other than these and shared keys, or n or R is out of range.

    Notes
    -----
    Ours; the proof of castin2024smooth, Thm 3.3, as for `general_upper_sharp`. The query term of token i is the
    covariance under :math:`P_i` of :math:`x_j`, of spread at most R, and :math:`\tilde k_j`, of spread at most
    :math:`g (\|W_K\| R + |b_K|)`, times :math:`s R_i W_Q`. The key term is
    :math:`\sum_j P_{ij} (x_j - m_i)\, s\, \tilde q_i \cdot R_j W_K \varepsilon_j`: Cauchy-Schwarz with weights
    :math:`P_{ij}`. A rotation enlarges a norm by at most a factor g.

    Examples
    --------
    >>> from lipnb import Attention
    >>> eye = torch.eye(2).double()
    >>> f = Attention.from_matrices(eye, eye).replace(frequencies=torch.ones(1))
    >>> round(rotary_upper(f, 4, 1.0), 6)
    5.0
    """
    att, n, R = _checked(attention, "rotary_upper"), count(n), radius(R)
    Q, K, WV, bq, bk, gain = _sizes(att, n)
    s = abs(att.scale) * gain**2
    query, key = s * Q * R * (K * R + bk), s * K * R * (Q * R + bq)
    return or_infinite((WV * (query + math.sqrt(n) * (1 + key))).sum().item() * (1 + 1e-12))


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
        Map with `frequencies`; any heads and biases, shared keys, masked or not.
    x : Tensor, shape (n, d)
        Tokens of one sequence; computed in float64.

    Returns
    -------
    float
        An upper bound, up to rounding.

    Raises
    ------
    ValueError
        As `Attention.check_input`; if the map has no rotary positions or features other than these and shared keys, or
        `x` is not one sequence.

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
    att = _checked(attention, "rotary_terms")
    check_sequence(attention, x)
    x = x.double()
    _, K, WV, *_, gain = _sizes(att, len(x))
    query, key, value = att.project(x)  # scale folded into the query
    P = att.probabilities_of(query, key)
    key, value = (part.repeat_interleave(att.heads // att.groups, 0) for part in (key, value))
    eye = torch.eye(att.value_width, dtype=x.dtype, device=x.device).expand(att.heads, -1, -1)
    output = eye if att.output is None else triangle(att.output)  # |W_O y| = |R y|
    W_Q = triangle(att.query.mT).mT  # (h, k, k'): |M W_Q| = |M R^T|
    at_places = att.local(x)[0].matrices(W_Q)  # R_i W_Q, (h, n, k, k')
    rho, queries = x.new_zeros(2, att.heads, len(x))
    for h, rows, p, gap in rows_of_heads(P, value, max(att.value_width, att.key_width)):
        Z = p[..., None] * gap
        rho[h, rows] = largest_singular_of_each(Z @ output[h].mT)
        C = output[h] @ (Z.mT @ key[h]) @ at_places[h, rows]
        queries[h, rows] = largest_singular_of_each(abs(att.scale) * C)
    keys = largest_singular(rho[..., None] * query) * gain * K
    return or_infinite((largest_singular(P) * WV + queries.amax(1) + keys).sum().item() * (1 + 1e-12))


class RotaryNorms:
    r"""Norms of rotary queries against keys among n tokens: :math:`|L^\top R_j^\top R_i Z|` where token i sees token j.

    Two bounds are proved. For any plane-wise weights D, which commute with rotations, the norm is at most
    :math:`g^2 |D^{-1} L|\, |D Z|`. And it is at most the largest :math:`|L^\top R_m Z|` over distances m (computed
    for up to `PLACES` tokens) plus :math:`\eta\, |D^{-1} L|\, |D Z|`. Cosines and sines are those of the network: g,
    `gain`, is the largest length of such a pair, and :math:`\eta` how far :math:`R_j^\top R_i` is from
    :math:`R_{i - j}` in any plane. Without rotary positions the norm is :math:`|L^\top Z|`.

    >>> from lipnb import Attention
    >>> eye = torch.eye(2).double()
    >>> f = Attention.from_matrices(eye, eye).replace(frequencies=torch.tensor([torch.pi / 2]).double())
    >>> left, right = eye[None, :, :1], eye[None, :, 1:]  # two axes that a quarter turn aligns
    >>> [round(RotaryNorms(f, n).log_norms(left, right).exp().item(), 6) for n in (1, 2)]
    [0.0, 1.0]
    """

    def __init__(self, att: Attention, n: int) -> None:
        self._weights, self._tables, self.gain, self._off = None, None, 1.0, 0.0
        turn = rotation(att.frequencies, n, torch.float64)
        if turn is None:
            return
        cos, sin = turn
        self._weights = _plane_weights(att)[..., None]
        self.gain = (cos.square() + sin.square()).amax().sqrt().item()
        if n > PLACES:
            return
        reach = n if att.window is None else min(n, att.window)
        place = torch.complex(cos, sin)
        apart = (place[m:] * place[: n - m].conj() - place[m] for m in range(reach))
        self._off = max(gap.abs().amax().item() for gap in apart) + 8 * UNIT
        ahead = slice(1, 1 if att.masked else reach)  # tokens that come later
        self._tables = torch.cat([cos[:reach], cos[ahead]]), torch.cat([sin[:reach], -sin[ahead]])

    def log_norms(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Logarithms of the bounds, shape (h,), for maps L of keys (h, k, a) and Z of queries (h, k, b)."""
        sizes = [part.abs().amax().clamp_min(1e-300) for part in (left, right)]
        left, right = triangle((left / sizes[0]).mT), triangle((right / sizes[1]).mT).mT
        return self._norms(left, right).log() + sizes[0].log() + sizes[1].log()

    def _norms(self, left, right):
        if self._weights is None:
            return largest_singular(left @ right)
        by_planes = largest_singular(left / self._weights.mT) * largest_singular(self._weights * right)
        if self._tables is None:
            return self.gain**2 * by_planes
        at_distances = torch.stack([self._largest(*pair) for pair in zip(left, right, strict=True)])
        return torch.minimum(self.gain**2 * by_planes, at_distances + self._off * by_planes)

    def _largest(self, left, right):
        """The largest norm over all distances, in decreasing order of an upper bound, until no other can be larger."""
        columns = right.mT[:, None].expand(-1, len(self._tables[0]), -1)
        matrices = left @ turned(columns, self._tables).movedim(0, -1)  # (distances, a, b)
        upper = largest_singular_of_each(matrices, lot=10**12)
        best, order = upper.new_zeros(()), upper.argsort(descending=True)
        for some in order.split(AT_ONCE):
            if upper[some[0]] <= best:
                break
            best = torch.maximum(best, largest_singular(matrices[some]).max())
        return best

    def bounding(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        r"""Map F, (h, r, b), with :math:`|L^\top R_j^\top R_i Z y| \le |F y|` for all y; L (h, k, a), Z (h, k, b)."""
        if self._weights is None:
            return triangle(left.mT) @ right
        return self.gain**2 * largest_singular(left / self._weights)[:, None, None] * self._weights * right


def _plane_weights(att):
    """Positive weights of the coordinates of queries and keys, (h, k), equal within each plane of rotation."""
    p, k = len(att.frequencies), att.key_width
    planes = torch.stack([torch.arange(p, device="cpu"), torch.arange(p, 2 * p, device="cpu")], 1).flatten()
    # unrotated coordinates follow in pairs, the last one repeated if their number is odd
    order = torch.cat([planes, torch.arange(2 * p, k, device="cpu"), torch.arange(k - k % 2, k, device="cpu")])
    found = torch.ones(att.heads, k, dtype=torch.float64, device="cpu")
    for h, (query, key) in enumerate(zip(att.query[:, order], att.key[:, order], strict=True)):
        weights = balanced(key.unflatten(0, (-1, 2)).mT, query.unflatten(0, (-1, 2)), 0)
        found[h, order] = weights.sqrt().repeat_interleave(2)
    return found
