"""Benchmark of wrong convergence: how often a solver stops at a wrong value, against independent values.

Random attention maps of all sizes, masked or not, biased or not, from near-uniform to near-hard, against the largest
singular value of the dense Jacobian in float64; and random windows of real text in all layers of MiniLM, masked or
not, against float64 values converged to 1e-10 from another start. Measured in float32. Every batch has a different
start.

Then the certificate itself: diagonal operators whose largest value stands alone above a wide or a narrow cluster. At
confidence 0.5 the certified upper bound may lie below the true value for at most half of the starts.

Table bench-misconvergence, one row for each kind, chunk and mode: inputs, missed (relative error above 1e-4), error
(largest), unconverged, above_upper (true value above the certified bound), products (mean).
"""

import signal
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import numpy as np
import torch

from lab.benchmarks import machine, ours
from lab.benchmarks.layers import layer
from lab.benchmarks.references import reference_of
from lipnb import Attention, local_lipschitz
from lipscan import corpora
from lipscan.cli.words import count

EXAMPLES = """examples:
  python -m lab bench misconvergence                 10,000 inputs and 3 x 2,000 starts
  python -m lab bench misconvergence --quick         some dozens of each
  python -m lab bench misconvergence --workers 2     two processes of one thread each

A stopped run continues when the same command is given again.
"""
MISS = 1e-4
CHUNK = {"random": 200, "real": 50, "coverage": 100}
QUICK = {"random": 20, "real": 5, "coverage": 4}
BATCH = 5  # windows of one length, solved together
SPREADS = (0.3, 1.0, 4.0)
SPECTRA = {  # all but the largest value, which is 1; gaps slightly above the tolerance, and wide ones
    "close cluster": lambda size: np.linspace(0.9, 1 - 5e-4, size),
    "edge of a bulk": lambda size: np.linspace(0.0, 0.998, size),
    "one runner-up": lambda size: np.append(np.linspace(0.0, 0.5, size - 1), 1 - 5e-4),
}
SIZE = 300


def random_map(seed):
    """A random attention map and one batch of two inputs, float32; sizes and options follow from the seed."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    h, k, d, v = (int(torch.randint(1, most + 1, (), generator=generator)) for most in (4, 8, 12, 8))
    n = int(torch.randint(1, 41, (), generator=generator)) + 48 // d  # smaller ones are solved densely
    bias = {"query_bias": normal(h, k), "key_bias": normal(h, k), "value_bias": normal(h, v)} if seed % 2 else {}
    attention = Attention(
        normal(h, k, d) / d**0.5,
        normal(h, k, d) / d**0.5,
        normal(h, v, d) / d**0.5,
        normal(h, d, v) / v**0.5 if seed % 3 else None,
        **bias,
        masked=seed // 2 % 2 == 1,
    )
    return attention, SPREADS[seed % len(SPREADS)] * normal(2, n, d)


def windows_of_text(seed, corpus):
    """A layer of MiniLM and a few neighbouring windows; layer, length and position follow from the seed."""
    generator = torch.Generator().manual_seed(10**6 + seed)
    number, masked, n = (int(torch.randint(most, (), generator=generator)) for most in (6, 2, 97))
    name = f"mini:{number}{':masked' if masked else ''}"
    attention, tokens = layer(name, corpus)[1:]
    place = int(torch.randint(20, (), generator=generator))
    return attention, tokens(n + 2, BATCH, skip=place * BATCH)


def cases(kind, first, count, corpus):
    """Maps, inputs and true values (float64) of one chunk, on which a mode of ours is run."""
    if kind == "random":
        for seed in range(first, first + count // 2):
            attention, x = random_map(seed)
            exact = local_lipschitz(attention.to(dtype=torch.float64), x.double(), method="dense").value
            yield seed, attention, x, exact
    else:
        for seed in range(first // BATCH, (first + count) // BATCH):
            attention, x = windows_of_text(seed, corpus)
            yield seed, attention, x, reference_of(attention, x)


def compared(kind, first, count, corpus):
    """All modes on one chunk of inputs; rows of the table."""
    found = {mode: [] for mode in ours.OURS}
    for seed, attention, x, exact in cases(kind, first, count, corpus):
        for mode, options in ours.OURS.items():
            lip = ours.solve(attention, x, seed=seed, **options)
            certified = options["confidence"] is not None
            above = exact > ours.upper(lip) * (1 + 1e-6) if certified else torch.zeros_like(exact, dtype=torch.bool)
            error = (lip.value.double() / exact - 1).abs()
            found[mode] += torch.stack([error, above.double(), (~lip.converged).double(), lip.steps.double()], 1)
    rows = []
    for mode, columns in found.items():
        error, above, unconverged, products = torch.stack(columns).T
        rows.append(
            {
                "kind": kind,
                "chunk": first,
                "mode": mode,
                "inputs": len(error),
                "missed": int((error > MISS).sum()),
                "error": error.max().item(),
                "unconverged": int(unconverged.sum()),
                "above_upper": int(above.sum()),
                "products": products.mean().item(),
            }
        )
    return rows


def coverage(spectrum, first, count, confidence=0.5):
    """Starts for which the certified bound lies below the norm of a diagonal operator; one row of the table."""
    values = torch.from_numpy(np.append(SPECTRA[spectrum](SIZE - 1), 1.0))[:, None]
    x, failed, products = torch.zeros_like(values), 0, 0
    for seed in range(first, first + count):
        lip = ours.solve(lambda u: values * u, x, seed=seed, rtol=MISS, confidence=confidence)
        failed += ours.upper(lip).item() < 1 - 1e-12
        products += lip.steps.item()
    return [
        {
            "kind": f"coverage, {spectrum}",
            "chunk": first,
            "mode": f"certified {confidence}",
            "inputs": count,
            "above_upper": failed,
            "products": products / count,
        }
    ]


def work(kind, *rest):
    """One unit of work in a separate process, on one thread."""
    torch.set_num_threads(1)
    return coverage(*rest) if kind == "coverage" else compared(kind, *rest)


def main(argv=None):
    """Entry point."""
    command = machine.parser(__doc__, EXAMPLES)
    command.add_argument("--random", type=count, metavar="N", default=8000, help="random inputs (default %(default)s)")
    command.add_argument("--real", type=count, metavar="N", default=2000, help="windows of text (default %(default)s)")
    command.add_argument(
        "--starts", type=count, metavar="N", default=2000, help="starts of each spectrum (default %(default)s)"
    )
    command.add_argument(
        "--workers", type=count, metavar="N", default=1, help="processes of one thread each (default %(default)s)"
    )
    given = command.parse_args(argv)
    machine.start(given)
    wanted = {"random": given.random, "real": given.real, "coverage": given.starts}
    wanted, chunk = (QUICK, QUICK) if given.quick else (wanted, CHUNK)
    corpus = corpora.available("alice", "python_reference")
    units = {
        f"{kind}/{first}": partial(work, kind, first, chunk[kind], corpus)
        for kind in ("random", "real")
        for first in range(0, wanted[kind], chunk[kind])
    }
    units |= {
        f"coverage/{spectrum}/{first}": partial(work, "coverage", spectrum, first, chunk["coverage"])
        for spectrum in SPECTRA
        for first in range(0, wanted["coverage"], chunk["coverage"])
    }
    settings = {"corpus": corpus, "wanted": wanted, "chunk": chunk, "size": SIZE}
    # spawned, not forked: threads of torch do not survive a fork
    pool = ProcessPoolExecutor(
        given.workers,
        mp_context=get_context("spawn"),
        initializer=signal.signal,  # only this process handles Ctrl-C, and ends the others
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        table = machine.make("misconvergence", settings, given, units, "chunk", pool)
    finally:
        pool.shutdown(cancel_futures=True)  # after an interrupt, do not start waiting units
    print(
        table.groupby(["kind", "mode"], sort=False)
        .agg(
            {
                "inputs": "sum",
                "missed": "sum",
                "error": "max",
                "unconverged": "sum",
                "above_upper": "sum",
                "products": "mean",
            }
        )
        .to_string(float_format="{:.3g}".format)
    )


if __name__ == "__main__":
    machine.enter(main)
