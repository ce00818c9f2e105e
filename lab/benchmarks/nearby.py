"""The bound on the change in a ball against bound propagation on the same maps: how tight, how fast?

Nine random layers (normal weights over the root of the width, normal tokens) and one radius each. The bounded quantity
is the Frobenius norm of the change of the output, over all changes of the tokens whose total norm is at most that
radius. Ours is `lipnb.bounds.nearby_upper`. auto_LiRPA bounds each coordinate of the output for the same ball, by CROWN
(backward) and with intervals for intermediate values; its bounds imply one on the norm, and the smaller of the two is
kept. Neither can be below the largest change that gradient ascent finds.

auto_LiRPA is measured if it can be imported; otherwise its columns stay empty. It is not a dependency: releases on PyPI
end at 0.3, of 2022, in which five names must be patched for the present NumPy and PyTorch.

Table bench-nearby, one row for each case:
  heads, width, tokens, epsilon   case
  first_order                     epsilon times the local constant, from below
  attack                          largest change found
  bound, seconds                  ours; median of three
  lirpa, lirpa_seconds            auto_LiRPA's, with building its graph; median of three
"""

import math
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import torch

from lab.benchmarks import machine
from lipnb import Attention
from lipnb.bounds import nearby_upper
from lipnb.worst_case import attacks

EXAMPLES = """examples:
  python -m lab bench nearby             nine cases (some minutes)
  python -m lab bench nearby --quick     the smallest
"""
CASES = (  # heads, width, tokens, epsilon
    (1, 8, 4, 0.01),
    (1, 16, 8, 0.1),
    (2, 16, 8, 0.3),
    (4, 16, 16, 0.01),
    (4, 16, 16, 0.1),
    (2, 32, 16, 0.1),
    (4, 32, 16, 0.3),
    (4, 32, 32, 0.03),
    (1, 64, 16, 0.03),
)
METHODS = ("CROWN", "IBP+backward")
STEPS = 100  # of each ascent


def case(heads, width, tokens, seed=0):
    """A random layer and tokens, float64."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    size = width // heads
    query, key, value = normal(3, heads, size, width) / width**0.5
    return Attention(query, key, value, normal(heads, width, size) / width**0.5), normal(tokens, width)


def attacked(attention, x, epsilon):
    """The local constant from below, and the largest change of the output that gradient ascents find in the ball."""
    top = attacks.singular(attention, x)
    starts = torch.cat([top.direction[None], -top.direction[None], attacks.random_directions(x, 4)])
    found = [attacks.push(attention, x, starts, epsilon, steps=STEPS, size=size)[1].max() for size in (None, 0.3)]
    return top.value, max(found).item()


def installed():
    """The version of auto_LiRPA, or None."""
    try:
        return version("auto_LiRPA")
    except PackageNotFoundError:
        return None


class Plain(torch.nn.Module):
    """The same map for a batch of one sequence, in operations that auto_LiRPA supports; outputs in one row."""

    def __init__(self, attention):
        super().__init__()
        self.scale = attention.scale
        for name in ("query", "key", "value", "output"):
            setattr(self, name, torch.nn.Parameter(getattr(attention, name).clone()))

    def forward(self, x):
        total = None
        for query, key, value, output in zip(*self.parameters(), strict=True):
            scores = (self.scale * x.matmul(query.t()).matmul(x.matmul(key.t()).transpose(-1, -2))).exp()
            head = (scores / scores.sum(-1, keepdim=True)).matmul(x.matmul(value.t())).matmul(output.t())
            total = head if total is None else total + head
        return total.flatten(1)


def lirpa(attention, x, epsilon, method):
    """The bound on the change that follows from auto_LiRPA's bounds on the outputs."""
    from auto_LiRPA import BoundedModule, BoundedTensor, PerturbationLpNorm

    before = torch.get_default_dtype()
    torch.set_default_dtype(x.dtype)  # the type of its identity matrices
    try:
        moving = BoundedTensor(x[None], PerturbationLpNorm(norm=2, eps=epsilon))
        lower, upper = BoundedModule(Plain(attention), x[None]).compute_bounds(x=(moving,), method=method)
    finally:
        torch.set_default_dtype(before)
    here = attention(x).flatten()
    return torch.maximum(upper[0] - here, here - lower[0]).norm().item()


def measure(heads, width, tokens, epsilon):
    """One row of the table."""
    attention, x = case(heads, width, tokens)
    constant, found = attacked(attention, x, epsilon)
    ours, taken = machine.timed(lambda: nearby_upper(attention, x, [epsilon]).best.item())
    theirs, theirs_taken = math.nan, math.nan
    if installed():
        each = [machine.timed(partial(lirpa, attention, x, epsilon, method)) for method in METHODS]
        theirs, theirs_taken = min((bound, seconds["seconds"]) for bound, seconds in each)
    return {
        "heads": heads,
        "width": width,
        "tokens": tokens,
        "epsilon": epsilon,
        "first_order": epsilon * constant,
        "attack": found,
        "bound": ours,
        "seconds": taken["seconds"],
        "lirpa": theirs,
        "lirpa_seconds": theirs_taken,
    }


def main(argv=None):
    """Entry point."""
    given = machine.parser(__doc__, EXAMPLES).parse_args(argv)
    machine.start(given)
    if not installed():
        print("auto_LiRPA is not installed: its columns stay empty (pip install auto_LiRPA).")
    cases = CASES[:1] if given.quick else CASES
    units = {"/".join(map(str, one)): lambda one=one: [measure(*one)] for one in cases}
    table = machine.make(
        "nearby", {"cases": cases, "auto_LiRPA": installed(), "methods": METHODS}, given, units, "case"
    )
    shown = table.assign(tightness=table.bound / table.attack, theirs=table.lirpa / table.attack)
    print(shown.to_string(index=False, float_format="{:.4g}".format))


if __name__ == "__main__":
    machine.enter(main)
