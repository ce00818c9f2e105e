"""Savings of the closed form, of Lanczos and of batches, changed one at a time, on four trained layers.

From the released method (power iteration on products by automatic differentiation, its tangent fed back, one sequence
at a time) to ours in three steps: the same iteration with the same stop on closed-form products; Lanczos with a
certificate at 0.99 on these, one sequence at a time; all windows of a length at once.

Table bench-shares, one row for each layer, length and step:
  count       number of windows
  seconds     of the processor, for all windows: other work on the machine changes these little
  products    J^T J products per window
  error       largest relative error, against float64
"""

import time
from functools import partial
from itertools import product

import numpy as np

from lab.benchmarks import machine
from lab.benchmarks.layers import FORMS, layer, listed
from lab.benchmarks.peers import released_fed_back
from lab.benchmarks.references import reference
from lab.benchmarks.workload import all_at_once, one_by_one
from lipscan import corpora
from lipscan.cli.words import count

EXAMPLES = """examples:
  python -m lab bench shares --threads 1     four layers at three lengths (some minutes)
  python -m lab bench shares --quick         a trial of seconds
"""
LAYERS = ("mini:0", "mini:3", "twin:0", "twin:3")
LENGTHS = (10, 34, 98)
MODE = "certified 0.99"


def one_alone(attention, x):
    """Ours on each sequence in turn, as `all_at_once`."""
    answers = [all_at_once(MODE, attention, sequence[None]) for sequence in x]
    return tuple(np.concatenate(column) for column in zip(*answers, strict=True))


STEPS = {
    "released": partial(one_by_one, released_fed_back),
    "closed form": partial(one_by_one, partial(released_fed_back, closed=True)),
    "Lanczos": one_alone,
    "batch": partial(all_at_once, MODE),
}


def measure(name, length, windows, corpus):
    """All steps on the windows of one length of one layer; rows of the table."""
    attention, tokens = layer(name, corpus)[1:]
    x = tokens(length, windows)
    truth = reference(attention, x).numpy()
    rows = []
    for step, run in STEPS.items():
        run(attention, x[:2])  # keep one-time costs of a shape out of the time
        began = time.process_time()
        values, products, *_ = run(attention, x)
        seconds = time.process_time() - began
        error = float(np.abs(values / truth - 1).max())
        place = {"layer": name, "length": length, "step": step, "count": windows, "seconds": seconds}
        rows.append(place | {"products": float(products.mean()), "error": error})
    return rows


def main(argv=None):
    """Entry point."""
    command = machine.parser(__doc__, EXAMPLES)
    command.add_argument(
        "--layers", type=listed, default=",".join(LAYERS), help=f"layers by comma: {FORMS} (default %(default)s)"
    )
    command.add_argument(
        "--count", type=count, metavar="N", default=10, help="windows of a length, in a trial 3 (default %(default)s)"
    )
    given = command.parse_args(argv)
    machine.start(given)
    corpus = corpora.available("alice", "python_reference")
    lengths, windows = (LENGTHS[:1], min(given.count, 3)) if given.quick else (LENGTHS, given.count)
    settings = {
        "corpus": corpus,
        "text": corpora.fingerprint(corpora.read(corpus)),
        "layers": given.layers,
        "lengths": lengths,
        "count": windows,
        "object": "heads+output",
    }
    units = {
        f"{name}/{length}": partial(measure, name, length, windows, corpus)
        for name, length in product(given.layers, lengths)
    }
    table = machine.make("shares", settings, given, units, "length")
    seconds = table.pivot_table(index="layer", columns="step", values="seconds", aggfunc="sum", sort=False)
    print((seconds[list(STEPS)].shift(axis=1) / seconds[list(STEPS)]).to_string(float_format="{:.2f}".format))


if __name__ == "__main__":
    machine.enter(main)
