"""The float32 certificate where singular values nearly coincide: how often its upper bound lies below the truth.

Maps whose largest singular value exceeds a cluster by a factor 1 + delta, delta from 1e-6 to 1e-2 (log-uniform), each
with a start of its own: x -> w * x, with w = 1 but for a few entries; and `Attention` on one token, whose Jacobian is
its value matrix. Sizes from 64 to 10^6 unknowns, most of them small. The truth is known in float64. A bound counts as
violated when it lies below the truth by more than the stated rounding, 16 eps relatively.

Printed, one row for each kind, size and confidence: runs, violated, the largest number of violations that the
confidence allows (a binomial quantile, 99.9 %), open (not converged), products (mean) and the largest upper / truth.
"""

import argparse

import numpy as np
import pandas as pd
import torch
from scipy.stats import binom
from tqdm.auto import tqdm

from lipnb import Attention, local_lipschitz

EXAMPLES = """examples:
  python -m benchmarks.near_degenerate             10,000 runs at 1 - 1e-6, 1,000 each at 0.9 and 0.5
  python -m benchmarks.near_degenerate --quick     some dozens
"""
ROUNDING = 16 * torch.finfo(torch.float32).eps
SIZES = {"diagonal": {64: 4000, 1000: 3000, 10_000: 600, 100_000: 300, 1_000_000: 100},
         "one token": {64: 1500, 256: 400, 1024: 100}}


def case(kind, size, seed):
    """A map, its one input, and its largest singular value; all follow from the seed."""
    random = np.random.default_rng([seed, size, len(kind)])
    delta = 10 ** random.uniform(-6, -2)
    factors = torch.ones(size)
    factors[torch.from_numpy(random.integers(0, size, 1 + seed % 3))] = 1 + delta
    if seed % 2:  # a cluster of some width below the top, not one value
        factors -= delta * torch.from_numpy(random.uniform(0, 1, size)).float() * (factors == 1)
    exact = factors.double().max().item()
    if kind == "diagonal":
        return (lambda x: factors[:, None] * x), torch.zeros(size, 1), exact
    zero = torch.zeros(1, 1, size)
    return Attention(zero, zero, torch.diag(factors)[None]), torch.zeros(1, size), exact


def runs(kind, size, count, confidence, first=0):
    """One row of the table."""
    violated = unfinished = products = 0
    widest = 0.0
    for seed in range(first, first + count):
        f, x, exact = case(kind, size, seed)
        lip = local_lipschitz(f, x, seed=seed, confidence=confidence)
        violated += lip.upper.item() < exact * (1 - ROUNDING)
        unfinished += not lip.converged
        products += lip.steps.item()
        widest = max(widest, lip.upper.item() / exact)
    return {"kind": kind, "size": size, "confidence": confidence, "runs": count, "violated": violated,
            "allowed": int(binom.ppf(0.999, count, 1 - confidence)), "open": unfinished,
            "products": products / count, "widest": widest}


def table(share=1.0):
    """All rows; `share` of the runs."""
    plan = [(kind, size, max(2, int(share * count * part)), confidence) for confidence, part in
            ((1 - 1e-6, 1), (0.9, 0.1), (0.5, 0.1)) for kind, sizes in SIZES.items() for size, count in sizes.items()
            if size < 10**5 or confidence > 0.9]
    return pd.DataFrame([runs(*unit) for unit in tqdm(plan, desc="near_degenerate")])


def main(argv=None):
    """Entry point."""
    command = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--quick", action="store_true", help="some dozens of runs")
    command.add_argument("--share", type=float, default=1.0, help="share of the runs (default %(default)s)")
    given = command.parse_args(argv)
    torch.set_num_threads(1)
    found = table(0.004 if given.quick else given.share)
    print(found.to_string(index=False, float_format="{:.6g}".format))


if __name__ == "__main__":
    main()
