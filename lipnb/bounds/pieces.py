"""What the Jacobian at an input is made of, as float64 has it, in units in which nothing overflows."""

import math

import torch

from lipnb.checks import at_once

__all__ = ["Pieces", "alive", "in_units", "scaled"]

STEEPEST = 150  # power of two beyond which a scale of the logits, in units, is refused
FAINTEST = 800  # power of two by which a head may lie below the largest; what is fainter is taken to be that strong


def scaled(tensor, power):
    """``tensor * 2**power``, exact where the answer is a normal number; infinite or rounded once or twice where not."""
    for share in (power // 3, (power - power // 3) // 2, power - power // 3 - (power - power // 3) // 2):
        tensor = tensor * 2.0 ** max(-1022, min(1023, share))
    return tensor


def _power(tensor):
    """The power of two that brings the largest entry below one and not below a half; None for zeros."""
    largest = 0.0 if tensor is None else tensor.abs().max().item()
    return math.frexp(largest)[1] if largest > 0 else None


def _side_by_side(attention):
    """Output matrices (h, m, v) that put the outputs of heads one after another."""
    eye = torch.eye(attention.heads * attention.value_width, dtype=attention.dtype, device=attention.device)
    return eye.unflatten(1, (attention.heads, -1)).movedim(1, 0)


def _balanced(value, output):
    r"""Value and output matrices of heads that are not zero, in units: (value', output', power of the largest head).

    Each head has its own power; what it lies below the largest is shared by its two matrices, so that their squares
    do not underflow. A head more than :math:`2^{800}` below it is raised to there: that adds less than `TINY` to the
    Jacobian, and every sum over heads of bounds only grows.
    """
    powers = [(_power(v), _power(o)) for v, o in zip(value, output, strict=True)]
    top = max(v + o for v, o in powers)
    faint = [min(FAINTEST, top - v - o) for v, o in powers]
    value = [scaled(one, -v - less // 2) for one, (v, _), less in zip(value, powers, faint, strict=True)]
    output = [scaled(one, -o - (less - less // 2)) for one, (_, o), less in zip(output, powers, faint, strict=True)]
    return torch.stack(value), torch.stack(output), top


def in_units(attention, x):
    r"""The same map in units in which all tokens and all matrices have entries up to one.

    With :math:`x = 2^a x'`, :math:`2^a W_Q = 2^q W_Q'` (the same factor for its bias), :math:`2^a W_K = 2^k W_K'`, the
    scale of the logits becomes :math:`2^{q + k} s`. Values and outputs have a power of two for each head; with
    :math:`2^o` that of the head whose :math:`2^a W_V` and :math:`W_O` are largest together,
    :math:`f(x) = 2^o f'(x')` up to a constant. Biases of keys, values and outputs change no derivative and no
    difference of outputs: they are left out, and so are heads whose values or outputs are zero. Where all tokens are
    zero, a is at most 0 and such that the scale of the logits is at most about one.

    Parameters
    ----------
    attention : Attention
        Float64.
    x : Tensor, shape (n, d)
        Float64.

    Returns
    -------
    attention : Attention or None
        None where the scale of the logits exceeds :math:`2^{150}` in these units: no float64 answers then; and where
        no head has both values and outputs.
    x : Tensor, shape (n, d)
    tokens, outputs : int
        The powers a and o.
    """
    heads = alive(attention)
    a, bias, steep = _power(x), attention.query_bias, math.frexp(attention.scale)[1]
    query, key = _power(attention.query), _power(attention.key)
    given = _power(bias)
    if a is None:
        ends = (
            []
            if key is None
            else ([] if query is None else [-(query + key + steep) // 2])
            + ([] if given is None else [-(given + key + steep)])
        )
        a = min([0, *ends])
    q = max([size for size in (None if query is None else query + a, given) if size is not None], default=0)
    k = -q if key is None else key + a  # without keys all logits are zero, whatever the queries
    if not heads.any():
        return None, x, a, 0
    output = _side_by_side(attention) if attention.output is None else attention.output
    value, output, o = _balanced(attention.value[heads], output[heads])
    if steep + q + k > STEEPEST:
        return None, x, a, o + a
    unit = attention.replace(
        query=scaled(attention.query[heads], a - q),
        key=scaled(attention.key[heads], a - k),
        value=value,
        output=output,
        query_bias=None if bias is None else scaled(bias[heads], -q),
        key_bias=None,
        value_bias=None,
        output_bias=None,
        scale=math.ldexp(attention.scale, q + k),
    )
    return unit, scaled(x, -a), a, o + a


def alive(attention):
    """Which heads have values and outputs, boolean, shape (h,): the others change nothing."""
    moving = attention.value.flatten(1).any(1)
    return moving if attention.output is None else moving & attention.output.flatten(1).any(1)


class Pieces:
    r"""Everything the terms are made of, at one input of shape (n, d), in float64.

    Keys and values are those of :math:`x_j - \bar x` for one fixed :math:`\bar x` near the mean, without biases: that
    adds one number to each row of logits and one vector to all outputs, and changes neither attention nor Jacobian.

    Attributes
    ----------
    query, keys, values : Tensor, shape (h, n, k) or (h, n, v)
        Queries (scale folded in), keys and values.
    logs : Tensor, shape (n,), or None
        Logarithms of the token weights, the largest of them 0; before, `log_size` was the largest absolute value.
    P, Pt : Tensor, shape (h, n, n)
        Attention, and :math:`P_{ij} \sqrt{a_i / a_j}`.
    means, slopes : Tensor, shape (h, n, v) and (h, n, d)
        :math:`o_i` and :math:`b_i = W_K^\top q_i`.
    output : Tensor, shape (h, m, v)
        Output matrices.
    R : Tensor, shape (p, h v)
        Triangular, :math:`|W_O y| = |R y|` for all heads side by side.
    """

    def __init__(self, attention, x, weights=None):
        attention.check_plain("this bound")
        self.attention, self.n, self.heads, self.x = attention, len(x), attention.heads, x
        self.centred = x - x.mean(0)
        self.query = torch.einsum("nd,hkd->hnk", x, attention.query)
        if attention.query_bias is not None:
            self.query = self.query + attention.query_bias[:, None]
        self.query = attention.scale * self.query
        self.keys, self.values = (
            torch.einsum("nd,hkd->hnk", self.centred, matrix) for matrix in (attention.key, attention.value)
        )
        self.hidden = attention.hidden(len(x))
        logits, self.logs = self.query @ self.keys.mT, None
        if weights is not None:
            self.logs = weights.log()
            self.log_size, self.logs = self.logs.abs().max(), self.logs - self.logs.max()
            logits = logits + self.logs
        logits = attention.hide(logits, len(x))
        self.below = logits - logits.amax(-1, keepdim=True)  # logits below the largest of their row
        self.P = self.below.softmax(-1)
        self.Pt = (
            self.P
            if weights is None
            else (self.below + self.half_ratio() - self.below.logsumexp(-1, keepdim=True)).exp()
        )
        self.means = self.P @ self.values
        self.slopes = self.query @ attention.key
        self.output = _side_by_side(attention) if attention.output is None else attention.output
        # outputs in orthonormal coordinates: |W_O y| = |R y|
        self.R = torch.linalg.qr(self.output.movedim(0, 1).flatten(1), mode="r").R

    def half_ratio(self):
        """Half the logarithm of a_i / a_j, shape (n, n)."""
        return (self.logs[:, None] - self.logs) / 2

    @property
    def entries(self):
        """Entries of the largest array made for each output token."""
        v = self.values.shape[-1]
        return max(self.heads * self.n * v, (self.heads * v) ** 2)

    def rows(self):
        """Slices of output tokens whose arrays fit."""
        step = at_once(self.entries)
        return [slice(i, i + step) for i in range(0, self.n, step)]

    def spread(self, rows):
        """z_ij with the root of the weights, shape (rows, h, n, v)."""
        gap = self.values[:, None] - self.means[:, rows, None]  # (h, i, j, v)
        return (self.Pt[:, rows, :, None] * gap).movedim(0, 1)

    def covariance(self, rows):
        """s R diag_h(C_i), shape (rows, p, h k): query term before the query matrices."""
        C = torch.einsum("hij,hjv,hjk->ihvk", self.P[:, rows], self.values, self.keys)
        C = C - torch.einsum("hiv,hik->ihvk", self.means[:, rows], self.P[:, rows] @ self.keys)
        R = self.R.unflatten(1, (self.heads, -1))
        return torch.einsum("phv,ihvk->iphk", R, self.attention.scale * C).flatten(2)

    def jvp(self, u):
        """Products with the Jacobian (of the norm with weights) of perturbations `u` (c, n, d), shape (c, n, m)."""
        att = self.attention
        query, key, value = (torch.einsum("cnd,hkd->chnk", u, matrix) for matrix in (att.query, att.key, att.value))
        t = self.P * (att.scale * query @ self.keys.mT) + self.Pt * (self.query @ key.mT)
        heads = t @ self.values - t.sum(-1, keepdim=True) * self.means + self.Pt @ value
        return torch.einsum("chnv,hmv->cnm", heads, self.output)

    def vjp(self, w):
        """Products with the transpose, (c, n, m) to (c, n, d)."""
        att = self.attention
        g = torch.einsum("cnm,hmv->chnv", w, self.output)
        z = g @ self.values.mT - (g * self.means).sum(-1, keepdim=True)
        query, key = att.scale * (self.P * z) @ self.keys, (self.Pt * z).mT @ self.query
        pulled = ((query, att.query), (key, att.key), (self.Pt.mT @ g, att.value))
        return sum(torch.einsum("chnk,hkd->cnd", part, matrix) for part, matrix in pulled)
