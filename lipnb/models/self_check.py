"""Each layer's map against the network itself, when a model is loaded: no switch of a configuration passes unseen."""

from inspect import signature
from typing import Any

import torch
from torch import Tensor

from lipnb.models.calls import first_of, tokens_of
from lipnb.models.changes import Changed, Draws, unchanged, unconverted

__all__ = [
    "CAUSAL",
    "assert_causality",
    "check_maps",
    "leak",
    "refuse_draws",
    "refuse_filling",
    "run",
    "some_inputs",
    "vocabulary",
]

CAUSAL = 1e-5  # relative change of earlier outputs that rounding may make
# tokens: no multiple of a window to which a network would pad; windows up to the second are tried out too
LEAST, MOST = 9, 64


def vocabulary(network: Any) -> int | None:
    """How many token ids a network reads, as its configuration or its table of embeddings says; None where none do."""
    said = getattr(network.config, "vocab_size", None)
    if isinstance(said, int):
        return said
    try:
        table = network.get_input_embeddings()
    except (AttributeError, NotImplementedError):  # the library's own way to say that there is none
        return None
    return table.num_embeddings if isinstance(table, torch.nn.Embedding) else None


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
        most = vocabulary(network)
        assert most is not None  # a network without one is not loaded
        ids = (torch.arange(n) % most).repeat(count, 1)
        if seed is not None:
            ids = torch.randint(most, ids.shape, generator=torch.Generator().manual_seed(seed))
        return _without_padding(ids, network).to(network.device)
    if reads == "pixel_values":
        side = side or config.image_size
        shape: tuple[int, ...] = (count, config.num_channels, side, side)
    else:
        shape = (count, config.num_mel_bins, 2 * config.max_source_positions)  # a convolution takes each second frame
    inputs = torch.zeros(shape)
    if seed is not None:
        inputs = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return inputs.to(network.device, network.dtype)


def _without_padding(ids, network):
    """Token ids with another token in place of the one that fills sequences up, of which some networks make a mask."""
    padding = getattr(network.config, "pad_token_id", None)
    last = vocabulary(network) - 1
    return ids if padding is None else ids.where(ids != padding, last - (padding == last))


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
        place = f"the attention of layer {number} of {name!r}"
        if min(len(received.get(module, ())), len(given.get(last, ()))) <= call:
            raise ValueError(f"{place} is not known here: the network does not run it as one module of its layer.")
        x, y = received[module][call], given[last][call]
        if not isinstance(y, Tensor) or x.ndim != 3 or len(x) != 1 or y.ndim != 3 or y.shape[:2] != x.shape[:2]:
            shapes = " and ".join(
                str(tuple(part.shape)) if isinstance(part, Tensor) else "no tensor" for part in (x, y)
            )
            raise ValueError(
                f"{place} is not known here: it maps no sequence of tokens, (1, n, d), to another, (1, n, m): it "
                f"receives and gives {shapes}."
            )
        refuse_filling(x, inputs, architecture.reads, name)
        try:
            attention = architecture.attention_object(network, number, "heads+output", masked, x.shape[-2])
            ours = attention(x)
        except Changed:
            raise
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"{place} is not known here: {error}") from error
        misfit, size = (part.double().norm().item() for part in (ours - y, y))
        if not misfit <= tolerance * size and architecture.matrices is None:
            raise ValueError(
                f"{place} is not known here: its module ({type(module).__name__}) called alone gives something else "
                f"than within the network (relative difference {misfit / (size or 1):.1e}), so that what it gives "
                "depends on more than the tokens it receives and their number."
            )
        if not misfit <= tolerance * size:
            raise ValueError(
                f"{place} is not the map that is known here for {architecture.title}: on random tokens they differ by "
                f"{misfit / (size or 1):.1e} (relative). Report its config.json."
            )
        heads, width = attention.heads, x.shape[-1]
    return heads, width


def refuse_filling(x: Tensor, inputs: Tensor, reads: str, name: str) -> None:
    """Raise one sentence where layers receive `x`, more or fewer tokens than the token ids that the network reads.

    Raises
    ------
    ValueError
        "the layers of ... receive ... tokens where it reads ..."
    """
    if reads == "input_ids" and x.shape[1] != inputs.shape[1]:
        raise ValueError(
            f"the layers of {name!r} receive {x.shape[1]} tokens where it reads {inputs.shape[1]}: it fills texts up "
            "or cuts them into parts (to its attention window, where config.json has one), and which tokens count is "
            "not known here; take a length that it leaves as it is."
        )


def _seen(network, architecture, inputs):
    """What each module of attention received and gave in one pass, module -> list of (1, n, d), one a call."""
    received, given, hooks = {}, {}, []

    def before(module, args, kwargs):
        received.setdefault(module, []).append(tokens_of(module, args, kwargs))

    def after(module, args, output):
        given.setdefault(module, []).append(first_of(output))

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


def run(network: Any, reads: str, inputs: Tensor, draws: Draws | None = None) -> Any:
    """The network on inputs, without a cache of keys and values; it and the random states are then as before.

    Parameters
    ----------
    network : torch.nn.Module
        The network.
    reads : {"input_ids", "pixel_values", "input_features"}
        What it reads.
    inputs : Tensor
        That.
    draws : Draws, optional
        Says afterwards whether the pass drew random numbers.

    Raises
    ------
    Changed
        As `unchanged`.
    """
    known = signature(getattr(network, "forward", network)).parameters.values()
    takes = any(one.name == "use_cache" or one.kind is one.VAR_KEYWORD for one in known)
    options = {"use_cache": False} if reads == "input_ids" and takes else {}
    with draws or Draws(), unchanged(network):
        return network(**{reads: inputs}, **options)


@torch.no_grad()
def refuse_draws(network: Any, reads: str, inputs: Tensor) -> None:
    """Raise one sentence where what a network gives depends on numbers that it draws at random as it reads.

    Raises
    ------
    Changed
        "... draws random numbers as it reads ..."
    """
    one, other = (run(network, reads, inputs, Draws(seed)).last_hidden_state.double() for seed in (0, 1))
    if not (one - other).norm() <= CAUSAL * one.norm():
        raise Changed(
            f"the network {type(network).__name__} draws random numbers as it reads, and gives something else at each "
            "call: it is no map, and has no Lipschitz constant."
        )


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
        pair, same = some_inputs(network, reads, n, count=2), n // 2
        pair[1, same:] = _without_padding((pair[1, same:] + 1) % vocabulary(network), network)
    elif reads == "pixel_values":
        pair = some_inputs(network, reads, 0, count=2, side=side)
        pair[1, :, pair.shape[2] // 2 :] = 1  # the lower half; the first token is no patch
        same = 1
    else:
        pair = torch.zeros(2, config.num_mel_bins, 2 * config.max_source_positions, dtype=network.dtype)
        pair[1, :, config.max_source_positions :] = 1  # the second half of the sound
        same = 1
    pair, draws = pair.to(network.device), Draws()
    try:
        with unconverted(network):
            states = run(network, reads, pair, draws).last_hidden_state
    except Changed:
        raise
    except Exception as error:  # entries that only a forward pass refuses; the code is anybody's
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"the network of {name!r} cannot be run ({why}): see its config.json.") from error
    if draws.moved:
        refuse_draws(network, reads, pair)
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
