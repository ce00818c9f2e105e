"""Benchmark of one product J^T J u: its distance to the machine's limit, to automatic differentiation, and its growth.

The limit is the best float32 matrix product measured in the same run, over the shapes of the projections and square
ones and over two routes: torch's default, and oneDNN, selected by requesting lower precision on a chip without matrix
units for it (its error is measured: a route less accurate than 1e-6 is not float32 and does not count).

FLOP of one product and sequence (n tokens, width d, all heads, output projection): F = 16 n d^2 + 16 n^2 d.

Table bench-products, one row for each part, route, length and width:
  part "gemm"      rate (GFLOP/s, of the fastest turn), error against float64
  part "product"   seconds of `count` sequences (median, fastest, slowest), rate by F from the median; the route is
                   "closed form", "autodiff" (one sequence at a time), or "autodiff, batched"
  part "length" / "width"    seconds of the closed form for one sequence, against n at d = 768, and against d at n = 64
  part "memory"    peak resident megabytes above those of the process before, each in a separate process
Printed with them: share, the rate over that of the best counted gemm (a median over the fastest of many, so it is
underestimated), and the exponents of cost in n and d with their intervals.
"""

import json
import subprocess
import sys
from contextlib import contextmanager
from functools import partial

import torch

from lab.benchmarks import machine, ours
from lab.benchmarks.layers import plain_forward
from lab.statistics import power_laws
from lipnb import Attention
from lipscan.cli.words import count

EXAMPLES = """examples:
  python -m lab bench products              all (some minutes)
  python -m lab bench products --quick      a trial: n = 16, few lengths and widths, no exponents
  python -m lab bench products --memory closed 2048     one reading of memory, as the table takes them
"""
SIZES = {4: 10, 8: 10, 16: 10, 32: 10, 98: 10, 512: 4, 2048: 1}  # length: sequences solved together
WIDTHS = (192, 384, 768, 1536)
FLOAT32_ERROR = 1e-6
HEAD = 64


@contextmanager
def route(name):
    """Context in which float32 matrix products take a route: "default" or "onednn"; restores the setting."""
    before = torch.backends.mkldnn.matmul.fp32_precision
    try:
        if name == "onednn":
            torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        yield
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before


def random_layer(width, seed=0):
    """A random layer with the shape of BERT's at this width, float32: heads of width 64, output projection, biases."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    h = width // HEAD
    inputs = {name: normal(h, HEAD, width) / width**0.5 for name in ("query", "key", "value")}
    biases = {f"{name}_bias": 0.1 * normal(h, HEAD) for name in inputs}
    return Attention(**inputs, output=normal(h, width, HEAD) / width**0.5, output_bias=normal(width), **biases)


def tokens(width, length, count, seed=1):
    """Random tokens (count, length, width), float32."""
    return torch.randn(count, length, width, generator=torch.Generator().manual_seed(seed))


def flops(length, width):
    """FLOP of one product of one sequence by the closed form."""
    return 16 * length * width**2 + 16 * length**2 * width


def gemms(shapes, repeats):
    """Rates of float32 matrix products; rows of the table."""
    rows = []
    for m, k, n in shapes:
        generator = torch.Generator().manual_seed(0)
        a, b = torch.randn(m, k, generator=generator), torch.randn(k, n, generator=generator)
        exact = a[:64].double() @ b.double()
        for name in ("default", "onednn"):
            with route(name):
                product, spread = machine.timed(lambda a=a, b=b: a @ b, repeats + 1)  # one for the warm-up
            error = ((product[:64] - exact).norm() / exact.norm()).item()
            rows.append(
                {
                    "part": "gemm",
                    "route": name,
                    "length": m,
                    "width": n,
                    **spread,
                    "rate": 2e-9 * m * k * n / spread["fastest"],
                    "error": error,
                }
            )
    return rows


def products(length, width, sequences, repeats, routes=("closed form", "autodiff", "autodiff, batched")):
    """Seconds of one product for some sequences, routes interleaved; rows of the table."""
    attention, x = random_layer(width), tokens(width, length, sequences)
    runs = {"closed form": partial(ours.gram(attention, x), tokens(width, length, sequences, seed=2))}
    if "autodiff" in routes:
        forward = plain_forward(attention)
        u = tokens(width, length, sequences, seed=2)
        pullbacks = [torch.func.vjp(forward, sequence)[1] for sequence in x]
        pullback = torch.func.vjp(forward, x)[1]
        runs["autodiff"] = lambda: [
            pull(torch.func.jvp(forward, (sequence,), (v,))[1])
            for pull, sequence, v in zip(pullbacks, x, u, strict=True)
        ]
        runs["autodiff, batched"] = lambda: pullback(torch.func.jvp(forward, (x,), (u,))[1])
    seconds = {name: [] for name in runs}
    with torch.no_grad():
        for turn in range(repeats + 1):
            for name, run in runs.items():
                once = machine.timed(run, 1)[1]["seconds"]
                seconds[name] += [once] if turn else []  # the first turn warms up
    return [
        {
            "part": "product",
            "route": name,
            "length": length,
            "width": width,
            "count": sequences,
            **machine.spread(taken),
            "rate": 1e-9 * sequences * flops(length, width) / machine.spread(taken)["seconds"],
        }
        for name, taken in seconds.items()
    ]


def growth(part, sizes, repeats):
    """Seconds of the closed form over lengths or widths; rows of the table."""
    return [{**products(length, width, 1, repeats, routes=())[0], "part": part} for length, width in sizes]


def peak(kind, length):
    """Print the peak resident megabytes of one product above those before; run in a separate process."""
    attention, x = random_layer(768), tokens(768, length, 1)
    before = machine.held()
    with torch.no_grad():
        if kind == "closed":
            ours.gram(attention, x)(x)
        else:
            forward = plain_forward(attention)
            pullback = torch.func.vjp(forward, x)[1]
            pullback(torch.func.jvp(forward, (x,), (x,))[1])
    print(json.dumps({"megabytes": machine.peak() - before}))


def memory(length):
    """Peak resident memory of one product by each route; rows of the table."""
    rows = []
    for kind, name in (("closed", "closed form"), ("autodiff", "autodiff")):
        said = subprocess.run(
            [sys.executable, "-m", "lab.benchmarks.products", "--memory", kind, str(length)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        rows.append(
            {"part": "memory", "route": name, "length": length, "width": 768, **json.loads(said.splitlines()[-1])}
        )
    return rows


def with_share(table):
    """The table with an extra column: the share of the best float32 matrix product of the run."""
    best = table[table.part == "gemm"].query("error <= @FLOAT32_ERROR").rate.max()
    table["share"] = (table.rate / best).where(table.part != "gemm")
    return table


def main(argv=None):
    """Entry point."""
    command = machine.parser(__doc__, EXAMPLES)
    command.add_argument("--repeats", type=count, metavar="N", default=7, help="turns of each (default %(default)s)")
    command.add_argument("--memory", nargs=2, metavar=("KIND", "N"), help="print one reading: closed or autodiff, n")
    given = command.parse_args(argv)
    if given.memory:
        kind, length = given.memory
        if kind not in ("closed", "autodiff") or not length.isdecimal() or int(length) < 1:
            command.error(f"--memory takes closed or autodiff, and a length; got {kind} {length}")
        return peak(kind, int(length))
    machine.start(given)
    sizes = {16: 10} if given.quick else SIZES
    turns = given.repeats
    shapes = [(length * sequences, 768, 3 * 768) for length, sequences in sizes.items()]
    shapes += [(s, s, s) for s in ((512,) if given.quick else (1024, 2048, 4096))]
    lengths, widths = ((32, 64, 128), (192, 384)) if given.quick else ((64, 128, 256, 512, 1024, 2048), WIDTHS)
    units = {"gemm": partial(gemms, shapes, turns)}
    units |= {f"product/{length}": partial(products, length, 768, some, turns) for length, some in sizes.items()}
    units |= {"gemm again": partial(gemms, shapes, turns)}
    units |= {"length": partial(growth, "length", [(n, 768) for n in lengths], turns)}
    units |= {"width": partial(growth, "width", [(64, d) for d in (*widths, 1024)], turns)}
    units |= {f"memory/{n}": partial(memory, n) for n in ((256,) if given.quick else (512, 1024, 2048, 4096))}
    settings = {"sizes": sizes, "lengths": lengths, "widths": widths, "turns": turns}
    table = machine.make("products", settings, given, units, "part")
    print(with_share(table).drop(columns=["fastest", "slowest"]).to_string(index=False, float_format="{:.3g}".format))
    for part in () if given.quick else ("length", "width"):  # three points do not make an exponent
        rows = table[table.part == part]
        fit = power_laws.power_law(rows[part], rows.seconds)
        print(f"cost in the {part}: exponent {fit.exponent:.2f} [{fit.low:.2f}, {fit.high:.2f}]")


if __name__ == "__main__":
    machine.enter(main)
