"""The float32 certificate for nearly equal singular values: how often its upper bound lies below the truth.

Maps whose largest singular value exceeds a cluster by a factor 1 + delta, delta from 1e-6 to 1e-2 (log-uniform), each
with a different random start. Half of the clusters are one value, half are spread over a relative width delta. Sizes
from 64 to 10^6 unknowns. The truth is known in float64. A bound counts as violated if it lies below the truth by more
than the stated rounding, 16 eps of float32 relatively.

- "diagonal": x -> w * x, many maps solved together; in float64 when float32 can prove no more.
- "one token": `Attention` on one token, whose Jacobian is its value matrix; float64 as before.
- "float32 alone": x -> w * x as a callable that always computes in float32, so that it cannot switch to float64.

Table bench-near-degenerate, one row for each kind, size, confidence and chunk of runs:
  runs, converged, doubled        number of runs; of converged ones; of those in float64
  violated, violated_open         bounds below the truth: of the converged runs, of the others
  products                        mean, of both precisions together
  widest, widest_open             largest upper / truth, of the converged runs and of the others
"""

import math
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
import torch
from scipy.stats import binom

from lab.benchmarks import machine
from lipnb import Attention, local_lipschitz
from lipnb.spectral import GramOperator, lanczos, start_vectors

EXAMPLES = """examples:
  python -m lab bench near_degenerate             10,000 runs at 1 - 1e-6, 2,100 each at 0.9 and 0.5
  python -m lab bench near_degenerate --quick     some dozens

A stopped run continues when the same command is given again.
"""
ROUNDING = 16 * torch.finfo(torch.float32).eps
SURE = 1 - 1e-6
PLAN = {  # runs of each kind and size, at SURE and at each of the low confidences
    "diagonal": {64: (4500, 1000), 1000: (3700, 1000), 10_000: (670, 0), 100_000: (120, 0), 1_000_000: (30, 0)},
    "one token": {64: (500, 100), 256: (150, 0), 1024: (30, 0)},
    "float32 alone": {64: (200, 0), 1000: (100, 0)},
}
CHUNK = {"diagonal": 500, "one token": 100, "float32 alone": 100}
ENTRIES = 2_000_000  # of the maps solved together


def factors_of(size, seed):
    """Singular values of one map, float32 in random order, determined by the seed."""
    random = np.random.default_rng([seed, size])
    delta = 10 ** random.uniform(-6, -2)
    factors = torch.ones(size)
    factors[torch.from_numpy(random.integers(0, size, 1 + seed % 3))] = 1 + delta
    if seed % 2:  # a cluster of some width below the top, not one value
        factors -= delta * torch.from_numpy(random.uniform(0, 1, size)).float() * (factors == 1)
    return factors


class Diagonal(GramOperator):
    """Diagonal maps with these singular values, shape (b, N)."""

    def __init__(self, factors):
        self.factors = factors

    def gram(self, u):
        return self.factors * (self.factors * u)

    def restrict(self, index):
        return Diagonal(self.factors[index])


def diagonal(size, seeds, confidence):
    """Answers for diagonal maps solved together, as `local_lipschitz` solves an `Attention`."""
    together = max(1, ENTRIES // size)
    for first in range(0, len(seeds), together):
        some = seeds[first : first + together]
        factors = torch.stack([factors_of(size, seed) for seed in some])
        start = torch.cat([start_vectors(1, size, seed=seed, dtype=torch.float64, device="cpu") for seed in some])
        found, stuck = _solved(factors, start, confidence)
        if len(left := torch.nonzero(stuck)[:, 0]):
            again = _solved(factors[left].double(), start[left], confidence)[0]
            again[:, 2] += found[left, 2]
            found[left] = again
        yield from torch.cat([found, stuck[:, None], factors.double().amax(1, keepdim=True)], 1).tolist()


def _solved(factors, start, confidence):
    """Upper bound, convergence and products in the precision of `factors`, and the mask of stuck items."""
    found = lanczos(Diagonal(factors), start.to(factors.dtype), confidence=confidence)
    return torch.stack([found.upper, found.converged.double(), found.steps.double()], 1), found.precision_limited


def one_by_one(kind, size, seeds, confidence):
    """The same results from `local_lipschitz`, one map at a time."""
    for seed in seeds:
        factors, zero = factors_of(size, seed), torch.zeros(1, 1, size)
        if kind == "one token":
            f, x = Attention(zero, zero, torch.diag(factors)[None]), zero[0]
        else:
            f, x = lambda x, factors=factors: factors[:, None] * x.float(), zero[0].T
        lip = local_lipschitz(f, x, seed=seed, confidence=confidence)
        yield (
            lip.upper.item(),
            lip.converged.item(),
            lip.steps.item(),
            lip.precision == "float64",
            factors.double().max().item(),
        )


def runs(kind, size, count, confidence, first=0):
    """One row of the table."""
    answers = diagonal if kind == "diagonal" else partial(one_by_one, kind)
    found = np.array(list(answers(size, range(first, first + count), confidence)), dtype=float)
    upper, converged, steps, doubled, exact = found.T
    converged, ratio = converged.astype(bool), upper / exact
    below, open_ = ratio < 1 - ROUNDING, ~converged
    return {
        "kind": kind,
        "size": size,
        "confidence": confidence,
        "chunk": first,
        "runs": count,
        "converged": int(converged.sum()),
        "doubled": int((doubled[converged] > 0).sum()),
        "violated": int(below[converged].sum()),
        "violated_open": int(below[open_].sum()),
        "products": steps.mean(),
        "widest": ratio[converged].max(initial=0),
        "widest_open": ratio[open_].max(initial=0),
    }


def allowed(confidence, count):
    """Largest likely number of violations at a confidence: the 99.9 % quantile of a binomial law."""
    return int(binom.ppf(0.999, count, 1 - confidence))


def units(share=1.0):
    """Units to measure: key -> arguments of `runs`; `share` scales the number of runs."""
    planned = {}
    for (kind, sizes), (place, confidence) in product(PLAN.items(), ((0, SURE), (1, 0.9), (1, 0.5))):
        for size, counts in sizes.items():
            count = math.ceil(share * counts[place])
            for first in range(0, count, CHUNK[kind]):
                planned[f"{kind}/{size}/{confidence}/{first}"] = (
                    kind,
                    size,
                    min(CHUNK[kind], count - first),
                    confidence,
                    first,
                )
    return planned


def summary(table):
    """Sums over chunks for each kind, size and confidence, with the likely number of violations from `allowed`."""
    adding = dict.fromkeys(("runs", "converged", "doubled", "violated", "violated_open"), "sum")
    sums = (
        table.groupby(["confidence", "kind", "size"], sort=False)
        .agg({**adding, "products": "mean", "widest": "max", "widest_open": "max"})
        .reset_index()
    )
    sums.insert(3, "allowed", [allowed(*pair) for pair in zip(sums.confidence, sums.runs, strict=True)])
    return sums


def main(argv=None):
    """Entry point."""
    given = machine.parser(__doc__, EXAMPLES).parse_args(argv)
    machine.start(given)
    share = 0.004 if given.quick else 1.0
    work = {key: lambda planned=planned: [runs(*planned)] for key, planned in units(share).items()}
    table = machine.make("near-degenerate", {"share": share}, given, work, "chunk")
    with pd.option_context("display.width", 200):
        print(summary(table).to_string(index=False, float_format="{:.6g}".format))


if __name__ == "__main__":
    machine.enter(main)
