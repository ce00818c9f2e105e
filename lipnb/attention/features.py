"""What a map of attention has beyond the heads of the theorems, and what follows for its keys and heads."""

from enum import StrEnum

import torch
from torch import Tensor

__all__ = ["Feature"]


class Feature(StrEnum):
    """What a map may have that heads of the theorems have not; the value is its word in sentences.

    A bound or a solver says which of them it knows: ``attention.check_plain("this bound", also=(Feature.ROTARY,))``.

    Examples
    --------
    >>> import torch
    >>> from lipnb import Attention
    >>> from lipnb.attention import Feature
    >>> eye = torch.eye(2)[None]
    >>> Attention(eye, eye, eye, cap=3.0).more == (Feature.CAP,)
    True
    >>> str(Feature.CAP)
    'capped logits'
    """

    SHARED_KEYS = "shared keys"
    ROTARY = "rotary positions"
    NORM = "normalised queries or keys"
    CAP = "capped logits"
    RELATIVE = "relative positions"
    SINKS = "sinks"
    TWO_SIDED_WINDOW = "a window on both sides"


HAS = {
    Feature.SHARED_KEYS: lambda f: f.groups < f.heads,
    Feature.ROTARY: lambda f: f.frequencies is not None,
    Feature.NORM: lambda f: f.query_norm is not None or f.key_norm is not None,
    Feature.CAP: lambda f: f.cap is not None,
    Feature.RELATIVE: lambda f: f.relative is not None,
    Feature.SINKS: lambda f: f.sinks is not None,
    Feature.TWO_SIDED_WINDOW: lambda f: f.window is not None and not f.masked,
}


def features(f) -> tuple[Feature, ...]:
    """What the map `f` has; nothing for plain heads and for L2 scores."""
    return tuple(feature for feature, has in HAS.items() if has(f))


def fixed_keys(f) -> bool:
    """Whether keys are one matrix times the tokens, wherever these stand."""
    return f.frequencies is None and f.key_norm is None


def keys_shift_invariant(f) -> bool:
    """Whether one vector added to all keys changes nothing, because it adds one number to each row of logits."""
    return f.score == "dot" and fixed_keys(f) and f.cap is None and f.sinks is None


def irrelevant_biases(f) -> tuple[str, ...]:
    """The biases that `f` has and that change no derivative."""
    constant = {"output_bias": True, "value_bias": f.sinks is None, "key_bias": keys_shift_invariant(f)}
    return tuple(name for name, irrelevant in constant.items() if irrelevant and getattr(f, name) is not None)


def active_heads(f) -> Tensor:
    """Which heads have values and outputs, boolean, shape (h,): the others change nothing."""
    moving: Tensor = f.value.flatten(1).any(1)
    if f.sinks is not None and f.value_bias is not None:
        moving = torch.logical_or(moving, f.value_bias.any(1))
    moving = moving.repeat_interleave(f.heads // f.groups)
    return moving if f.output is None else moving & f.output.flatten(1).any(1)
