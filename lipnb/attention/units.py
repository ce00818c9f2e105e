"""The same attention in units in which nothing overflows: powers of two, exact."""

import math
from typing import Any

import torch
from torch import Tensor

from lipnb.attention.features import active_heads
from lipnb.attention.heads import Attention
from lipnb.attention.parameters import AXES
from lipnb.scaling import ZERO, exponent, shifted, shifted_number

MAX_SCALE = 150  # power of two beyond which a scale of the logits, in units, is refused
MAX_GAP = 800  # power of two by which a head may lie below the largest; what is fainter is taken to be that strong


def _balanced(value, bias, output, tokens):
    r"""Values of :math:`2^a x'`, their biases and output matrices, in units, and the power of the largest head.

    Each head has its own power; what it lies below the largest is shared by its two matrices, so that their squares
    do not underflow. A head more than two to the `MAX_GAP` below it is raised to there, and a head that is zero has
    entries of that size: `lipnb.bounds.rounding` counts them whole.
    """
    powers = [
        (max(exponent(v) + tokens, exponent(None if bias is None else bias[i])), exponent(w))
        for i, (v, w) in enumerate(zip(value, output, strict=True))
    ]
    top, made = max(sum(one) for one in powers), []
    for i, one in enumerate(powers):
        v, w, gap = value[i], output[i], min(MAX_GAP, top - sum(one))
        b = torch.zeros_like(v[:, 0]) if bias is None else bias[i]  # stands for none
        if sum(one) == ZERO:
            v, w, b, one, gap = torch.ones_like(v), torch.ones_like(w), torch.zeros_like(b), (tokens, 0), MAX_GAP
        first, second = -one[0] - gap // 2, -one[1] - (gap - gap // 2)
        made.append((shifted(v, tokens + first), shifted(b, first), shifted(w, second)))
    value, biases, output = (torch.stack(parts) for parts in zip(*made, strict=True))
    return value, None if bias is None else biases, output, top


def _of_tokens(attention, x):
    """The power a of the tokens. Zeros have none: it is then at most 0, and the scale of the logits at most about 1."""
    if (a := exponent(x)) > ZERO:
        return a
    query, bias, key = (exponent(getattr(attention, name)) for name in ("query", "query_bias", "key"))
    logits = ((size + key + exponent(attention.scale), tokens) for size, tokens in ((query, 2), (bias, 1)))
    return min([0, *(-size // tokens for size, tokens in logits if size > ZERO)])


def _of_rows(tensors, a):
    """The powers q and k of the rows that become queries and keys, of tokens of power a."""
    q = max(exponent(tensors["query"]) + a, exponent(tensors["query_bias"]))
    k = max(exponent(tensors["key"]) + a, exponent(tensors["key_bias"]))
    q = 0 if q == ZERO else q
    k = -q if k == ZERO else k  # without keys all logits are zero, whatever the queries
    both_normalised = tensors["query_norm"] is not None and tensors["key_norm"] is not None
    return (max(q, k),) * 2 if both_normalised else (q, k)  # one epsilon for both


def _gain(power, norm):
    """The power by which the scale of the logits grows for rows of this power: normalised, for that of the weights."""
    return power if norm is None else max(exponent(norm), -MAX_SCALE)


def _of_heads(tensors, heads):
    """The tensors of some heads alone, heads boolean; those of keys are of each head."""
    return {name: part[heads] if part is not None and AXES[name][0] in "hg" else part for name, part in tensors.items()}


def in_units(attention: Attention, x: Tensor) -> tuple[Any, Tensor, float, float]:
    r"""The same map in units in which all tokens and all matrices have entries up to one.

    With :math:`x = 2^a x'`, :math:`2^a W_Q = 2^q W_Q'` (the same factor for its bias), :math:`2^a W_K = 2^k W_K'`, the
    scale of the logits becomes :math:`2^{q + k} s`. Values and outputs have a power of two for each head; with
    :math:`2^o` that of the head whose :math:`2^a W_V` and :math:`W_O` are largest together,
    :math:`f(x) = 2^o f'(x')` up to a constant. Rows that are normalised do not grow with q, but
    :math:`\epsilon' = 4^{-q} \epsilon`; the power of their weights goes into the scale. Biases of outputs, and of keys
    and values where they change no derivative, are left out, and so are heads whose values or outputs are zero, unless
    they share keys or a mean square with others. Where all tokens are zero, a is at most 0 and such that the scale of
    the logits is at most about one.

    `attention` and `x`, shape (n, d), are in float64. Answers the map with keys for each head, x', a and o. The map is
    None where the scale of the logits exceeds two to the `MAX_SCALE` in these units, or an :math:`\epsilon` leaves
    float64: no float64 answers then; and where no head has both values and outputs.
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
