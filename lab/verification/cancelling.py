"""Maps and tokens on which float64 loses digits: cancellation, ties, offsets, weights and units far apart."""

from functools import partial
from typing import NamedTuple
from zlib import crc32

import torch

from lab.bounds_survey import draws
from lipnb.attention import Attention

CANCELLING = ("products", "ties", "offsets", "weights", "units", "plain")
IN_USE = ("shared keys", "rotary", "norms", "cap", "relative", "sinks")


class Case(NamedTuple):
    """One map, its tokens, token weights or None, and the most columns to treat exactly, for `lipnb.certify`."""

    attention: Attention
    x: torch.Tensor
    weights: torch.Tensor | None
    columns: int | None


def draw_cancelling(kind, seed, *, name="certify"):
    """Case number `seed` of a kind; equal arguments give equal cases.

    `kind` ("products", "ties", "offsets", "weights", "units", "plain"): queries and keys that are small differences of
    large numbers; nearly hard attention between scores that nearly agree; tokens with a large common part, and
    biases; weights with ratios up to 1e300 and beyond; matrices and tokens in very different units, up to overflow;
    none of these. `name`: other names give other cases.
    """
    g = torch.Generator().manual_seed(crc32(f"cancelling/{name}/{kind}/{seed}".encode()))
    integer, normal = partial(draws.integer, g), partial(draws.normal, g)

    def power(low, high):
        return 2.0 ** integer(low, high)

    narrow = integer(0, 1) == 1  # float32
    most = 60 if narrow else 500
    n, d, k, v, h, m = (integer(low, high) for low, high in ((1, 4), (1, 4), (1, 2), (1, 2), (1, 2), (1, 2)))
    query, key, value = normal(h, k, d), normal(h, k, d), normal(h, v, d)
    output = normal(h, m, v) if integer(0, 1) else None
    x, biases, weights, scale = normal(n, d) * power(-2, 2), {}, None, None
    if integer(0, 1):
        biases = {"query_bias": normal(h, k), "key_bias": normal(h, k), "value_bias": normal(h, v)}
    if kind == "products":
        query, key, value, x, biases, scale = _products(integer, normal, power, 60, most)
        output = None
    elif kind == "ties":
        size = power(5, 40)
        x[:] = x[:1] + power(-50, 0) * x
        if d > 1 and n > 1:
            x[1:, 0] = x[0, 0]
            key[:] = 0
            key[..., 0, 0] = size
            key[..., 1] = normal(h, k) * power(-20, 5)
        query = query * power(0, 10)
    elif kind == "offsets":
        x = x + normal(1, d) * power(5, 50)
        key = key * power(-30, 0)
        biases = {name: bias * power(0, 50) for name, bias in biases.items()}
    elif kind == "weights":
        spread = 170.0 if narrow else 1400.0
        logs = spread * (torch.rand(n, generator=g, dtype=torch.float64) - 0.5)
        weights = logs.exp() if integer(0, 3) else 2.0 ** torch.randint(-20, 21, (n,), generator=g)
    elif kind == "units":
        x, query, key, value = (
            x * power(-most, most),
            query * power(-most, most),
            key * power(-most, most),
            (value * power(-most, most)),
        )
        if integer(0, 2):  # keep logits near one nevertheless
            unit = (query.abs().max() * x.abs().max()).clamp(1e-30 if narrow else 1e-280, 1e30 if narrow else 1e280)
            key = normal(h, k, d) / unit / x.abs().max()
            biases = {}
        biases = {name: bias * power(-most, most) for name, bias in biases.items()}
    dtype = torch.float32 if narrow else torch.float64
    top = torch.finfo(dtype).max
    tensors = {"query": query, "key": key, "value": value, "output": output, **biases}
    tensors = {
        name: None if one is None else one.nan_to_num().clamp(-top, top).to(dtype) for name, one in tensors.items()
    }
    masked = integer(0, 2) == 0
    if weights is not None:
        weights = weights.to(dtype).clamp_min(torch.finfo(dtype).smallest_normal)
    columns = (0, None, 0, None, query.shape[-1])[integer(0, 4)]
    window = integer(1, 3) if masked and integer(0, 1) else None
    attention = Attention(**tensors, masked=masked, window=window, scale=scale)
    return Case(attention, x.clamp(-top, top).to(dtype), weights, columns)


def _products(integer, normal, power, most, units):
    """One head whose query and key are remainders of a difference, W = (1, t, -1), each in its own coordinates."""
    n, t, size = integer(2, 4), [float(2 * integer(0, 3) + 1), float(2 * integer(0, 3) + 1)], integer(20, most)
    query, key, value = torch.zeros(3, 1, 1, 7, dtype=torch.float64)
    for i, matrix in enumerate((query, key)):
        matrix[0, 0, 3 * i : 3 * i + 3] = torch.tensor([1.0, t[i], -1.0], dtype=torch.float64)
    value[0, 0, 6] = 1.0
    x = torch.zeros(n, 7, dtype=torch.float64)
    x[:, :3] = torch.tensor([2.0**size, 1.0, 2.0**size], dtype=torch.float64)
    x[: integer(1, n), 3:6] = torch.tensor([2.0**size, 1.0, 2.0**size], dtype=torch.float64)
    if integer(0, 1):
        x[:, 6] = normal(n)
    if integer(0, 1):
        x[:, 1] = x[:, 1] * power(-3, 1)
    unit = 2.0 ** integer(-units // 4, units // 4)
    if integer(0, 1):  # other units, the same logits
        x, query, key = x * unit, query / unit, key / unit
    biases = {"query_bias": normal(1, 1)} if integer(0, 2) == 0 else {}
    return query, key, value, x, biases, 1.0


def draw_in_use(kind, seed):
    """Case number `seed` of a kind: a case of `draw_cancelling` with that feature, and each other one at random."""
    base = draw_cancelling(CANCELLING[seed % len(CANCELLING)], seed, name=f"in use/{kind}")
    g = torch.Generator().manual_seed(crc32(f"in use/{kind}/{seed}".encode()))
    integer, normal = partial(draws.integer, g), partial(draws.normal, g)

    def chosen(part):
        return part == kind or integer(0, 3) == 0

    f = base.attention
    given = {name: getattr(f, name) for name in ("query", "key", "value", "output", "query_bias", "key_bias")}
    given |= {"value_bias": f.value_bias, "masked": f.masked, "window": f.window, "scale": f.scale}
    if chosen("rotary"):
        if f.key_width == 1:  # a second coordinate, for a plane
            given |= {name: torch.cat([given[name], normal(f.heads, 1, f.width)], 1) for name in ("query", "key")}
            for name in ("query_bias", "key_bias"):
                if given[name] is not None:
                    given[name] = torch.cat([given[name], normal(f.heads, 1)], 1)
        given["frequencies"] = (normal(1).abs() * 10.0 ** integer(-4, 1)).to(
            (torch.float32, torch.float64)[integer(0, 1)]
        )
    if chosen("shared keys"):
        given |= {
            name: None
            if given[name] is None
            else given[name].repeat_interleave(2, 0) * (1 + normal(2 * f.heads).view(-1, *[1] * (given[name].ndim - 1)))
            for name in ("query", "query_bias", "output")
        }
    (h, k, _), groups = given["query"].shape, f.groups
    if chosen("norms"):
        given |= {"norm_eps": (0.0, 1e-6, 0.3)[integer(0, 2)], "joint_norm": integer(0, 1) == 1}
        which = integer(0, 2)
        given["query_norm"] = normal(h, k) * 2.0 ** integer(-4, 4) if which < 2 else None
        given["key_norm"] = normal(groups, k) if which > 0 else None
    if chosen("cap"):
        given["cap"] = 2.0 ** integer(-3, 6)
    if chosen("relative"):
        given["relative"] = normal(h, 2 * integer(0, 4) + 1) * 2.0 ** integer(-2, 6)
    if chosen("sinks"):
        given["sinks"] = normal(h) * 2.0 ** integer(-1, 6)
    dtype = f.dtype
    given = {
        name: one.to(dtype) if isinstance(one, torch.Tensor) and name != "frequencies" else one
        for name, one in given.items()
    }
    return base._replace(attention=type(f)(**given))
