"""Comparison of each layer's map with the network itself at loading, so that no switch of a configuration is missed."""

import math
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from lipnb.threads import turn
from lipscan.models.changes import Changed, Draws
from lipscan.models.config_checks import odd_sizes, passed_on, reason
from lipscan.models.hooks import capture
from lipscan.models.module_attention import Depends
from lipscan.models.network import (
    ROUNDING,
    allowed,
    one_call,
    refuse_draws,
    refuse_filling,
    run,
    some_inputs,
    vocabulary,
    whole_network,
    without_padding,
)

# tokens: not a multiple of a window to which a network would pad; more, up to the second, if a window needs them
LEAST, MOST = 9, 64
_checked: WeakKeyDictionary = WeakKeyDictionary()  # network -> layers and lengths whose maps were confirmed


@torch.no_grad()
def check_maps(network: Any, architecture: Any, masked: bool, name: str) -> tuple[int, int]:
    """Raise ValueError unless each layer's `Attention` agrees with the network's own attention, on random inputs.

    One pass of the network over one input of 9 tokens, or more, up to 64, if a window needs them; images keep their
    size. The relative tolerance is 1e-5 for float64 networks, which may compute softmax in float32, and
    :math:`3 \\sqrt\\epsilon` (at least 1e-5) for others. Returns heads and width of the last layer.
    """
    layers = architecture.layers_of(network)
    attending = architecture.attending(network)
    windows = [architecture.window(network.config, layers[number], number) or 0 for number in attending]
    n = max([LEAST, *(window + 2 for window in windows if window <= MOST - 2)])
    n = min(n, architecture.longest(network.config))
    inputs = some_inputs(network, architecture.reads, n, seed=0, sides=architecture.small_sides(network.config))
    places = [(architecture.attention_of(network, number), architecture.giver(network, number)) for number in attending]
    with (
        passed_on(
            f"the network of {name!r} cannot be run{_on_text(architecture.reads, inputs)}",
            "see its config.json",
            network.config,
        ),
        capture(*(module for both in places for module in both)) as calls,
    ):
        run(network, architecture.reads, inputs)
    tolerance = allowed(network.dtype)
    heads = width = 0
    for number, (module, giver) in zip(attending, places, strict=True):
        place = f"the attention of layer {number} of {name!r}"
        call = architecture.call_of(network, number)
        try:
            x, y = one_call(calls, module, call).tokens, one_call(calls, giver, call).given
        except LookupError:
            raise ValueError(
                f"{place} is not supported: the network does not run it as one module of its layer."
            ) from None
        if not isinstance(y, Tensor) or x.ndim != 3 or len(x) != 1 or y.ndim != 3 or y.shape[:2] != x.shape[:2]:
            shapes = " and ".join(
                str(tuple(part.shape)) if isinstance(part, Tensor) else "no tensor" for part in (x, y)
            )
            raise ValueError(
                f"{place} is not supported: it does not map a sequence of tokens, (1, n, d), to another, (1, n, m): it "
                f"receives and gives {shapes}."
            )
        refuse_filling(x, inputs, architecture.reads, name)
        try:
            attention = architecture.attention_object(network, number, "heads+output", masked, x.shape[-2])
            ours = attention(x)
        except Changed:
            raise
        except Depends as error:
            raise ValueError(f"{place} is not supported: {error.why}.") from error
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            why = reason(error) if type(error) is IndexError else str(error).rstrip(".")
            raise ValueError(f"{place} is not supported: {why}{odd_sizes(network.config)}.") from error
        misfit, size = (part.double().norm().item() for part in (ours - y, y))
        if not misfit <= tolerance * size and architecture.matrices is None:
            raise ValueError(
                f"{place} is not supported: its module ({type(module).__name__}) called alone gives another output "
                f"than within the network (relative difference {misfit / (size or 1):.1e}), so its output depends on "
                "more than the tokens it receives and their number."
            )
        if not misfit <= tolerance * size:
            raise ValueError(
                f"{place} is not the map that lipnb knows for {architecture.title}: on random tokens they differ by "
                f"{misfit / (size or 1):.1e} (relative). Report its config.json."
            )
        heads, width = attention.heads, x.shape[-1]
    return heads, width


@torch.no_grad()
def check_length(model: Any, inputs: Tensor, layer: int) -> None:
    """Raise ValueError unless the `Attention` of a layer agrees with the network's on one text of this length.

    Tested once for each layer and length, because the check at loading used short texts. Families without a closed form
    test each length themselves, see `OwnAttention`.
    """
    network, architecture = model.module, model.architecture
    known, place = _checked.setdefault(network, set()), (layer, model.masked, *inputs.shape[1:])
    if architecture.matrices is None or place in known:
        return
    receiver, giver = architecture.attention_of(network, layer), architecture.giver(network, layer)
    number = architecture.call_of(network, layer)
    with turn():
        with capture(receiver, after=(giver, number)) as calls:
            run(network, architecture.reads, inputs)
        x, y = one_call(calls, receiver, number).tokens, one_call(calls, giver, number).given
        refuse_filling(x, inputs, architecture.reads, model.name)
        ours = architecture.attention_object(network, layer, "heads+output", model.masked, x.shape[1])(x)
    misfit, size = (part.double().norm().item() for part in (ours - y, y))
    if math.isfinite(size) and not misfit <= allowed(network.dtype) * size:
        raise ValueError(
            f"the attention of layer {layer} of {model.name!r} is not the map that lipnb knows for "
            f"{architecture.title} at {x.shape[1]} tokens, though it was at few tokens: they differ by "
            f"{misfit / (size or 1):.1e} (relative). Take shorter texts; models.readings(model, inputs) has the "
            "network's own inputs and outputs. Report its config.json."
        )
    known.add(place)


@torch.no_grad()
def check_ids(model: Any, n: int) -> None:
    """Raise ValueError if the output of the network depends on token ids besides the input of the first layer.

    Tested once for each length n.
    """
    network, reads = model.module, model.architecture.reads
    known, place = _checked.setdefault(network, set()), n
    if place in known:
        return
    with turn():
        ids = some_inputs(network, reads, n, seed=1)
        with capture(model.architecture.layers_of(network)[0]) as calls:
            given = run(network, reads, ids).last_hidden_state
        other = whole_network(model, some_inputs(network, reads, n))(calls[0].tokens)
    misfit, size = (part.double().norm().item() for part in (other - given, given))
    if math.isfinite(size) and not misfit <= allowed(network.dtype) * size:
        raise ValueError(
            f"what {model.name!r} gives depends on the token ids, not only on the input of its first layer (two "
            f"texts differ by {misfit / (size or 1):.1e}, relative): give inputs=, the token ids (b, n)."
        )
    known.add(place)


@torch.no_grad()
def leak(network: Any, name: str, reads: str = "input_ids", sides: tuple[int, int] | None = None) -> float:
    """Change of earlier outputs when the last tokens change, relative to these outputs; 0 for causal networks.

    ValueError about `name` if the network cannot be run, or its outputs are not finite.
    """
    config = network.config
    if reads == "input_ids":
        positions = getattr(config, "max_position_embeddings", 6)
        n = min(6, positions) if positions > 0 else 6  # some write -1 for no limit
        pair, same = some_inputs(network, reads, n, count=2), n // 2
        pair[1, same:] = without_padding((pair[1, same:] + 1) % vocabulary(network), network)
    elif reads == "pixel_values":
        pair = some_inputs(network, reads, 0, count=2, sides=sides)
        pair[1, ..., pair.shape[-2] // 2 :, :] = 1  # the lower half; the first token is not a patch
        same = 1
    else:
        pair = torch.zeros(2, config.num_mel_bins, 2 * config.max_source_positions, dtype=network.dtype)
        pair[1, :, config.max_source_positions :] = 1  # the second half of the sound
        same = 1
    pair, draws = pair.to(network.device), Draws()
    mend = "see its config.json" if network.dtype == torch.float32 else "load it in float32, or see its config.json"
    refusal = f"the network of {name!r} cannot be run{_on_text(reads, pair)}"
    with passed_on(refusal, mend, config):  # entries that only a forward pass refuses
        states = getattr(run(network, reads, pair, draws), "last_hidden_state", None)
    if not isinstance(states, Tensor) or len(states) != len(pair):
        found = f"of shape {tuple(states.shape)}" if isinstance(states, Tensor) else "under no such name"
        raise ValueError(
            f"the network of {name!r} is not supported: for two inputs it gives last hidden states {found}, not one "
            "sequence for each."
        )
    if draws.moved:
        refuse_draws(network, reads, pair)
    states = states[:, :same].double()
    if not torch.isfinite(states).all() or not states.any():
        raise ValueError(
            f"the outputs of {name!r} are NaN, infinite or all zero: its weights or its config.json are damaged"
            f"{odd_sizes(config)}, or {network.dtype} is too narrow for them: copy "
            "the model again, or take a wider dtype."
        )
    return ((states[1] - states[0]).norm() / states[0].norm()).item()


def assert_causality(
    network: Any,
    masked: bool,
    name: str,
    reads: str = "input_ids",
    sides: tuple[int, int] | None = None,
    architecture: Any = None,
) -> None:
    """Raise RuntimeError unless the network is causal exactly if `masked` (castin2024smooth, Def. 2.5).

    Changing the last tokens must not change earlier outputs, to relative 1e-5, if masked; and must change them if not.
    With an `architecture`, attention too small next to the residual to change them is tested alone.
    """
    change = leak(network, name, reads, sides)
    if change <= ROUNDING and not masked and architecture is not None:
        texts = [some_inputs(network, reads, min(6, architecture.longest(network.config)), 1, n, sides) for n in (0, 1)]
        one, other = (run(network, reads, text).last_hidden_state.double() for text in texts)
        if (one - other).norm() > ROUNDING * one.norm() and not causal_layers(network, architecture):
            return  # a network that gives the same for all texts is damaged
    if (change <= ROUNDING) != masked:
        verdict = "is not causal although masked=True" if masked else "is causal although masked=False"
        raise RuntimeError(
            f"{name!r} {verdict}: changing later tokens changes earlier outputs by "
            f"{change:.1e} (relative). Its weights or its config.json are damaged"
            f"{odd_sizes(network.config)}, or this version of transformers treats masks differently; report it."
        )


@torch.no_grad()
def causal_layers(network: Any, architecture: Any) -> bool | None:
    """Whether the attention of the layers, apart from residuals, is causal; None if no output depends on its tokens.

    The second half of the tokens that each attention receives is replaced, as in a scan. For a network that is causal
    as a whole: True also where an attention maps no sequence to another, which `check_maps` refuses.
    """
    reads, shown = architecture.reads, None
    n = min(LEAST, architecture.longest(network.config)) if reads == "input_ids" else 0
    inputs = some_inputs(network, reads, n, seed=0, sides=architecture.small_sides(network.config))
    for number in architecture.attending(network):
        receiver, giver = architecture.attention_of(network, number), architecture.giver(network, number)
        call, outputs = architecture.call_of(network, number), []
        for replaced in (False, True):

            def other(one, replaced=replaced, receiver=receiver, call=call):
                if not replaced or one.module is not receiver or one.number != call:
                    return None
                half = one.tokens.shape[1] // 2
                kept, late = one.tokens[:, :half], one.tokens[:, half:]
                return one.with_tokens(torch.cat([kept, late.flip(1, 2) + 1], 1))

            with capture(receiver, after=(giver, call), change=other) as calls:
                run(network, reads, inputs)
            received = [one for one in calls if one.module is receiver and one.number == call]
            given = [one.given for one in calls if one.module is giver and one.number == call]
            if not given or not isinstance(given[0], Tensor) or not received or given[0].ndim != 3:
                return True
            if received[0].tokens.shape[:2] != given[0].shape[:2] or reads == "input_ids" and len(given[0][0]) != n:
                return True
            outputs.append(given[0].double())
        before, after = outputs
        half = before.shape[1] // 2
        early, late = (
            (after - before)[:, part].norm() > ROUNDING * before[:, part].norm()
            for part in (slice(half), slice(half, None))
        )
        if early:
            return False
        shown = True if late else shown
    return shown


def _on_text(reads, inputs):
    """On which text a network fails, in words."""
    return f" on a text of {inputs.shape[1]} tokens" if reads == "input_ids" else ""
