"""Distance to the limit: the least number of products, and the time that they would take at the best rate.

After k products J^T J u from one start, the largest Rayleigh quotient available is the largest Ritz value of Lanczos.
So a solver that returns such a quotient needs as many products as Lanczos takes to come within 1e-4 of the truth, even
if an oracle stops it. No other lower bound saves more than one product: the operator may be zero outside the Krylov
space of k + 1 vectors, and its norm is then the next Ritz value. A certificate of our kind needs as many products as
its sum takes at the true value, again with an oracle. A product counts 16 n d^2 + 16 n^2 d operations for a sequence,
and cannot be faster than the best float32 matrix product of the same run. The distance to the limit is our time over
that of the needed products at this rate.
Table bench-limit, one row for each layer, length and mode:
  count                       number of windows
  needed                      products, the least from the start of the run
  products                    taken by ours, mean over the windows
  seconds                     of ours for all windows: median, fastest, slowest of the repeats
  made                        products made in all, with those of sequences that were done before the batch shrank
  in_products                 share of that time inside the products
  rate, best                  GFLOP/s inside the products, counted by the formula (median), and of the best matrix
                              product (its fastest turn: so a share is rather too small, a ratio too large)
  ratio                       seconds, over needed products at the best rate; printed beside it: share, rate over best
  error                       largest relative error of ours
"""

from functools import partial
from time import perf_counter

import numpy as np
import torch

from lab.benchmarks import machine, ours
from lab.benchmarks.layers import FORMS, layer, listed
from lab.benchmarks.products import flops, gemms
from lab.benchmarks.references import reference
from lipnb.jacobian.cached import CachedGram
from lipnb.spectral import FunctionGram, start_vectors
from lipnb.spectral.certificate import Certificate
from lipnb.spectral.krylov import Krylov
from lipscan import corpora
from lipscan.cli.words import count

EXAMPLES = """examples:
  python -m lab bench limit                         five layers, six lengths (a quarter of an hour)
  python -m lab bench limit --layers mini:3         one layer
  python -m lab bench limit --quick                 n = 8 and 32 of one layer
"""
LAYERS = ("mini:0", "mini:3", "twin:0", "twin:3", "gpt2r:6")
COUNTS = {4: 10, 8: 10, 16: 10, 32: 10, 98: 10, 512: 1}  # length: windows
MODES = ("estimate", "certified 0.99", "certified 1-1e-6")


def needed(attention, x, truth, rtol=ours.RTOL):
    """Products needed from the random start of ours, with the truth known: mode -> mean over the sequences x."""
    b, (n, d) = len(x), x.shape[-2:]
    wide = ours.gram(attention.to(dtype=torch.float64), x.double())
    start = start_vectors(b, n * d, seed=0, dtype=torch.float64, device="cpu")
    krylov, square = (
        Krylov(FunctionGram(lambda u: wide(u.view_as(x.double())).reshape(b, -1)), start),
        truth.numpy() ** 2,
    )
    eps = torch.finfo(x.dtype).eps
    certificates = {
        mode: Certificate(n * d, confidence, eps)
        for mode in MODES
        if (confidence := ours.OURS[mode]["confidence"]) is not None
    }
    found = {mode: np.zeros(b, dtype=int) for mode in MODES}
    while not all((steps > 0).all() for steps in found.values()):
        krylov.extend()
        near = krylov.ritz().values[:, -1] >= square * (1 - rtol) ** 2
        found["estimate"][near & (found["estimate"] == 0)] = krylov.steps
        for mode, certificate in certificates.items():
            proved = near & certificate.christoffel(krylov, square * (1 + rtol) ** 2)
            found[mode][proved & (found[mode] == 0)] = krylov.steps
    return {mode: float(steps.mean()) for mode, steps in found.items()}


class Clock:
    """Context that measures the time inside the products of a solve, and their sequences, without changing them.

    A product covers all sequences that a batch still holds, converged ones included.
    """

    def __enter__(self):
        self.seconds, self.sequences, self._gram = 0.0, 0, CachedGram.gram

        def timed(products, u):
            began = perf_counter()
            answer = self._gram(products, u)
            self.seconds += perf_counter() - began
            self.sequences += products.sizes[0]
            return answer

        CachedGram.gram = timed
        return self

    def __exit__(self, *_):
        CachedGram.gram = self._gram


def measure(name, length, windows, repeats, corpus):
    """All modes on the windows of one length of one layer, interleaved; rows of the table."""
    given = layer(name, corpus)
    attention, x = given.attention, given.tokens(length, windows)
    truth = reference(attention, x)
    least, width = needed(attention, x, truth), x.shape[-1]
    taken, best = {mode: [] for mode in MODES}, 0.0
    for _ in range(repeats + 1):  # the first turn warms up
        shapes = [(max(length * windows, 64), width, 3 * width), (1024, 1024, 1024), (2048, 2048, 2048)]
        best = max(best, *(row["rate"] for row in gemms(shapes, 1) if row["error"] < 1e-6))
        for mode in MODES:
            with Clock() as clock:
                answer, seconds = machine.timed(partial(ours.solve, attention, x, **ours.OURS[mode]), 1)
            rate = 1e-9 * clock.sequences * flops(length, width) / clock.seconds
            taken[mode].append((answer, seconds["seconds"], clock, rate))
    rows = []
    for mode, all_turns in taken.items():
        answer, turns = all_turns[-1][0], all_turns[1:]
        spread = machine.spread([seconds for _, seconds, *_ in turns])
        limit = 1e-9 * least[mode] * windows * flops(length, width) / best
        rows.append(
            {
                "layer": name,
                "length": length,
                "mode": mode,
                "count": windows,
                "needed": least[mode],
                "products": answer.steps.double().mean().item(),
                **spread,
                "made": all_turns[-1][2].sequences / windows,
                "in_products": float(np.median([clock.seconds / seconds for _, seconds, clock, _ in turns])),
                "rate": float(np.median([rate for *_, rate in turns])),
                "best": best,
                "ratio": spread["seconds"] / limit,
                "error": (answer.value.double() / truth - 1).abs().max().item(),
            }
        )
    return rows


def main(argv=None):
    """Entry point."""
    command = machine.parser(__doc__, EXAMPLES)
    command.add_argument(
        "--layers", type=listed, default=",".join(LAYERS), help=f"layers by comma: {FORMS} (default %(default)s)"
    )
    command.add_argument("--repeats", type=count, metavar="N", default=5, help="turns of each (default %(default)s)")
    command.add_argument("--corpus", help="text (default alice, else python_reference)")
    given = command.parse_args(argv)
    machine.start(given)
    corpus = given.corpus or corpora.available("alice", "python_reference")
    names, counts = given.layers, {8: 3, 32: 3} if given.quick else COUNTS
    names = names[:1] if given.quick else names
    settings = {
        "corpus": corpus,
        "text": corpora.fingerprint(corpora.read(corpus)),
        "layers": names,
        "counts": counts,
        "repeats": given.repeats,
    }
    units = {
        f"{name}/{length}": partial(measure, name, length, windows, given.repeats, corpus)
        for name in names
        for length, windows in counts.items()
    }
    table = machine.make("limit", settings, given, units, "length")
    table["share"] = table.rate / table.best
    print(table.drop(columns=["fastest", "slowest"]).to_string(index=False, float_format="{:.3g}".format))


if __name__ == "__main__":
    machine.enter(main)
