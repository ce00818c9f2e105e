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
        normal(h, k, d) / d**0.5, normal(h, k, d) / d**0.5, normal(h, v, d) / d**0.5,
        normal(h, m, v) / v**0.5 if seed % 3 else None,
        query_bias=normal(h, k) if bias else None, key_bias=normal(h, k) if bias else None,
        value_bias=normal(h, v) if bias else None,
        output_bias=normal(m if seed % 3 else h * v) if bias else None, masked=seed % 2 == 1, score=score,
    )
    weights = (torch.rand(2, n, generator=generator, dtype=torch.float64) + 1e-3).to(dtype) if seed % 5 == 0 else None
    return Case(attention, spread * normal(2, n, d), weights)


CASES = [(seed, spread) for seed in range(24) for spread in (0.3, 1.0, 4.0)]


def relative(got, expected):
    """Largest error relative to the largest entry."""
    return ((got - expected).abs().max() / expected.abs().max().clamp_min(1e-300)).item()
