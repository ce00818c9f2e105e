"""The workload of Figure 1, by the released method and by each mode of ours, in one interleaved run.

For each length n = 2, 10, ..., 98: ten windows of the text, one pass of the released method (its tangent fed back, one
sequence at a time), then each mode of ours on all ten at once, three times in turn. Errors are against float64 values.
For the random GPT-2 the released rule stops too early: look at its errors, and compare products, not seconds.

Table bench-workload, one row for each layer, length and method:
  count                        number of windows
  seconds, fastest, slowest    for the ten windows: median, least and most of the repeats
  products, most_products      J^T J products per window, mean and largest
  error, missed                largest relative error; windows off by more than 1e-4
  above_upper                  windows whose true value lies above the certified upper bound (certified modes)
  unconverged                  windows for which the method's own stopping rule was not met

Printed, summed over the lengths, for each layer and family: ratio, the released method's seconds over these (low and
high: with the slowest and the fastest repeats), missed_percent, the share of windows off by more than 1e-4. No ratio
(NaN) for the random GPT-2.
"""

from functools import partial
from itertools import product

import numpy as np
import pandas as pd

from lab.benchmarks import machine, ours
from lab.benchmarks.layers import FORMS, layer, listed
from lab.benchmarks.peers import power, released_fed_back
from lab.benchmarks.references import reference
from lipscan import corpora
from lipscan.cli.words import count

EXAMPLES = """examples:
  python -m lab bench workload                            thirteen lengths (a quarter of an hour on two cores)
  python -m lab bench workload --step 2                   every length of Figure 1 (an hour)
  python -m lab bench workload --layers twin:0,twin:3     the wide layers only
  python -m lab bench workload --quick                    a trial of a minute

A stopped run continues when the same command is given again. Keep the machine quiet: other work changes the ratios.
"""
LAYERS = ("mini:0", "mini:3", "twin:0", "twin:3", "gpt2r:6")
RELEASED, POWER = "released, tangent fed back", "power iteration to 1e-4"
MISS, ABOVE = 1e-4, 1e-5


def one_by_one(peer, attention, x):
    """A peer on each sequence in turn: values, products and whether each stopped by itself."""
    answers = [peer(attention, sequence) for sequence in x]
    return tuple(np.array(column) for column in zip(*answers, strict=True))


def all_at_once(mode, attention, x):
    """A mode of ours on the batch: values, products, convergence; upper bounds when it certifies."""
    lip = ours.solve(attention, x, **ours.OURS[mode])
    known = (lip.value.double().numpy(), lip.steps.numpy(), lip.converged.numpy())
    return known if ours.OURS[mode]["confidence"] is None else (*known, ours.upper(lip).numpy())


def methods(name, attention, x, truth):
    """Methods to run on one batch: method -> (run without arguments, repeats)."""
    setting = {"threshold": 1e-3, "max_iter": 1000} if name.startswith("gpt2r") else {}
    peers = {RELEASED: partial(one_by_one, partial(released_fed_back, **setting), attention, x)}
    if name.startswith("gpt2r"):
        peers[POWER] = lambda: tuple(
            map(
                np.array,
                zip(
                    *(
                        power(attention, sequence, truth=value)
                        for sequence, value in zip(x, truth.tolist(), strict=True)
                    ),
                    strict=True,
                ),
            )
        )
    return peers, {mode: partial(all_at_once, mode, attention, x) for mode in ours.OURS}


def row(name, length, method, answer, seconds, truth):
    """One row of the table."""
    values, products, converged, *upper = answer
    error = np.abs(values / truth - 1)
    return {
        "layer": name,
        "length": length,
        "method": method,
        "count": len(values),
        **seconds,
        "products": float(products.mean()),
        "most_products": int(products.max()),
        "error": float(error.max()),
        "missed": int((error > MISS).sum()),
        "above_upper": int((truth > upper[0] * (1 + 1e-6)).sum()) if upper else None,
        "unconverged": int((~converged).sum()),
    }


def measure(name, length, count, repeats, corpus):
    """All methods on the windows of one length of one layer, interleaved; rows of the table."""
    attention, tokens = layer(name, corpus)[1:]
    x = tokens(length, count)
    truth = reference(attention, x)
    peers, modes = methods(name, attention, x, truth)
    truth = truth.numpy()
    rows = [row(name, length, method, *machine.timed(run, 1), truth) for method, run in peers.items()]
    runs = {mode: [] for mode in modes}
    for _, (mode, run) in product(range(repeats), modes.items()):
        answer, seconds = machine.timed(run, 1)
        runs[mode].append((answer, seconds["seconds"]))
    for mode, pairs in runs.items():
        rows.append(row(name, length, mode, pairs[-1][0], machine.spread([seconds for _, seconds in pairs]), truth))
        if (pairs[-1][0][0] > truth * (1 + ABOVE)).any():  # ours are lower bounds, so the reference is wrong
            raise RuntimeError(f"{name}, n = {length}, {mode}: a lower bound exceeds its reference.")
    return rows


def summary(table):
    """Speed-up over the released method, summed over lengths, for each layer and for each family of layers.

    Parameters
    ----------
    table : DataFrame
        The table bench-workload.

    Returns
    -------
    DataFrame
        Index layer and method: ratio (with the median seconds), low and high (with the slowest and the fastest of
        ours), products per window, share of windows off by more than 1e-4 in percent, largest error. There is no
        ratio for the random GPT-2, where the released rule gives no usable answer.
    """
    sums = []
    families = {name: [name] for name in table.layer.unique()}
    families |= {
        f"{family} together": [name for name in families if name.startswith(f"{family}:")]
        for family in ("mini", "twin")
    }
    for group, names in families.items():
        mine = table[table.layer.isin(names)]
        if not names or (group not in names and len(names) == 1):
            continue
        released = mine[mine.method == RELEASED].seconds.sum() if not group.startswith("gpt2r") else np.nan
        for method, rows in mine.groupby("method", sort=False):
            sums.append(
                {
                    "layer": group,
                    "method": method,
                    "ratio": released / rows.seconds.sum(),
                    "low": released / rows.slowest.sum(),
                    "high": released / rows.fastest.sum(),
                    "products": np.average(rows.products, weights=rows["count"]),
                    "missed_percent": 100 * rows.missed.sum() / rows["count"].sum(),
                    "error": rows.error.max(),
                }
            )
    return pd.DataFrame(sums).set_index(["layer", "method"])


def main(argv=None):
    """Entry point."""
    command = machine.parser(__doc__, EXAMPLES)
    command.add_argument(
        "--layers", type=listed, default=",".join(LAYERS), help=f"layers by comma: {FORMS} (default %(default)s)"
    )
    command.add_argument(
        "--step",
        type=count,
        metavar="N",
        default=8,
        help="step of the lengths 2 to 98; a trial takes 2, 10, 34 (default %(default)s; 2: every length of Figure 1)",
    )
    command.add_argument(
        "--count",
        type=count,
        metavar="N",
        default=10,
        help="windows for each length, in a trial at most 3 (default %(default)s)",
    )
    command.add_argument("--repeats", type=count, metavar="N", default=3, help="repeats of ours (default %(default)s)")
    command.add_argument("--corpus", help="text (default alice, else python_reference)")
    given = command.parse_args(argv)
    machine.start(given)
    corpus = given.corpus or corpora.available("alice", "python_reference")
    lengths = [2, 10, 34] if given.quick else list(range(2, 99, given.step))
    windows = min(given.count, 3) if given.quick else given.count
    names = given.layers
    settings = {
        "corpus": corpus,
        "text": corpora.fingerprint(corpora.read(corpus)),
        "layers": names,
        "lengths": lengths,
        "count": windows,
        "repeats": given.repeats,
        "object": "heads+output",
    }
    units = {
        f"{name}/{length}": partial(measure, name, length, windows, given.repeats, corpus)
        for name, length in product(names, lengths)
    }
    table = machine.make("workload", settings, given, units, "length")
    print(summary(table).to_string(float_format="{:.3g}".format))


if __name__ == "__main__":
    machine.enter(main)
