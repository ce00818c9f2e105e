"""Attention maps to test on: sizes x seeds x masks x biases x projections x weights, float64."""

from typing import NamedTuple

import torch

from lipnb import Attention


class Case(NamedTuple):
    """A random map with an input of its own."""

    attention: Attention
    x: torch.Tensor
    weights: torch.Tensor | None


def random_case(seed, *, n=None, spread=1.0, dtype=torch.float64, score="dot"):
    """Case number `seed`: its sizes and options follow from the number, so a failure can be called again.

    `spread` scales the tokens: small is near-uniform attention, large is near-hard attention.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    def integer(high):
        return int(torch.randint(1, high + 1, (), generator=generator))

    h, k, d, v, m = integer(4), integer(8), integer(12), integer(8), integer(12)
    n = n or integer(64 if seed // 8 % 2 else 16)
    bias = seed % 8 >= 3
    attention = Attention(
        normal(h, k, d) / d**0.5,
        normal(h, k, d) / d**0.5,
        normal(h, v, d) / d**0.5,
        normal(h, m, v) / v**0.5 if seed % 3 else None,
        query_bias=normal(h, k) if bias else None,
        key_bias=normal(h, k) if bias else None,
        value_bias=normal(h, v) if bias else None,
        output_bias=normal(m if seed % 3 else h * v) if bias else None,
        masked=seed % 2 == 1,
        score=score,
    )
    weights = (torch.rand(2, n, generator=generator, dtype=torch.float64) + 1e-3).to(dtype) if seed % 5 == 0 else None
    return Case(attention, spread * normal(2, n, d), weights)


CASES = [(seed, spread) for seed in range(24) for spread in (0.3, 1.0, 4.0)]


def relative(got, expected):
    """Largest error relative to the largest entry."""
    return ((got - expected).abs().max() / expected.abs().max().clamp_min(1e-300)).item()


def extreme_case(seed):
    """A map, tokens, weights or None and columns with zeros, dead heads, equal tokens, and powers of two to 2^1000."""
    g = torch.Generator().manual_seed(seed)

    def pick(*items):
        return items[int(torch.randint(len(items), (), generator=g))]

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    dtype, most = pick((torch.float64, 1000), (torch.float64, 1000), (torch.float32, 120))
    h, n, d, k, v, m = (pick(*sizes) for sizes in ((1, 2, 3), (1, 2, 3, 4), (1, 2, 3), (1, 2), (1, 2), (1, 2)))

    def extreme(tensor):
        how, unit = (
            pick("plain", "plain", "zero", "whole", "head", "entry"),
            2.0 ** pick(-most, -most // 2, most // 2, most, -30, 30),
        )
        if how == "head":
            tensor[0] *= unit
        if how == "entry":
            tensor.view(-1)[0] *= unit
        return tensor * {"zero": 0.0, "whole": unit}.get(how, 1.0)

    given = {"query": extreme(normal(h, k, d)), "key": extreme(normal(h, k, d)), "value": extreme(normal(h, v, d))}
    if pick(0, 1):
        given["output"] = extreme(normal(h, m, v))
    if pick(0, 1):
        given |= {"query_bias": extreme(normal(h, k)), "key_bias": extreme(normal(h, k))}
    if h > 1 and pick(0, 1):  # heads of which only values or only outputs are there
        given["value"][0] *= pick(0.0, 2.0**-most)
        if "output" in given:
            given["output"][-1] *= pick(0.0, 2.0**-most)
    x = extreme(normal(n, d))
    x = pick(x, x, x, 0 * x, x[:1].expand(n, d).clone())
    weights = pick(None, None, normal(n).exp(), (1380 * torch.rand(n, generator=g, dtype=torch.float64) - 690).exp())
    top, least = torch.finfo(dtype).max / 4, torch.finfo(dtype).tiny
    given = {name: one.clamp(-top, top).to(dtype) for name, one in given.items()}
    masked = pick(False, True)
    attention = Attention(**given, masked=masked, window=pick(None, 1, 2) if masked else None)
    weights = None if weights is None else weights.clamp(least, top).to(dtype)
    return attention, x.clamp(-top, top).to(dtype), weights, pick(None, 0, 1, 3, 1000)
