"""A transformer as a list of attention layers: token ids, the input of each attention, and the attention."""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import index
from typing import Any

import torch
from torch import Tensor

from lipnb.attention import Attention
from lipnb.checks import whole
from lipnb.threads import aside, turn
from lipscan.models.layers import OBJECTS, Architecture, Block, reads_other_keys
from lipscan.models.lm_head import Source, language_model
from lipscan.models.module_attention import OwnAttention
from lipscan.models.network import inputs_of, received, some_inputs, whole_network
from lipscan.models.self_check import check_ids, check_length

__all__ = ["Model"]

OTHER_KEYS = "the keys and values of another layer, in addition to tokens"


@dataclass
class Model:
    """A pretrained or random transformer, as a list of attention layers. Made by `lipnb.models.load`.

    Parameters
    ----------
    name : str
        Name of the model.
    weights : str
        Origin of the weights: "pretrained", "trained here" (gpt2-mini), "in memory", "random"; or "pretrained (Q4_1,
        Q8_0)" for weights as a GGUF file rounded them.
    masked : bool
        Whether attention is causal.
    tokenizer_name : str or None
        Name of the model whose tokenizer turns text into token ids; None without a tokenizer.
    layers, heads, width : int
        Number of layers, heads in each, and the dimension d of the tokens.
    module : torch.nn.Module
        The network, as transformers builds it.
    """

    name: str
    weights: str
    masked: bool
    tokenizer_name: str | None
    layers: int
    heads: int
    width: int
    module: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    architecture: Architecture = field(repr=False)
    source: Source = field(repr=False)
    unread: str = field(default="", repr=False)  # location of a tokenizer that exists but is not supported
    _language_model: Any = field(default=None, init=False, repr=False, compare=False)

    def token_ids(self, text: str) -> Tensor:
        """Token ids of a text, without special tokens.

        Parameters
        ----------
        text : str
            Any text; the words "[SEP]" or "<|endoftext|>" in it are read as ordinary text.

        Returns
        -------
        LongTensor, shape (t,)
            Ids from the model's own tokenizer, or from the tokenizer named by `tokenizer_name`.

        Raises
        ------
        ValueError
            `text` is not a str or gives no token, or the model has no tokenizer that can be read.
        """
        if self.tokenizer is None:
            has = f"has a tokenizer that cannot be read ({self.unread})" if self.unread else "has no tokenizer"
            write = "write its tokenizer.json with transformers (save_pretrained), or " if self.unread else ""
            raise ValueError(
                f"{self.name} {has}: {write}copy the files of one into its folder, or give one by name or folder with "
                "--tokenizer of lipnb scan (in Python load(..., tokenizer=...), or make token ids yourself)."
            )
        if not isinstance(text, str):
            raise ValueError(f"text must be a str, got {type(text).__name__}.")
        # verbose=False: no warning for a text longer than the model's positions, which is cut into windows later
        read = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)
        ids = read["input_ids"]
        if not ids:
            raise ValueError("the text holds no token: give at least one word.")
        return torch.tensor(ids, dtype=torch.long)

    def attention(
        self, layer: int, object: str = "heads+output", n: int | None = None
    ) -> Attention | Block | OwnAttention:
        """The attention of one layer.

        Parameters
        ----------
        layer : int
            Layer, from 0.
        object : {"heads", "heads+output", "block"}
            Concatenated heads before the output projection; with the output projection and its bias
            (default); the attention sub-layer with its residual and LayerNorm.
        n : int, optional
            Tokens of the sequences, at most `longest`; needed if rotary positions depend on it (longrope has one table
            up to the original length, and another beyond). Without `n`, the map is valid for at most `longest` tokens:
            with dynamic rotary positions the network rotates longer texts differently.

        Returns
        -------
        Attention or Block, or OwnAttention for a family without a closed form here (see `describe`)
            A map from tokens (..., n, d) to tokens (..., n, m), in the model's dtype and on its device, with the
            sliding window of the layer if it has one.

        Raises
        ------
        ValueError
            `layer` is out of range or holds no attention, `object` is unknown or not available for this family, `n` is
            larger than `longest`, or `n` is needed and missing.

        Notes
        -----
        castin2024smooth, Def. 2.2 (unmasked) and 2.5 (masked).
        """
        layer = self._check_place(layer, object)
        if n is not None and whole("n", n, 1) > self.longest:
            raise ValueError(f"{self.name} has {self.longest} positions, got n = {n}: give a smaller n.")
        with turn():
            return self.architecture.attention_object(self.module, layer, object, self.masked, n)

    @property
    def language_model(self) -> Any:
        """The network with its output layer, as a class of transformers around ``module``; read on first use.

        Raises
        ------
        ValueError
            The model has no logits; the message is a clause with the reason.
        """
        with turn():
            if self._language_model is None:
                self._language_model = language_model(self)
            return self._language_model

    @property
    def not_a_map(self) -> str:
        """Message of a solver that is given the whole model: what to pass instead."""
        return (
            f"{self.name} is a whole model: give one of its layers, f = model.attention(layer) at x = "
            "model.activations(token_ids, layer), or all of it, f = model.network()."
        )

    @property
    def attending(self) -> list[int]:
        """Indices of the layers with attention: all except in hybrids and for layers that read the keys of others."""
        return self.architecture.attending(self.module)

    @property
    def left_out(self) -> str:
        """Sentences on the layers that are not measured and why; empty if all hold attention."""
        layers = self.architecture.layers_of(self.module)
        others = [number for number in range(self.layers) if number not in self.attending]
        reading = [number for number in others if reads_other_keys(layers[number])]
        said = []
        for numbers, (one, many) in (
            ([number for number in others if number not in reading], ("holds no attention", "hold no attention")),
            (reading, (f"reads {OTHER_KEYS}", f"read {OTHER_KEYS}")),
        ):
            if numbers:
                which, does = ("Layer", one) if len(numbers) == 1 else ("Layers", many)
                said.append(f"{which} {', '.join(map(str, numbers))} of {self.name} {does}: not measured.")
        return " ".join(said)

    @property
    def longest(self) -> int:
        """Largest number of tokens in a sequence; for images, the number of tokens of a full-size image."""
        return self.architecture.longest(self.module.config)

    @torch.no_grad()
    def activations(self, token_ids: Tensor, layer: int, object: str = "heads+output") -> Tensor:
        """Input of the attention of one layer when the model reads these tokens.

        Parameters
        ----------
        token_ids : LongTensor, shape (b, n)
            Sequences of token ids, all of one length. For a model that reads images: Tensor, shape (b, c, h, w), float;
            DINOv2 reads any height and width that its patches divide, up to its full size. Whisper: spectra, (b, c, t).
        layer : int
            Layer, from 0.
        object : {"heads", "heads+output", "block"}
            The receiver. The block of a pre-norm model (GPT-2) receives the residual stream; its heads receive the
            stream after LayerNorm.

        Returns
        -------
        Tensor, shape (b, n, d)
            Tokens, in the model's dtype and on its device. Later layers are not run.

        Raises
        ------
        ValueError
            The inputs have the wrong shape, type or range or too many tokens, or the map of `attention` differs from
            the network at this length. That is tested once for each layer and length, at the cost of one more pass of
            the first sequence up to this layer. `lipnb.models.readings` has the network's own inputs and outputs.
        """
        layer, inputs = self._check_place(layer, object), inputs_of(self, token_ids)
        check_length(self, inputs[:1], layer)
        return received(self, inputs, layer, object)

    def network(self, to: str = "hidden", inputs: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """The network from end to end, as a map for `lipnb.local_lipschitz`.

        Parameters
        ----------
        to : {"hidden", "logits"}
            Whether it maps to the last hidden states or to the logits of the next token, see `whole_network`.
        inputs : Tensor, optional
            Token ids or images of the intended shape; needed for images, whose sides do not follow from a number of
            tokens, and for networks that read token ids again after their first layer.

        Returns
        -------
        callable
            A function of the input of the first layer, embeddings with their positions, (b, n, d):
            ``readings(model, token_ids)[0].stream``.

        Raises
        ------
        ValueError
            As for `whole_network`; also if `inputs` are needed and missing. Whether the network depends on token ids
            after its first layer is only found when the function is called.

        Examples
        --------
        >>> from lipnb import local_lipschitz, models
        >>> model = models.load("minilm")
        >>> x = models.readings(model, model.token_ids("how smooth?")[None])[0].stream
        >>> local_lipschitz(model.network(to="hidden"), x, rtol=1e-2).route
        'autodiff'
        """
        if inputs is not None:
            return whole_network(self, inputs, to)
        if self.architecture.reads != "input_ids":
            raise ValueError(f"{self.name} reads no token ids: give inputs=, images of the intended size.")
        whole_network(self, torch.zeros(1, 1, dtype=torch.long), to)  # raises its errors now

        def network(x):
            aside(check_ids, self, x.shape[1])  # not part of a derivative being taken
            return whole_network(self, some_inputs(self.module, "input_ids", x.shape[1], len(x)), to)(x)

        return network

    def describe(self) -> dict[str, Any]:
        """The model in plain values: name, weights, mask, tokenizer, sizes, type, device, layers left out.

        A family without an entry in `ARCHITECTURES` adds how its attention is computed: "closed form found by trial:
        ..." or "automatic differentiation of the network's own modules".
        """
        known = self.architecture.known
        return {
            "model": self.name,
            "architecture": self.architecture.title,
            "weights": self.weights,
            "masked": self.masked,
            "tokenizer": self.tokenizer_name,
            "layers": self.layers,
            "heads": self.heads,
            "width": self.width,
            "dtype": str(self.module.dtype).removeprefix("torch."),
            "device": str(self.module.device),
            **({"attention": known} if known else {}),
            **({"left_out": self.left_out} if self.left_out else {}),
        }

    def __repr__(self) -> str:
        said = ("name", "weights", "masked", "tokenizer_name", "layers", "heads", "width")
        known = f", attention={self.architecture.known!r}" if self.architecture.known else ""
        return f"Model({', '.join(f'{name}={getattr(self, name)!r}' for name in said)}{known})"

    def _check_place(self, layer, object):
        if object not in OBJECTS:
            raise ValueError(f"object must be one of {OBJECTS}, got {object!r}.")
        try:
            layer = index(layer)
        except TypeError:
            raise ValueError(f"layer must be an integer, got {layer!r}.") from None
        if not 0 <= layer < self.layers:
            raise ValueError(f"layer must be between 0 and {self.layers - 1} for {self.name}, got {layer}.")
        if layer not in self.attending:
            those = ", ".join(map(str, self.attending))
            read = reads_other_keys(self.architecture.layers_of(self.module)[layer])
            why = f"reads {OTHER_KEYS}: the layers that do not" if read else "holds no attention: the layers that do"
            raise ValueError(f"layer {layer} of {self.name} {why} are {those}.")
        return layer
