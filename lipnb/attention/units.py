"""Rescaling of an attention map by powers of two, exactly, so that nothing overflows."""

import math
from typing import Any

import torch
from torch import Tensor

from lipnb.attention.features import active_heads
from lipnb.attention.heads import Attention
from lipnb.attention.parameters import AXES
from lipnb.scaling import ZERO, exponent, shifted, shifted_number

MAX_SCALE = 150  # exponent of two beyond which a scale of the logits, in units, is refused
MAX_GAP = 800  # exponent of two by which a head may lie below the largest; a smaller head is raised to that size


def _balanced(value, bias, output, tokens):
    r"""Values of :math:`2^a x'`, their biases and output matrices, in units, and the power of the largest head.

    Each head has its own power. Its gap below the largest head is split between its two matrices, so that their
    squares do not underflow. A head more than two to the `MAX_GAP` below the largest is raised to that size, and a zero
    head gets entries of that size: `lipnb.bounds.rounding` adds their full contribution to the error.
    """
    powers = [
        (max(exponent(v) + tokens, exponent(None if bias is None else bias[i])), exponent(w))
        for i, (v, w) in enumerate(zip(value, output, strict=True))
    ]
    top, made = max(sum(one) for one in powers), []
    for i, one in enumerate(powers):
        v, w, gap = value[i], output[i], min(MAX_GAP, top - sum(one))
        b = torch.zeros_like(v[:, 0]) if bias is None else bias[i]  # placeholder for no bias
        if sum(one) == ZERO:
            v, w, b, one, gap = torch.ones_like(v), torch.ones_like(w), torch.zeros_like(b), (tokens, 0), MAX_GAP
        first, second = -one[0] - gap // 2, -one[1] - (gap - gap // 2)
        made.append((shifted(v, tokens + first), shifted(b, first), shifted(w, second)))
    value, biases, output = (torch.stack(parts) for parts in zip(*made, strict=True))
    return value, None if bias is None else biases, output, top


def _of_tokens(attention, x):
    """The power a of the tokens; for zeros, at most 0 and such that the scale of the logits is at most about 1."""
    if (a := exponent(x)) > ZERO:
        return a
    query, bias, key = (exponent(getattr(attention, name)) for name in ("query", "query_bias", "key"))
    logits = ((size + key + exponent(attention.scale), tokens) for size, tokens in ((query, 2), (bias, 1)))
    return min([0, *(-size // tokens for size, tokens in logits if size > ZERO)])


def _of_rows(tensors, a):
    """The powers q and k of the projected rows of queries and keys, for tokens of power a."""
    q = max(exponent(tensors["query"]) + a, exponent(tensors["query_bias"]))
    k = max(exponent(tensors["key"]) + a, exponent(tensors["key_bias"]))
    q = 0 if q == ZERO else q
    k = -q if k == ZERO else k  # without keys all logits are zero, whatever the queries
    both_normalised = tensors["query_norm"] is not None and tensors["key_norm"] is not None
    return (max(q, k),) * 2 if both_normalised else (q, k)  # one epsilon for both


def _gain(power, norm):
    """Exponent added to the scale of the logits: the exponent of the rows, or of the norm's weights after a norm."""
    return power if norm is None else max(exponent(norm), -MAX_SCALE)


def _of_heads(tensors, heads):
    """The tensors of the heads in a boolean mask; keys and values must be expanded to one per head."""
    return {name: part[heads] if part is not None and AXES[name][0] in "hg" else part for name, part in tensors.items()}


def in_units(attention: Attention, x: Tensor) -> tuple[Any, Tensor, float, float]:
    r"""Rescale map and tokens to units in which all tokens and all matrices have entries up to one.

    With :math:`x = 2^a x'`, :math:`2^a W_Q = 2^q W_Q'` (the same factor for its bias), :math:`2^a W_K = 2^k W_K'`, the
    scale of the logits becomes :math:`2^{q + k} s`. Values and outputs have a power of two for each head; if
    :math:`2^o` is that of the head with the largest product of :math:`2^a W_V` and :math:`W_O`, then
    :math:`f(x) = 2^o f'(x')` up to a constant. Normalised rows do not grow with q, but
    :math:`\epsilon' = 4^{-q} \epsilon`; the power of their weights goes into the scale. Biases of outputs, and of keys
    and values where they change no derivative, are left out, and so are heads whose values or outputs are zero, unless
    heads share keys or a mean square. If all tokens are zero, a is at most 0 and such that the scale of the logits is
    at most about one.

    `attention` and `x`, shape (n, d), are in float64. Returns the map with keys for each head, x', a and o. The map is
    None if the scale of the logits exceeds two to the `MAX_SCALE` in these units or an :math:`\epsilon` leaves float64,
    since float64 cannot answer then, and if no head has both values and outputs.
    """
    whole = attention.expand_groups()
    a = _of_tokens(whole, x)
    if not active_heads(attention).any():
        return None, x, a, 0
    bare = whole.without_irrelevant_biases()
    tensors = {name: getattr(bare, name) for name in AXES} | {"output": whole.output_matrices()}
    q, k = _of_rows(tensors, a)
    gains = _gain(q, tensors["query_norm"]), _gain(k, tensors["key_norm"])
    if not (attention.groups < attention.heads or attention.joint_norm):  # none share keys or a mean square
        tensors = _of_heads(tensors, active_heads(attention))
    value, value_bias, output, o = _balanced(tensors["value"], tensors["value_bias"], tensors["output"], a)
    eps = shifted_number(whole.norm_eps, -2 * (k if tensors["query_norm"] is None else q))
    if exponent(whole.scale) + sum(gains) > MAX_SCALE or eps == math.inf:
        return None, x, a, o
    powers = {
        "query": a - q,
        "query_bias": -q,
        "key": a - k,
        "key_bias": -k,
        "query_norm": -gains[0],
        "key_norm": -gains[1],
    }
    tensors |= {name: shifted(tensors[name], power) for name, power in powers.items() if tensors[name] is not None}
    tensors |= {"value": value, "value_bias": value_bias, "output": output}
    unit = whole.changed(**tensors, kept={}, norm_eps=eps, scale=shifted_number(whole.scale, sum(gains)))
    return unit, shifted(x, -a), a, o
