"""Diagonal operators, whose singular values are known, and their spectra."""

import numpy as np
import torch
from cases import normal

from lipnb.spectral import GramOperator

ROUNDING = 16 * torch.finfo(torch.float32).eps


class Diagonal(GramOperator):
    """Diagonal operators with given singular values (b, N); as `CachedGram`, each answer overwrites the last."""

    def __init__(self, values, dtype=torch.float64):
        self.values, self.dtype = values, dtype
        self.buffer = torch.empty(values.shape, dtype=dtype)

    def gram(self, u):
        return torch.mul((self.values**2).to(self.dtype), u.to(self.dtype), out=self.buffer)

    def restrict(self, index):
        return Diagonal(self.values[index], self.dtype)


def tail(size, top):
    return torch.linspace(0, top, size, dtype=torch.float64)


def one(*tops, size=120, rest=0.9):
    return torch.cat([torch.tensor(tops, dtype=torch.float64), tail(size - len(tops), rest)])


SPECTRA = {
    "far": one(1.0, rest=0.3),
    "bulk": tail(120, 1.0),
    "repeated": one(1.0, 1.0, 1.0),
    "all equal": torch.ones(120, dtype=torch.float64),
    "gap 1e-3": one(1.0, 0.999),
    "gap 1e-8": one(1.0, 1 - 1e-8),
    "rank one": one(1.0, rest=0.0),
    "rank two": one(1.0, 1 - 1e-6, rest=0.0),
    "near": one(1.0, rest=0.999),
    "zero": tail(120, 0.0),
    "tiny": 1e-20 * one(1.0),
    "huge": 1e20 * one(1.0, 0.99),
    "many near": one(*np.linspace(1, 0.99, 30)),
}


NAMES = list(SPECTRA)


def random_starts(batch, size, seed):
    start = normal(batch, size, seed=seed)
    return start / start.norm(dim=1, keepdim=True)


def check(found, exact, rtol, rounding=1e-12):
    assert not any(field.isnan().any() for field in found[:5])
    assert found.converged.all()
    assert (found.value <= exact * (1 + rounding)).all()
    assert (found.value >= exact * (1 - rtol)).all(), NAMES[int((found.value / exact).nan_to_num(1).argmin())]


def few_large_values(size, bulk, draw):
    """Six values that settle in a few steps, above a small bulk, float32."""
    values = bulk * torch.rand(size, generator=torch.Generator().manual_seed(draw))
    values[:6] = torch.tensor([1, 0.7, 0.5, 0.3, 0.2, 0.1])
    return values


def nearly_equal(size, top):
    """A map of one entry that is larger than all others, float32; its largest value exactly."""
    factors = torch.ones(size, 1)
    factors[size // 3] = 1 + top
    return lambda x: factors * x, factors.double().max().item()
