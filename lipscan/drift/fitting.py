"""Whether states of another implementation are those of a model on these tokens: refused in a sentence, if at all."""

from typing import Any

import torch
from torch import Tensor

from lipscan.drift.passes import Pass
from lipscan.drift.runs import States
from lipscan.models.network import vocabulary

HALVES = ("attention", "mlp")
VARIES = 0.1  # part of a state that varies with the token, above which a constant is not that state
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


def check_places(own: Pass, other: States, number: int = 0) -> None:
    """Raise ValueError if states lie at other places than they should, or are of other tokens; of window `number`."""
    name, at = _name(other), f"in window {number}"
    _check_filled(own, other, at)
    _check_order(own, other, at)
    if _alike(other.hidden[0].double(), own.hidden[0]) < ALIKE:
        raise ValueError(
            f"hidden_states.0 of {name} is not of its input_ids {at}: these give other embeddings here; the states are "
            "of other tokens, or the ids are of another tokenizer."
        )
    last = other.hidden[-1].double()
    if own.final is not None and _nearer(last, own.final, own.hidden[-1]):
        raise ValueError(
            f"hidden_states.{len(other.hidden) - 1} of {name} is after the final norm {at}: it should be the output of "
            "the last layer, before that norm (transformers' own hidden_states end after it)."
        )
    _check_halves(own, other, at)
    if own.logits is not None and other.logits is not None and own.logits.shape != other.logits.shape:
        raise ValueError(
            f"logits of {name} have {other.logits.shape[-1]} entries a token, and there are {own.logits.shape[-1]} "
            "here: give those of the whole vocabulary, or leave them out."
        )


def _check_filled(own, other, at):
    """Refuse states, and halves, that are the same for every token where those here are not."""
    places = {f"hidden_states.{place}": (one, own.hidden[place]) for place, one in enumerate(other.hidden)}
    for half in HALVES:
        here = getattr(own, half)
        places |= {
            f"{half}.{layer}": (one, here[layer]) for layer, one in getattr(other, half).items() if layer in here
        }
    for key, (one, here) in places.items():
        if here.shape[1] > 1 and bool((one == one[:, :1]).all()) and _varies(here):
            raise ValueError(
                f"{key} of {_name(other)} is the same for every token {at}: it was not filled; write what the other "
                "program computed there."
            )


def _check_order(own, other, at):
    """Refuse states that are numbered by one too few, or by one too many in all places."""
    states, here = [one.double() for one in other.hidden], own.hidden
    if len(states) < 3:
        return  # with one layer a shift is a layer that does nothing
    if _nearer(states[0], here[1], here[0]):
        raise ValueError(
            f"hidden_states.0 of {_name(other)} is the output of the first layer {at}: it should be what that layer "
            "receives, and hidden_states.1 its output."
        )
    if all(_nearer(states[place], here[place - 1], here[place]) for place in range(1, len(states))):
        raise ValueError(
            f"hidden_states.1 of {_name(other)} is what the first layer receives {at}, and so on: that should be "
            "hidden_states.0, the output of the first layer hidden_states.1, that of the last one "
            f"hidden_states.{len(states) - 1}."
        )


def _check_halves(own, other, at):
    """Refuse halves under each other's name, of the next or the last layer, or with the stream added, in all layers."""
    name = _name(other)
    layers = [layer for layer in sorted(other.attention) if layer in own.attention]
    given = {half: {layer: getattr(other, half)[layer].double() for layer in layers} for half in HALVES}
    here = {half: {layer: getattr(own, half)[layer] for layer in layers} for half in HALVES}

    def all_are(half, wanted):
        return layers and all(
            layer in wanted and _nearer(given[half][layer], wanted[layer], here[half][layer]) for layer in layers
        )

    if all_are("attention", here["mlp"]) and all_are("mlp", here["attention"]):
        raise ValueError(f"attention.l and mlp.l of {name} are each other's {at}: exchange their names.")
    for half in HALVES:
        before = own.hidden if half == "attention" else own.hidden[1:]
        summed = {layer: before[layer] + (here[half][layer] if half == "attention" else 0) for layer in layers}
        if all_are(half, summed):
            raise ValueError(
                f"{half}.l of {name} is the stream after that half {at}: give what the half adds to it, before the sum."
            )
        for step in (1, -1):
            inside = {layer: here[half][layer + step] for layer in layers if layer + step in here[half]}
            if len(inside) > 1 and all(_nearer(given[half][one], inside[one], here[half][one]) for one in inside):
                raise ValueError(
                    f"{half}.l of {name} is that of layer l {'+' if step > 0 else '-'} 1 {at}: number the halves "
                    "by their layer, from 0."
                )


def _name(other):
    return other.about.get("file", "the other")


def _apart(one, other):
    """Relative difference of two states."""
    return float((one - other).norm() / other.norm())


def _nearer(one, wanted, here):
    """Whether a state is twice as near to one of another place as to that of its own."""
    return _apart(one, wanted) < _apart(one, here) / 2


def _varies(state):
    """Whether a state differs from token to token by more than a low type would hide."""
    return float((state - state.mean(1, keepdim=True)).norm()) > VARIES * float(state.norm())


def _alike(one: Tensor, other: Tensor) -> float:
    """Cosine of two states, median over tokens, each without its mean over tokens."""
    if one.shape[1] < 2:
        return float(torch.nn.functional.cosine_similarity(one, other, dim=-1).median())
    centred = (state - state.mean(1, keepdim=True) for state in (one, other))
    return float(torch.nn.functional.cosine_similarity(*centred, dim=-1).median())
