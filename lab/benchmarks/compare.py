"""Benchmark of every peer on the same few real inputs: seconds, products and error of each answer.

Peers take one sequence at a time, with products by automatic differentiation unless their name says "closed form";
ours takes both sequences at once, as it would in use. The requested relative error is 1e-4 for all, except for the
released rule, which is absolute. A peer that cannot run (PRIMME if it is not installed, a dense Jacobian that is too
large) is left out of the rows and named.

Table bench-compare, one row for each layer, length and method: seconds per answer (median, fastest, slowest of the
repeats), products per answer, largest relative error, and ratio: the released method's seconds over these.
"""

from functools import partial

import numpy as np

from lab.benchmarks import machine, ours
from lab.benchmarks.layers import layer
from lab.benchmarks.peers import DENSE_LIMIT, PEERS
from lab.benchmarks.references import reference
from lab.benchmarks.workload import RELEASED, all_at_once, one_by_one
from lipscan import corpora
from lipscan.cli.words import count

EXAMPLES = """examples:
  python -m lab bench compare             five inputs of two layers (minutes)
  python -m lab bench compare --quick     one small input
  pip install primme                       adds PRIMME to the peers (it needs a BLAS to link with)
"""
INPUTS = (("mini:3", 4), ("mini:3", 10), ("mini:3", 98), ("twin:3", 10), ("twin:3", 26), ("twin:3", 98))


def measure(name, length, windows, repeats, corpus):
    """All peers and modes on some windows of one length, interleaved; rows of the table."""
    attention, tokens = layer(name, corpus)[1:]
    x = tokens(length, windows)
    truth = reference(attention, x).numpy()
    runs = {
        peer: partial(one_by_one, run, attention, x)
        for peer, run in PEERS.items()
        if peer != "dense" or x[0].numel() <= DENSE_LIMIT
    }
    runs |= {mode: partial(all_at_once, mode, attention, x) for mode in ours.OURS}
    seconds, answers = {method: [] for method in runs}, {}
    for _ in range(repeats):
        for method, run in runs.items():
            answers[method], once = machine.timed(run, 1)
            seconds[method].append(once["seconds"] / windows)
    released = machine.spread(seconds[RELEASED])["seconds"]
    rows = []
    for method, (values, products, *_) in answers.items():
        spread = machine.spread(seconds[method])
        rows.append(
            {
                "layer": name,
                "length": length,
                "method": method,
                "count": windows,
                **spread,
                "products": float(products.mean()),
                "error": float(np.abs(values / truth - 1).max()),
                "ratio": released / spread["seconds"],
            }
        )
    return rows


def main(argv=None):
    """Entry point."""
    command = machine.parser(__doc__, EXAMPLES)
    command.add_argument(
        "--count", type=count, metavar="N", default=2, help="windows of each length (default %(default)s)"
    )
    command.add_argument("--repeats", type=count, metavar="N", default=3, help="repeats of each (default %(default)s)")
    given = command.parse_args(argv)
    machine.start(given)
    corpus = corpora.available("alice", "python_reference")
    inputs = INPUTS[:1] if given.quick else INPUTS
    if "PRIMME svds" not in PEERS:
        print("PRIMME is not installed and is left out: pip install primme")
    settings = {
        "corpus": corpus,
        "text": corpora.fingerprint(corpora.read(corpus)),
        "inputs": inputs,
        "count": given.count,
        "repeats": given.repeats,
        "peers": list(PEERS),
    }
    units = {
        f"{name}/{length}": partial(measure, name, length, given.count, given.repeats, corpus)
        for name, length in inputs
    }
    table = machine.make("compare", settings, given, units, "input")
    for value in ("ratio", "products", "error"):
        print(f"\n{value}")
        print(
            table.pivot_table(index="method", columns=["layer", "length"], values=value, sort=False).to_string(
                float_format="{:.2g}".format
            )
        )


if __name__ == "__main__":
    machine.enter(main)
