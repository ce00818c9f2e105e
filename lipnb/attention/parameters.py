"""The parameters of attention heads, checked and copied; or one sentence on what does not fit."""

import math
from typing import Any

import torch
from torch import Tensor

from lipnb.checks import real_tensor

__all__ = ["TENSORS", "checked_settings", "checked_tensors", "more_than_plain"]

SCORES = ("dot", "l2")
# names of the tensors of a map, in the order of its signature
TENSORS = (
    *("query", "key", "value", "output", "query_bias", "key_bias", "value_bias", "output_bias"),
    *("frequencies", "query_norm", "key_norm", "relative", "sinks"),
)


def checked_tensors(tensors: dict[str, Tensor | None]) -> dict[str, Any]:
    """Copies of the tensors, name -> tensor or None.

    Parameters
    ----------
    tensors : dict
        A tensor or None for each of `TENSORS`; what else it holds is left alone.

    Raises
    ------
    ValueError
        "key must have shape ..., as query has", and the like: shapes that do not fit, NaN, mixed dtypes.
    """
    own = {
        name: real_tensor(name, tensors[name], axes)
        for name, axes in zip(TENSORS[:3], ("hkd", "gkd", "gvd"), strict=True)
    }
    (h, k, d), (g, _, _), v = own["query"].shape, own["key"].shape, own["value"].shape[1]
    if 0 in own["query"].shape or 0 in own["key"].shape or 0 in own["value"].shape:
        raise ValueError("query, key and value need at least one head, one row and one column.")
    if own["key"].shape != (g, k, d) or h % g:
        raise ValueError(
            f"key must have shape {(h, k, d)}, as query has, or fewer heads, a divisor of {h}, got "
            f"{tuple(own['key'].shape)}."
        )
    if own["value"].shape != (g, v, d):
        raise ValueError(f"value must have shape ({g}, v, {d}) to go with key, got {tuple(own['value'].shape)}.")
    output = own["output"] = None if tensors["output"] is None else real_tensor("output", tensors["output"], "hmv")
    if output is not None and (output.shape[0], output.shape[2]) != (h, v):
        raise ValueError(f"output must have shape ({h}, m, {v}) to go with value, got {tuple(output.shape)}.")
    m = h * v if output is None else output.shape[1]
    shapes = {
        "query_bias": (h, k),
        "key_bias": (g, k),
        "value_bias": (g, v),
        "output_bias": (m,),
        "query_norm": (h, k),
        "key_norm": (g, k),
        "sinks": (h,),
    }
    for name, shape in shapes.items():
        own[name] = _of_shape(name, tensors[name], shape)
    own["relative"] = _relative(tensors["relative"], h)
    if len(kinds := {(tensor.dtype, tensor.device) for tensor in own.values() if tensor is not None}) > 1:
        raise ValueError(f"all parameters must share one dtype and device, got {sorted(map(str, kinds))}.")
    own["frequencies"] = _frequencies(tensors["frequencies"], k, own["query"].device)
    return {name: None if own[name] is None else own[name].clone() for name in TENSORS}


def _of_shape(name, tensor, shape):
    if tensor is None:
        return None
    tensor = real_tensor(name, tensor, [str(size) for size in shape])
    if tensor.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}.")
    return tensor


def _relative(table, h):
    if table is None:
        return None
    table = real_tensor("relative", table, ("h", "2 w + 1"))
    if table.shape[0] != h or table.shape[1] % 2 == 0:
        raise ValueError(f"relative must have shape ({h}, 2 w + 1), distances -w to w, got {tuple(table.shape)}.")
    return table


def _frequencies(frequencies, k, device):
    """In a type of their own, in which angles are computed."""
    if frequencies is None:
        return None
    frequencies = real_tensor("frequencies", frequencies, ("p",))
    if not 1 <= len(frequencies) <= k // 2 or frequencies.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"frequencies must have shape (p,) with 1 <= p <= {k // 2}, half the width {k} of the keys, in float32 or "
            f"float64, got {tuple(frequencies.shape)} in {frequencies.dtype}."
        )
    return frequencies.to(device)


def checked_settings(own: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a map with the tensors `own`.

    Parameters
    ----------
    own : dict
        From `checked_tensors`.
    settings : dict
        "scale", "masked", "score", "window", "cap", "norm_eps" and "joint_norm"; what else it holds is left alone.

    Raises
    ------
    ValueError
        "score must be one of ...", "window must be ...", "cap must be ...", "norm_eps must be ...", or "cap and sinks
        go with dot-product scores only".
    """
    scale, masked, score, window, cap, norm_eps = (
        settings[name] for name in ("scale", "masked", "score", "window", "cap", "norm_eps")
    )
    if score not in SCORES:
        raise ValueError(f"score must be one of {SCORES}, got {score!r}.")
    if window is not None and not (type(window) is int and window > 0):
        raise ValueError(f"window must be None or how many tokens each one sees on a side, 1 or more, got {window!r}.")
    if cap is not None and not 0 < cap < math.inf:
        raise ValueError(f"cap must be None or a positive number, got {cap!r}.")
    if not 0 <= norm_eps < math.inf:
        raise ValueError(f"norm_eps must be a finite number, 0 or more, got {norm_eps!r}.")
    if score == "l2" and not (cap is None and own["sinks"] is None):
        raise ValueError("cap and sinks go with dot-product scores only: leave them out, or use score='dot'.")
    return {
        "scale": own["query"].shape[1] ** -0.5 if scale is None else float(scale),
        "masked": bool(masked),
        "score": score,
        "window": window,
        "cap": None if cap is None else float(cap),
        "norm_eps": float(norm_eps),
        "joint_norm": bool(settings["joint_norm"]),
    }


def more_than_plain(own: dict[str, Any], settings: dict[str, Any]) -> tuple[str, ...]:
    """What a map has that heads of the theorems have not, in words; nothing for plain heads and for L2 scores."""
    words = {
        "shared keys": len(own["key"]) < len(own["query"]),
        "rotary positions": own["frequencies"] is not None,
        "normalised queries or keys": own["query_norm"] is not None or own["key_norm"] is not None,
        "capped logits": settings["cap"] is not None,
        "relative positions": own["relative"] is not None,
        "sinks": own["sinks"] is not None,
        "a window on both sides": settings["window"] is not None and not settings["masked"],
    }
    return tuple(word for word, there in words.items() if there)
