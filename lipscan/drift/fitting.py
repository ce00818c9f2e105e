"""Whether states of another implementation are those of a model on these tokens: refused in a sentence, if at all."""

from typing import Any

import torch
from torch import Tensor

from lipscan.drift.passes import Pass
from lipscan.drift.runs import States
from lipscan.models.network import vocabulary

ALIKE = 0.5  # cosine of states less their mean, below which two states are not of the same tokens


def check_shapes(model: Any, other: States) -> None:
    """Raise ValueError unless the states have the model's layers, width and vocabulary; nothing is run."""
    name = _name(other)
    count, width, (_, n) = len(other.hidden) - 1, other.hidden[0].shape[-1], other.ids.shape
    if count != model.layers:
        raise ValueError(
            f"{name} holds hidden_states.0 to .{count}, of {count} layers, and {model.name} has {model.layers}: give "
            f"hidden_states.0 to .{model.layers}, of which 0 is what the first layer receives."
        )
    if width != model.width:
        raise ValueError(
            f"states of {name} are {width} wide, and those of {model.name} {model.width}: they are not one model."
        )
    most = vocabulary(model.module)
    if other.ids.min() < 0:
        raise ValueError(
            f"input_ids of {name} hold {int(other.ids.min())}: give the ids of tokens, without marks of padding."
        )
    if most is not None and other.ids.max() >= most:
        raise ValueError(
            f"input_ids of {name} reach {int(other.ids.max())}, and the vocabulary of {model.name} ends at {most - 1}: "
            "they are of another tokenizer."
        )
    if n > model.longest:
        raise ValueError(f"{name} holds sequences of {n} tokens, and {model.name} has {model.longest} positions.")


def check_places(own: Pass, other: States) -> None:
    """Raise ValueError if states lie at other places than they should, or are of other tokens; of one sequence."""
    name = _name(other)
    first, last = other.hidden[0].double(), other.hidden[-1].double()
    if len(other.hidden) > 2 and _apart(first, own.hidden[1]) < _apart(first, own.hidden[0]) / 2:
        raise ValueError(
            f"hidden_states.0 of {name} is the output of the first layer: it should be what that layer receives, and "
            "hidden_states.1 its output."
        )
    if _alike(first, own.hidden[0]) < ALIKE:
        raise ValueError(
            f"hidden_states.0 of {name} is not of its input_ids: these give other embeddings here; the states are of "
            "other tokens, or the ids are of another tokenizer."
        )
    if own.final is not None and _apart(last, own.final) < _apart(last, own.hidden[-1]) / 2:
        raise ValueError(
            f"hidden_states.{len(other.hidden) - 1} of {name} is after the final norm: it should be the output of the "
            "last layer, before that norm (transformers' own hidden_states end after it)."
        )
    if own.logits is not None and other.logits is not None and own.logits.shape != other.logits.shape:
        raise ValueError(
            f"logits of {name} have {other.logits.shape[-1]} entries a token, and there are {own.logits.shape[-1]} "
            "here: give those of the whole vocabulary, or leave them out."
        )


def _name(other):
    return other.about.get("file", "the other")


def _apart(one, other):
    """Relative difference of two states."""
    return float((one - other).norm() / other.norm())


def _alike(one: Tensor, other: Tensor) -> float:
    """Cosine of two states, median over tokens, each without its mean over tokens."""
    if one.shape[1] < 2:
        return float(torch.nn.functional.cosine_similarity(one, other, dim=-1).median())
    centred = (state - state.mean(1, keepdim=True) for state in (one, other))
    return float(torch.nn.functional.cosine_similarity(*centred, dim=-1).median())
