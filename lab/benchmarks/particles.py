"""A million weighted particles: the separable kernel against exact tiles, with KeOps beside them.

Run it as `python -m lab bench particles --help`.
"""

import json
import math
import os
import resource
import statistics
import time
from importlib.metadata import PackageNotFoundError, version

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: spinning threads disturb a shared machine

import numpy as np
import torch
from tqdm import tqdm

from lab import results
from lab.benchmarks import machine
from lab.benchmarks.tiled import TiledJacobian
from lipnb import Attention, origin
from lipnb.cli.words import Parser, count
from lipnb.jacobian.separable import SeparableJacobian
from lipnb.spectral import lanczos, start_vectors

ABOUT = """\
Mean-field attention on n weighted particles of the plane (one head, logits x . y, value the identity, particles uniform
in a disc, random weights), measured four ways:

  product   seconds of one J^T J product in the norm of W2 (square roots of the weights on both sides)
  solve     the local constant at the largest n, certified by the guard of lipnb.spectral.lanczos (miss probability
            1e-6 over the start, error of the kernel apart)
  subset    the same constant on a subset of the particles through the separable kernel and through exact tiles
  rows      the product with a nearly singular vector, on random rows, against exact rows that sum over all n particles;
            the time of these rows also says what a whole exact product would take

Routes: 'separable' costs O(n), 'tiled' is exact and O(n^2), 'keops' is 'tiled' with its sums handed to KeOps where
pykeops is installed (it compiles for a minute at first use; put it on PYTHONPATH). The routes take turns within each
round, and medians are kept. Only ratios travel from one machine to another.

Table bench-particles, one row for each part, route and n: seconds (medians; of the exact route at the largest n,
scaled from the exact rows), products, value (local constant), error (relative, against exact), megabytes (peak of the
process).
"""


def arguments():
    parser = Parser(prog="python -m lab bench particles", description=ABOUT)
    parser.add_argument(
        "--sizes",
        type=count,
        nargs="+",
        default=[10_000, 100_000, 1_000_000],
        metavar="N",
        help="numbers of particles; the solve is at the largest (default: 10^4 10^5 10^6)",
    )
    parser.add_argument(
        "--exact-sizes",
        type=count,
        nargs="+",
        default=[5_000, 10_000, 20_000],
        metavar="N",
        help="numbers of particles for the exact route, to fit its exponent (default: up to 20,000)",
    )
    parser.add_argument(
        "--keops-sizes",
        type=count,
        nargs="+",
        default=[5_000, 10_000, 20_000],
        metavar="N",
        help="those of them that KeOps is measured at (default: all)",
    )
    parser.add_argument("--radius", type=float, default=2.0, help="radius R of the disc; rho is about R^2 (default 2)")
    parser.add_argument("--rtol", type=float, default=1e-6, help="error allowed to the kernel (default 1e-6)")
    parser.add_argument("--solve-rtol", type=float, default=1e-4, help="tolerance of the solver (default 1e-4)")
    parser.add_argument(
        "--subset", type=count, metavar="N", default=10_000, help="particles solved both ways (default 10^4)"
    )
    parser.add_argument(
        "--rows", type=count, metavar="N", default=10_000, help="exact rows at the largest n (default 10^4)"
    )
    parser.add_argument(
        "--rounds", type=count, metavar="N", default=3, help="rounds of the interleaved timing (default 3)"
    )
    parser.add_argument(
        "--threads", type=count, metavar="N", default=1, help="torch threads (default 1); KeOps: OMP_NUM_THREADS"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of particles, weights and start vectors")
    parser.add_argument("--float32", action="store_true", help="single precision (default double)")
    parser.add_argument("--quick", action="store_true", help="a trial with few particles; the table says so")
    args = parser.parse_args()
    if args.quick:
        args.sizes, args.exact_sizes, args.keops_sizes = [10_000], [2_000, 5_000], [2_000]
        args.subset, args.rows = 2_000, 500
    return args


def particles(n, radius, seed, dtype):
    """Particles uniform in a disc, shape (n, 2), and weights between 0.1 and 1.1, shape (n,), made to sum to 1."""
    generator = torch.Generator().manual_seed(seed)
    angle, area, weights = torch.rand(3, n, generator=generator, dtype=torch.float64)
    x = torch.stack([(2 * math.pi * angle).cos(), (2 * math.pi * angle).sin()], 1) * (radius * area.sqrt())[:, None]
    weights = weights + 0.1
    return x.to(dtype), (weights / weights.sum()).to(dtype)


def keops_jacobian():
    """`TiledJacobian` with its two sums done by KeOps, or None where that is not installed."""
    try:
        from pykeops.torch import LazyTensor
    except ImportError:
        return None

    class KeOpsJacobian(TiledJacobian):
        def _probabilities_lazily(self):
            query, key = LazyTensor(self._query[0][:, None]), LazyTensor(self._key[0][None])
            columns = LazyTensor(self._log_weights[None, :, None])
            rows = LazyTensor(self._log_sums[0][:, None, None])
            return ((query * key).sum(-1) + columns - rows).exp()

        def _sum(self, channels):
            return (self._probabilities_lazily() @ channels[0].contiguous())[None]

        def _sum_transposed(self, channels):
            return (self._probabilities_lazily().T @ channels[0].contiguous())[None]

    return KeOpsJacobian


def peak_memory():
    """Most memory this process has held, in MiB, libraries included (on Linux)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def solve(jacobian, weights, args):
    """Local constant in the norm of W2 by the library's solver; as a dictionary."""
    root = weights.sqrt()
    start = start_vectors(1, jacobian.n * jacobian.d, seed=args.seed, dtype=weights.dtype, device=weights.device)
    began = time.perf_counter()
    solved = lanczos(
        lambda u: jacobian.gram(u.view(jacobian.n, -1), scale=root).view(1, -1), start, rtol=args.solve_rtol
    )
    return {
        "lipschitz": solved.value.item(),
        "residual": solved.residual.item(),
        "products": solved.steps.item(),
        "converged": solved.converged.item(),
        "seconds": time.perf_counter() - began,
    }


def table_rows(report):
    """Rows of the table from the report of a run."""
    rows = []

    def add(part, route, n, seconds, products=1, value=None, error=None, megabytes=None):
        rows.append(
            {
                "part": part,
                "route": route,
                "n": n,
                "seconds": seconds,
                "products": products,
                "value": value,
                "error": error,
                "megabytes": megabytes,
            }
        )

    for row in report["products"]:
        for route in ("separable", "tiled", "keops"):
            if route in row:
                mine = route == "separable"
                add(
                    "product",
                    route,
                    row["n"],
                    row[route],
                    error=row.get("error_of_product") if mine else None,
                    megabytes=row["peak_memory_mib"] if mine else None,
                )
    far = report["rows"]
    add("product", "tiled, scaled", far["n"], far["tiled_from_these_rows"])
    add("rows", "separable", far["n"], far["separable"], error=far["relative_error"])
    for part, route, n, found in (
        ("solve", "separable", report["solve"]["n"], report["solve"]),
        *(("subset", route, report["subset"]["n"], report["subset"][route]) for route in ("separable", "tiled")),
    ):
        add(
            part,
            route,
            n,
            found["seconds"],
            found["products"],
            found["lipschitz"],
            report["subset"]["relative_difference"] if (part, route) == ("subset", "separable") else None,
            found.get("peak_memory_mib"),
        )
    return rows


def main():
    args, started = arguments(), time.perf_counter()
    torch.set_num_threads(args.threads)
    dtype = torch.float32 if args.float32 else torch.float64
    attention = Attention.from_matrices(torch.eye(2, dtype=dtype), torch.eye(2, dtype=dtype))
    KeOpsJacobian = keops_jacobian()
    versions = origin.versions()
    try:
        versions["pykeops"] = version("pykeops")
    except PackageNotFoundError:
        print("KeOps is not installed: its column stays empty (pip install --target DIR pykeops; PYTHONPATH=DIR).")
    routes = {
        "separable": (SeparableJacobian, {*args.sizes, *args.exact_sizes}, {"rtol": args.rtol}),
        "tiled": (TiledJacobian, {*args.exact_sizes}, {}),
    }
    if KeOpsJacobian:
        routes["keops"] = (KeOpsJacobian, {*args.keops_sizes} & {*args.exact_sizes}, {})
    sizes = sorted({*args.sizes, *args.exact_sizes})
    report = {
        "about": "seconds of one J^T J product, medians, d = 2, a shared machine: trust ratios only",
        "settings": {key: value for key, value in vars(args).items()},
        "versions": versions,
        "products": [],
    }
    bar = tqdm(total=args.rounds * sum(len(measured) for _, measured, _ in routes.values()) + 3, unit="step")
    for n in sizes:
        x, weights = particles(n, args.radius, args.seed, dtype)
        scale, row = weights.sqrt(), {"n": n}
        u = torch.randn(n, 2, generator=torch.Generator().manual_seed(args.seed), dtype=torch.float64).to(dtype)
        jacobians, seconds, product = {}, {}, {}
        for name, (make, measured, options) in routes.items():
            if n in measured:
                bar.set_description(f"{name}, n = {n}: set up")
                began = time.perf_counter()
                jacobians[name] = make(attention, x, weights, **options)
                row[f"{name}_setup"], seconds[name] = time.perf_counter() - began, []
                if name == "keops":
                    jacobians[name].gram(u, scale)  # compiles
        for _ in range(args.rounds):
            for name, jacobian in jacobians.items():
                bar.set_description(f"{name}, n = {n}")
                began = time.perf_counter()
                product[name] = jacobian.gram(u, scale)
                seconds[name].append(time.perf_counter() - began)
                bar.update()
        row |= {name: statistics.median(values) for name, values in seconds.items()}
        row |= {"nodes": jacobians["separable"].nodes[0], "kernel_error": jacobians["separable"].kernel_error}
        row["peak_memory_mib"] = peak_memory()
        if "tiled" in product:
            exact = product["tiled"]
            row["error_of_product"] = ((product["separable"] - exact).norm() / exact.norm()).item()
            row["tiled_over_separable"] = row["tiled"] / row["separable"]
            if "keops" in product:
                row["keops_over_tiled"] = row["keops"] / row["tiled"]
        report["products"].append(row)
        tqdm.write("  ".join(f"{key} {value:.3g}" for key, value in row.items() if isinstance(value, (int, float))))
    exact = [row for row in report["products"] if "tiled" in row]
    if len(exact) > 1:
        report["tiled_exponent"] = np.polyfit(
            np.log([row["n"] for row in exact]), np.log([row["tiled"] for row in exact]), 1
        )[0]

    bar.set_description(f"solve, n = {n}")
    large = jacobians["separable"]
    report["solve"] = {"n": n, **solve(large, weights, args)}
    report["solve"]["peak_memory_mib"] = peak_memory()
    bar.update()
    bar.set_description(f"subset, n = {args.subset}")
    some = slice(args.subset)
    report["subset"] = {"n": min(args.subset, n)}
    for name in ("separable", "tiled"):
        make, _, options = routes[name]
        report["subset"][name] = solve(make(attention, x[some], weights[some], **options), weights[some], args)
    report["subset"]["relative_difference"] = abs(
        report["subset"]["separable"]["lipschitz"] / report["subset"]["tiled"]["lipschitz"] - 1
    )
    bar.update()
    bar.set_description(f"{args.rows} exact rows, n = {n}")
    rows = torch.randperm(n, generator=torch.Generator().manual_seed(args.seed + 1))[: args.rows]
    tiled, seconds = TiledJacobian(attention, x, weights, rows=rows), []
    for _ in range(8):  # power steps: a vector like those the solver ends on, where no random sum cancels
        began = time.perf_counter()
        u = large.gram(u, scale)
        seconds.append(time.perf_counter() - began)
        u = u / u.norm()
    u = u / scale[:, None]
    began = time.perf_counter()
    exact = tiled.jvp(u)
    # J^T J on all rows is two sweeps over n / rows times as many rows, each of the same cost
    whole = 2 * n / len(rows) * (time.perf_counter() - began)
    gap = torch.linalg.vector_norm(large.jvp(u)[rows] - exact, dim=1)
    report["rows"] = {
        "n": n,
        "rows": len(rows),
        "relative_error": (gap.norm() / exact.norm()).item(),
        "largest_row_error": (gap.max() / torch.linalg.vector_norm(exact, dim=1).max()).item(),
        "separable": statistics.median(seconds),
        "tiled_from_these_rows": whole,
        "tiled_over_separable": whole / statistics.median(seconds),
    }
    bar.update()
    bar.close()
    name = "bench-particles-trial" if args.quick else "bench-particles"
    with results.recording(name, report["settings"] | {"trial": args.quick}) as record:
        record.add("all", table_rows(report), time.perf_counter() - started)
        record.finish()
    for part in ("solve", "subset", "rows"):
        print(part, json.dumps(report[part]))
    print(f"exact tiles: exponent {report.get('tiled_exponent', math.nan):.2f}")


if __name__ == "__main__":
    machine.enter(main)
