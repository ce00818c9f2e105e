"""Attention of families without an entry, located in any network of transformers by its structure.

`lipscan.models.trial` then tries to read it as a known layout; otherwise the network's modules are differentiated.
"""

from dataclasses import replace
from functools import partial
from inspect import signature

import torch

from lipscan.models.families import ARCHITECTURES, EXACT
from lipscan.models.hooks import capture
from lipscan.models.images import picture_shape
from lipscan.models.layers import Architecture, reads_other_keys
from lipscan.models.network import ROUNDING, run, some_inputs, vocabulary
from lipscan.models.self_check import causal_layers, leak

LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
UNSAID = 2048  # default number of tokens, if a configuration has none of `LENGTHS`


def unknown_family(model_type: str, name: str) -> Architecture:
    """Preliminary architecture of a family without an entry, before its network is built.

    ValueError if this version of transformers does not know the family.
    """
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    if model_type not in MODEL_MAPPING_NAMES:
        raise ValueError(
            f"{name!r} is a {model_type} model, which is not supported: this version of transformers does not have "
            "that type, and lipnb does not run code that comes with a model."
        )
    return Architecture(
        title=model_type,
        masks=(True, False),
        layers="",
        attention="",
        matrices=None,
        norm=None,
        longest=_longest,
        options=EXACT,
    )


def located(network: torch.nn.Module, architecture: Architecture, name: str) -> Architecture:
    """Architecture with the paths of the attention in `network`: a list of layers, one ``...Attention`` module each.

    In hybrids some layers of the list have none; layers that read the keys of another layer count as such. ValueError
    if no such list is found, or if the network reads neither tokens nor pictures.
    """
    from transformers import PreTrainedModel

    found = [
        (path, layers, place)
        for path, layers in network.named_modules()
        if isinstance(layers, torch.nn.ModuleList) and (place := _only_place(layers)) is not None
    ]
    if not found:
        raise ValueError(
            f"{name!r} is a {architecture.title} model, which is not supported: it has no list of layers with one "
            "attention module in each (or none in some); local_lipschitz(f, x) measures any part of it that "
            "is a map of tokens."
        )
    above = [name for name, module in network.named_modules() if isinstance(module, PreTrainedModel)]
    read = [(*one, _read(network, one[0], above)) for one in found]
    # among several networks prefer one that reads tokens, then one that reads pictures, then the longest
    path, _, (attention, projected), (part, reads) = max(
        read, key=lambda one: (one[3][1] == "input_ids", one[3][1] == "pixel_values", len(one[1]))
    )
    if reads is None:
        raise ValueError(
            f"{name!r} is a {architecture.title} model, which is not supported: it reads neither token ids (its "
            "configuration holds no vocab_size, and it has no table of embeddings) nor whole pictures."
        )
    if reads == "pixel_values":
        lists = sorted(one[0] for one in read if one[3][1] == reads)
        _check_pictures(network.get_submodule(part), lists, architecture.title, name)
    elif reads != "input_ids":
        known = ", ".join(kind for kind, one in ARCHITECTURES.items() if one.reads == reads)
        raise ValueError(
            f"{name!r} is a {architecture.title} model, which is not supported: it reads {reads}, not tokens"
            + (f"; the supported models that read {reads} are of the types {known}." if known else ".")
        )
    return replace(
        architecture,
        layers=path.removeprefix(f"{part}."),
        attention=attention,
        projected=projected,
        part=part or None,
        reads=reads,
        attends=_holds_attention,
    )


def _read(network, path, above):
    """Path of the network around a list of layers, and its main input; None for token ids without a vocabulary size."""
    around = [place for place in above if place == "" or path.startswith(f"{place}.")]
    part = max(around, key=len)
    if network.get_submodule(part).main_input_name == "pixel_values":  # an encoder may be inside it
        own = [place for place in around if _takes_its_input(network.get_submodule(place))]
        part = max(own or around, key=len)
    inner = network.get_submodule(part)
    if inner.main_input_name == "input_ids" and vocabulary(inner) is None:
        return part, None
    return part, inner.main_input_name


def _takes_its_input(network):
    """Whether the forward pass takes the main input of its class; encoders inside other networks receive tokens."""
    main = network.main_input_name  # a list in some networks
    return isinstance(main, str) and main in signature(network.forward).parameters


def _check_pictures(network, lists, title, name):
    """Raise ValueError for networks that need more than pictures of one shape, or whose layers form several stages."""
    why = ""
    needed = [
        one.name
        for one in signature(network.forward).parameters.values()
        if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    ]
    if len(lists) > 1:
        why = (
            f"its layers are in several lists ({', '.join(lists[:2])}{', ...' if len(lists) > 2 else ''}), stages "
            "with different tokens or separate networks, and lipnb measures one list"
        )
    elif "pixel_values" not in signature(network.forward).parameters:
        why = f"its {type(network).__name__}, which holds its layers, reads {' and '.join(needed)}, not pictures"
    elif others := [one for one in needed if one != "pixel_values"]:
        why = f"it reads {' and '.join(others)} in addition to pixel_values, and lipnb can supply only pictures"
    else:
        try:
            picture_shape(network.config)
        except ValueError as error:
            why = str(error).removesuffix(".")
    if why:
        raise ValueError(
            f"{name!r} is a {title} model, which is not supported: {why}; local_lipschitz(f, x) measures any part of "
            "it that is a map of tokens."
        )


@torch.no_grad()
def counted(network: torch.nn.Module, architecture: Architecture, name: str) -> Architecture:
    """Architecture with `longest` set to the number of tokens that a picture gives, found by running the network."""
    module = architecture.attention_of(network, architecture.attending(network)[0])
    inputs = some_inputs(network, architecture.reads, 0)
    with capture(before=(module, 0)) as calls:
        run(network, architecture.reads, inputs)
    return replace(architecture, longest=partial(_as_counted, calls[0].tokens.shape[-2]))


def _as_counted(n, config):
    return n


def own_mask(network: torch.nn.Module, wanted: bool | None, name: str, architecture: Architecture) -> bool:
    """Whether a network of a family without an entry is causal, found by running it; ValueError if not as wanted."""
    masked = leak(network, name, architecture.reads) <= ROUNDING
    if masked:  # or its attention is too small beside the residual to show in its outputs
        shown = causal_layers(network, architecture)
        masked = wanted is not False if shown is None else shown
    if wanted is not None and bool(wanted) != masked:
        found = "causal" if masked else "not causal"
        raise ValueError(
            f"{name!r} is {found} and cannot be loaded with masked={bool(wanted)}: leave masked out (at a terminal "
            "--masked)."
        )
    return masked


def _longest(config):
    said = (getattr(config, name, None) for name in LENGTHS)
    return next((length for length in said if isinstance(length, int) and length > 0), UNSAID)


def _only_place(layers):
    """Paths from a layer to its attention and to the module of its output; None unless all layers agree."""
    if any(layer is None for layer in layers):  # some lists have gaps
        return None
    places = {_place(layer) for layer in layers if _attentions(layer)}
    return places.pop() if len(places) == 1 else None


def _attentions(layer):
    """Paths in a layer to its outermost modules named ``...Attention``."""
    paths = [path for path, module in layer.named_modules() if path and type(module).__name__.endswith("Attention")]
    return [path for path in paths if not any(path.startswith(f"{other}.") for other in paths)]


def _holds_attention(layer):
    """Whether a layer holds attention that is a map of the tokens it receives."""
    return bool(_attentions(layer)) and not reads_other_keys(layer)


def _place(layer):
    outer = _attentions(layer)
    if len(outer) != 1:
        return None
    path = outer[0]
    while True:
        module = layer.get_submodule(path)
        output = getattr(module, "output", None)
        if hasattr(output, "dense"):  # as in BERT, where the module also adds the residual and applies its norm
            return path, f"{path}.output.dense"
        inner = [name for name, child in module.named_children() if type(child).__name__.endswith("Attention")]
        if len(inner) != 1:
            return path, path
        path = f"{path}.{inner[0]}"
