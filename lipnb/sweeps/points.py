"""The points of a sweep: every combination of a grid and of zipped groups, less exclusions, or a sample of them."""

import hashlib
import json
import math
from dataclasses import dataclass, field
from itertools import product
from typing import Any

__all__ = ["LARGEST", "Point", "axis", "expand"]

LARGEST = 1_000_000  # points; more is a slip of the pen
DIGITS = 12  # of a spaced value: the same on every machine, and short to read


@dataclass(frozen=True)
class Point:
    """One setting of the parameters.

    Parameters
    ----------
    id : str
        Twelve hexadecimal digits made from the parameters; it names the point's files.
    parameters : dict
        Name -> value, what papermill injects.
    """

    id: str
    parameters: dict = field(compare=False)


def canonical(value):
    """JSON with sorted keys: equal values, equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _spaced(kind, arguments):
    """Values of a range as NumPy names them."""
    import numpy as np

    whole = all(type(number) is int for number in arguments)
    if kind == "range":
        if not (1 <= len(arguments) <= 3 and whole and (len(arguments) < 3 or arguments[2])):
            raise ValueError(
                "range takes one to three whole numbers, [start, stop, step], as in Python; "
                "for numbers that are not whole there is linspace: [first, last, count]"
            )
        return list(range(*arguments)[: LARGEST + 1])
    numbers = all(isinstance(number, int | float) and not isinstance(number, bool) for number in arguments)
    if not (len(arguments) == 3 and numbers and type(arguments[2]) is int and 1 <= arguments[2] <= LARGEST):
        raise ValueError(f"{kind} takes [first, last, count], as in NumPy")
    if kind == "geomspace" and not arguments[0] * arguments[1] > 0:
        raise ValueError("geomspace takes two numbers of the same sign, neither of them zero")
    return [float(f"{value:.{DIGITS}g}") for value in getattr(np, kind)(*arguments)]


def axis(name: str, values: list | dict) -> list:
    """The values of one axis of a grid.

    Parameters
    ----------
    name : str
        The parameter.
    values : list or dict
        A list, or one of ``{range: [start, stop, step]}``, ``{linspace: [first, last, count]}``, ``{geomspace: ...}``,
        ``{logspace: [first exponent, last exponent, count]}``.

    Returns
    -------
    list
        At least one value, none of them twice.

    Raises
    ------
    ValueError
        "grid: NAME ...": what is wrong with them.
    """
    kinds = ("range", "linspace", "geomspace", "logspace")
    if isinstance(values, dict):
        if len(values) != 1 or next(iter(values)) not in kinds or not isinstance(next(iter(values.values())), list):
            raise ValueError(f"{name}: give a list of values, or one of {', '.join(kinds)} with a list of numbers.")
        try:
            values = _spaced(*next(iter(values.items())))
        except ValueError as error:
            raise ValueError(f"{name}: {error}.") from None
    if not isinstance(values, list) or not values:
        raise ValueError(
            f"{name}: give a list with at least one value (one value for all points belongs in 'parameters')."
        )
    if len(values) > LARGEST:
        raise ValueError(f"{name}: more than {LARGEST} values are too many.")
    texts = [canonical(value) for value in values]
    if len(set(texts)) < len(texts):
        twice = next(text for text in texts if texts.count(text) > 1)
        raise ValueError(f"{name}: the value {twice} is there twice.")
    return values


def _point(parameters):
    text = canonical(parameters)
    return Point(hashlib.sha256(text.encode()).hexdigest()[:12], parameters)


def _matches(parameters, part):
    return all(canonical(parameters[name]) == canonical(value) for name, value in part.items())


def expand(spec: Any) -> list[Point]:
    """All points of a sweep, in the order of the grid: its last axis moves fastest.

    Parameters
    ----------
    spec : lipnb.sweeps.Spec
        What to sweep.

    Returns
    -------
    list of Point
        No two with the same parameters.

    Raises
    ------
    ValueError
        "... points are too many", "exclude: ... matches no point", "sample: ...", "... no point left".
    """
    axes = [[{name: value} for value in axis(f"grid: {name}", values)] for name, values in spec.grid.items()]
    for group in spec.zipped:
        rows = [dict(zip(group, row, strict=True)) for row in zip(*group.values(), strict=True)]
        axes.append(axis(f"zip: {', '.join(group)}", rows))
    size = math.prod(len(values) for values in axes)
    if size > LARGEST:
        raise ValueError(
            f"{size} points are too many: at most {LARGEST}. A sample is taken of a grid that is written "
            "down, so the grid itself must be smaller."
        )
    points = []
    used = [False] * len(spec.exclude)
    for combination in product(*axes):
        parameters = dict(spec.parameters)
        for part in combination:
            parameters |= part
        hits = [_matches(parameters, part) for part in spec.exclude]
        used = [old or new for old, new in zip(used, hits, strict=True)]
        if not any(hits):
            points.append(_point(parameters))
    if not all(used):
        idle = canonical(spec.exclude[used.index(False)])
        raise ValueError(f"exclude: {idle} matches no point: mend it, or drop it.")
    if not points:
        raise ValueError("exclude: there is no point left.")
    return _sample(points, **spec.sample) if spec.sample else points


def _sample(points, count, seed=0):
    """A random sample, in the order of the grid; a larger count or a larger grid keeps the points it can."""
    if count > len(points):
        raise ValueError(f"sample: there are only {len(points)} points, not {count}.")
    drawn = sorted(points, key=lambda point: hashlib.sha256(f"{seed} {point.id}".encode()).digest())[:count]
    chosen = {point.id for point in drawn}
    return [point for point in points if point.id in chosen]
