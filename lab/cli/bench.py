"""The verb `python -m lab bench`: measure speed and errors of the solver against other methods."""

import argparse
import subprocess
import sys
import textwrap

from lab import described
from lipscan.cli.words import known

NAMES = tuple(described.benchmarks())
EXAMPLES = """\
  python -m lab bench workload --quick        one benchmark, a trial of it
  python -m lab bench products --help         each has its own options
  python -m lab bench                         all of them, one after the other (hours, on a quiet machine)
  python -m lab bench --quick                 all, trials of minutes

Each writes a table bench-NAME, a trial (--quick) bench-NAME-trial, into data/results or the folder LIPNB_RESULTS; only
ratios of one interleaved run mean anything.
"""


def add(verbs):
    """Add the verb to the parser."""
    verb = verbs.add_parser(
        "bench",
        help="measure speed and errors of the solver against other methods",
        epilog=f"examples:\n{EXAMPLES}",
        description=textwrap.fill(f"Benchmarks: {', '.join(NAMES)}.", 100),
    )
    verb.add_argument("--quick", action="store_true", help="trials of minutes, also after NAME")
    verb.add_argument("name", nargs="?", default="all", metavar="NAME", help="which one (default: all)")
    verb.add_argument("options", nargs=argparse.REMAINDER, metavar="...", help="options of the benchmark")
    verb.set_defaults(run=run)


def run(arguments):
    """Run the benchmarks, each in a separate process, until one fails."""
    known("benchmark", [arguments.name], ("all", *NAMES))
    options = ["--quick"] * arguments.quick + arguments.options
    for name in NAMES if arguments.name == "all" else [arguments.name]:
        print(f"benchmark {name}", flush=True)
        done = subprocess.run([sys.executable, "-m", f"lab.benchmarks.{name}", *options], check=False)
        if done.returncode == 130:
            raise KeyboardInterrupt
        if done.returncode:
            return done.returncode
    return 0
