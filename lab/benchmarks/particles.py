"""A million weighted particles: the separable kernel against exact tiles, and KeOps for comparison.

Mean-field attention on n weighted particles of the plane (one head, logits x . y, value the identity, particles uniform
in a disc, random weights), measured four ways:

  product   seconds of one J^T J product in the norm of W2 (square roots of the weights on both sides)
  solve     the local constant at the largest n, certified by the guard of lipnb.spectral.lanczos (miss probability
            1e-6 over the start; the error of the kernel is not included)
  subset    the same constant on a subset of the particles through the separable kernel and through exact tiles
  rows      the product with a nearly singular vector, on random rows, against exact rows that sum over all n particles;
            the time of these rows also says what a whole exact product would take

Routes: 'separable' costs O(n), 'tiled' is exact and O(n^2), 'keops' is 'tiled' with its sums computed by KeOps if
pykeops is installed (it compiles for a minute at first use; put it on PYTHONPATH). Routes are interleaved within each
round, and medians are kept. Only ratios carry over from one machine to another.

Table bench-particles, one row for each part, route and n: seconds (medians; of the exact route at the largest n,
scaled from the exact rows), products, value (local constant), error (relative, against exact), megabytes (peak of the
process).
"""

import math
import statistics
import time
from functools import lru_cache, partial

import numpy as np
import torch

from lab.benchmarks import machine
from lab.benchmarks.tiled import TiledJacobian
from lipnb import Attention
from lipnb.jacobian.separable import SeparableJacobian
from lipnb.spectral import lanczos, start_vectors
from lipscan.cli.words import count

EXAMPLES = """examples:
  python -m lab bench particles             up to a million particles (some minutes)
  python -m lab bench particles --quick     ten thousand
"""
SIZES, EXACT = (10_000, 100_000, 1_000_000), (5_000, 10_000, 20_000)  # particles; sizes of the exact routes
RADIUS, SEED = 2.0, 0  # of the disc; the largest logit is its square
RTOL, SOLVE_RTOL = 1e-6, 1e-4  # tolerances of the kernel and of the solver
SUBSET, ROWS, POWERS = 10_000, 10_000, 8  # particles solved both ways; exact rows; power steps before them


def particles(n):
    """Particles uniform in a disc, shape (n, 2), and weights between 0.1 and 1.1 normalised to sum 1, shape (n,)."""
    generator = torch.Generator().manual_seed(SEED)
    angle, area, weights = torch.rand(3, n, generator=generator, dtype=torch.float64)
    x = torch.stack([(2 * math.pi * angle).cos(), (2 * math.pi * angle).sin()], 1) * (RADIUS * area.sqrt())[:, None]
    weights = weights + 0.1
    return x, weights / weights.sum()


def keops_jacobian():
    """`TiledJacobian` with its two sums computed by KeOps, or None if that is not installed."""
    try:
        from pykeops.torch import LazyTensor
    except ImportError:
        return None

    class KeOpsJacobian(TiledJacobian):
        def _probabilities_lazily(self):
            query, key = LazyTensor(self._query[0][:, None]), LazyTensor(self._key[0][None])
            columns = LazyTensor(self._added.reshape(1, -1, 1))
            rows = LazyTensor(self._log_sums[0][:, None, None])
            return ((query * key).sum(-1) + columns - rows).exp()

        def _sum(self, channels):
            return (self._probabilities_lazily() @ channels[0].contiguous())[None]

        def _sum_transposed(self, channels):
            return (self._probabilities_lazily().T @ channels[0].contiguous())[None]

    return KeOpsJacobian


def jacobian(route, x, weights, **options):
    """Jacobian of mean-field attention at particles by one of the routes."""
    attention = Attention.from_matrices(*torch.eye(2, dtype=torch.float64).expand(2, 2, 2))
    if route == "separable":
        return SeparableJacobian(attention, x, weights, rtol=RTOL)
    return (TiledJacobian if route == "tiled" else keops_jacobian())(attention, x, weights, **options)


@lru_cache(maxsize=1)
def separable(n):
    """The separable route at n particles, with their weights; the last result is kept."""
    x, weights = particles(n)
    return jacobian("separable", x, weights), weights


def products(n, routes, rounds):
    """Seconds of one product by each route, interleaved, and the error of the separable one; rows of the table."""
    x, weights = particles(n)
    scale, u = weights.sqrt(), torch.randn(n, 2, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64)
    made = {route: jacobian(route, x, weights) for route in routes}
    found, seconds = {route: one.gram(u, scale) for route, one in made.items()}, {route: [] for route in made}  # warm
    for _ in range(rounds):
        for route, one in made.items():
            seconds[route].append(machine.timed(partial(one.gram, u, scale), 1)[1]["seconds"])
    rows = [
        {"part": "product", "route": route, "n": n, "seconds": statistics.median(each), "products": 1}
        for route, each in seconds.items()
    ]
    if "tiled" in found:
        rows[0]["error"] = ((found["separable"] - found["tiled"]).norm() / found["tiled"].norm()).item()
    rows[0]["megabytes"] = machine.peak()
    return rows


def solve(part, route, n, made, weights):
    """The local constant in the norm of W2 by the library's solver; a row of the table."""
    root, began = weights.sqrt(), time.perf_counter()
    start = start_vectors(1, made.n * made.d, seed=SEED, dtype=weights.dtype, device=weights.device)
    solved = lanczos(lambda u: made.gram(u.view(made.n, -1), scale=root).view(1, -1), start, rtol=SOLVE_RTOL)
    row = {"part": part, "route": route, "n": n, "seconds": time.perf_counter() - began}
    return row | {"products": solved.steps.item(), "value": solved.value.item()}


def whole(n):
    """The solve at all particles; rows of the table."""
    return [solve("solve", "separable", n, *separable(n)) | {"megabytes": machine.peak()}]


def subset(n, some):
    """The solve on a subset of the particles, both ways; rows of the table."""
    x, weights = (part[:some] for part in particles(n))
    rows = [solve("subset", one, len(x), jacobian(one, x, weights), weights) for one in ("separable", "tiled")]
    rows[0]["error"] = abs(rows[0]["value"] / rows[1]["value"] - 1)
    return rows


def far(n, some):
    """A product at all particles against exact rows; rows of the table."""
    (made, weights), (x, _), seconds = separable(n), particles(n), []
    rows = torch.randperm(n, generator=torch.Generator().manual_seed(SEED + 1))[:some]
    exact, scale = jacobian("tiled", x, weights, rows=rows), weights.sqrt()
    u = torch.randn(n, 2, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64)
    for _ in range(POWERS):  # a vector like those at which the solver ends, without the cancellation of random sums
        u, once = machine.timed(partial(made.gram, u, scale), 1)
        seconds.append(once["seconds"])
        u = u / u.norm()
    u = u / scale[:, None]
    right, once = machine.timed(partial(exact.jvp, u), 1)
    # J^T J on all rows costs two sweeps over n / rows times as many rows
    taken = 2 * n / len(rows) * once["seconds"]
    error = ((made.jvp(u)[rows] - right).norm() / right.norm()).item()
    return [
        {"part": "product", "route": "tiled, scaled", "n": n, "seconds": taken, "products": 1},
        {"part": "rows", "route": "separable", "n": n, "seconds": statistics.median(seconds), "products": 1}
        | {"error": error},
    ]


def main(argv=None):
    """Entry point."""
    command = machine.parser(__doc__, EXAMPLES)
    command.add_argument("--rounds", type=count, metavar="N", default=3, help="turns of each (default %(default)s)")
    given = command.parse_args(argv)
    machine.start(given)
    sizes, exact, some, rows = ((10_000,), (2_000, 5_000), 2_000, 500) if given.quick else (SIZES, EXACT, SUBSET, ROWS)
    slow = ["tiled", *(["keops"] if keops_jacobian() else [])]
    if len(slow) == 1:
        print("KeOps is not installed: its column stays empty (pip install --target DIR pykeops; PYTHONPATH=DIR).")
    units = {
        f"product/{n}": partial(products, n, ["separable", *(slow if n in exact else ())], given.rounds)
        for n in sorted({*sizes, *exact})
    }
    units |= {"solve": partial(whole, max(sizes)), "rows": partial(far, max(sizes), rows)}
    units |= {"subset": partial(subset, max(sizes), some)}
    settings = {"sizes": sizes, "exact_sizes": exact, "radius": RADIUS, "rtol": RTOL, "solve_rtol": SOLVE_RTOL}
    settings |= {"subset": some, "rows": rows, "rounds": given.rounds, "seed": SEED}
    table = machine.make("particles", settings, given, units, "part")
    print(table.to_string(index=False, float_format="{:.3g}".format))
    tiled = table[(table.part == "product") & (table.route == "tiled")]
    print(f"exact tiles: exponent {np.polyfit(np.log(tiled.n), np.log(tiled.seconds), 1)[0]:.2f}")


if __name__ == "__main__":
    machine.enter(main)
