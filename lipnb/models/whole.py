"""A network beyond single attentions: every layer read in one pass, whole layers, and the network from end to end."""

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from lipnb.models.calls import first_of, tokens_of, with_tokens, without_cache
from lipnb.models.changes import Draws
from lipnb.models.files import quiet
from lipnb.models.passes import Captured, hooked, inputs_of
from lipnb.models.self_check import refuse_draws, refuse_filling, run

if TYPE_CHECKING:
    from lipnb.models.model import Model

__all__ = ["Reading", "answer", "random_twin", "readings", "why_no_logits", "whole_network"]

TO = ("hidden", "logits")
SCALED = ("final_logit_softcapping", "logit_scale", "logits_scaling")  # entries of a configuration that change logits


class Reading(NamedTuple):
    """What one layer was given and what it gave when the network read some inputs.

    Attributes
    ----------
    stream : Tensor, shape (b, n, d)
        What the layer received.
    received, given : Tensor, shape (b, n, d), or None
        What its attention received, norms before it applied, and what it gave, output projection included; None in a
        layer of a hybrid that holds no attention.
    whole : callable
        The layer itself with all that it has (attention, norms, residuals, MLP), from (b, n, d) to (b, n, d).
    """

    stream: Tensor
    received: Any
    given: Any
    whole: Callable[[Tensor], Tensor]


@torch.no_grad()
def readings(model: "Model", inputs: Tensor) -> list[Reading]:
    """What every layer receives and gives, from one pass of the network.

    Parameters
    ----------
    model : Model
        From `lipnb.models.load`.
    inputs : Tensor, shape (b, n) or (b, c, h, w)
        Token ids or images, as for `Model.activations`.

    Returns
    -------
    list of Reading
        One for each layer, in order.

    Raises
    ------
    ValueError
        As `Model.activations`.

    Examples
    --------
    >>> from lipnb import models
    >>> model = models.load("minilm")
    >>> read = models.readings(model, model.token_ids("how smooth is attention?")[None])
    >>> len(read), read[3].received.shape
    (6, torch.Size([1, 5, 384]))
    """
    inputs, architecture, network = inputs_of(model, inputs), model.architecture, model.module
    read: list[Reading] = []

    def begin(module, args, kwargs):
        read.append(Reading(tokens_of(module, args, kwargs), None, None, _called(module, args, kwargs)))

    def receive(module, args, kwargs):
        read[-1] = read[-1]._replace(received=tokens_of(module, args, kwargs))

    def give(module, args, output):
        read[-1] = read[-1]._replace(given=first_of(output))

    attending = architecture.attending(network)
    with ExitStack() as hooks:
        # each module once: layers, or their attention, may share one
        for module in dict.fromkeys(architecture.layers_of(network)):
            hooks.enter_context(hooked(module, begin))
        for module in dict.fromkeys(architecture.attention_of(network, layer) for layer in attending):
            hooks.enter_context(hooked(module, receive))
        for module in dict.fromkeys(architecture.giver(network, layer) for layer in attending):
            hooks.callback(module.register_forward_hook(give).remove)
        draws = Draws()
        run(network, architecture.reads, inputs, draws)
    if draws.moved:
        refuse_draws(network, architecture.reads, inputs)
    refuse_filling(read[attending[0]].received, inputs, architecture.reads, model.name)
    return read


def _called(module, args, kwargs):
    """A layer as a map of its tokens: the rest of its arguments stays."""

    def layer(x):
        args_of_x, kwargs_of_x = with_tokens(module, args, without_cache(kwargs), x)
        return first_of(module(*args_of_x, **kwargs_of_x))

    return layer


@torch.no_grad()
def answer(model: "Model", layer: int, read: Reading, change: Callable[[Tensor], Tensor]) -> Tensor:
    """What the attention of a layer gives, (b, n, d), where what it receives is replaced by its `change`."""
    found = []

    def stop(module, args, output):
        found.append(first_of(output))
        raise Captured

    def changed(module, args, kwargs):
        return with_tokens(module, args, kwargs, change(tokens_of(module, args, kwargs)))

    stopping = model.architecture.giver(model.module, layer).register_forward_hook(stop)
    try:
        with hooked(model.architecture.receiver(model.module, layer, "heads+output"), changed):
            read.whole(read.stream)
    except Captured:
        pass
    finally:
        stopping.remove()
    return found[0]


def whole_network(model: "Model", inputs: Tensor, to: str = "hidden") -> Callable[[Tensor], Tensor]:
    """The network from what its first layer receives to its end, a map for `lipnb.local_lipschitz`.

    Parameters
    ----------
    model : Model
        From `lipnb.models.load`.
    inputs : Tensor, shape (b, n) or (b, c, h, w)
        Token ids or images: they say how many tokens there are and what masks; their values play no part.
    to : {"hidden", "logits"}
        The last hidden states, final norm included, (b, n, d); or the logits of the next token, (b, n, vocabulary), of
        decoders whose output matrix is that of the embeddings.

    Returns
    -------
    callable
        Of embeddings (b, n, d), positions included: those of the inputs are ``readings(model, inputs)[0].stream``.

    Raises
    ------
    ValueError
        "to must be one of ..."; "... has no logits here ...".

    Examples
    --------
    >>> from lipnb import local_lipschitz, models
    >>> model = models.load("minilm")
    >>> ids = model.token_ids("how smooth?")[None]
    >>> found = local_lipschitz(models.whole_network(model, ids), models.readings(model, ids)[0].stream, rtol=1e-2)
    >>> found.value.shape, found.route
    (torch.Size([1]), 'autodiff')
    """
    if to not in TO:
        raise ValueError(f"to must be one of {TO}, got {to!r}.")
    matrix = _head(model) if to == "logits" else None
    inputs, module = inputs_of(model, inputs), model.architecture.layers_of(model.module)[0]

    def network(x):
        begun = []

        def replaced(module, args, kwargs):
            if begun:  # a module that other layers share
                return None
            begun.append(True)
            return with_tokens(module, args, kwargs, x)

        with hooked(module, replaced), _tables_of_its_own(model.module):
            hidden = run(model.module, model.architecture.reads, inputs).last_hidden_state
        return hidden if matrix is None else hidden @ matrix.mT

    return network


@contextmanager
def _tables_of_its_own(network):
    """A network whose longrope writes the table that it takes into a copy: functorch lets none write into a buffer."""
    written = [
        (module, name, table)
        for module in network.modules()
        for name, table in module.named_buffers(recurse=False)
        if "longrope" in str(getattr(module, "rope_type", "")) and name.endswith("inv_freq") and "original" not in name
    ]

    def copied(module, args, kwargs):
        for one, name, table in written:
            if one is module:
                setattr(module, name, table.clone())

    with ExitStack() as hooks:
        for module in {module for module, _, _ in written}:
            hooks.enter_context(hooked(module, copied))
        try:
            yield
        finally:
            for module, name, table in written:
                setattr(module, name, table)


def _head(model):
    """The matrix (vocabulary, d) between hidden states and logits; one sentence where that is not all."""
    if why := why_no_logits(model):
        raise ValueError(f"{model.name} has no logits here: {why}; take to='hidden'.")
    return model.module.get_input_embeddings().weight.detach()


def why_no_logits(model: "Model") -> str:
    """Why the logits of a model are not read, in a clause; empty where they are the embeddings' matrix alone."""
    config, architecture = model.module.config, model.architecture
    if architecture.reads != "input_ids":
        return f"it reads {'images' if architecture.reads == 'pixel_values' else 'sound'}, not text"
    if architecture.matrices is None:  # what follows the layers may be more than a matrix, and nothing would check it
        return f"of {architecture.title} models lipnb knows the attention as a map alone, and no output layer"
    if not architecture.masks[0]:
        return "it is an encoder, and what may follow its last hidden states is not read"
    if not getattr(config, "tie_word_embeddings", False):
        return "its output layer has a matrix of its own, not that of the embeddings, and is not read"
    scaled = [name for name in SCALED if getattr(config, name, None)]
    return f"its config.json has {scaled[0]}, by which logits are more than a matrix" if scaled else ""


def random_twin(model: "Model", seed: int = 0) -> "Model":
    """The same network with weights drawn at random as its family draws them; the global random state stays."""
    with torch.random.fork_rng(devices=[]), quiet():
        torch.default_generator.manual_seed(seed)
        options = {"attn_implementation": "eager", "dtype": torch.float32, **model.architecture.options}
        network = type(model.module)._from_config(deepcopy(model.module.config), **options)
    network = network.to(device=model.module.device, dtype=model.module.dtype).eval().requires_grad_(False)
    return replace(model, weights="random", module=network)
