"""The same attention in units in which nothing overflows: powers of two, exact."""

import math

import torch

__all__ = ["alive", "fixed_keys", "in_units", "loose_keys", "scaled"]

STEEPEST = 150  # power of two beyond which a scale of the logits, in units, is refused
FAINTEST = 800  # power of two by which a head may lie below the largest; what is fainter is taken to be that strong
ZERO = -math.inf  # power of a tensor of zeros


def scaled(tensor, power):
    """``tensor * 2**power``, exact where the answer is a normal number; infinite or rounded once or twice where not."""
    for share in (power // 3, (power - power // 3) // 2, power - power // 3 - (power - power // 3) // 2):
        tensor = tensor * 2.0 ** max(-1022, min(1023, share))
    return tensor


def _power(tensor):
    """The power of two that brings the largest entry below one and not below a half; `ZERO` for zeros and None."""
    largest = 0.0 if tensor is None else tensor.abs().max().item()
    return math.frexp(largest)[1] if largest > 0 else ZERO


def fixed_keys(attention):
    """Whether keys are one matrix times the tokens, wherever these stand."""
    return attention.frequencies is None and attention.key_norm is None


def loose_keys(attention):
    """Whether one vector added to all keys changes nothing, because it adds one number to each row of logits."""
    return fixed_keys(attention) and attention.cap is None and attention.sinks is None


def alive(attention):
    """Which heads have values and outputs, boolean, shape (h,): the others change nothing."""
    moving = attention.value.flatten(1).any(1)
    if attention.sinks is not None and attention.value_bias is not None:
        moving = moving | attention.value_bias.any(1)
    moving = moving.repeat_interleave(attention.heads // attention.groups)
    return moving if attention.output is None else moving & attention.output.flatten(1).any(1)


def _balanced(value, bias, output, tokens):
    r"""Values of :math:`2^a x'`, their biases and output matrices, in units, and the power of the largest head.

    Each head has its own power; what it lies below the largest is shared by its two matrices, so that their squares
    do not underflow. A head more than :math:`2^{800}` below it is raised to there: that adds less than `TINY` to the
    Jacobian, and every sum over heads of bounds only grows. A head that is zero has entries of that size.
    """
    powers = [
        (max(_power(v) + tokens, _power(None if bias is None else bias[i])), _power(w))
        for i, (v, w) in enumerate(zip(value, output, strict=True))
    ]
    top, made = max(sum(one) for one in powers), []
    for i, one in enumerate(powers):
        v, w, faint = value[i], output[i], min(FAINTEST, top - sum(one))
        b = torch.zeros_like(v[:, 0]) if bias is None else bias[i]
        if sum(one) == ZERO:
            v, w, b, one, faint = torch.ones_like(v), torch.ones_like(w), torch.zeros_like(b), (tokens, 0), FAINTEST
        first, second = -one[0] - faint // 2, -one[1] - (faint - faint // 2)
        made.append((scaled(v, tokens + first), scaled(b, first), scaled(w, second)))
    return *(torch.stack(parts) for parts in zip(*made, strict=True)), top


def in_units(attention, x):
    r"""The same map in units in which all tokens and all matrices have entries up to one.

    With :math:`x = 2^a x'`, :math:`2^a W_Q = 2^q W_Q'` (the same factor for its bias), :math:`2^a W_K = 2^k W_K'`, the
    scale of the logits becomes :math:`2^{q + k} s`. Values and outputs have a power of two for each head; with
    :math:`2^o` that of the head whose :math:`2^a W_V` and :math:`W_O` are largest together,
    :math:`f(x) = 2^o f'(x')` up to a constant. Rows that are normalised do not grow with q, but
    :math:`\epsilon' = 4^{-q} \epsilon`; the power of their weights goes into the scale. Biases of outputs, and of keys
    and values where they change no derivative, are left out, and so are heads whose values or outputs are zero, unless
    they share keys or a mean square with others. Where all tokens are zero, a is at most 0 and such that the scale of
    the logits is at most about one.

    Parameters
    ----------
    attention : Attention
        Float64.
    x : Tensor, shape (n, d)
        Float64.

    Returns
    -------
    attention : Attention or None
        With keys for each head. None where the scale of the logits exceeds :math:`2^{150}` in these units, or an
        :math:`\epsilon` leaves float64: no float64 answers then; and where no head has both values and outputs.
    x : Tensor, shape (n, d)
    tokens, outputs : int
        The powers a and o.
    """
    heads, together = alive(attention), attention.groups < attention.heads or attention.joint_norm
    own, steep = attention.expand_groups(), math.frexp(attention.scale)[1]
    key_bias = None if loose_keys(own) else own.key_bias
    value_bias = None if own.sinks is None else own.value_bias
    query, key = _power(own.query), _power(own.key)
    query_bias, a = _power(own.query_bias), _power(x)
    if a == ZERO:
        a = min([0, *(-(size + key + steep) // n for size, n in ((query, 2), (query_bias, 1)) if size + key > ZERO)])
    if not heads.any():
        return None, x, a, 0
    q, k = max(query + a, query_bias), max(key + a, _power(key_bias))
    q = 0 if q == ZERO else q
    k = -q if k == ZERO else k  # without keys all logits are zero, whatever the queries
    if own.query_norm is not None and own.key_norm is not None:  # one epsilon for both
        q = k = max(q, k)
    steeper = [
        size if norm is None else max(_power(norm), -STEEPEST)
        for size, norm in ((q, own.query_norm), (k, own.key_norm))
    ]
    kept = slice(None) if together else heads
    output = own.output_matrices()
    value, bias, output, o = _balanced(
        own.value[kept], None if value_bias is None else value_bias[kept], output[kept], a
    )
    try:
        eps = math.ldexp(own.norm_eps, -2 * (k if own.query_norm is None else q))
    except OverflowError:
        return None, x, a, o
    if steep + sum(steeper) > STEEPEST:
        return None, x, a, o
    powers = {
        "query": a - q,
        "query_bias": -q,
        "key": a - k,
        "key_bias": -k,
        "query_norm": -steeper[0],
        "key_norm": -steeper[1],
        "relative": 0,
        "sinks": 0,
    }
    given = {name: getattr(own, name) for name in powers} | {"key_bias": key_bias}
    unit = own.replace(
        **{name: None if one is None else scaled(one[kept], powers[name]) for name, one in given.items()},
        value=value,
        output=output,
        value_bias=None if value_bias is None else bias,
        output_bias=None,
        norm_eps=eps,
        scale=math.ldexp(own.scale, sum(steeper)),
    )
    return unit, scaled(x, -a), a, o
