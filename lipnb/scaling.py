"""Powers of two, by which products are kept in the range of their type: multiplying and dividing by them is exact."""

import math

import torch
from torch import Tensor

ZERO = -math.inf  # exponent of a tensor of zeros
LEAST, MOST = -1022, 1023  # exponents of normal numbers of float64


def exponent(tensor: Tensor | float | None) -> float:
    """The e of which the largest absolute entry lies in [2^(e-1), 2^e), a whole number; `ZERO` for zeros and None."""
    if isinstance(tensor, Tensor):
        tensor = tensor.abs().max().item() if tensor.numel() else 0.0
    return math.frexp(tensor)[1] if tensor else ZERO


def power_of_two(tensor: Tensor) -> float:
    """The power of two just above the largest absolute entry; 1 for zeros. What is divided by it has squares."""
    return 2.0**top if (top := exponent(tensor)) > ZERO else 1.0


def powers_of_two(sizes: Tensor, least: float = LEAST, most: float = MOST) -> Tensor:
    """Of each positive number the power of two just above it, with an exponent from `least` to `most`; 1 for zeros."""
    return torch.ldexp(torch.ones_like(sizes), torch.frexp(sizes).exponent.clamp(least, most))


def shifted(tensor: Tensor, power: float) -> Tensor:
    """``tensor * 2**power``, exact where the answer is a normal number; infinite or rounded once or twice where not.

    The factor need not be a number of the type: from the smallest numbers to the largest there are some 2^2100. So it
    is three factors, whose exponents have one sign and differ by one at most: what is normal at the end was so between.
    Each is held to a power that float64 has, for a `power` that no number survives.
    """
    first = power // 3
    second = (power - first) // 2
    for share in (first, second, power - first - second):
        tensor = tensor * 2.0 ** max(LEAST, min(MOST, share))
    return tensor


def shifted_number(number: float, power: float) -> float:
    """The same of one number, rounded once at most; infinite beyond the largest."""
    try:
        return math.ldexp(number, int(power))
    except OverflowError:
        return math.copysign(math.inf, number)
