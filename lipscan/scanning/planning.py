"""Plan of a scan: what it measures, and its approximate run time from counted operations."""

import time
from typing import Any, NamedTuple

import torch

from lipscan.scanning.fmt import many
from lipscan.scanning.inputs import Reader

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
    """A scan before measurement: the network on its inputs, and the settings of its tables."""

    reader: Reader
    settings: dict[str, Any]


def planned(begun):
    """Sentences on what a scan will measure and about how long it takes; only one product is timed."""
    reader, found = begun
    layers, lengths, windows = len(found["layers_scanned"]), found["lengths"], found["windows"]
    kinds, close, h = windows + len(found["baselines"]), found["close"], found["heads"]
    said = [
        f"Constants: {many(layers, 'layer')} at n = {', '.join(map(str, lengths))}, {many(windows, 'window')} each"
        + (f" and baselines ({', '.join(found['baselines'])}) of the first" if found["baselines"] else "")
        + f": {layers * len(lengths) * kinds}.",
        f"Certified upper bounds: {layers * len(_certified(found)) * found['certified']}.",
    ]
    if close is not None:
        said.append(
            f"Closely, at n = {close}: {many(layers * h, 'head')}, {many(layers, 'map')} of {close} x {close} tokens,"
            f" {many(layers, 'whole layer')}, the network from end to end."
        )
    seconds = _seconds(begun)
    said.append(
        f"Roughly {_duration(sum(seconds))} beside loading, by counting operations at the speed of this machine now; "
        "on a busy machine some times as long."
    )
    return [*said, *shorter(begun, seconds)]


def _certified(found):
    """Operations of a certified bound, for each length at which it is not too expensive."""
    work = [found["work"][str(n)] for n in found["lengths"]]
    return [each for each in work if each is not None and each <= found["upper_work"]]


def _seconds(begun):
    """Approximate seconds for the layers, and for the details, by counting operations."""
    reader, found = begun
    layers, close, d = len(found["layers_scanned"]), found["close"], found["width"]
    kinds, speed = found["windows"] + len(found["baselines"]), _speed()

    def solves(n):
        return EACH + PRODUCTS * (16 * n * d**2 + 16 * n**2 * d) / (SHARE * speed)

    seconds = layers * sum(LAYER + kinds * solves(n) for n in found["lengths"])
    bounds = [work / CERTIFIED + FIXED * d**3 for work in _certified(found)]
    seconds += layers * found["certified"] * sum(bounds) / speed
    if close is None:
        return seconds, 0.0
    head = EACH + (solves(close) - EACH) / found["heads"]
    pairs = close * (close + 1) / 2 if found["masked"] else close**2
    closely = layers * (found["heads"] * head + solves(close) + pairs * PAIR * d**2 / (SHARE * speed))
    in_use = reader.model.architecture.layers_of(reader.model.module)  # repeats shared layers
    each = [sum(p.numel() for p in layer.parameters()) for layer in in_use]
    ends = 3 if not found.get("no_logits") else 2
    passed = sum(each[layer] for layer in found["layers_scanned"]) + ends * sum(each)
    around = AROUND * (layers + ends * len(each))
    return seconds, closely + around + WHOLE * PRODUCTS * close * passed / (SHARE * speed)


def shorter(begun: Begun, seconds: tuple[float, float] | None = None) -> list[str]:
    """A suggestion, at most one sentence, for scans of over five minutes; `seconds` for layers and for details."""
    layers, close = _seconds(begun) if seconds is None else seconds
    if layers + close < LONG:
        return []
    ways = ["--no-close (close=False in Python)"] if close > layers else []
    ways += ["fewer --layers"] if len(begun.settings["layers_scanned"]) > 1 else []
    ways += ["fewer or shorter --lengths"]
    most = ", most of that the close look" if close > layers else ""
    return [f"This scan takes about {_duration(layers + close)}{most}: {' or '.join(ways)} would shorten it."]


def _speed():
    """Floating point operations per second of one matrix product."""
    a = torch.ones(512, 512)
    a @ a
    began = time.perf_counter()
    for _ in range(4):
        a @ a
    return 4 * 2 * 512**3 / (time.perf_counter() - began)


def _duration(seconds):
    return f"{seconds:.0f} seconds" if seconds < 90 else f"{seconds / 60:.0f} minutes"
