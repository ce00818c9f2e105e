"""What a module of a network is called with: the tokens among its arguments, by place or by whatever name."""

from inspect import signature
from typing import Any

import torch
from torch import Tensor

__all__ = ["first_of", "tokens_of", "with_tokens", "without_cache"]

USUAL = "hidden_states"


def tokens_of(module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> Tensor:
    """The tokens among the arguments of a call of a module.

    Raises
    ------
    ValueError
        "... is called without tokens ...": its first argument is not there, or is no tensor.
    """
    found = args[0] if args else kwargs.get(_name(module, kwargs))
    if not isinstance(found, Tensor):
        raise ValueError(
            f"{type(module).__name__} is called without tokens: its first argument is no tensor, and which other one "
            "holds them is not known here."
        )
    return found


def with_tokens(module: torch.nn.Module, args: tuple, kwargs: dict[str, Any], x: Tensor) -> tuple[tuple, dict]:
    """The arguments of a call of a module with other tokens in their place."""
    return ((x, *args[1:]), kwargs) if args else (args, {**kwargs, _name(module, kwargs): x})


def without_cache(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a call for another one, without the keys and values that the first one left behind."""
    return kwargs | {name: None for name in kwargs if "past" in name or "cache" in name}


def first_of(output: Any) -> Any:
    """The tokens among what a module gives: the first of several things."""
    return output[0] if isinstance(output, tuple | list) else output


def _name(module, kwargs):
    """The keyword under which a module is given its tokens: its first parameter, unless the usual name is there."""
    return USUAL if USUAL in kwargs else next(iter(signature(module.forward).parameters), USUAL)
