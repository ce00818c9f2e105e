"""The same attention in units in which nothing overflows: powers of two, exact."""

from typing import Any

import torch
from torch import Tensor

from lipnb.attention.features import alive, loose_keys
from lipnb.attention.heads import Attention
from lipnb.scaling import ZERO, exponent, shifted, shifted_number

__all__ = ["in_units"]

STEEPEST = 150  # power of two beyond which a scale of the logits, in units, is refused
FAINTEST = 800  # power of two by which a head may lie below the largest; what is fainter is taken to be that strong


def _balanced(value, bias, output, tokens):
    r"""Values of :math:`2^a x'`, their biases and output matrices, in units, and the power of the largest head.

    Each head has its own power; what it lies below the largest is shared by its two matrices, so that their squares
    do not underflow. A head more than :math:`2^{800}` below it is raised to there: that adds less than `TINY` to the
    Jacobian, and every sum over heads of bounds only grows. A head that is zero has entries of that size.
    """
    powers = [
        (max(exponent(v) + tokens, exponent(None if bias is None else bias[i])), exponent(w))
        for i, (v, w) in enumerate(zip(value, output, strict=True))
    ]
    top, made = max(sum(one) for one in powers), []
    for i, one in enumerate(powers):
        v, w, faint = value[i], output[i], min(FAINTEST, top - sum(one))
        b = torch.zeros_like(v[:, 0]) if bias is None else bias[i]
        if sum(one) == ZERO:
            v, w, b, one, faint = torch.ones_like(v), torch.ones_like(w), torch.zeros_like(b), (tokens, 0), FAINTEST
        first, second = -one[0] - faint // 2, -one[1] - (faint - faint // 2)
        made.append((shifted(v, tokens + first), shifted(b, first), shifted(w, second)))
    return *(torch.stack(parts) for parts in zip(*made, strict=True)), top


def _of_tokens(attention, x, steep):
    """The power a of the tokens. Zeros have none: it is then at most 0, and the scale of the logits at most about 1."""
    if (a := exponent(x)) > ZERO:
        return a
    query, bias, key = (exponent(attention.own[name]) for name in ("query", "query_bias", "key"))
    return min([0, *(-(size + key + steep) // n for size, n in ((query, 2), (bias, 1)) if size + key > ZERO)])


def _of_rows(attention, a, key_bias):
    """The powers q and k of the rows that become queries and keys, of tokens of power a."""
    own = attention.own
    q = max(exponent(own["query"]) + a, exponent(own["query_bias"]))
    k = max(exponent(own["key"]) + a, exponent(key_bias))
    q = 0 if q == ZERO else q
    k = -q if k == ZERO else k  # without keys all logits are zero, whatever the queries
    both_normalised = own["query_norm"] is not None and own["key_norm"] is not None
    return (max(q, k),) * 2 if both_normalised else (q, k)  # one epsilon for both


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
    None where the scale of the logits exceeds :math:`2^{150}` in these units, or an :math:`\epsilon` leaves float64: no
    float64 answers then; and where no head has both values and outputs.
    """
    heads, together = alive(attention), attention.groups < attention.heads or attention.joint_norm
    map_, steep = attention.expand_groups(), exponent(attention.scale) if attention.scale else 0
    own = map_.own
    a = _of_tokens(map_, x, steep)
    if not heads.any():
        return None, x, a, 0
    key_bias = None if loose_keys(map_) else own["key_bias"]
    q, k = _of_rows(map_, a, key_bias)
    # what the logits gain: rows that are normalised have the size of their weights
    gain_q, gain_k = (
        power if norm is None else max(exponent(norm), -STEEPEST)
        for power, norm in ((q, own["query_norm"]), (k, own["key_norm"]))
    )
    kept = slice(None) if together else heads
    value_bias = None if own["sinks"] is None or own["value_bias"] is None else own["value_bias"][kept]
    value, bias, output, o = _balanced(own["value"][kept], value_bias, map_.output_matrices()[kept], a)
    try:
        eps = shifted_number(map_.norm_eps, -2 * (k if own["query_norm"] is None else q))
    except OverflowError:
        return None, x, a, o
    if steep + gain_q + gain_k > STEEPEST:
        return None, x, a, o
    powers = {
        "query": a - q,
        "query_bias": -q,
        "key": a - k,
        "key_bias": -k,
        "query_norm": -gain_q,
        "key_norm": -gain_k,
        "relative": 0,
        "sinks": 0,
    }
    given = own | {"key_bias": key_bias}
    unit = map_.replace(
        **{name: None if given[name] is None else shifted(given[name][kept], by) for name, by in powers.items()},
        value=value,
        output=output,
        value_bias=None if value_bias is None else bias,
        output_bias=None,
        norm_eps=eps,
        scale=shifted_number(map_.scale, gain_q + gain_k),
    )
    return unit, shifted(x, -a), a, o
