"""Local errors of another implementation: what each layer adds to the difference, and what its type allows.

Each layer of the reference receives the other's input, so that a difference is that layer's own. The same layer in the
other's type, run here by several kernels, gives the floor: the size that rounding alone has.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lipscan.drift.passes import Network, Pass
from lipscan.drift.precision import KERNELS
from lipscan.drift.runs import States, one_pass

NONE = 1e-3  # units in the last place below which a floor is none
LATE = ("eager", "batch", "order")  # kernels by which an MLP can differ
LEAST = 1 / 4  # least floor, in units of the precision of the type: a result rounded once has about this
FEW = 2  # tokens, at least, that a tenth of them is
CLOSE = 10.0  # errors of a router's logits up to which its choice of an expert is one that rounding may change


class Part(NamedTuple):
    """A part of a network: its layer, and "embedding", "layer", "attention", "mlp" or "logits".

    The embedding has layer -1; the logits have the number of layers.
    """

    layer: int
    part: str


class Errors(NamedTuple):
    """Local errors of one sequence.

    Attributes
    ----------
    rows : list of dict
        Measurements of each part, see `lipscan.drift.table`.
    streams : list of Tensor, shape (1, n, d)
        Local errors of the stream in float64: of the embedding, then of each layer.
    late : dict
        Layer -> that share of its local error that its MLP half makes, (1, n, d).
    experts : dict
        Layer -> experts that the reference chooses for the other's states.
    logits : Tensor, shape (1, n, vocabulary), or None
        Local error of the logits.
    """

    rows: list[dict[str, Any]]
    streams: list[Tensor]
    late: dict[int, Tensor]
    experts: dict[int, Tensor]
    logits: Tensor | None


def local_errors(
    reference: Network,
    low: Network,
    other: States,
    kernels: Sequence[str] = KERNELS,
    tick: Callable[[], Any] = lambda: None,
) -> Errors:
    """Local errors and floors of one sequence of states; `reference` in float64, `low` in the other's type.

    `tick` is called after each kernel.
    """
    other = _wide(other)
    halves = {layer: names for layer, names in reference.halves.items() if layer in other.attention}
    reference, low = replace(reference, halves=halves), replace(low, halves=halves)
    fed = _fed(reference, other, "eager", bool(halves))
    truth = {part: value for part, value in _parts(*fed) if _of(other, part) is not None}
    rows = {part: _row(part, _of(other, part), value) for part, value in truth.items()}
    made = _made(reference, other, fed) if halves else {}
    for part, change in made.items():
        rows[part]["made"] = change.norm().item()
    floors: dict[Part, list[Floor]] = {part: [] for part in rows}
    routed = {"layer": _Routed(fed[0]), "mlp": _Routed(fed[1])}
    tick()
    for name in kernels:
        run = _fed(low, other, name, bool(halves) and name in LATE)
        for part, value in _parts(*run):
            if part in rows:
                floors[part].append(_floor(name, value.double() - truth[part], truth[part]))
        for one, found in zip(routed.values(), run, strict=True):
            one.add(found)
        tick()
    for part, row in rows.items():
        least = LEAST * torch.finfo(low.dtype).eps * truth[part].norm(dim=-1)[0]
        sure = routed[part.part].sure(part.layer) if part.part in routed else None
        row |= _joined(_of(other, part) - truth[part], truth[part], floors[part], least, sure)
    layers = len(other.hidden) - 1
    ends = [Part(-1, "embedding"), *(Part(layer, "layer") for layer in range(layers))]
    streams = [_of(other, part) - truth[part] for part in ends]
    after = fed[1]
    late = {} if after is None else {layer: other.hidden[layer + 1] - after.hidden[layer + 1] for layer in halves}
    last = Part(layers, "logits")
    logits = other.logits - truth[last] if last in truth else None
    return Errors([*rows.values()], streams, late, fed[0].experts, logits)


def _wide(other):
    """The states in float64."""
    return States(
        other.ids,
        [one.double() for one in other.hidden],
        {layer: one.double() for layer, one in other.attention.items()},
        {layer: one.double() for layer, one in other.mlp.items()},
        None if other.logits is None else other.logits.double(),
    )


def _fed(network, other, name, halved) -> tuple[Pass, Pass | None]:
    """A pass in which each layer receives the other's state, and one in which its MLP half does."""
    ids, streams, attention = other.ids, other.hidden, other.attention
    if name == "batch":
        ids, streams = torch.cat([ids, ids.flip(1)]), [torch.cat([one, one.flip(1)]) for one in streams]
        attention = {layer: torch.cat([one, one.flip(1)]) for layer, one in attention.items()}
    by = "eager" if name == "batch" else name
    whole = one_pass(network, ids, by, streams=streams)
    return whole, one_pass(network, ids, by, streams=streams, attention=attention) if halved else None


def _made(reference, other, fed) -> dict[Part, Tensor]:
    """What the error of each half changes in the output of its layer, (1, n, d)."""
    before, between = fed
    after = one_pass(reference, other.ids, streams=other.hidden, attention=other.attention, mlp=other.mlp)
    found: dict[Part, Tensor] = {}
    for layer in reference.halves:
        outputs = [one.hidden[layer + 1] for one in (before, between, after)]
        found |= {Part(layer, half): outputs[at + 1] - outputs[at] for at, half in enumerate(("attention", "mlp"))}
    return found


def _parts(whole, late) -> Iterator[tuple[Part, Tensor]]:
    """What a network made of the other's states, part by part, (1, n, d)."""
    yield Part(-1, "embedding"), whole.hidden[0][:1]
    for layer, stream in enumerate(whole.hidden[1:]):
        yield Part(layer, "layer"), stream[:1]
        if layer in whole.attention:
            yield Part(layer, "attention"), whole.attention[layer][:1]
        if late is not None and layer in late.mlp:
            yield Part(layer, "mlp"), late.mlp[layer][:1]
    if whole.logits is not None:
        yield Part(len(whole.hidden) - 1, "logits"), whole.logits[:1]


def _of(other, part):
    """The other's value of a part; None if it is not known."""
    layer, name = part
    if name in ("attention", "mlp"):
        return getattr(other, name).get(layer)
    return other.logits if name == "logits" else other.hidden[layer + 1]


def _row(part, value, truth):
    """Size, local error and signed sums of a part."""
    error = value - truth
    return {"layer": part.layer, "part": part.part, "size": truth.norm().item(), "error": error.norm().item()}


def _signed(error, truth):
    """By token, (n,): sum of an error in the direction of the signs of its truth, and of its absolute values."""
    return (error * truth.sign()).sum(-1)[0], error.abs().sum(-1)[0]


def _leaning(signed, absolute):
    """Both sums over all tokens, and how far the first is off by chance if tokens are independent.

    The unit is the token, not the entry: an error in the root mean square of a norm moves a whole token along itself.
    """
    leaning, total = signed.sum().item(), absolute.sum().item()
    share = leaning / total if total else 0.0
    return {"leaning": leaning, "absolute": total, "leaning_noise": (signed - share * absolute).norm().item()}


class Floor(NamedTuple):
    """Floor of a part by one kernel: its size; by token its squared size, signed sum and sum of absolute values."""

    kernel: str
    size: float
    tokens: Tensor
    signed: Tensor
    absolute: Tensor


def _floor(kernel, error, truth):
    """Floor of a part, of the error that one kernel makes."""
    return Floor(kernel, error.norm().item(), error.square().sum(-1)[0], *_signed(error, truth))


def at_least(floor: Any, size: Any, dtype: torch.dtype) -> Any:
    """A floor, or a quarter of a unit in the last place where a type makes no error: another program may make that."""
    unit = torch.finfo(dtype).eps * size
    return floor + (floor < NONE * unit) * unit * LEAST


class _Routed:
    """Choices of experts of the reference, beside those of runs in the other's type on the same states."""

    def __init__(self, truth: Pass | None) -> None:
        self._truth = truth
        self._off: dict[int, Tensor] = {}  # layer -> largest error of a logit, (n,)
        self._same: dict[int, Tensor] = {}  # layer -> whether all runs chose the same experts, (n,)

    def add(self, found: Pass | None) -> None:
        """Take another run into account."""
        if self._truth is None or found is None:
            return
        for layer, logits in self._truth.routing.items():
            n = len(logits)  # of the first text of a batch
            off = (found.routing[layer][:n].double() - logits).abs().amax(-1)
            same = (found.experts[layer][:n] == self._truth.experts[layer]).all(-1)
            self._off[layer] = off.maximum(self._off.get(layer, off))
            self._same[layer] = same & self._same.get(layer, same)

    def sure(self, layer: int) -> Tensor | None:
        """Tokens, (n,), whose experts rounding does not change; None without experts, or if it may change all."""
        if self._truth is None or layer not in self._off:
            return None
        logits, chosen = self._truth.routing[layer], self._truth.experts[layer]
        mine = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, chosen, True)
        gap = logits.where(mine, torch.inf).amin(-1) - logits.where(~mine, -torch.inf).amax(-1)
        found = self._same[layer] & ((gap < 0) | (gap > CLOSE * self._off[layer]))  # below 0: not chosen by these alone
        return found if found.any() else None


def _joined(error, truth, floors, least, sure):
    """Columns on an error and its floors: sizes by kernel, signed sums, and error over floor token by token.

    `least` (n,): least floor of each token. `sure` (n,): tokens to look at, the others are `switching`; None: all.
    """
    kept = slice(None) if sure is None else sure
    found = {f"floor_{one.kernel}": one.size for one in floors} | _leaning(
        *(one[kept] for one in _signed(error, truth))
    )
    signed, absolute = (torch.stack([getattr(one, key) for one in floors]).mean(0) for key in ("signed", "absolute"))
    found |= {f"floor_{key}": value for key, value in _leaning(signed[kept], absolute[kept]).items()}
    tokens, here = torch.stack([one.tokens for one in floors]).mean(0).sqrt().maximum(least), error.norm(dim=-1)[0]
    ratios = torch.where(tokens > 0, here / tokens, torch.where(here > 0, torch.inf, 1.0).to(here))[kept]
    falling = ratios.sort(descending=True).values
    found |= {"token_ratio": ratios.median().item(), "token_worst": falling[0].item()}
    found["token_tenth"] = falling[min(max(FEW, len(ratios) // 10), len(ratios) - 1)].item()
    return found if sure is None else found | {"switching": int((~sure).sum())}
