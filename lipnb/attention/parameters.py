"""The tensors and settings of attention heads, and the validation of their shapes and values."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipnb.checks import number, real_tensor, require

SCORES = ("dot", "l2")
# The tensors of a map, and the names of their dimensions: heads, groups of heads that share keys (g), widths. A name
# stands for one size, set by the first tensor that has it. Tensors whose axes begin with g are repeated for each head
# when groups are expanded.
AXES = {
    "query": "h k d",
    "key": "g k d",
    "value": "g v d",
    "output": "h m v",
    "query_bias": "h k",
    "key_bias": "g k",
    "value_bias": "g v",
    "output_bias": "m",
    "frequencies": "p",
    "query_norm": "h k",
    "key_norm": "g k",
    "relative": "h 2w+1",
    "sinks": "h",
}
REQUIRED = ("query", "key", "value")
HINTS = {  # appended to the required shape in an error message
    "key": " with g = {h}, as query has, or fewer heads, a divisor of {h}",
    "value": " to go with key",
    "output": " to go with value",
    "relative": ", distances -w to w",
}
KEPT_DTYPE = "frequencies"  # keeps its own type, in which angles are computed


def _checked(name: str, tensor: Any, sizes: dict[str, int]) -> Tensor | None:
    """The tensor, checked against the `sizes` known so far; its new dimensions are added to `sizes`."""
    if tensor is None and name not in REQUIRED:
        return None
    axes = AXES[name].split()
    known = [str(sizes.get(axis, axis)) for axis in axes]
    tensor = real_tensor(name, tensor, known)
    if not (tensor.numel() or name == KEPT_DTYPE):
        raise ValueError(f"{name} needs at least one head, one row and one column, got shape {tuple(tensor.shape)}.")
    fits = all(sizes.setdefault(axis, size) == size for axis, size in zip(axes, tensor.shape, strict=True))
    if not (fits and sizes["h"] % sizes.get("g", 1) == 0 and sizes.get("2w+1", 1) % 2):
        shape = f"({', '.join(known)}{',' * (len(known) == 1)}){HINTS.get(name, '').format(**sizes)}"
        raise ValueError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}.")
    return tensor


def checked_tensors(given: dict[str, Any]) -> dict[str, Any]:
    """Copies of the tensors `given`, or None, for each name of `AXES`; ValueError if they do not fit together."""
    sizes: dict[str, int] = {}
    found: dict[str, Any] = {}
    for name in AXES:
        found[name] = _checked(name, given[name], sizes)
        if name == "output":
            sizes.setdefault("m", sizes["h"] * sizes["v"])  # without output matrices heads are concatenated
    tensors = {name: tensor for name, tensor in found.items() if tensor is not None}
    kinds = {f"{tensor.dtype} on {tensor.device}" for name, tensor in tensors.items() if name != KEPT_DTYPE}
    if len(kinds) > 1:
        raise ValueError(
            f"all parameters must share one dtype and device, got {' and '.join(sorted(kinds))}: bring all to one with "
            ".to(dtype=..., device=...)."
        )
    if (frequencies := found["frequencies"]) is not None:
        k = sizes["k"]
        if not 1 <= len(frequencies) <= k // 2 or frequencies.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"frequencies must have shape (p,) with 1 <= p <= {k // 2}, half the width {k} of the keys, in float32 "
                f"or float64, got {tuple(frequencies.shape)} in {frequencies.dtype}."
            )
        found["frequencies"] = frequencies.to(found["query"].device)
    return {name: None if tensor is None else tensor.clone() for name, tensor in found.items()}


def checked_settings(given: dict[str, Any]) -> dict[str, Any]:
    """The settings in `given`, converted to their types; ValueError or TypeError for an invalid one."""
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
            f"window must be None or the number of tokens that each token sees on a side, 1 or more, got {window!r}.",
        ),
        (scale is None or math.isfinite(scale), f"scale must be None or a finite number, got {scale!r}."),
        (cap is None or 0 < cap < math.inf, f"cap must be None or a positive number, got {cap!r}."),
        (0 <= norm_eps < math.inf, f"norm_eps must be a finite number, 0 or more, got {norm_eps!r}."),
        (
            score == "dot" or (cap is None and given["sinks"] is None),
            "cap and sinks go with dot-product scores only: leave them out, or use score='dot'.",
        ),
    )
    return {
        "scale": given["query"].shape[1] ** -0.5 if scale is None else scale,
        "masked": bool(given["masked"]),
        "score": score,
        "window": window,
        "cap": cap,
        "norm_eps": norm_eps,
        "joint_norm": bool(given["joint_norm"]),
    }
