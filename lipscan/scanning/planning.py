"""Plan of a scan: what it measures, and its approximate run time from counted operations."""

import time
from typing import Any, NamedTuple

import torch

from lipscan.scanning.folder import Scan
from lipscan.scanning.inputs import Reader
from lipscan.scanning.words import finding

PRODUCTS = 30  # of a Jacobian and its transpose, in a typical solve
EACH = 0.03  # seconds of a solve besides its products
LAYER = 0.3  # seconds of a layer and length besides solves: self-check, norms of heads, baselines
PAIR = 120  # operations of the norm of one block, from one token to another, over the width squared
WHOLE, AROUND = 3, 0.1  # operations of a product with a whole layer, per weight and token, and seconds besides
SHARE = 0.4  # fraction of the speed of one large matrix product that the products of solves reach
CERTIFIED = 0.1  # the same for the factorisations of a certified bound, in float64, and ...
FIXED = 1000  # ... its operations that do not grow with the length, over the width cubed
LONG = 300  # seconds from which a scan suggests how to shorten it


class Begun(NamedTuple):
    """A scan before measurement: the network on its inputs, the settings of its tables, its folder's contents."""

    reader: Reader
    settings: dict[str, Any]
    held: Scan | None = None  # a finished scan
    said: str = ""  # of the two


class Planned(NamedTuple):
    """A part of a scan: how many measurements of a kind, and about how many seconds they take together."""

    what: str
    number: int
    seconds: float


def planned(begun: Begun) -> list[Planned]:
    """Plan of a scan: measurements and approximate run time, from counted operations; only one product is timed."""
    found, speed = begun.settings, _speed()
    layers, close, d = len(found["layers_scanned"]), found["close"], found["width"]
    kinds = found["windows"] + len(found["baselines"])

    def solves(n):
        return EACH + PRODUCTS * (16 * n * d**2 + 16 * n**2 * d) / (SHARE * speed)

    seconds = layers * sum(LAYER + kinds * solves(n) for n in found["lengths"])
    work = [found["work"][str(n)] for n in found["lengths"]]
    work = [each for each in work if each is not None and each <= found["upper_work"]]
    bounds = layers * found["certified"] * sum(each / CERTIFIED + FIXED * d**3 for each in work) / speed
    rows = [
        Planned("constants: layers, lengths, windows, baselines", layers * len(found["lengths"]) * kinds, seconds),
        Planned("certified upper bounds", layers * len(work) * found["certified"], bounds),
    ]
    if close is None:
        return rows
    pairs = close * (close + 1) / 2 if found["masked"] else close**2
    head = EACH + (solves(close) - EACH) / found["heads"]
    each, ends = _weights(begun.reader), 2 if found.get("no_logits") else 3
    product = WHOLE * PRODUCTS * close / (SHARE * speed)  # seconds of a solve for each weight
    scanned = sum(each[layer] for layer in found["layers_scanned"])
    return [
        *rows,
        Planned("constants of single heads", layers * found["heads"], layers * found["heads"] * head),
        Planned(
            "maps of the tokens that move others",
            layers,
            layers * (solves(close) + pairs * PAIR * d**2 / (SHARE * speed)),
        ),
        Planned("constants of whole layers", layers, AROUND * layers + product * scanned),
        Planned("constants of the whole network", ends, ends * (AROUND * len(each) + product * sum(each))),
    ]


def _weights(reader):
    """Number of weights of each layer in use; a shared layer counts each time."""
    layers = reader.model.architecture.layers_of(reader.model.module)
    return [sum(p.numel() for p in layer.parameters()) for layer in layers]


def shorter(begun: Begun) -> list[str]:
    """A suggestion, at most one sentence, for scans of over five minutes."""
    rows = planned(begun)
    layers, close = (sum(row.seconds for row in part) for part in (rows[:2], rows[2:]))
    if layers + close < LONG:
        return []
    return [str(finding("shorten_close" if close > layers else "shorten", (layers + close) / 60))]


def _speed():
    """Floating point operations per second of one matrix product."""
    a = torch.ones(512, 512)
    a @ a
    began = time.perf_counter()
    for _ in range(4):
        a @ a
    return 4 * 2 * 512**3 / (time.perf_counter() - began)
