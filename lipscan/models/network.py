"""Running a network: its inputs, passes that leave it unchanged, inputs and outputs of its layers, and whole maps."""

import math
from collections.abc import Callable
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from inspect import signature
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lipnb.checks import as_tensor, at_once
from lipnb.threads import turn
from lipscan.models.changes import Changed, Draws, unchanged
from lipscan.models.files import quiet
from lipscan.models.hooks import Call, capture
from lipscan.models.images import given, patch_sides, picture_shape

__all__ = ["Reading", "answer", "position_embeddings", "random_twin", "readings", "with_positions"]

ROUNDING = 1e-5  # relative change of outputs attributed to rounding
TO = ("hidden", "logits")


def vocabulary(network: Any) -> int | None:
    """Vocabulary size of a network, from its configuration or embedding table; None without either."""
    said = getattr(network.config, "vocab_size", None)
    if isinstance(said, int):
        return said
    try:
        table = network.get_input_embeddings()
    except (AttributeError, NotImplementedError):  # how the library reports that it has no table
        return None
    return table.num_embeddings if isinstance(table, torch.nn.Embedding) else None


def some_inputs(
    network: Any, reads: str, n: int, count: int = 1, seed: int | None = None, sides: tuple[int, int] | None = None
) -> Tensor:
    """Inputs for a network: random ones with a seed, else token ids 0, 1, ... or zeros; images of `sides`."""
    config = network.config
    if reads == "input_ids":
        most = vocabulary(network)
        assert most is not None  # a network without a vocabulary is not loaded
        ids = (torch.arange(n) % most).repeat(count, 1)
        if seed is not None:
            ids = torch.randint(most, ids.shape, generator=torch.Generator().manual_seed(seed))
        return without_padding(ids, network).to(network.device)
    if reads == "pixel_values":
        own = picture_shape(config)
        shape: tuple[int, ...] = (count, *own[:-2], *(sides or own[-2:]))
    else:
        shape = (count, config.num_mel_bins, 2 * config.max_source_positions)  # the convolution has stride 2
    inputs = torch.zeros(shape)
    if seed is not None:
        inputs = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return inputs.to(network.device, network.dtype)


def without_padding(ids, network):
    """Replace the padding id, from which some networks derive a mask."""
    padding = getattr(network.config, "pad_token_id", None)
    last = vocabulary(network) - 1
    return ids if padding is None else ids.where(ids != padding, last - (padding == last))


def inputs_of(model: Any, inputs: Any) -> Tensor:
    """Checked token ids (b, n), images (b, c, h, w) or spectra (b, c, t), on the network's device."""
    if isinstance(inputs, str):
        raise ValueError(
            f"{model.name} is given a str, not numbers: use model.token_ids(text)[None] for a text, "
            "lipnb.models.picture(name) for a picture."
        )
    read = {"input_ids": _ids, "pixel_values": _images, "input_features": _sounds}
    return read[model.architecture.reads](model, as_tensor("what the model reads", inputs))


def _ids(model, token_ids):
    if token_ids.ndim != 2 or 0 in token_ids.shape:
        raise ValueError(
            f"token_ids must have shape (b, n) with b, n >= 1, got {tuple(token_ids.shape)}"
            ": for one sequence use ids[None]."
        )
    if token_ids.dtype not in (torch.uint8, torch.int16, torch.int32, torch.int64):
        raise ValueError(f"token_ids must be integers, got {token_ids.dtype}.")
    most, positions = vocabulary(model.module), model.longest
    if token_ids.shape[1] > positions:
        raise ValueError(
            f"{model.name} has {positions} positions, got sequences of {token_ids.shape[1]} tokens: cut them shorter."
        )
    if token_ids.min() < 0 or token_ids.max() >= most:
        raise ValueError(
            f"token_ids must lie between 0 and {most - 1}, the vocabulary of "
            f"{model.name}, got {int(token_ids.min())} to {int(token_ids.max())}: use its "
            "own tokenizer."
        )
    return token_ids.to(model.module.device, torch.long)


def _images(model, images):
    config = model.module.config
    own, patch, shape = picture_shape(config), patch_sides(config), tuple(images.shape)
    before = ", ".join(map(str, own[:-2]))
    fits = len(shape) == len(own) + 1 and shape[1:-2] == own[:-2] and shape[0] > 0
    if model.architecture.interpolates:
        sides = [*zip(shape[-2:], own[-2:], patch, strict=True)] if fits else []
        fits = fits and all(step <= length <= most and length % step == 0 for length, most, step in sides)
        steps, most = (str(a) if a == b else f"{a} and {b}" for a, b in (patch, own[-2:]))
        wanted = f"(b, {before}, h, w) with h, w multiples of {steps} up to {most}"
    else:
        fits = fits and shape[1:] == own
        wanted = f"(b, {', '.join(map(str, own))})"
    if not fits or not images.is_floating_point():
        kind = "images" if len(own) == 3 else "videos"
        raise ValueError(
            f"{model.name} reads {kind}: a floating point tensor of shape {wanted}, got {shape} of {images.dtype}."
        )
    return images.to(model.module.device, model.module.dtype)


def _sounds(model, spectra):
    config = model.module.config
    shape = (config.num_mel_bins, 2 * config.max_source_positions)
    if spectra.ndim != 3 or spectra.shape[1:] != shape or not len(spectra) or not spectra.is_floating_point():
        raise ValueError(
            f"{model.name} reads mel spectra: a floating point tensor of shape (b, *{shape}), got "
            f"{tuple(spectra.shape)} of {spectra.dtype}."
        )
    return spectra.to(model.module.device, model.module.dtype)


def run(network: Any, reads: str, inputs: Tensor, draws: Draws | None = None) -> Any:
    """Output of the network, without a cache of keys and values; the network and the random states are then restored.

    Raises `Changed` if the network changed itself, see `unchanged`; `draws` records whether it drew random numbers.
    """
    known = signature(getattr(network, "forward", network)).parameters.values()
    takes = any(one.name == "use_cache" or one.kind is one.VAR_KEYWORD for one in known)
    options = {"use_cache": False} if reads == "input_ids" and takes else {}
    read = given(network, inputs) if reads == "pixel_values" else {reads: inputs}
    with turn(), draws or Draws(), unchanged(network):
        return network(**read, **options)


@torch.no_grad()
def refuse_draws(network: Any, reads: str, inputs: Tensor) -> None:
    """Raise `Changed` if the output of a network depends on random numbers that it draws."""
    one, other = (run(network, reads, inputs, Draws(seed)).last_hidden_state.double() for seed in (0, 1))
    if not (one - other).norm() <= ROUNDING * one.norm():
        raise Changed(
            f"the network {type(network).__name__} draws random numbers in each pass and gives another output at "
            "each call, so it is not a map and has no Lipschitz constant."
        )


def refuse_filling(x: Tensor, inputs: Tensor, reads: str, name: str) -> None:
    """Raise ValueError if layers receive `x` with more or fewer tokens than the token ids that the network reads."""
    if reads == "input_ids" and x.shape[1] != inputs.shape[1]:
        raise ValueError(
            f"the layers of {name!r} receive {x.shape[1]} tokens where it reads {inputs.shape[1]}: it pads texts or "
            "cuts them into parts (of its attention window, if config.json has one), and lipnb does not know which "
            "tokens count: take a length that it leaves unchanged."
        )


@torch.no_grad()
def received(model: Any, inputs: Tensor, layer: int, object: str) -> Tensor:
    """Input of `object` in a layer, shape (b, n, d). Later layers are not run."""
    reads, found = model.architecture.reads, []
    receiver = model.architecture.receiver(model.module, layer, object)
    number = model.architecture.call_of(model.module, layer, object)
    n = inputs.shape[1] if reads == "input_ids" else model.longest
    if reads == "pixel_values":  # smaller images have fewer tokens; the model gives the number for full size
        n = n * math.prod(inputs.shape[-2:]) // math.prod(picture_shape(model.module.config)[-2:]) + 1
    for part in inputs.split(at_once(n * (2 * model.heads * n + 8 * model.width), model.module.dtype)):
        with capture(before=(receiver, number)) as calls:
            run(model.module, reads, part)
        found.append(calls[-1].tokens)
    x = torch.cat(found).detach().contiguous()
    refuse_filling(x, inputs, reads, model.name)
    return x


def allowed(dtype: torch.dtype) -> float:
    """Allowed relative difference of two computations of one attention: networks compute softmax in float32."""
    return max(ROUNDING, 3 * torch.finfo(dtype).eps ** 0.5)


def one_call(calls: list[Call], module: torch.nn.Module, number: int) -> Call:
    """One call of a module among the recorded ones; LookupError if it was not called that often."""
    found = [call for call in calls if call.module is module]
    return found[number]


class Reading(NamedTuple):
    """Inputs and outputs of one layer when the network read some inputs.

    Attributes
    ----------
    stream : Tensor, shape (b, n, d)
        Input of the layer.
    received, given : Tensor, shape (b, n, d), or None
        Input of its attention, after any norm before it, and its output, output projection included; None for a
        layer of a hybrid that holds no attention.
    whole : callable
        The complete layer (attention, norms, residuals, MLP), from (b, n, d) to (b, n, d).
    """

    stream: Tensor
    received: Any
    given: Any
    whole: Callable[[Tensor], Tensor]


@torch.no_grad()
def readings(model: Any, inputs: Tensor) -> list[Reading]:
    """Inputs and outputs of every layer, from one pass of the network.

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
        As for `Model.activations`.

    Examples
    --------
    >>> from lipnb import models
    >>> model = models.load("minilm")
    >>> read = models.readings(model, model.token_ids("how smooth is attention?")[None])
    >>> len(read), read[3].received.shape
    (6, torch.Size([1, 5, 384]))
    """
    inputs, architecture, network = inputs_of(model, inputs), model.architecture, model.module
    attending, draws = architecture.attending(network), Draws()
    layers = {*architecture.layers_of(network)}
    receivers = {architecture.attention_of(network, layer) for layer in attending}
    givers = {architecture.giver(network, layer) for layer in attending}
    with capture(*layers, *receivers, *givers) as calls:
        run(network, architecture.reads, inputs, draws)
    if draws.moved:
        refuse_draws(network, architecture.reads, inputs)
    read: list[Reading] = []
    for call in calls:
        if call.module in layers:
            read.append(Reading(call.tokens, None, None, call.again))
        if call.module in receivers:
            read[-1] = read[-1]._replace(received=call.tokens)
        if call.module in givers:
            read[-1] = read[-1]._replace(given=call.given)
    refuse_filling(read[attending[0]].received, inputs, architecture.reads, model.name)
    return read


@torch.no_grad()
def answer(model: Any, layer: int, read: Reading, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Output of the attention of a layer, (b, n, d), after `change` is applied to its input."""
    receiver = model.architecture.receiver(model.module, layer, "heads+output")
    giver = model.architecture.giver(model.module, layer)

    def changed(call):
        return call.with_tokens(change(call.tokens)) if call.module is receiver else None

    with capture(receiver, after=(giver, 0), change=changed) as calls:
        read.whole(read.stream)
    return one_call(calls, giver, 0).given


def whole_network(model: Any, inputs: Tensor, to: str = "hidden") -> Callable[[Tensor], Tensor]:
    """The network from the input of its first layer to its end, as a map for `lipnb.local_lipschitz`.

    Parameters
    ----------
    model : Model
        From `lipnb.models.load`.
    inputs : Tensor, shape (b, n) or (b, c, h, w)
        Token ids or images, which determine the number of tokens and the masks; their values do not matter, except in
        networks that read the ids again after their first layer.
    to : {"hidden", "logits"}
        The last hidden states, final norm included, (b, n, d); or the logits, (b, n, vocabulary), computed by the
        model's own class of transformers (GPT2LMHeadModel, BertForMaskedLM, ...): its output layer is read from the
        checkpoint on first use; for random weights it is drawn too, as the library initialises it.

    Returns
    -------
    callable
        A function of embeddings (b, n, d), positions included: for the inputs, ``readings(model, inputs)[0].stream``.

    Raises
    ------
    ValueError
        `to` is unknown, or the model has no logits.

    Examples
    --------
    >>> from lipnb import local_lipschitz, models
    >>> from lipscan.models.network import whole_network
    >>> model = models.load("minilm")
    >>> ids = model.token_ids("how smooth?")[None]
    >>> found = local_lipschitz(whole_network(model, ids), models.readings(model, ids)[0].stream, rtol=1e-2)
    >>> found.value.shape, found.route
    (torch.Size([1]), 'autodiff')
    """
    if to not in TO:
        raise ValueError(f"to must be one of {TO}, got {to!r}.")
    inner = model.module if to == "hidden" else _with_logits(model)
    inputs, first = inputs_of(model, inputs), model.architecture.layers_of(model.module)[0]

    def network(x):
        def begun(call):  # other layers may share the module of the first
            return call.with_tokens(x) if call.number == 0 else None

        with capture(first, change=begun), _tables_of_its_own(model.module):
            found = run(inner, model.architecture.reads, inputs)
        return found.last_hidden_state if to == "hidden" else found.logits

    return network


def _with_logits(model):
    """The network with its output layer; ValueError with the reason if the model has no logits."""
    try:
        return model.language_model
    except ValueError as error:
        raise ValueError(f"{model.name} has no logits here: {error}; take to='hidden'.") from error


@contextmanager
def _tables_of_its_own(network):
    """Context in which longrope writes its table into a copy, because functorch does not allow writes to a buffer."""
    written = [
        (module, name, table)
        for module in network.modules()
        for name, table in module.named_buffers(recurse=False)
        if "longrope" in str(getattr(module, "rope_type", "")) and name.endswith("inv_freq") and "original" not in name
    ]

    def copied(call):
        for module, name, table in written:
            if module is call.module:
                setattr(module, name, table.clone())

    def put_back():
        for module, name, table in written:
            setattr(module, name, table)

    with capture(*(module for module, _, _ in written), change=copied):
        try:
            try:
                yield
            finally:
                put_back()
        finally:  # again: an interrupt may have hit the first attempt
            put_back()


def random_twin(model: Any, seed: int = 0) -> Any:
    """The same network with random weights, drawn as its family initialises them; the global random state stays."""
    with turn(), torch.random.fork_rng(devices=[]), quiet():
        torch.default_generator.manual_seed(seed)
        options = {"attn_implementation": "eager", "dtype": torch.float32, **model.architecture.options}
        network = type(model.module)._from_config(deepcopy(model.module.config), **options)
    network = network.to(device=model.module.device, dtype=model.module.dtype).eval().requires_grad_(False)
    source = model.source._replace(folder=None, seed=seed)
    return replace(model, weights="random", module=network, source=source)


def position_embeddings(model: Any) -> Tensor:
    """Learned position embeddings of a model.

    Parameters
    ----------
    model : Model
        From `lipnb.models.load`.

    Returns
    -------
    Tensor, shape (positions, d)
        A copy; row i is added to the embedding of the token at position i.

    Raises
    ------
    ValueError
        The model has no learned position embeddings of texts.
    """
    if model.architecture.positions is None or model.architecture.reads != "input_ids":
        raise ValueError(
            f"{model.name} has no learned position embeddings of texts that lipnb can find: they are rotary, in the "
            "logits, of images, or stored elsewhere."
        )
    return attrgetter(model.architecture.positions)(model.module).weight.detach().clone()


@torch.no_grad()
def with_positions(model: Any, embeddings: Tensor) -> Any:
    """A copy of the model with other position embeddings, (positions, d)."""
    with turn():
        network = deepcopy(model.module)
    weight = attrgetter(model.architecture.positions)(network).weight
    if embeddings.shape != weight.shape:
        raise ValueError(f"embeddings must have shape {tuple(weight.shape)}, got {tuple(embeddings.shape)}.")
    weight.copy_(embeddings)
    return replace(model, module=network)
