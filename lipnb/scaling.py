"""Scaling by powers of two, which is exact and keeps products in the range of their type."""

import math

import torch
from torch import Tensor

ZERO = -math.inf  # exponent of a tensor of zeros
LEAST, MOST = -1022, 1023  # exponents of normal numbers of float64


def exponent(tensor: Tensor | float | None) -> float:
    """The integer e such that the largest absolute entry lies in [2^(e-1), 2^e); `ZERO` for zeros and None."""
    if isinstance(tensor, Tensor):
        tensor = tensor.abs().max().item() if tensor.numel() else 0.0
    return math.frexp(tensor)[1] if tensor else ZERO


def power_of_two(tensor: Tensor) -> float:
    """The power of two just above the largest absolute entry; 1 for zeros. Squares of quotients are representable."""
    return 2.0**top if (top := exponent(tensor)) > ZERO else 1.0


def powers_of_two(sizes: Tensor, least: float = LEAST, most: float = MOST) -> Tensor:
    """The power of two just above each positive number, with an exponent from `least` to `most`; 1 for zeros."""
    return torch.ldexp(torch.ones_like(sizes), torch.frexp(sizes).exponent.clamp(least, most))


def shifted(tensor: Tensor, power: float) -> Tensor:
    """``tensor * 2**power``, exact if the result is a normal number; else infinite, or rounded once or twice.

    The factor need not be representable: the largest number is about 2^2100 times the smallest. It is therefore split
    into three factors, whose exponents have one sign and differ by one at most: if the result is normal, so are the
    intermediate results. Each exponent is clamped to the range of float64, for a `power` that no number survives.
    """
    first = power // 3
    second = (power - first) // 2
    for share in (first, second, power - first - second):
        tensor = tensor * 2.0 ** max(LEAST, min(MOST, share))
    return tensor


def shifted_number(number: float, power: float) -> float:
    """``number * 2**power`` for one float, rounded at most once; infinite beyond the largest float."""
    try:
        return math.ldexp(number, int(power))
    except OverflowError:
        return math.copysign(math.inf, number)
