"""Layout of self-attention layers in an architecture, and the maps built from their weights.

An `Architecture` states where the layers lie, where attention reads its input, how the weights split into heads, and
whether the norm comes before or after the residual. Known ones are in `lipscan.models.families`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from lipnb.attention import Attention
from lipscan.models.images import patch_sides, picture_shape
from lipscan.models.module_attention import OwnAttention
from lipscan.models.norms import after_attention, token_norm
from lipscan.models.split_heads import Rotation, arguments

__all__ = ["Block"]

OBJECTS = ("heads", "heads+output", "block")
# rotations that do not depend on the length of the text, and longrope, which has two tables
ROPES = ("default", "linear", "proportional", "llama3", "yarn", "dynamic", "longrope")


def _always(layer):
    return True


def _no_window(config, layer, number):
    return None


@dataclass(frozen=True)
class Architecture:
    """Layout of multi-head attention in one family of transformers; paths are attribute paths."""

    title: str  # name for messages and reports
    masks: tuple  # of bool, the possible masks; the first is the default
    layers: str  # from the network to its layers
    attention: str  # from a layer to the module that receives the tokens and computes queries, keys and values
    # layer -> input of `split_heads.arguments`, see `separate` and `fused` in that module; None if only the network's
    # own modules compute the map: they are differentiated, and no closed form is known
    matrices: Any
    norm: str | None  # from a layer to the norm of its tokens
    # from a layer to the module that outputs attention, output projection included; None: the same as `attention`
    projected: str | None = None
    # from a layer to what is applied to the output of attention before the residual: a norm, LayerScale or a factor
    after: str | None = None
    # whether the block is x + after(att(norm(x))), else norm(x + att(x)); or configuration -> bool
    pre_norm: bool | Callable = True
    positions: str | None = None  # from the network to its learned position embeddings
    mask_setting: str | None = None  # entry of config.json that switches the causal mask on
    settings: dict = field(default_factory=dict)  # entries of config.json that are always overridden
    # entries of config.json that, if present, must have one of these values for our closed form to be correct
    required: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)  # keyword arguments of the network's class
    reads: str = "input_ids"  # or "pixel_values", or "input_features" (audio spectra)
    # from the network to the module that rotates queries and keys by position (RoPE); or one path for each layer
    rotary: str | tuple[str | None, ...] | None = None
    turns: Callable = _always  # layer -> whether it rotates them
    # which coordinates rotate together: c and c + p ("halves"), or 2 c and 2 c + 1 ("neighbours")
    pairs: str = "halves"
    # configuration, layer, its number -> tokens that a token sees on each side, itself included; None: all
    window: Callable = _no_window
    # network -> terms added to the logits by distance, (h, 2 w + 1), in the order of `Attention`
    relative: Callable | None = None
    longest: Callable = attrgetter("max_position_embeddings")  # configuration -> most tokens of a sequence
    # network -> its layers in the order of their use, if `layers` is not in that order
    order: Callable | None = None
    # from the loaded network to the measured one: the encoder, or one of two towers
    part: str | None = None
    parts: dict = field(default_factory=dict)  # for a model with two towers: name -> the architecture of each
    imagenet: bool = False  # whether images are normalised with ImageNet's mean and deviation, instead of one half
    interpolates: bool = False  # whether it also reads smaller images, by interpolating its position embeddings
    attends: Callable = _always  # layer -> whether it holds attention; hybrids have other layers too
    # for a closed form found by trial: how it was found, and up to how many tokens it holds (None: all)
    found: str = ""
    reach: int | None = None

    @property
    def known(self):
        """How the attention is computed, in words; "" for an entry of `lipnb.models.ARCHITECTURES`."""
        return self.found if self.matrices is not None else "automatic differentiation of the network's own modules"

    def network_of(self, loaded):
        """The measured network inside the loaded one."""
        return loaded if self.part is None else loaded.get_submodule(self.part)

    def small_sides(self, config):
        """Height and width of the smallest images to check a network on; None for the size in its configuration."""
        if not self.interpolates:
            return None
        own, steps = picture_shape(config)[-2:], patch_sides(config)
        return tuple(min(4, length // step) * step for length, step in zip(own, steps, strict=True))

    def layers_of(self, network):
        """Layers of `network` in the order of their use, with repeats for shared ones."""
        return network.get_submodule(self.layers) if self.order is None else self.order(network)

    def attending(self, network):
        """Indices of the layers that hold attention, in order."""
        return [number for number, layer in enumerate(self.layers_of(network)) if self.attends(layer)]

    def call_of(self, network, layer, object="heads+output"):
        """Index of the layer among the calls of its module, which layers may share; counted from 0."""
        earlier = [number for number in self.attending(network) if number < layer]
        module = self.receiver(network, layer, object)
        return sum(self.receiver(network, number, object) is module for number in earlier)

    def attention_of(self, network, layer):
        """The module that computes queries, keys and values from the tokens it receives."""
        return self.layers_of(network)[layer].get_submodule(self.attention)

    def receiver(self, network, layer, object):
        """The module whose first argument is the input of `object` in that layer."""
        return self.layers_of(network)[layer] if object == "block" else self.attention_of(network, layer)

    def giver(self, network, layer):
        """The module whose output is the attention of that layer, output projection included."""
        return self.layers_of(network)[layer].get_submodule(self.projected or self.attention)

    def rotation(self, network, number, n):
        """The `Rotation` of a layer of `network` for n tokens, or None."""
        path = self.rotary[number] if isinstance(self.rotary, tuple) else self.rotary
        if path is None or not self.turns(self.layers_of(network)[number]):
            return None
        module = attrgetter(path)(network)
        if module is None:  # a family that can also be without rotation, as Granite's hybrids mostly are
            return None
        kind, prefix = None, ""
        if not hasattr(module, "inv_freq"):  # layers of different types have different rotations
            kind = network.config.layer_types[number]
            prefix = f"{kind}_"
        rope = getattr(module, "rope_type", None) or "default"
        rope = rope.get(kind) if isinstance(rope, dict) else rope
        if rope not in ROPES:
            raise ValueError(
                f"its rotary positions are of the type {rope!r}: the supported types are {', '.join(ROPES)}."
            )
        gain = float(getattr(module, f"{prefix}attention_scaling", 1.0))
        # the initial frequencies: a network that has read a longer text keeps those of that text
        kept = f"{prefix}original_inv_freq"
        frequencies = getattr(module, kept if hasattr(module, kept) else f"{prefix}inv_freq").detach().clone()
        if rope == "longrope":
            frequencies = _of_length(network.config, kind, n, frequencies)
        return Rotation(frequencies, gain, self.pairs == "neighbours")

    def attention_object(
        self, network: Any, number: int, object: str, masked: bool, n: int | None = None
    ) -> "Attention | Block | OwnAttention":
        """Attention of one layer as a closed form with a copy of the weights, or as the network's own modules.

        `Model.attention` explains `object` and `n`. ValueError if the attention has a feature that `Attention` lacks.
        """
        beyond = self.reach is not None and n is not None and n > self.reach
        if self.matrices is None or beyond:
            if object != "heads+output":
                where = f" beyond {self.reach} tokens" if beyond else ""
                raise ValueError(
                    f"the attention of {self.title}{where} can be measured only by automatic differentiation of its "
                    f"own module, which has no object={object!r}: take 'heads+output' (--object)."
                )
            return self.own_attention(network, number)
        if self.found and object == "block":
            raise ValueError(
                f"the attention of {self.title} has a closed form found by trial, which does not cover the rest of "
                "its layers: take object='heads+output' (--object)."
            )
        if self.reach is not None and n is None:
            raise ValueError(
                f"the closed form of {self.title}, found by trial, holds up to {self.reach} tokens; beyond them only "
                "its own modules can be measured: give the number of tokens, model.attention(layer, n=...)."
            )
        layer = self.layers_of(network)[number]
        given = arguments(self.matrices(layer), self.rotation(network, number, n))
        if self.relative is not None:
            given["relative"] = self.relative(network).to(given["query"])
        if object == "heads":
            given |= {"output": None, "output_bias": None}
        attention = Attention(**given, masked=masked, window=self.window(network.config, layer, number))
        if object != "block":
            return attention
        pre_norm = self.pre_norm(network.config) if callable(self.pre_norm) else self.pre_norm
        norm: Any = token_norm(torch.nn.Identity() if self.norm is None else layer.get_submodule(self.norm))
        after: Any = None if self.after is None else after_attention(attrgetter(self.after)(layer))
        return Block(attention, norm, pre_norm, after)

    def own_attention(self, network: Any, number: int) -> OwnAttention:
        """Attention of one layer, computed by the network's own modules."""
        module, giver = self.attention_of(network, number), self.giver(network, number)
        return OwnAttention(network, self.reads, module, giver, self.call_of(network, number))


def reads_other_keys(layer: torch.nn.Module) -> bool:
    """Whether attention in a layer reads the keys and values of another layer, as in the last layers of Gemma 3n."""
    return any(getattr(module, "is_kv_shared_layer", False) for module in layer.modules())


def _of_length(config, kind, n, short):
    """Frequencies of longrope: the short table for texts within the original length, else the long one."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    said = config.rope_parameters if kind is None else config.rope_parameters[kind]
    original = said["original_max_position_embeddings"]
    if n is None and original < config.max_position_embeddings:
        raise ValueError(
            f"its rotary positions are longrope, with one table up to {original} tokens and another beyond: give the "
            "number of tokens, model.attention(layer, n=...)."
        )
    if n is None or n <= original:
        return short
    return ROPE_INIT_FUNCTIONS["longrope"](config, short.device, seq_len=n, layer_type=kind)[0]


@dataclass(frozen=True, repr=False)
class Block:
    r"""Attention sub-layer with its residual connection and norms, without the feed-forward part.

    .. math:: x \mapsto \mathrm{LN}(x + f(x)) \quad\text{(post-norm, BERT)}, \qquad
              x \mapsto x + f(\mathrm{LN}(x)) \quad\text{(pre-norm, GPT-2; Llama with RMSNorm)}, \qquad
              x \mapsto x + g(f(\mathrm{LN}(x)))

    with :math:`f` multi-head attention with its output projection, and g a second norm (in Gemma 2 besides the first;
    OLMo 2 has only this one), LayerScale (DINOv2) or a factor (Granite). A feed-forward part that reads the same tokens
    as attention (GPT-NeoX, Phi, Cohere) is left out of the sum. Blocks work in batch and under `torch.func`.

    Parameters
    ----------
    attention : Attention
        The map :math:`f`, from shape (..., n, d) to shape (..., n, d).
    norm : callable
        LayerNorm or RMSNorm of each token, from shape (..., n, d) to shape (..., n, d).
    pre_norm : bool
        Whether the norm comes before attention.
    after : callable, optional
        With `pre_norm`: g, from shape (..., n, d) to shape (..., n, d).

    Notes
    -----
    castin2024smooth, Def. 2.2 and 2.5 for :math:`f`.
    """

    attention: Attention
    norm: Callable
    pre_norm: bool
    after: Callable | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Output tokens, shape (..., n, d), of tokens `x`, shape (..., n, d)."""
        if not self.pre_norm:
            return self.norm(x + self.attention(x))
        out = self.attention(self.norm(x))
        return x + (out if self.after is None else self.after(out))

    def __repr__(self):
        before = "x + att(norm(x))" if self.after is None else "x + after(att(norm(x)))"
        return f"Block({before if self.pre_norm else 'norm(x + att(x))'}, {self.attention!r})"
