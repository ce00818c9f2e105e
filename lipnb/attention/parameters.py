"""The tensors and settings of attention heads: what fits, who owns them, and that they never change."""

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Generic, Self, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from lipnb.checks import number, real_tensor, require

SCORES = ("dot", "l2")
Kind = TypeVar("Kind")


class Parameter(Generic[Kind]):
    """A tensor of a `Frozen` record, declared in its class; who reads it there is given a copy, his to change.

    The declarations are the table of tensors: what is checked, copied, moved and repeated follows from them.

    Parameters
    ----------
    axes : str
        Names of the dimensions, such as "h k d": heads, groups of heads that share keys (g), widths. One name is one
        size, in the first tensor that has it. What begins with g repeats for each head where groups are expanded.
    hint : str
        What a sentence adds to the shape that is needed; "{h}" is a size.
    required : bool
        Whether it must be there.
    own_type : bool
        Whether it has a floating point type of its own, which `Frozen.to` leaves as it is.
    """

    def __init__(self, axes: str, hint: str = "", *, required: bool = False, own_type: bool = False) -> None:
        self.axes, self.hint, self.required, self.own_type = axes.split(), hint, required, own_type

    def __set_name__(self, owner, name):
        self.name = name

    @overload
    def __get__(self, f: None, owner: type) -> "Parameter[Kind]": ...
    @overload
    def __get__(self, f: "Frozen", owner: type) -> Kind: ...
    def __get__(self, f, owner):
        if f is None:
            return self
        tensor = f.own[self.name]
        return None if tensor is None else tensor.clone()

    def checked(self, tensor: Any, sizes: dict[str, int]) -> Tensor | None:
        """The tensor if it fits the `sizes` known so far, to which it adds its own; else one sentence."""
        if tensor is None and not self.required:
            return None
        known = [str(sizes.get(axis, axis)) for axis in self.axes]
        tensor = real_tensor(self.name, tensor, known)
        if not (tensor.numel() or self.own_type):
            got = tuple(tensor.shape)
            raise ValueError(f"{self.name} needs at least one head, one row and one column, got shape {got}.")
        fits = all(sizes.setdefault(axis, size) == size for axis, size in zip(self.axes, tensor.shape, strict=True))
        if not (fits and sizes["h"] % sizes.get("g", 1) == 0 and sizes.get("2w+1", 1) % 2):
            shape = f"({', '.join(known)}{',' * (len(known) == 1)}){self.hint.format(**sizes)}"
            raise ValueError(f"{self.name} must have shape {shape}, got {tuple(tensor.shape)}.")
        return tensor


class Frozen:
    """A record of tensors and settings that never change: what is made of them can be kept."""

    dtype: torch.dtype  # of its tensors; inputs must have the same
    device: torch.device
    _own: dict[str, Any]
    _settings: dict[str, Any]
    _kept: dict

    @property
    def own(self) -> MappingProxyType[str, Any]:
        """Its tensors, or None, by name: for reading; who may write is given the copies of `Parameter`."""
        return MappingProxyType(self._own)

    @classmethod
    def table(cls) -> dict[str, Parameter]:
        """What is declared of each tensor, by name, in the order of the class."""
        declared = {name: one for kind in reversed(cls.__mro__) for name, one in vars(kind).items()}
        return {name: one for name, one in declared.items() if isinstance(one, Parameter)}

    def __setattr__(self, name, value):
        raise AttributeError(f"an Attention does not change once made: make a new one, e.g. f.replace({name}=...).")

    def __delattr__(self, name):
        self.__setattr__(name, None)

    def __getstate__(self):
        return {**vars(self), "_kept": {}}  # made again where it is needed

    def __deepcopy__(self, memo):
        return self

    def replace(self, **changes) -> Self:
        """A new map with other arguments: ``f.replace(value=2 * f.value, masked=True)``; the others stay."""
        return type(self)(**{**self.own, **self._settings, **changes})

    def kept(self, name, make: Callable):
        """What `make` makes of this map, made once for each `name` and kept with it: the map never changes."""
        if name not in self._kept:
            self._kept[name] = make(self)
        return self._kept[name]

    def _tensors(self):
        return {name: tensor for name, tensor in self.own.items() if tensor is not None}

    def of_heads(self, name: str) -> bool:
        """Whether the first axis of this tensor is that of heads, or of groups of them."""
        return self.table()[name].axes[0] in ("h", "g")

    def to(self, device: torch.device | torch.dtype | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """The same map on another device or in another floating point type; frequencies keep theirs."""
        if isinstance(device, torch.dtype) and dtype is None:  # f.to(torch.float64), as of a tensor
            device, dtype = None, device
        return self.replace(
            **{
                name: tensor.to(device=device, dtype=None if self.table()[name].own_type else dtype)
                for name, tensor in self._tensors().items()
            }
        )


def checked_tensors(table: dict[str, Parameter], given: dict[str, Any]) -> dict[str, Any]:
    """Copies of the tensors `given`, or None, for each name of the `table`; ValueError for what does not fit."""
    sizes: dict[str, int] = {}
    own: dict[str, Any] = {}
    for name, one in table.items():
        own[name] = one.checked(given[name], sizes)
        if name == "output":
            sizes.setdefault("m", sizes["h"] * sizes["v"])  # without output matrices heads stand side by side
    kinds = {(own[name].dtype, own[name].device) for name in own if own[name] is not None and not table[name].own_type}
    if len(kinds) > 1:
        raise ValueError(f"all parameters must share one dtype and device, got {sorted(map(str, kinds))}.")
    if (frequencies := own["frequencies"]) is not None:
        k = sizes["k"]
        if not 1 <= len(frequencies) <= k // 2 or frequencies.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"frequencies must have shape (p,) with 1 <= p <= {k // 2}, half the width {k} of the keys, in float32 "
                f"or float64, got {tuple(frequencies.shape)} in {frequencies.dtype}."
            )
        own["frequencies"] = frequencies.to(own["query"].device)
    return {name: None if tensor is None else tensor.clone() for name, tensor in own.items()}


def checked_settings(own: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The settings `given` of a map with the tensors `own`, each in its type; ValueError for what makes no sense."""
    score, window = given["score"], given["window"]
    scale, cap = (None if given[name] is None else float(number(name, given[name])) for name in ("scale", "cap"))
    norm_eps = float(number("norm_eps", given["norm_eps"]))
    require(
        *(
            (isinstance(given[name], bool | np.bool_), f"{name} must be True or False, got {given[name]!r}.")
            for name in ("masked", "joint_norm")
        ),
        (score in SCORES, f"score must be one of {SCORES}, got {score!r}."),
        (
            window is None or (type(window) is int and window > 0),
            f"window must be None or how many tokens each one sees on a side, 1 or more, got {window!r}.",
        ),
        (scale is None or math.isfinite(scale), f"scale must be None or a finite number, got {scale!r}."),
        (cap is None or 0 < cap < math.inf, f"cap must be None or a positive number, got {cap!r}."),
        (0 <= norm_eps < math.inf, f"norm_eps must be a finite number, 0 or more, got {norm_eps!r}."),
        (
            score == "dot" or (cap is None and own["sinks"] is None),
            "cap and sinks go with dot-product scores only: leave them out, or use score='dot'.",
        ),
    )
    return {
        "scale": own["query"].shape[1] ** -0.5 if scale is None else scale,
        "masked": bool(given["masked"]),
        "score": score,
        "window": window,
        "cap": cap,
        "norm_eps": norm_eps,
        "joint_norm": bool(given["joint_norm"]),
    }
