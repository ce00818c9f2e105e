"""Benchmark on a GPU: is every route right, does the certificate hold with TF32 enabled, and how fast is it?

It needs a CUDA device; without one it reports that and leaves the table unchanged. The truth always comes from the
CPU: the largest singular value of the dense Jacobian in float64 or, if that is too large, a float64 value converged
to 1e-10.
Table bench-device, one row for each part, case and method; entries that do not apply are empty:
  part "route"        every kind of attention by every route, in two types; and what else returns a number or a tensor.
                      error: largest, relative (of tensors: of the whole), against the CPU in float64
  part "certificate"  random inputs of every kind, in float32, for each setting of PyTorch's float32 products, `method`:
                      inputs, wrong (truth above `upper` by more than 16 eps, or outside a bracket of `certify`), over
                      (`value` above the truth by as much: the rounding of attention itself), missed (converged, and
                      off by more than 1.25 rtol), unconverged, refused (by a sentence), error
  part "speed"        seconds (median, fastest, slowest of the turns), products, error, and ratio: the released method's
                      seconds over these, both on the GPU; `count` windows of `length` tokens; "CPU" in a method's name
                      says that it ran there
  part "step"         of one more Lanczos step: values read back, tensors sent, kernels begun, and host waits
  part "scan"         `lipnb scan gpt2-mini` there and on the CPU: error, the largest relative difference of the table
"""

import math
import statistics
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from lab.benchmarks import machine, ours
from lab.benchmarks.layers import layer, wide_tokens
from lab.benchmarks.peers import released_fed_back
from lab.benchmarks.references import reference
from lab.benchmarks.workload import RELEASED
from lipnb import Attention, AttentionJacobian, block_norms, certify, local_lipschitz, scan, singular_pair
from lipscan import corpora, models
from lipscan.cli.words import count

EXAMPLES = """examples:
  python -m lab bench device              all (minutes)
  python -m lab bench device --quick      a trial: few inputs, one length, one turn
"""
DEVICE = "cuda"
LAYERS, LENGTHS, WINDOWS = ("mini:0", "mini:3", "twin:0", "twin:3"), (10, 34, 98), 10
LONG = 4096
RTOL = 1e-4
MEMORY = {"cached": 2**40, "streamed": 1}
BATCH = 100  # inputs of a random map
FLOAT32 = torch.finfo(torch.float32).eps


@contextmanager
def products_as(name):
    """Context in which PyTorch rounds float32 products according to one of its settings."""
    said, new = torch.get_float32_matmul_precision(), torch.backends.cuda.matmul
    settings = {
        "float32": lambda: None,
        "allow_tf32": lambda: setattr(new, "allow_tf32", True),
        "high": lambda: torch.set_float32_matmul_precision("high"),
        "medium": lambda: torch.set_float32_matmul_precision("medium"),
        "fp32_precision": lambda: setattr(new, "fp32_precision", "tf32"),
    }
    try:
        settings[name]()
        yield
    finally:
        if name == "fp32_precision":
            new.fp32_precision = "ieee"
        torch.set_float32_matmul_precision(said)


SETTINGS = ("float32", "allow_tf32", "high", "medium", "fp32_precision")


def every_map(seed):
    """Attention of every kind with random weights, float32 and on the CPU, by name; sizes follow from the seed."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    def drawn(low, high):
        return int(torch.randint(low, high + 1, (), generator=generator))

    h, k, d, n = 2 * drawn(1, 2), 2 * drawn(1, 4), drawn(6, 12), drawn(10, 24)
    query, key, value = (normal(h, k, d) / d**0.5 for _ in range(3))
    output = normal(h, d, k) / k**0.5
    plain = Attention(query, key, value, output)
    maps = {
        "plain": plain,
        "masked": plain.replace(masked=True),
        "window": plain.replace(masked=True, window=5),
        "biased": plain.replace(
            query_bias=normal(h, k), key_bias=normal(h, k), value_bias=normal(h, k), output_bias=normal(d)
        ),
        "capped": plain.replace(cap=2.0),
        "rotary": plain.replace(frequencies=10 ** -normal(k // 2).double().abs(), masked=True),
        "normalised": plain.replace(query_norm=normal(h, k), key_norm=normal(h, k)),
        "sinks": plain.replace(sinks=normal(h)),
        "relative": plain.replace(relative=normal(h, 2 * n - 1)),
        "shared": Attention(query, key[: h // 2], value[: h // 2], output),
        "l2": Attention.l2(query, value, output),
    }
    sizes = 10 ** (1.5 * torch.rand(BATCH, 1, 1, generator=generator) - 1)  # from near-uniform to near-hard
    return maps, sizes * normal(BATCH, n, d)


def norm_of(attention, x, weights=None):
    """Largest singular values of the dense Jacobian in float64, on the CPU: shape of the batch."""
    matrix = AttentionJacobian(attention.to(dtype=torch.float64), x.double(), weights).dense()
    if weights is not None:
        root = weights.sqrt()
        rows = root.repeat_interleave(matrix.shape[-2] // x.shape[-2], -1)
        matrix = rows[..., None] * matrix / root.repeat_interleave(x.shape[-1], -1)[..., None, :]
    return torch.linalg.matrix_norm(matrix, 2)


def farthest(found, truth):
    """Largest relative difference of a batch of constants, or the relative difference of whole tensors."""
    found, truth = found.detach().double().cpu(), truth.detach().double().cpu()
    if found.ndim > 1:
        return ((found - truth).norm() / truth.norm()).item()
    return (found / truth - 1).abs().max().item()


def routes(seed, batch):
    """Every kind by every route, and the other functions of the package; rows of the table."""
    maps, x = every_map(seed)
    rows, x = [], x[:batch]

    def row(case, method, precision, found, truth):
        error = farthest(found, truth)
        rows.append({"part": "route", "case": case, "method": method, "precision": precision, "error": error})

    weights = torch.rand(x.shape[:2], generator=torch.Generator().manual_seed(seed)).double() + 0.1
    for name, f in maps.items():
        exact = norm_of(f, x)
        for precision in (torch.float64, torch.float32):
            there, y = f.to(dtype=precision, device=DEVICE), x.to(DEVICE, precision)
            said = str(precision).removeprefix("torch.")
            for route, memory in MEMORY.items():
                row(name, route, said, local_lipschitz(there, y, memory=memory).value, exact)
            for method in ("dense", "power"):
                row(name, method, said, local_lipschitz(there, y, method=method).value, exact)
            row(name, "autodiff", said, local_lipschitz(lambda u, f=there: f(u), y).value, exact)
        there, y, here = (
            f.to(dtype=torch.float64, device=DEVICE),
            x.to(DEVICE, torch.float64),
            f.to(dtype=torch.float64),
        )
        weighted = local_lipschitz(there, y, weights=weights.to(DEVICE)).value
        row(name, "token weights", "float64", weighted, norm_of(f, x, weights))
        row(name, "block_norms", "float64", block_norms(there, y[:3]), block_norms(here, x[:3].double()))
        row(name, "singular_pair", "float64", singular_pair(there, y).value, exact)
        row(
            name,
            "dense Jacobian",
            "float64",
            AttentionJacobian(there, y).dense(),
            AttentionJacobian(here, x.double()).dense(),
        )
    generator = torch.Generator().manual_seed(seed)
    particles = Attention(*torch.randn(3, 1, 2, 2, generator=generator, dtype=torch.float64))
    x = torch.randn(1, 4000, 2, generator=generator, dtype=torch.float64) / 3
    for memory in MEMORY.values():
        lip = local_lipschitz(particles.to(device=DEVICE), x.to(DEVICE), memory=memory)
        row("particles", lip.route, "float64", lip.value, local_lipschitz(particles, x, memory=2**40, rtol=1e-10).value)
    return rows


def network_rows():
    """A whole network, and a convolution, whose products PyTorch rounds to TF32 by default; rows of the table."""
    model = models.load("gpt2-mini")
    x = model.activations(corpora.windows(model.token_ids(corpora.read("python_reference")), 16, 3), 0)
    exact = local_lipschitz(model.network(), x, rtol=1e-6).value
    rows = [
        ("network", "autodiff", local_lipschitz(models.load("gpt2-mini", device=DEVICE).network(), x.to(DEVICE)), exact)
    ]
    generator = torch.Generator().manual_seed(0)
    filters = torch.randn(64, 64, 3, generator=generator) / 14
    tokens = torch.randn(2, 40, 64, generator=generator)

    def convolved(f):
        return lambda x: torch.tanh(torch.nn.functional.conv1d(x.mT, f.to(x), padding=1)).mT

    exact = local_lipschitz(convolved(filters.double()), tokens.double(), rtol=1e-8).value
    try:
        found = local_lipschitz(convolved(filters.to(DEVICE)), tokens.to(DEVICE))
        rows.append(("convolution, as PyTorch is set", found.precision, found, exact))
    except ValueError as error:
        print(f"convolution: {error}")
    with torch.backends.cudnn.flags(allow_tf32=False):
        rows.append(
            (
                "convolution, TF32 off",
                "autodiff",
                local_lipschitz(convolved(filters.to(DEVICE)), tokens.to(DEVICE)),
                exact,
            )
        )
    return [
        {"part": "route", "case": case, "method": method, "precision": "float32", "error": farthest(lip.value, truth)}
        for case, method, lip, truth in rows
    ]


def _judged(truth, value, upper, converged, rtol=RTOL):
    """Answers of one solve, counted against the truth."""
    error = (value / truth - 1).abs()
    return {
        "inputs": len(truth),
        "wrong": int((truth > upper * (1 + 16 * FLOAT32)).sum()),
        "over": int((value > truth * (1 + 16 * FLOAT32)).sum()),
        "missed": int((converged & (error > 1.25 * rtol)).sum()),
        "unconverged": int((~converged).sum()),
        "refused": 0,
        "error": error.max().item(),
    }


def certificates(seeds, settings=SETTINGS):
    """Random inputs of every kind, in float32, under every setting; rows of the table."""
    drawn = [every_map(seed) for seed in seeds]
    cases = [(seed, name, f, x) for seed, (maps, x) in zip(seeds, drawn, strict=True) for name, f in maps.items()]
    with ThreadPoolExecutor(8) as pool:
        truths = list(pool.map(lambda case: norm_of(*case[2:]), cases))
    rows = {}

    def add(case, setting, found):
        row = rows.setdefault((case, setting), {"part": "certificate", "case": case, "method": setting})
        for name, number in found.items():
            row[name] = max(row.get(name, 0), number) if name == "error" else row.get(name, 0) + number

    for (seed, name, f, x), truth in zip(cases, truths, strict=True):
        there, y = f.to(device=DEVICE), x.to(DEVICE)
        for setting in settings:
            with products_as(setting):
                lip = local_lipschitz(there, y, seed=seed)
                add(name, setting, _judged(truth, *(one.cpu() for one in (lip.value, lip.upper, lip.converged))))
                if setting in ("float32", "allow_tf32"):  # a callable is measured with its own arithmetic, or refused
                    try:
                        lip = local_lipschitz(lambda u, f=there: f(u), y[:10], seed=seed)
                        found = _judged(truth[:10], *(one.cpu() for one in (lip.value, lip.upper, lip.converged)))
                    except ValueError:
                        found = {"inputs": 10, "refused": 10}
                    add(f"callable, {name}", setting, found)
                if setting == "allow_tf32" and name != "l2":
                    bracket = certify(there, y[:1], columns=0)
                    low, high = bracket.lower.cpu(), bracket.upper.cpu()
                    wrong = int(((truth[:1] < low) | (truth[:1] > high)).sum())
                    add(f"certify, {name}", setting, {"inputs": 1, "wrong": wrong})
    return list(rows.values())


def _seconds(run):
    """The answer of a run, and the seconds until the device has finished its work."""
    finished = torch.cuda.synchronize if DEVICE == "cuda" else lambda: None
    finished()
    began = time.perf_counter()
    answer = run()
    finished()
    return answer, time.perf_counter() - began


def _in_turn(runs, turns):
    """All runs interleaved, after one warm-up each: name -> (last answer, seconds)."""
    taken, answers = {name: [] for name in runs}, {}
    for turn in range(turns + 1):
        for name, run in runs.items():
            answers[name], once = _seconds(run)
            taken[name] += [once] if turn else []
    return {name: (answers[name], taken[name]) for name in runs}


def _speed_rows(case, length, windows, found, truth):
    released = statistics.median(found[RELEASED][1]) if RELEASED in found else math.nan
    rows = []
    for method, (answer, taken) in found.items():
        values, products = answer
        spread = machine.spread(taken)
        rows.append(
            {
                "part": "speed",
                "case": case,
                "method": method,
                "length": length,
                "count": windows,
                **spread,
                "products": products,
                "error": (torch.as_tensor(values).double() / truth - 1).abs().max().item(),
                "ratio": released / spread["seconds"],
            }
        )
    return rows


def _released(attention, x):
    answers = [released_fed_back(attention, one) for one in x]
    return [one.value for one in answers], statistics.mean(one.products for one in answers)


def _ours(attention, x, one_by_one=False, **options):
    parts = x.split(1) if one_by_one else [x]
    found = [local_lipschitz(attention, part, **options) for part in parts]
    return torch.cat([one.value for one in found]).cpu(), torch.cat([one.steps for one in found]).double().mean().item()


def speed(name, length, windows, turns, corpus):
    """The released method and ours on the windows of one length of one layer; rows of the table."""
    attention, tokens = layer(name, corpus)[1:]
    x = tokens(length, windows)
    there, y = attention.to(device=DEVICE), x.to(DEVICE)
    runs = {RELEASED: partial(_released, there, y)}
    runs |= {mode: partial(_ours, there, y, **options) for mode, options in ours.OURS.items()}
    runs["certified 0.99, one at a time"] = partial(_ours, there, y, True, **ours.OURS["certified 0.99"])
    return _speed_rows(name, length, windows, _in_turn(runs, turns), reference(attention, x))


def one_thread_of_it(name, length, windows, corpus):
    """The same estimate on the CPU of this machine, once."""
    attention, tokens = layer(name, corpus)[1:]
    x = tokens(length, windows)
    answer, taken = _seconds(partial(_ours, attention, x, **ours.OURS["certified 0.99"]))
    return _speed_rows(name, length, windows, {"certified 0.99, CPU": (answer, [taken])}, reference(attention, x))


def brackets(name, length, turns, corpus):
    """`certify` of one window, on the device and on the CPU; rows of the table."""
    attention, tokens = layer(name, corpus)[1:]
    x = tokens(length, WINDOWS)[:1]
    there, y = attention.to(device=DEVICE), x.to(DEVICE)
    found = _in_turn({"certify": lambda: certify(there, y)}, turns)
    bracket, taken = _seconds(lambda: certify(attention, x))
    found["certify, CPU"] = bracket, [taken]
    truth = reference(attention, x)
    for bracket, _ in found.values():
        if not (bracket.lower.cpu() <= truth * (1 + 1e-9)).all() or not (truth <= bracket.upper.cpu()).all():
            raise RuntimeError(f"{name}: a bracket does not hold the constant.")
    return _speed_rows(
        name, length, 1, {key: ((one.lower.cpu(), 0), taken) for key, (one, taken) in found.items()}, truth
    )


def long(name, length, turns):
    """One long input by both routes, and the released method; rows of the table."""
    attention = layer(name, "python_reference").attention.to(device=DEVICE)
    x = wide_tokens(int(name.split(":")[1]), length).to(DEVICE)
    runs = {RELEASED: partial(_released, attention, x)}
    runs |= {
        f"certified 0.99, {route}": partial(_ours, attention, x, confidence=0.99, memory=memory)
        for route, memory in MEMORY.items()
    }
    truth = local_lipschitz(attention.to(dtype=torch.float64), x.double(), rtol=1e-9).value.cpu()
    return _speed_rows(name, length, 1, _in_turn(runs, turns), truth)


def _of_steps(attention, x, steps, options):
    """Work of the host in a run of `steps` steps."""
    from torch.profiler import ProfilerActivity, profile

    run = partial(local_lipschitz, attention, x, rtol=1e-6, confidence=None, max_steps=steps, **options)
    if run().steps.item() != steps:
        raise RuntimeError("a run stopped before its last step.")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    events = [(event.key, event.count) for event in seen.key_averages()]
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return {
        "reads": sum(number for name, number in events if name.startswith("Memcpy DtoH")),
        "sent": sum(number for name, number in events if name.startswith("Memcpy HtoD")),
        "kernels": sum(number for name, number in events if name.startswith(("cudaLaunchKernel", "cuLaunchKernel"))),
        "waits": sum("synchronizing" in str(one.message) for one in waits),
    }


def steps(seed):
    """Cost of one more Lanczos step on the host, from runs of two lengths; rows of the table."""
    generator = torch.Generator().manual_seed(seed)
    attention = Attention(*torch.randn(3, 4, 16, 64, generator=generator), torch.randn(4, 64, 16, generator=generator))
    x, rows = torch.randn(1, 200, 64, generator=generator).to(DEVICE) / 2, []
    for route, memory in MEMORY.items():
        few, many = (_of_steps(attention.to(device=DEVICE), x, of, {"memory": memory}) for of in (5, 15))
        more = {name: (many[name] - few[name]) / 10 for name in few}
        rows.append({"part": "step", "case": "plain", "method": route, "length": x.shape[1], **more})
    return rows


def scanned(lengths, windows):
    """The scan of gpt2-mini on the device and on the CPU: the largest relative difference of each column."""
    options = {"lengths": lengths, "windows": windows, "close": False, "progress": False}
    with tempfile.TemporaryDirectory() as folder:
        tables, taken = {}, {}
        for name, device in (("CPU", "cpu"), ("GPU", DEVICE)):
            made, taken[name] = _seconds(
                partial(scan, "gpt2-mini", output=Path(folder, name), device=device, **options)
            )
            tables[name] = made.summary
    here, there = tables["CPU"], tables["GPU"]
    if len(here) != len(there) or not len(here) or not (here.passed == there.passed).all():
        raise RuntimeError("the two scans have other rows, or other self-checks.")
    left_by_rounding = ["self_check", "leak", "residual", "steps"]
    numbers = here.select_dtypes("number").columns.drop(left_by_rounding, errors="ignore")
    gap = (there[numbers] / here[numbers] - 1).abs().max()
    print(gap.sort_values().tail(5).to_string())
    rows = {"part": "scan", "case": "gpt2-mini", "inputs": len(here), "error": float(gap.max())}
    return [
        {**rows, "method": "GPU", "seconds": taken["GPU"]},
        {**rows, "method": "CPU", "seconds": taken["CPU"], "error": 0.0},
    ]


def main(argv=None):
    """Entry point."""
    command = machine.parser(__doc__, EXAMPLES)
    command.add_argument("--seeds", type=count, default=6, metavar="N", help="random maps of each kind (default 6)")
    command.add_argument("--turns", type=count, default=3, metavar="N", help="turns of each run (default 3)")
    given = command.parse_args(argv)
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing is measured, and the table bench-device stays as it is.")
        return
    machine.start(given)
    corpus = corpora.available("alice", "python_reference")
    seeds, turns = (1, 1) if given.quick else (given.seeds, given.turns)
    lengths = LENGTHS[:1] if given.quick else LENGTHS
    units = {"route": partial(routes, 0, 5), "network": network_rows, "step": partial(steps, 0)}
    units |= {f"certificate/{seed}": partial(certificates, [seed]) for seed in range(1, seeds + 1)}
    units |= {"scan": partial(scanned, [32], 2)}
    for name in LAYERS[:1] if given.quick else LAYERS:
        units |= {f"speed/{name}/{n}": partial(speed, name, n, WINDOWS, turns, corpus) for n in lengths}
        units |= {f"cpu/{name}/{n}": partial(one_thread_of_it, name, n, WINDOWS, corpus) for n in lengths}
    if not given.quick:
        units |= {"certify": partial(brackets, LAYERS[-1], LENGTHS[0], turns, corpus)}
        units |= {"long": partial(long, LAYERS[-1], LONG, turns)}
    settings = {
        "device": torch.cuda.get_device_name(),
        "cuda": torch.version.cuda,
        "corpus": corpus,
        "text": corpora.fingerprint(corpora.read(corpus)),
        "batch": BATCH,
        "turns": turns,
    }
    table = machine.make("device", settings, given, units, "part")
    for part, rows in table.groupby("part", sort=False):
        print(f"\n{part}\n{rows.dropna(axis=1, how='all').to_string(index=False, float_format='{:.4g}'.format)}")


if __name__ == "__main__":
    machine.enter(main)
