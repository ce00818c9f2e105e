"""Comparison of a network with another implementation of it: local errors, floors, gains, closure, verdict."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from lipnb import local_lipschitz
from lipscan.drift.carrying import carried
from lipscan.drift.local import local_errors
from lipscan.drift.passes import network_of, passed, with_halves
from lipscan.drift.precision import KERNELS, exact
from lipscan.drift.runs import States, one_pass
from lipscan.drift.verdict import Verdict, verdict

__all__ = ["Closure", "Drift", "compare"]

CLOSES = (0.9, 0.98)  # length, and least cosine, of a sum that is called the difference
LEAST = 1 / 8  # least floor, in units of the type's precision: an exact result has none


class Closure(NamedTuple):
    """Sum of the carried local errors beside the observed difference, before the final norm.

    Attributes
    ----------
    length : float
        Its length over that of the difference.
    angle : float
        Cosine of the angle between them.
    why : str
        Reason why they differ; empty if they agree.
    """

    length: float
    angle: float
    why: str


@dataclass
class Drift:
    """Difference of two implementations of a network, layer by layer.

    Parameters
    ----------
    table : DataFrame
        A row for each part: ``layer`` (-1: the embedding), ``part``, ``size`` of what the reference gives, local
        ``error``, its ``floor`` (median over kernels) from ``floor_low`` to ``floor_high``, their ``ratio``;
        ``token_ratio``, the median over tokens; ``signed`` share and ``floor_signed``; ``gain`` to the end of this
        error, ``gain_random`` of a random one, ``gain_worst``; ``share`` of the final difference.
    closure : Closure
        Whether the carried errors add up to the difference.
    verdict : Verdict
        The answer.
    about : dict
        Model, type, text and windows.
    """

    table: pd.DataFrame
    closure: Closure
    verdict: Verdict
    about: dict[str, Any] = field(default_factory=dict)


@torch.no_grad()
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
        Type in which the other computed, whose floor is measured; by default that of its states.
    worst : bool
        Whether to measure the largest gain of any error too, which takes minutes.
    seed : int
        Seed of random errors.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Drift
    """
    dtype = other.dtype if dtype is None else dtype
    bench = Bench(model, dtype, other.ids)
    rows = [
        row for number in range(len(other.ids)) for row in bench.measured(other.window(number), number, worst, seed)
    ]
    return joined(pd.DataFrame(rows), dtype, {"model": model.name})


class Bench:
    """A model in the types that a comparison needs: float64, the other's, and float32 for products of Jacobians."""

    def __init__(self, model: Any, dtype: torch.dtype, ids: Tensor) -> None:
        network = network_of(model)
        self.reference = network.to(torch.float64)
        with exact():
            self.reference = with_halves(self.reference, ids)
        self.low, self.light = network.to(dtype), network.to(torch.float32)

    def measured(self, other: States, number: int, worst: bool = False, seed: int = 0) -> list[dict[str, Any]]:
        """Rows of one window: local errors, carried errors, and their sum."""
        own = one_pass(self.reference, other.ids)
        found = local_errors(self.reference, self.low, other)
        difference = other.hidden[-1].double() - own.hidden[-1]
        sent = carried(self.light, other.ids, own.hidden, found.streams, difference, seed)
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
                toward = (sent.back[place] * late[0]).sum().item()
                at[place - 1, "mlp"] |= {"toward": toward, "difference": whole}
                early = (sent.back[place] * (error - late)[0]).sum().item()
                at[place - 1, "attention"] |= {"toward": early, "difference": whole}
            if worst:
                row["gain_worst"] = _worst(self.light, other.ids, own.hidden, place)
        total = sent.errors.sum(0)
        sums = {"window": number, "part": "sum", "carried": total.norm().item(), "difference": whole}
        return [*rows, sums | {"toward": (total * difference[0]).sum().item(), "size": own.hidden[-1].norm().item()}]


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
    return Drift(table, _closure(sums), verdict(table, name), {**about, "dtype": name})


def _joined(rows, dtype):
    """Row of one part, of the rows of all windows."""
    first, count = rows.iloc[0], len(rows)
    kernels = [f"floor_{name}" for name in KERNELS if f"floor_{name}" in rows and rows[f"floor_{name}"].notna().all()]
    size, error = _length(rows["size"]), _length(rows.error)
    least = LEAST * torch.finfo(dtype).eps * size
    each = rows[kernels] * count**0.5  # as if all windows were like this one
    floor = max(least, float(pd.Series([_length(rows[name]) for name in kernels]).median()))
    lengths = rows.difference.sum() if "difference" in rows else float("nan")
    random = float((rows.gain_random**2).mean() ** 0.5) if "gain_random" in rows else float("nan")
    return {
        "layer": int(first.layer),
        "part": first.part,
        "size": size,
        "error": error,
        "floor": floor,
        "floor_low": max(least, each.min(axis=None)),
        "floor_high": max(least, each.max(axis=None)),
        "ratio": error / floor if floor else float("nan"),
        "token_ratio": rows.token_median.median(),
        "signed": _share(rows.leaning.sum(), rows.absolute.sum()),
        "floor_signed": _share(rows.floor_leaning.sum(), rows.floor_absolute.sum()),
        "gain": _length(rows.carried) / error if error and rows.carried.notna().all() else float("nan"),
        "gain_random": random,
        "gain_worst": rows.gain_worst.max() if "gain_worst" in rows else float("nan"),
        "share": rows.toward.sum() / lengths if lengths and rows.toward.notna().all() else float("nan"),
    }


def _length(values):
    return float((values**2).sum() ** 0.5)


def _share(leaning, absolute):
    return leaning / absolute if absolute else 0.0


def _closure(sums):
    """Closure of the sums of all windows."""
    carried, difference = _length(sums.carried), float(sums.difference.sum() ** 0.5)
    if not difference:
        return Closure(1.0, 1.0, "")
    length = carried / difference
    angle = float(sums.toward.sum()) / (carried * difference) if carried else 0.0
    closes = abs(length - 1) <= 1 - CLOSES[0] and angle >= CLOSES[1]
    relative = difference / _length(sums["size"])
    why = "" if closes else f"the difference, {relative:.1g} of the state, is too large for first order"
    return Closure(length, angle, why)
