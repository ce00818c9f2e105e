"""Tables of `lipnb drift` on planted faults and on clean runs: what it finds, and how often it is wrong.

Next to it stands what people do now: the cosine of the states after each layer, `torch.allclose`, the relative
difference of the output, and the rule of FlashAttention's tests.
"""

import math
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from statistics import median
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lab.experiments.loading import load, place
from lab.experiments.planted_faults import FAULTS, OUTSIDE, Absent, faulty, planted
from lab.experiments.table import table
from lipscan import corpora, models
from lipscan.drift.comparison import Drift, joined
from lipscan.drift.local import local_errors
from lipscan.drift.passes import Network, network_of, with_halves
from lipscan.drift.precision import TYPES, exact
from lipscan.drift.runs import States, one_pass, run_of
from lipscan.drift.verdict import CLEAN, FLOORS, LEANS, SUMS, SURE, TOGETHER
from lipscan.models.hooks import Call

MODELS = {"minilm": "bert", "gpt2-mini": "gpt2", "stories260K": "llama", "smollm2": "llama"}  # with their families
UNSEEN = {"e5-small": "bert", "minilm-l3": "bert"}  # on which no threshold was chosen, on another text
SLOW = "smollm2"  # fewer cases, one window
TEXT, OTHER_TEXT, LENGTH = "alice", "ag_news", 32
PLACES = ("early", "middle", "late", "all")  # layers: the first, the middle, the last, every one
COSINE = (0.999, 0.99)  # usual thresholds
CLOSE = {"bfloat16": (1.6e-2, 1e-5), "float16": (1e-3, 1e-5), "float32": (1.3e-6, 1e-5)}  # torch.testing: rtol, atol
HEIGHTS = ("ratio", "token_ratio", "token_tenth", "token_worst")  # errors in floors
KEPT = ("layer", "part", *HEIGHTS, "height", "signed", "signed_noise", "floor_signed")
WINDOWS = (1, 2, 4, 8)
WINDOWED = ("layer", "ratio", "token_ratio", "token_worst")
KIND, STRENGTHS = "LoRA not merged", tuple(2.0**-k for k in range(1, 8))  # parts of the fault's largest size
HALVES = ("attention", "mlp")
TWICE = 2  # FlashAttention's tests: at most so many times the largest difference of an own run in the type


class Start(NamedTuple):
    """A network in float64 and in a type, with its states on some windows.

    `ids` (w, n): every second window of a text; `text` (2 w + 3, n): all of them. `own`, `own_low`: states in float64
    and in the type. `calls`: calls of the layers in float64, for each window.
    """

    reference: Network
    low: Network
    ids: Tensor
    text: Tensor
    own: States
    own_low: States
    calls: list[list[Call]]


@lru_cache(maxsize=1)
def _reference(name, windows):
    model = load(place(name) if name == "stories260K" else name, dtype="float64")
    count = 2 * windows + 3
    words = corpora.read(OTHER_TEXT if name in UNSEEN else TEXT)
    text = models.first_tokens(model, words, LENGTH * count).view(count, LENGTH)
    reference, ids = network_of(model).to(torch.float64), text[: 2 * windows : 2]
    with exact():
        reference = with_halves(reference, ids)
    calls = [one_pass(reference, one[None]).calls for one in ids]
    return reference, ids, text, run_of(reference, ids), calls


@lru_cache(maxsize=1)
def start_of(name: str, dtype: str, windows: int) -> Start:
    """The `Start` of a model in a type, on that many windows; the last one is kept."""
    reference, ids, text, own, calls = _reference(name, windows)
    low = reference.to(TYPES[dtype])
    return Start(reference, low, ids, text, own, run_of(low, ids), calls)


@torch.no_grad()
def compared(start: Start, other: States) -> Drift:
    """Comparison of the reference with another's states, without what is carried to the end."""
    count = range(len(other.ids))
    errors = [local_errors(start.reference, start.low, other.window(number)).rows for number in count]
    return _joined(errors, start.low.dtype)


def _joined(errors, dtype):
    """Comparison made of the rows of some windows."""
    rows = pd.DataFrame([{"window": number, **row} for number, found in enumerate(errors) for row in found])
    return joined(rows.assign(carried=math.nan, toward=math.nan, difference=math.nan), dtype, {})


# what people do now


def _all(states):
    """States by layer, from the embedding (-1) to the logits, in float64."""
    found = [*states.hidden, *([] if states.logits is None else [states.logits])]
    return [one.double() for one in found]


def _first(wrong):
    """Number of the first layer that is wrong; NaN if none is."""
    return next((layer - 1 for layer, one in enumerate(wrong) if one), math.nan)


def usual(start: Start, other: States) -> dict[str, float]:
    """What usual comparisons see of another's states; the first layer that they call wrong, NaN for none.

    `cosine`: the least by layer, with `cosine_layer` and `cosine_99_layer` by two thresholds. `close_layer`:
    `torch.testing.assert_close` with its own tolerances; `needed`, the tolerance (relative and absolute alike) that all
    layers need, and `needed_by_layer` as text. `twice_layer`: the rule of FlashAttention's tests. `final`: relative
    difference of the output.
    """
    truth, low, found = (_all(one) for one in (start.own, start.own_low, other))
    rtol, atol = CLOSE[str(start.low.dtype).removeprefix("torch.")]
    pairs = [*zip(truth, found, strict=True)]
    cosines = [torch.cosine_similarity(x.flatten(), y.flatten(), dim=0).item() for x, y in pairs]
    needed = [((y - x).abs() / (1 + x.abs())).max().item() for x, y in pairs]
    most = [[(y - x).abs().max().item() for x, y in zip(truth, one, strict=True)] for one in (found, low)]
    least = torch.finfo(start.low.dtype).eps
    return {
        "final": ((found[-1] - truth[-1]).norm() / truth[-1].norm()).item(),
        "cosine": min(cosines),
        "cosine_layer": _first(not one >= COSINE[0] for one in cosines),
        "cosine_99_layer": _first(not one >= COSINE[1] for one in cosines),
        "close_layer": _first(not torch.allclose(y, x, rtol, atol) for x, y in pairs),
        "needed": max(needed),
        "twice": max(y / max(x, least) for y, x in zip(*most, strict=True)),
        "twice_layer": _first(not y <= TWICE * max(x, least) for y, x in zip(*most, strict=True)),
    }


# clean runs: the same network by other kernels and in other company


class _Parts(TorchFunctionMode):
    """Mode in which a product with a matrix is a sum of several, each rounded, as devices that share it compute it."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.linear and not kwargs:
            x, weight, *bias = args
            found = sum(map(func, x.chunk(self.count, -1), weight.chunk(self.count, -1)))
            return found + bias[0] if bias and bias[0] is not None else found
        if func is torch.addmm and not kwargs:
            bias, x, weight = args
            return sum(map(torch.mm, x.chunk(self.count, -1), weight.chunk(self.count))) + bias
        return func(*args, **(kwargs or {}))


@contextmanager
def _threads():
    """Two threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _plain():
    """Products of matrices without oneDNN."""
    return torch.backends.mkldnn.flags(enabled=False, allow_tf32=None)


def _joint(start, tokens, texts):
    """Each window as the first text and the first tokens of a larger batch, (texts, tokens)."""
    if tokens > LENGTH and start.reference.inner.config.model_type == "bert":
        raise Absent("all tokens see each other")
    parts = []
    for number in range(len(start.ids)):
        batch = start.text[2 * number :].flatten()[: texts * tokens].view(texts, tokens)
        parts.append(_first_of(one_pass(start.low, batch)))
    hidden, logits = zip(*((part.hidden, part.logits) for part in parts), strict=True)
    halves = (
        {i: torch.cat([getattr(part, half)[i] for part in parts]) for i in getattr(parts[0], half)} for half in HALVES
    )
    logits = None if logits[0] is None else torch.cat(logits)
    return States(start.ids, [torch.cat(one) for one in zip(*hidden, strict=True)], *halves, logits)


def _first_of(found):
    """States of the first text of a batch, at its first tokens."""
    first = (slice(0, 1), slice(LENGTH))
    halves = ({layer: one[first] for layer, one in getattr(found, half).items()} for half in HALVES)
    logits = None if found.logits is None else found.logits[first]
    return States(torch.empty(0), [one[first] for one in found.hidden], *halves, logits)


def _run(start, by="eager", context=nullcontext):
    with context():
        return run_of(start.low, start.ids, by)


RUNS: dict[str, Callable[[Start], States]] = {
    "eager": _run,
    "sdpa": lambda start: _run(start, "sdpa"),
    "batch": lambda start: _joint(start, LENGTH, 4),
    "longer": lambda start: _joint(start, 2 * LENGTH, 1),
    "two threads": lambda start: _run(start, context=_threads),
    "without oneDNN": lambda start: _run(start, context=_plain),
    "sums in two parts": lambda start: _run(start, context=partial(_Parts, 2)),
    "sums in four parts": lambda start: _run(start, context=partial(_Parts, 4)),
}


# tables


def _kinds(family, dtype):
    """Faults that a family can have in a type."""
    every = [kind for kind, one in FAULTS.items() if family in one.families]
    return [kind for kind in every if dtype != "bfloat16" or kind != "gate in bfloat16"]


def _cases(model, dtype, half):
    """Sizes and places of the faults of a kind: all in small networks in bfloat16, fewer in the slow one and elsewhere.

    Float16 takes a processor several times as long as the others.
    """
    if half in OUTSIDE:
        return [(size, half) for size in range(3)]
    if model == SLOW and dtype != "bfloat16":
        return [(1, "middle")]
    middle, others = [(size, "middle") for size in range(3)], [where for where in PLACES if where != "middle"]
    if dtype == "float16":
        return middle
    if model == SLOW or dtype == "float32":
        return middle + [(1, where) for where in others]
    return middle + [(size, where) for where in others for size in ((1,) if where == "all" else range(3))]


def _layers(start, where):
    """Numbers of the layers at a place; of a place outside, as the rows of `Drift.table` count it."""
    count = len(start.reference.layers)
    of = {"early": [0], "middle": [count // 2], "late": [count - 1], "embedding": [-1], "logits": [count]}
    return of.get(where, [*range(count)])


def _seen(drift, layers):
    """Verdict of a comparison, and the numbers that it comes from, in the layers with the fault and elsewhere."""
    rows = drift.table
    height, tilt = rows.height, (rows.signed - rows.floor_signed).abs()
    there = rows.layer.isin(layers)
    said = drift.verdict
    return {
        "verdict": said.kind,
        "named_layer": math.nan if said.layer is None else said.layer,
        "named_part": said.part or "",
        "height": height[there].max(),
        "height_elsewhere": height[~there].max(),
        **{name: rows[name][there].max() for name in HEIGHTS},
        "tilt": tilt[there].max(),
        "tilt_elsewhere": tilt[~there].max(),
    }


@torch.no_grad()
def effect(start: Start, kind: str, size: int, number: int) -> float:
    """Norm of what a fault changes in the output of a layer, in float64 except for what the fault itself rounds."""
    copy, total = faulty(start.reference, kind, size, number, start.low.dtype, LENGTH), 0.0
    for call in (calls[number] for calls in start.calls):
        total += (replace(call, module=copy).again(call.tokens) - call.again(call.tokens)).square().sum().item()
    return math.sqrt(total)


def _units(names):
    """Models, types and kinds of faults of a table; the slow model not in float16."""
    return [
        (name, dtype, kind)
        for dtype in ("bfloat16", "float32", "float16")
        for name in names
        if (name, dtype) != (SLOW, "float16")
        for kind in _kinds(MODELS[name], dtype)
    ]


def _settings_of_faults():
    return _settings() | {"faults": {kind: one.amounts for kind, one in FAULTS.items()}}


@table(
    "drift-power-smollm2",
    "the same for SmolLM2: fewer sizes and places, no float16",
    over=lambda: _units([SLOW]),
    size=lambda dtype: 6 if dtype == "bfloat16" else 1,
    settings=_settings_of_faults,
)
@table(
    "drift-power",
    "faults planted in a layer of three small models: what `lipnb drift` and usual comparisons see",
    over=lambda: _units([name for name in MODELS if name != SLOW]),
    size=lambda dtype: {"float16": 3, "float32": 6}.get(dtype, 10),
    settings=_settings_of_faults,
)
def fault_rows(model, dtype, kind):
    """Rows of a kind of fault in a network: one for each size and place."""
    start, rows, one = start_of(model, dtype, 1), [], FAULTS[kind]
    for size, where in _cases(model, dtype, one.half):
        layers = _layers(start, where)
        try:
            with planted(start.reference, start.low, kind, size, layers, LENGTH) as low:
                other = run_of(low, start.ids)
        except Absent:
            continue
        drift = compared(start, other)
        floor = drift.table[(drift.table.part == "layer") & (drift.table.layer == layers[0])].floor
        alone = len(layers) == 1 and one.half not in OUTSIDE
        rows.append(
            {
                "size": size,
                "amount": str(one.amounts[size]),
                "place": where,
                "layer": layers[0] if len(layers) == 1 else math.nan,
                "half": one.half_in(MODELS[model], size),
                "effect": effect(start, kind, size, layers[0]) / floor.item() if alone else math.nan,
                **_seen(drift, layers),
                **usual(start, other),
            }
        )
    return rows


def _input(models=MODELS, text=TEXT):
    return {"text": corpora.fingerprint(corpora.read(text)), "length": LENGTH, "models": [*models]}


def _settings(models=MODELS, text=TEXT):
    return _input(models, text) | {
        "thresholds": {**FLOORS, "sums": SUMS, "clean": CLEAN, "leans": LEANS, "together": TOGETHER, "sure": SURE}
    }


@table(
    "drift-clean-unseen",
    "the same of two models and a text on which the thresholds were not chosen",
    over=lambda: [
        (name, dtype, run) for name in UNSEEN for dtype in ("bfloat16", "float32") for run in RUNS if run != "longer"
    ],
    size=lambda model: 78 if model == "e5-small" else 24,
    settings=lambda: _settings(UNSEEN, OTHER_TEXT),
)
@table(
    "drift-clean",
    "clean runs by other kernels and in other batches: local errors in floors, verdicts",
    over=lambda: [
        (name, dtype, run)
        for name, family in MODELS.items()
        for dtype in TYPES
        for run in RUNS
        if run != "longer" or family != "bert"
        if (name, dtype) != (SLOW, "float16") or run in ("sdpa", "sums in two parts")
    ],
    size=lambda model: 45 if model == SLOW else 100,
    settings=lambda: _settings(),
)
def clean_rows(model, dtype, run):
    """Rows of a clean run: for each window alone, each part of the network, and the run as a whole."""
    start, rows = start_of(model, dtype, {SLOW: 1}.get(model, 2 if model in UNSEEN else 4)), []
    other = RUNS[run](start)
    for number in range(len(start.ids)):
        one, part = _only(start, number), other.window(number)
        drift = compared(one, part)
        for row in drift.table.to_dict("records"):
            kept = {name: row[name] for name in KEPT}
            rows.append({"window": number, **kept})
        whole = usual(one, part) | {"verdict": drift.verdict.kind}
        rows.append({"window": number, "layer": math.nan, "part": "run", **whole})
    return rows


def _only(start, number):
    """The `Start` of one of the windows."""
    return start._replace(
        ids=start.ids[number : number + 1], own=start.own.window(number), own_low=start.own_low.window(number)
    )


@table(
    "drift-windows",
    "local errors over more and more windows, of clean runs and of a fault of many strengths",
    over=lambda: [("minilm", "bfloat16"), ("gpt2-mini", "bfloat16"), ("gpt2-mini", "float32")],
    size=285,
    settings=lambda: _input() | {"windows": WINDOWS, "strengths": STRENGTHS},
)
def window_rows(model, dtype):
    """Rows of layers: `strength` of a fault in the middle layer (0: a clean run), for groups of `windows`."""
    start, rows = start_of(model, dtype, max(WINDOWS)), []
    middle = len(start.reference.layers) // 2
    runs = [(0.0, run, RUNS[run](start)) for run in ("sdpa", "without oneDNN", "sums in two parts")]
    for strength in STRENGTHS:
        with planted(start.reference, start.low, KIND, 2, [middle], LENGTH, strength) as low:
            runs.append((strength, "planted", run_of(low, start.ids)))
    for strength, run, other in runs:
        errors = [local_errors(start.reference, start.low, other.window(i)).rows for i in range(max(WINDOWS))]
        for windows in WINDOWS:
            for group in range(max(WINDOWS) // windows):
                part = errors[group * windows : (group + 1) * windows]
                found = _joined(part, start.low.dtype).table
                found = found[(found.part == "layer") & ((strength == 0) | (found.layer == middle))]
                for row in found.to_dict("records"):
                    names = {"strength": strength, "run": run, "windows": windows, "group": group}
                    averaged = _median(part, row["layer"])  # a comparison takes the largest
                    rows.append(names | {name: row[name] for name in WINDOWED} | {"token_ratio": averaged})
    return rows


def _median(errors, layer):
    """Median over windows of the floors of a layer in its median token."""
    found = [row["token_ratio"] for rows in errors for row in rows if (row["layer"], row["part"]) == (layer, "layer")]
    return median(found)
