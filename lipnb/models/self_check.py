"""Each layer's map against the network itself, when a model is loaded: no switch of a configuration passes unseen."""

from inspect import signature
from typing import Any

import torch
from torch import Tensor

__all__ = ["CAUSAL", "assert_causality", "check_maps", "leak", "run", "some_inputs"]

CAUSAL = 1e-5  # relative change of earlier outputs that rounding may make
# tokens: no multiple of a window to which a network would pad; windows up to the second are tried out too
LEAST, MOST = 9, 64


def some_inputs(
    network: Any, reads: str, n: int, count: int = 1, seed: int | None = None, side: int | None = None
) -> Tensor:
    """Inputs that the network reads: random ones with a seed, else the first token ids in order, or zeros.

    Parameters
    ----------
    network : torch.nn.Module
        The network.
    reads : {"input_ids", "pixel_values", "input_features"}
        What it reads.
    n : int
        Tokens; of images and sound the configuration says how many.
    count : int
        How many inputs.
    seed : int, optional
        The global random state is left alone.
    side : int, optional
        Height and width of images; default what the configuration says.

    Returns
    -------
    Tensor
        Token ids (count, n), images (count, c, h, w) or mel spectra (count, c, t).
    """
    config = network.config
    if reads == "input_ids":
        ids = (torch.arange(n) % config.vocab_size).repeat(count, 1)
        if seed is not None:
            ids = torch.randint(config.vocab_size, ids.shape, generator=torch.Generator().manual_seed(seed))
        return ids.to(network.device)
    if reads == "pixel_values":
        side = side or config.image_size
        shape: tuple[int, ...] = (count, config.num_channels, side, side)
    else:
        shape = (count, config.num_mel_bins, 2 * config.max_source_positions)  # a convolution takes each second frame
    inputs = torch.zeros(shape)
    if seed is not None:
        inputs = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return inputs.to(network.device, network.dtype)


@torch.no_grad()
def check_maps(network: Any, architecture: Any, masked: bool, name: str) -> tuple[int, int]:
    """Raise ValueError unless each layer's `Attention` gives what the network's own attention gives, on random inputs.

    One pass of the network over one input of 9 tokens, or as many as the longest window up to 64 needs; images as they
    are. In a float64 network, which may compute softmax in float32, relative 1e-5 is asked for; in others
    :math:`3 \\sqrt\\epsilon`.

    Parameters
    ----------
    network : torch.nn.Module
        The network.
    architecture : Architecture
        How its layers store their weights.
    masked : bool
        Whether it is causal.
    name : str
        Of the model, for the sentence.

    Returns
    -------
    tuple of int
        Heads and width of the last layer.

    Raises
    ------
    ValueError
        "the attention of layer 3 of ... is not the map that is known here ..."
    """
    layers = architecture.layers_of(network)
    attending = architecture.attending(network)
    windows = [architecture.window(network.config, layers[number], number) or 0 for number in attending]
    n = max([LEAST, *(window + 2 for window in windows if window <= MOST - 2)])
    n = min(n, architecture.longest(network.config))
    inputs = some_inputs(network, architecture.reads, n, seed=0, side=architecture.small_side(network.config))
    received, given = _seen(network, architecture, inputs)
    tolerance = max(1e-5, 3 * torch.finfo(network.dtype).eps ** 0.5)
    heads = width = 0
    for number in attending:
        call = architecture.call_of(network, number)
        module, last = (at(network, number) for at in (architecture.attention_of, architecture.giver))
        x, y = received[module][call], given[last][call]
        try:
            attention = architecture.attention_object(network, number, "heads+output", masked, x.shape[-2])
            ours = attention(x)
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"the attention of layer {number} of {name!r} is not known here: {error}") from error
        misfit, size = (part.double().norm().item() for part in (ours - y, y))
        if not misfit <= tolerance * size and architecture.matrices is None:
            why = "what its module is given beside its tokens depends on more than how many there are"
            if architecture.reads == "input_ids" and x.shape[-2] != n:
                why = f"where the network reads {n} tokens it receives {x.shape[-2]}, padded (to its window) or pooled"
            raise ValueError(
                f"the attention of layer {number} of {name!r}, a {architecture.title} model, is no map of its tokens "
                f"alone: {why}. It is not supported."
            )
        if not misfit <= tolerance * size:
            raise ValueError(
                f"the attention of layer {number} of {name!r} is not the map that is known here for "
                f"{architecture.title}: on random tokens they differ by {misfit / (size or 1):.1e} (relative). Report "
                "its config.json."
            )
        heads, width = attention.heads, attention.width
    return heads, width


def _seen(network, architecture, inputs):
    """What each module of attention received and gave in one pass, module -> list of (1, n, d), one a call."""
    received, given, hooks = {}, {}, []

    def before(module, args, kwargs):
        received.setdefault(module, []).append(args[0] if args else kwargs["hidden_states"])

    def after(module, args, output):
        given.setdefault(module, []).append(output[0] if isinstance(output, tuple) else output)

    numbers = architecture.attending(network)
    try:
        for module in {architecture.attention_of(network, number) for number in numbers}:
            hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
        for module in {architecture.giver(network, number) for number in numbers}:
            hooks.append(module.register_forward_hook(after))
        run(network, architecture.reads, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return received, given


def run(network: Any, reads: str, inputs: Tensor) -> Any:
    """The network on inputs, without a cache of keys and values."""
    known = signature(getattr(network, "forward", network)).parameters.values()
    takes = any(one.name == "use_cache" or one.kind is one.VAR_KEYWORD for one in known)
    options = {"use_cache": False} if reads == "input_ids" and takes else {}
    return network(**{reads: inputs}, **options)


@torch.no_grad()
def leak(network: Any, name: str, reads: str = "input_ids", side: int | None = None) -> float:
    """How much changing the last tokens changes earlier outputs, relative to these; 0 for causal networks.

    Parameters
    ----------
    network : torch.nn.Module
        Whole network, from token ids (b, n), images (b, c, h, w) or spectra (b, c, t) to hidden states (b, n, d).
    name : str
        Name of the model, for the sentence.
    reads : {"input_ids", "pixel_values", "input_features"}
        What the network reads.
    side : int, optional
        Height and width of images, where not those of its configuration.

    Raises
    ------
    ValueError
        "the outputs of ... are NaN or infinite ...", "the network of ... cannot be run ..."
    """
    config = network.config
    if reads == "input_ids":
        positions = getattr(config, "max_position_embeddings", 6)
        n = min(6, positions) if positions > 0 else 6  # some write -1 where there is no limit
        ids = torch.arange(n) % config.vocab_size
        changed, same = ids.clone(), n // 2
        changed[same:] = (ids[same:] + 1) % config.vocab_size
        pair = torch.stack([ids, changed])
    elif reads == "pixel_values":
        pair = some_inputs(network, reads, 0, count=2, side=side)
        pair[1, :, pair.shape[2] // 2 :] = 1  # the lower half; the first token is no patch
        same = 1
    else:
        pair = torch.zeros(2, config.num_mel_bins, 2 * config.max_source_positions, dtype=network.dtype)
        pair[1, :, config.max_source_positions :] = 1  # the second half of the sound
        same = 1
    try:
        states = run(network, reads, pair.to(network.device)).last_hidden_state
    except Exception as error:  # entries that only a forward pass refuses; the code is anybody's
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"the network of {name!r} cannot be run ({why}): see its config.json.") from error
    states = states[:, :same].double()
    if not torch.isfinite(states).all():
        raise ValueError(
            f"the outputs of {name!r} are NaN or infinite: its weights are damaged, "
            f"or {network.dtype} is too narrow for them."
        )
    return ((states[1] - states[0]).norm() / states[0].norm()).item()


def assert_causality(network: Any, masked: bool, name: str, reads: str = "input_ids", side: int | None = None) -> None:
    """Raise RuntimeError unless the network is causal exactly when `masked` says so.

    Changing the last tokens must leave earlier outputs alone, to relative 1e-5, when masked; and must
    change them when not.

    Parameters
    ----------
    network : torch.nn.Module
        Whole network, from token ids (b, n), images (b, c, h, w) or spectra (b, c, t) to hidden states (b, n, d).
    masked : bool
        Whether attention should be causal (castin2024smooth, Def. 2.5).
    name : str
        Name of the model, for the sentence.
    reads : {"input_ids", "pixel_values", "input_features"}
        What the network reads.
    side : int, optional
        Height and width of images, where not those of its configuration.

    Raises
    ------
    RuntimeError
        "... is not causal although masked=True ...", "... is causal although masked=False ..."
    """
    change = leak(network, name, reads, side)
    if (change <= CAUSAL) != masked:
        verdict = "is not causal although masked=True" if masked else "is causal although masked=False"
        raise RuntimeError(
            f"{name!r} {verdict}: changing later tokens changes earlier outputs by "
            f"{change:.1e} (relative). This version of transformers treats masks "
            "differently; report it."
        )
