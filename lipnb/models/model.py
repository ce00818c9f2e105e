"""A transformer as a list of attention layers: token ids, what each attention receives, and the attention."""

import math
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import index
from typing import Any

import torch
from torch import Tensor

from lipnb.attention import Attention
from lipnb.checks import at_once
from lipnb.models.layers import OBJECTS, Architecture, Block, attention_object

__all__ = ["Model"]


@dataclass
class Model:
    """A pretrained or random transformer, as a list of attention layers. Made by `lipnb.models.load`.

    Parameters
    ----------
    name : str
        Name of the model.
    weights : str
        Where the weights come from: "pretrained", "trained here" (those of gpt2-mini), "random"; or "pretrained (Q4_1,
        Q8_0)", the weights as a GGUF file rounded them.
    masked : bool
        Whether attention is causal.
    tokenizer_name : str or None
        Whose tokenizer turns text into token ids; None without one.
    layers, heads, width : int
        Number of layers, heads in each, and the dimension d of the tokens.
    """

    name: str
    weights: str
    masked: bool
    tokenizer_name: str | None
    layers: int
    heads: int
    width: int
    network: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    architecture: Architecture = field(repr=False)

    def token_ids(self, text: str) -> Tensor:
        """Token ids of a text, without special tokens.

        Parameters
        ----------
        text : str
            Any text; the words "[SEP]" or "<|endoftext|>" in it are read as text.

        Returns
        -------
        LongTensor, shape (t,)
            Ids of the model's own tokenizer, or of the one that `tokenizer_name` says.

        Raises
        ------
        ValueError
            "the text holds no token: ...", "... has no tokenizer: pass load(..., tokenizer='minilm') ..."
        """
        if self.tokenizer is None:
            raise ValueError(
                f"{self.name} has no tokenizer: pass load(..., tokenizer=...) the name or "
                "folder of one, or make token ids yourself."
            )
        if not isinstance(text, str):
            raise ValueError(f"text must be a str, got {type(text).__name__}.")
        # verbose=False: a text longer than the model's positions is cut into windows later
        read = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)
        ids = read["input_ids"]
        if not ids:
            raise ValueError("the text holds no token: give at least one word.")
        return torch.tensor(ids, dtype=torch.long)

    def attention(self, layer: int, object: str = "heads+output") -> Attention | Block:
        """The attention of one layer.

        Parameters
        ----------
        layer : int
            Layer, from 0.
        object : {"heads", "heads+output", "block"}
            Concatenated heads before the output projection; with the output projection and its bias
            (default); the attention sub-layer with its residual and LayerNorm.

        Returns
        -------
        Attention or Block
            A map from tokens (..., n, d) to tokens (..., n, m), in the model's dtype and on its device; with the
            sliding window of the layer, where it has one.

        Raises
        ------
        ValueError
            "layer must be between 0 and ...", "object must be one of ..."

        Notes
        -----
        castin2024smooth, Def. 2.2 (unmasked) and 2.5 (masked).
        """
        layer = self._check_place(layer, object)
        module = self.architecture.layers_of(self.network)[layer]
        return attention_object(
            self.architecture,
            module,
            object,
            self.masked,
            self.architecture.rotation(self.network),
            self.architecture.window(self.network.config, layer),
        )

    @property
    def longest(self) -> int:
        """Most tokens that a sequence may have; for images, how many one of the full size has."""
        return self.architecture.longest(self.network.config)

    @torch.no_grad()
    def activations(self, token_ids: Tensor, layer: int, object: str = "heads+output") -> Tensor:
        """What the attention of one layer receives when the model reads these tokens.

        Parameters
        ----------
        token_ids : LongTensor, shape (b, n)
            Sequences of token ids, all of one length. For a model that reads images: Tensor, shape (b, c, h, w), float;
            DINOv2 reads any height and width up to its own that its patches fill.
        layer : int
            Layer, from 0.
        object : {"heads", "heads+output", "block"}
            Who receives. The block of a pre-norm model (GPT-2) receives the residual stream; its heads
            receive the stream after LayerNorm.

        Returns
        -------
        Tensor, shape (b, n, d)
            Tokens, in the model's dtype and on its device. Layers after the wanted one are not run.

        Raises
        ------
        ValueError
            "token_ids must have shape (b, n) ...", "token_ids must lie between 0 and ...", "... positions"
        """
        layer = self._check_place(layer, object)
        return _received(self, _inputs_of(self, token_ids), layer, object)

    @torch.no_grad()
    def given(
        self, token_ids: Tensor, layer: int, change: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """What the attention of one layer receives and gives when the model reads these tokens, whole and unchanged.

        Parameters
        ----------
        token_ids : LongTensor, shape (b, n)
            As for `activations`.
        layer : int
            Layer, from 0.
        change : callable, optional
            What the attention receives is replaced by ``change(x)``.

        Returns
        -------
        x, y : Tensor, shape (b, n, d)
            Tokens before (and before any change) and after the attention of the network itself, output projection
            included: what `attention(layer)` must make of x.
        """
        layer = self._check_place(layer, "heads+output")
        return _given(self, _inputs_of(self, token_ids), layer, change)

    def describe(self) -> dict[str, Any]:
        """What this model is, in plain values: name, weights, mask, tokenizer, sizes, dtype, device."""
        return {
            "model": self.name,
            "architecture": self.architecture.title,
            "weights": self.weights,
            "masked": self.masked,
            "tokenizer": self.tokenizer_name,
            "layers": self.layers,
            "heads": self.heads,
            "width": self.width,
            "dtype": str(self.network.dtype).removeprefix("torch."),
            "device": str(self.network.device),
        }

    def _check_place(self, layer, object):
        if object not in OBJECTS:
            raise ValueError(f"object must be one of {OBJECTS}, got {object!r}.")
        try:
            layer = index(layer)
        except TypeError:
            raise ValueError(f"layer must be an integer, got {layer!r}.") from None
        if not 0 <= layer < self.layers:
            raise ValueError(f"layer must be between 0 and {self.layers - 1} for {self.name}, got {layer}.")
        return layer


class _Captured(Exception):
    """Stops a forward pass once the wanted tokens have been seen."""


def _inputs_of(model, inputs):
    """Token ids (b, n) or images (b, c, h, w), checked, on the network's device; one sentence where they do not fit."""
    return _images(model, inputs) if model.architecture.reads == "pixel_values" else _ids(model, inputs)


@torch.no_grad()
def _received(model, inputs, layer, object):
    """What `object` of a layer receives, shape (b, n, d). Layers after it are not run."""
    seen = []

    def capture(module, args, kwargs):
        seen.append(_tokens(args, kwargs))
        raise _Captured

    with _hooked(model.architecture.receiver(model.network, layer, object), capture):
        _run(model, inputs)
    return torch.cat(seen).detach().contiguous()


@torch.no_grad()
def _given(model, inputs, layer, change=None):
    """What the attention of a layer receives, and what it gives of that or of its `change`; both (b, n, d)."""
    before, after = [], []

    def capture(module, args, kwargs):
        x = _tokens(args, kwargs)
        before.append(x)
        if change is None:
            return None
        return ((change(x), *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": change(x)})

    def stop(module, args, output):
        after.append(output[0] if isinstance(output, tuple) else output)
        raise _Captured

    stopping = model.architecture.giver(model.network, layer).register_forward_hook(stop)
    try:
        with _hooked(model.architecture.receiver(model.network, layer, "heads+output"), capture):
            _run(model, inputs)
    finally:
        stopping.remove()
    return torch.cat(before).detach().contiguous(), torch.cat(after).detach().contiguous()


def _tokens(args, kwargs):
    return args[0] if args else kwargs["hidden_states"]


@contextmanager
def _hooked(module, hook):
    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _run(model, inputs):
    """The network on parts of the inputs that fit, each stopped where it was captured."""
    reads = model.architecture.reads
    patch = getattr(model.network.config, "patch_size", None)
    n = math.prod(inputs.shape[2:]) // patch**2 + 1 if reads == "pixel_values" else inputs.shape[1]
    options = {} if reads == "pixel_values" else {"use_cache": False}
    for part in inputs.split(at_once(n * (2 * model.heads * n + 8 * model.width), model.network.dtype)):
        try:
            model.network(**{reads: part}, **options)
        except _Captured:
            pass


def _ids(model, token_ids):
    token_ids = torch.as_tensor(token_ids)
    if token_ids.ndim != 2 or 0 in token_ids.shape:
        raise ValueError(
            f"token_ids must have shape (b, n) with b, n >= 1, got {tuple(token_ids.shape)}"
            ": one sequence ids is ids[None]."
        )
    if token_ids.dtype not in (torch.uint8, torch.int16, torch.int32, torch.int64):
        raise ValueError(f"token_ids must be integers, got {token_ids.dtype}.")
    vocabulary, positions = model.network.config.vocab_size, model.longest
    if token_ids.shape[1] > positions:
        raise ValueError(
            f"{model.name} has {positions} positions, got sequences of {token_ids.shape[1]} tokens: cut them shorter."
        )
    if token_ids.min() < 0 or token_ids.max() >= vocabulary:
        raise ValueError(
            f"token_ids must lie between 0 and {vocabulary - 1}, the vocabulary of "
            f"{model.name}, got {int(token_ids.min())} to {int(token_ids.max())}: use its "
            "own tokenizer."
        )
    return token_ids.to(model.network.device, torch.long)


def _images(model, images):
    config = model.network.config
    channels, side, patch = config.num_channels, config.image_size, config.patch_size
    images = torch.as_tensor(images)
    shape = tuple(images.shape)
    fits = len(shape) == 4 and shape[1] == channels and shape[0] > 0
    if model.architecture.interpolates:
        fits = fits and all(patch <= length <= side and length % patch == 0 for length in shape[2:])
        wanted = f"(b, {channels}, h, w) with h, w multiples of {patch} up to {side}"
    else:
        fits = fits and shape[2:] == (side, side)
        wanted = f"(b, {channels}, {side}, {side})"
    if not fits or not images.is_floating_point():
        raise ValueError(
            f"{model.name} reads images: a floating point tensor of shape {wanted}, got {shape} of {images.dtype}."
        )
    return images.to(model.network.device, model.network.dtype)
