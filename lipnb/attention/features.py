"""Features of an attention map beyond the plain heads of the theorems, and their effect on biases and heads."""

from enum import StrEnum

import torch
from torch import Tensor

__all__ = ["Feature"]


class Feature(StrEnum):
    """Features beyond the plain heads of the theorems. Values are the words used in messages.

    A bound or a solver names the features that it supports, as in
    ``attention.check_plain("this bound", also=(Feature.ROTARY,))``.

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
    """The features of the map `f`: none for plain heads, with dot-product or with L2 scores."""
    return tuple(feature for feature, has in HAS.items() if has(f))


def fixed_keys(f) -> bool:
    """Whether keys are one matrix times the tokens at every position (a bias aside)."""
    return f.frequencies is None and f.key_norm is None


def keys_shift_invariant(f) -> bool:
    """Whether one vector added to all keys changes nothing: it then adds one number to each row of logits."""
    return f.score == "dot" and fixed_keys(f) and f.cap is None and f.sinks is None


def irrelevant_biases(f) -> tuple[str, ...]:
    """Names of the biases of `f` that change no derivative."""
    constant = {"output_bias": True, "value_bias": f.sinks is None, "key_bias": keys_shift_invariant(f)}
    return tuple(name for name, irrelevant in constant.items() if irrelevant and getattr(f, name) is not None)


def active_heads(f) -> Tensor:
    """Mask of the heads with nonzero values and outputs, boolean, shape (h,): the others contribute a constant."""
    moving: Tensor = f.value.flatten(1).any(1)
    if f.sinks is not None and f.value_bias is not None:
        moving = torch.logical_or(moving, f.value_bias.any(1))
    moving = moving.repeat_interleave(f.heads // f.groups)
    return moving if f.output is None else moving & f.output.flatten(1).any(1)
