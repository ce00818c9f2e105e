"""Benchmark of long inputs: streamed against cached products, and whole certified solves with their memory.

Tokens are those of MiniLM layers on windows of 512, one after another, in the wide layer ``twin:3`` (d = 768, 12
heads; see `lab.benchmarks.layers`): the statistics of real tokens at lengths that no position table reaches. Each solve
runs in a separate process, so that its memory can be measured.
Table bench-long, one row for each length and route: route (as requested, and as `local_lipschitz` reports it), seconds,
products, value, upper, difference (relative, from the first route at that length), megabytes (peak above the memory
of the process before the solve).
process held before the solve).
"""

import json
import subprocess
import sys
from functools import partial

import torch

from lab.benchmarks import machine, ours
from lab.benchmarks.layers import layer, wide_tokens
from lipscan.cli.words import lengths

EXAMPLES = """examples:
  python -m lab bench long                               n = 2,048 both ways; 8,192 and 16,384 streamed (an hour)
  python -m lab bench long --lengths 8192                choose the streamed lengths
  python -m lab bench long --quick                       n = 256 both ways
  python -m lab bench long --solve 1024 streamed         print one solve, as the table takes them
"""
LAYER = 3


def one(length, route, mode):
    """Solve once, in this process, and print the result as JSON."""
    attention, x = layer(f"twin:{LAYER}", "python_reference").attention, wide_tokens(LAYER, length)
    ours.warm_up()
    before = machine.held()
    lip, spread = machine.timed(lambda: ours.solve(attention, x, **ours.OURS[mode], **ours.ROUTES[route]), 1)
    print(
        json.dumps(
            {
                "length": length,
                "asked": route,
                "route": str(getattr(lip, "route", None)),
                "mode": mode,
                "seconds": spread["seconds"],
                "products": int(lip.steps.item()),
                "value": lip.value.item(),
                "upper": ours.upper(lip).item(),
                "converged": bool(lip.converged.item()),
                "megabytes": machine.peak() - before,
            }
        )
    )


def measure(length, routes, mode, threads):
    """One solve for each route, each in a separate process; rows of the table."""
    rows = []
    for route in routes:
        command = [
            sys.executable,
            "-m",
            "lab.benchmarks.long",
            "--solve",
            str(length),
            route,
            "--mode",
            mode,
            "--threads",
            str(threads),
        ]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if said.returncode:
            raise RuntimeError(f"n = {length}, {route}: {said.stderr.strip().splitlines()[-1]}")
        rows.append(json.loads(said.stdout.splitlines()[-1]))
    return [{**row, "difference": abs(row["value"] / rows[0]["value"] - 1)} for row in rows]


def _some(text):
    """Lengths from comma-separated text; none if the text is empty."""
    return list(lengths(text)) if text else []


def main(argv=None):
    """Entry point."""
    command = machine.parser(__doc__, EXAMPLES)
    command.add_argument(
        "--lengths",
        type=_some,
        metavar="N,...",
        default="8192,16384",
        help="lengths of streamed solves (default %(default)s)",
    )
    command.add_argument(
        "--both",
        type=_some,
        metavar="N,...",
        default="512,1024,2048",
        help="lengths solved both ways (default %(default)s)",
    )
    command.add_argument("--mode", default="certified 0.99", choices=ours.OURS, help="mode (default %(default)s)")
    command.add_argument("--solve", nargs=2, metavar=("N", "ROUTE"), help="print one solve: length, cached or streamed")
    given = command.parse_args(argv)
    torch.set_num_threads(given.threads)
    if given.solve:
        length, route = given.solve
        if not length.isdecimal() or int(length) < 1 or route not in ("cached", "streamed"):
            command.error(f"--solve takes a length, and cached or streamed; got {length} {route}")
        return one(int(length), route, given.mode)
    machine.start(given)
    both, streamed = ([256], []) if given.quick else (given.both, given.lengths)
    units = {f"{n}/both": partial(measure, n, ("cached", "streamed"), given.mode, given.threads) for n in both}
    units |= {f"{n}/streamed": partial(measure, n, ("streamed",), given.mode, given.threads) for n in streamed}
    settings = {"layer": f"twin:{LAYER}", "both": both, "streamed": streamed, "mode": given.mode}
    table = machine.make("long", settings, given, units, "length")
    print(table.to_string(index=False, float_format="{:.4g}".format))


if __name__ == "__main__":
    machine.enter(main)
