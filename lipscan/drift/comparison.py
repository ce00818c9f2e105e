"""Comparison of a network with another implementation of it: local errors, floors, gains, closure, verdict."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from lipnb import local_lipschitz
from lipscan import recording
from lipscan.drift.carrying import carried
from lipscan.drift.fitting import check_places, check_shapes
from lipscan.drift.local import at_least, local_errors
from lipscan.drift.passes import network_of, passed, with_halves
from lipscan.drift.precision import KERNELS, TYPES, exact
from lipscan.drift.runs import States, one_pass
from lipscan.drift.verdict import Verdict, heights, verdict

__all__ = ["Closure", "Drift", "compare"]

CLOSES = (0.9, 0.98)  # length, and least cosine, of a sum that is called the difference
EXACT = 1e-12  # difference, of the state, below which float64 itself rounds: of it nothing adds up


class Closure(NamedTuple):
    """Sum of the carried local errors beside the observed difference, before the final norm.

    Attributes
    ----------
    length : float
        Its length over that of the difference.
    angle : float
        Cosine of the angle between them.
    difference : float
        Length of the difference over that of the state.
    why : str
        Reason why they differ; empty if they agree.
    """

    length: float
    angle: float
    difference: float
    why: str


@dataclass
class Drift:
    """Difference of two implementations of a network, layer by layer.

    Parameters
    ----------
    table : DataFrame
        A row for each part: ``layer`` (-1: the embedding), ``part``, ``size`` of what the reference gives, local
        ``error``, its ``floor`` (median over kernels) from ``floor_low`` to ``floor_high``, their ``ratio``;
        ``token_ratio``, the median over tokens, ``token_tenth``, which a tenth of them is above, ``token_worst``, the
        largest, and ``height``, above 1 if these are not rounding; the ``signed`` share sum(e sign(h)) / sum|e|,
        ``floor_signed``, and by chance their difference, ``signed_noise``; of a mixture of experts ``switching``, the
        number of tokens left out of these because rounding may send them elsewhere; of a half ``made``, what its error
        changes in the layer's output; ``gain`` of this error to the end, ``gain_random`` of a random one and
        ``gain_worst``; ``share`` of the final difference. `lipscan.drift.words.COLUMNS` explains them.
    closure : Closure
        Whether the carried errors add up to the difference.
    verdict : Verdict
        The answer.
    about : dict
        Model, type, text and windows.
    logits : Closure, optional
        The same closure after the final norm and the output layer, whose own error is added; None without logits.
    """

    table: pd.DataFrame
    closure: Closure
    verdict: Verdict
    about: dict[str, Any] = field(default_factory=dict)
    logits: Closure | None = None

    def report(self, path: str | os.PathLike) -> Path:
        """Write the report, one HTML file that opens offline, to `path` (a folder: report.html in it); returns it."""
        from lipscan.drift.report import write_report  # only now: plots take a second to import

        return write_report(self, path)


def compare(
    model: Any,
    other: States,
    *,
    dtype: torch.dtype | None = None,
    worst: bool = False,
    seed: int = 0,
    progress: bool = True,
) -> Drift:
    """Compare the states of another implementation with a model, computed in float64.

    Parameters
    ----------
    model : Model
        The reference, from `lipnb.models.load`.
    other : States
        The other's states, from `read` or `states`.
    dtype : torch.dtype, optional
        Type in which the other computed, whose floor is measured: bfloat16, float16 or float32; by default that of its
        states, float32 for float64 ones.
    worst : bool
        Whether to measure the largest gain of any error too, which takes minutes.
    seed : int
        Seed of random errors.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Drift

    Raises
    ------
    ValueError
        The states are not those of this model on these tokens; raised before anything is measured.

    Examples
    --------
    >>> from lipnb import models
    >>> from lipscan import drift
    >>> model = models.load("minilm")
    >>> ids = model.token_ids("rounding, or a bug?")[None]
    >>> found = drift.compare(model, drift.states(model, ids, torch.bfloat16), progress=False)
    >>> found.verdict.kind, round(found.closure.angle, 2)
    ('rounding', 1.0)
    """
    dtype = type_of(other) if dtype is None else dtype
    bench = Bench(model, dtype, other, worst=worst, seed=seed)
    with recording.bar(bench.steps, "step", progress) as bar:
        rows = [row for number in range(len(other.ids)) for row in bench.measured(number, bar.update)]
    return joined(pd.DataFrame(rows), dtype, {"model": model.name, "against": other.about.get("file")})


def type_of(other: States) -> torch.dtype:
    """Type whose floor belongs to some states: their own; float32 for float64 ones."""
    return torch.float32 if other.dtype == torch.float64 else other.dtype


class Bench:
    """States of another implementation beside a model in the types that a comparison needs.

    These are float64 for the reference, the other's type for the floors, and float32 for products of Jacobians.
    ValueError if the states do not fit the model.
    """

    def __init__(self, model: Any, dtype: torch.dtype, other: States, *, worst: bool = False, seed: int = 0) -> None:
        if dtype not in TYPES.values():
            raise ValueError(f"dtype must be one of {', '.join(TYPES)}, got {str(dtype).removeprefix('torch.')}.")
        check_shapes(model, other)
        network = network_of(model)
        other = other.to(network.inner.device)
        with torch.no_grad(), exact():
            self.reference = with_halves(network.to(torch.float64), other.ids)
            self._own = one_pass(self.reference, other.ids[:1])
            check_places(self._own, other.window(0))
            for number in range(1, len(other.ids)):
                window = other.window(number)
                check_places(one_pass(self.reference, window.ids), window, number)
        self.low, self.light = network.to(dtype), network.to(torch.float32)
        self.other, self.worst, self.seed = other, worst, seed
        self._layers = 2 * model.layers
        self._fused = _has_fused(self.low, other.ids[:1])

    @property
    def steps(self) -> int:
        """Number of steps of all windows, for a progress bar."""
        return sum(self.steps_of(number) for number in range(len(self.other.ids)))

    def steps_of(self, number: int) -> int:
        """Number of steps of a window."""
        return 2 + len(self._kernels(number)) + self._layers

    def _kernels(self, number):
        """Kernels for the floors of a window: all in the first, those of attention in the others."""
        names = KERNELS if number == 0 else KERNELS[:2]
        return [name for name in names if name != "sdpa" or self._fused]

    @torch.no_grad()
    def measured(self, number: int, tick: Callable[[], Any] = lambda: None) -> list[dict[str, Any]]:
        """Rows of one window: local errors, carried errors, and their sum; `tick` is called for each step."""
        other = self.other.window(number)
        own = one_pass(self.reference, other.ids) if number else self._own
        tick()
        found = local_errors(self.reference, self.low, other, self._kernels(number), tick)
        difference = other.hidden[-1].double() - own.hidden[-1]
        sent = carried(self.light, other.ids, own.hidden, found.streams, difference, self.seed, tick)
        whole = difference.square().sum().item()
        rows = [{"window": number, **row} for row in found.rows]
        at = {(row["layer"], row["part"]): row for row in rows}
        for place, error in enumerate(found.streams):
            row = at[place - 1, "layer" if place else "embedding"]
            row |= {
                "carried": sent.errors[place].norm().item(),
                "gain_random": sent.random[place],
                "toward": (sent.errors[place] * difference[0]).sum().item(),
                "difference": whole,
            }
            late = found.late.get(place - 1)
            if late is not None and (place - 1, "mlp") in at:
                for half, part in (("mlp", late), ("attention", error - late)):
                    toward = (sent.back[place] * part[0]).sum().item()
                    at[place - 1, half] |= {"toward": toward, "difference": whole}
            if self.worst:
                row["gain_worst"] = _worst(self.light, other.ids, own.hidden, place)
        total = sent.errors.sum(0)
        sums = {"window": number, "layer": len(rows), "part": "sum", "carried": total.norm().item()}
        sums |= {"difference": whole, "toward": (total * difference[0]).sum().item()}
        sums |= {"size": own.hidden[-1].norm().item(), "switched": _switched(own.experts, found.experts, number)}
        if other.logits is not None and own.logits is not None:
            sums |= self._ended(own, other, found.logits, total)
        return [*rows, sums]

    def _ended(self, own, other, error, total):
        """Columns of the logits: the sum of the carried errors after the final norm and the output layer."""
        moved = [*own.hidden[:-1], own.hidden[-1] + total]
        sent = one_pass(self.reference, other.ids, streams=moved).logits - own.logits + error
        difference = other.logits.double() - own.logits
        found = {"carried": sent.norm().item(), "difference": difference.square().sum().item()}
        found |= {"toward": (sent * difference).sum().item(), "size": own.logits.norm().item()}
        return {f"logits_{key}": value for key, value in found.items()}


def _switched(own, fed, number):
    """First place where a mixture of experts chose other experts than for the reference's states; "" without one."""
    for layer, experts in own.items():
        tokens = (experts != fed[layer]).any(-1).nonzero()
        if len(tokens):
            return f"layer {layer}, token {tokens[0].item()} of window {number}"
    return ""


def _has_fused(network, ids):
    """Whether a network has fused attention, which some cannot use: a soft limit of scores, or sinks."""
    try:
        one_pass(network, ids, "sdpa")
    except (ValueError, NotImplementedError):
        return False
    return True


def _worst(network, ids, base, place):
    """Largest gain of any error of a state to the end: the local constant of the layers after it."""
    calls = passed(network, ids).calls[place:]
    if not calls:
        return 1.0

    def tail(x):
        for call in calls:
            x = call.again(x)
        return x

    return local_lipschitz(tail, base[place].to(network.dtype), rtol=1e-2).value.item()


def joined(rows: pd.DataFrame, dtype: torch.dtype, about: dict[str, Any]) -> Drift:
    """The result of the rows of all windows."""
    sums = rows[rows.part == "sum"]
    rows = rows[rows.part != "sum"]
    table = pd.DataFrame([_joined(part, dtype) for _, part in rows.groupby(["layer", "part"], sort=False)])
    order = {"embedding": 0, "layer": 1, "attention": 2, "mlp": 3, "logits": 4}
    table = table.sort_values(
        ["layer", "part"], key=lambda column: column.map(order) if column.name == "part" else column
    )
    table = table.reset_index(drop=True)
    name = str(dtype).removeprefix("torch.")
    table.insert(table.columns.get_loc("signed"), "height", heights(table, name))
    return Drift(table, _closure(sums), verdict(table, name), {**about, "dtype": name}, _at_logits(sums))


def _joined(rows, dtype):
    """Row of one part, of the rows of all windows."""
    first = rows.iloc[0]
    size, error = _length(rows["size"]), _length(rows.error)
    each = _floors(rows)
    floor = float(np.median([at_least(_length(each[name]), size, dtype) for name in each]))
    spread = [at_least(one, size, dtype) for one in each.div(rows["size"], axis=0).to_numpy().ravel() * size]
    own, floors = (_share(_length(rows[f"{of}leaning_noise"]), rows[f"{of}absolute"].sum()) for of in ("", "floor_"))
    lengths = rows.difference.sum() if "difference" in rows else float("nan")
    random = float((rows.gain_random**2).mean() ** 0.5) if "gain_random" in rows else float("nan")
    return {
        "layer": int(first.layer),
        "part": first.part,
        "size": size,
        "error": error,
        "floor": floor,
        "floor_low": min(spread),
        "floor_high": max(spread),
        "ratio": error / floor if floor else 0.0,
        "token_ratio": rows.token_ratio.max(),  # a fault may touch the text of one window only
        "token_tenth": rows.token_tenth.max(),
        "token_worst": rows.token_worst.max(),
        "signed": _share(rows.leaning.sum(), rows.absolute.sum()),
        "signed_noise": math.hypot(max(own, _share(error, rows.absolute.sum())), floors),
        "floor_signed": _share(rows.floor_leaning.sum(), rows.floor_absolute.sum()),
        "switching": rows.switching.sum() if "switching" in rows and rows.switching.notna().any() else float("nan"),
        "made": _length(rows.made) if "made" in rows and rows.made.notna().all() else float("nan"),
        "gain": _length(rows.carried) / error if error and rows.carried.notna().all() else float("nan"),
        "gain_random": random,
        "gain_worst": rows.gain_worst.max() if "gain_worst" in rows else float("nan"),
        "share": rows.toward.sum() / lengths if lengths and rows.toward.notna().all() else float("nan"),
    }


def _floors(rows):
    """Floors by window and kernel; a kernel that was run for the first windows alone keeps its ratio to eager."""
    each = rows[[key for key in rows if key.removeprefix("floor_") in KERNELS]].dropna(axis=1, how="all")
    eager = each["floor_eager"]
    ratios = {key: _length(each[key]) / (_length(eager[each[key].notna()]) or 1.0) for key in each}
    return each.apply(lambda column: column.fillna(ratios[column.name] * eager))


def _length(values):
    return float((values**2).sum() ** 0.5)


def _share(leaning, absolute):
    return leaning / absolute if absolute else 0.0


def _closure(sums):
    """Closure of the sums of all windows."""
    carried, difference = _length(sums.carried), float(sums.difference.sum() ** 0.5)
    if not difference:
        return Closure(1.0, 1.0, 0.0, "")
    length = carried / difference
    angle = float(sums.toward.sum()) / (carried * difference) if carried else 0.0
    closes = abs(length - 1) <= 1 - CLOSES[0] and angle >= CLOSES[1]
    relative = difference / _length(sums["size"])
    why = "" if closes else f"it is {relative:.1g} of the state: too large for first order, or errors cancel"
    if not closes and relative < EXACT:
        why = "the difference is rounding of float64, in which the reference is computed"
    elif not closes and (switched := [one for one in sums.switched if isinstance(one, str) and one]):
        why = f"a mixture of experts chose another expert, first in {switched[0]}"
    return Closure(length, angle, relative, why)


def _at_logits(sums):
    """Closure of the sums at the logits, or None."""
    if "logits_carried" not in sums or sums.logits_carried.isna().any():
        return None
    each = sums[["switched"]].assign(
        **{key: sums[f"logits_{key}"] for key in ("carried", "difference", "toward", "size")}
    )
    return _closure(each)
