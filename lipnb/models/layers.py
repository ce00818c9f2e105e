"""Self-attention layers of known architectures, cut into heads.

An architecture is one entry of ``ARCHITECTURES``: where its layers lie, where attention reads its input,
how the weights split into heads, and whether LayerNorm comes before or after the residual.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

from torch import Tensor
from torch.nn.functional import layer_norm

from lipnb.attention import Attention

__all__ = ["ARCHITECTURES", "Architecture", "OBJECTS", "Block", "attention_object"]

OBJECTS = ("heads", "heads+output", "block")


def _bert(layer):
    inner, dense = layer.attention.self, layer.attention.output.dense
    return dict(
        query=inner.query.weight, key=inner.key.weight, value=inner.value.weight, output=dense.weight,
        query_bias=inner.query.bias, key_bias=inner.key.bias, value_bias=inner.value.bias,
        output_bias=dense.bias,
        heads=inner.num_attention_heads, scale=inner.scaling,
    )


def _gpt2(layer):
    inner = layer.attn
    # Conv1D computes x W + b, so W is (in, out): queries, keys, values are blocks of columns, so are heads
    query, key, value = inner.c_attn.weight.T.chunk(3)
    query_bias, key_bias, value_bias = inner.c_attn.bias.chunk(3)
    return dict(
        query=query, key=key, value=value, output=inner.c_proj.weight.T,
        query_bias=query_bias, key_bias=key_bias, value_bias=value_bias, output_bias=inner.c_proj.bias,
        heads=inner.num_heads, scale=inner.scaling,
    )


@dataclass(frozen=True)
class Architecture:
    """How one family of transformers stores multi-head attention.

    Parameters
    ----------
    title : str
        Name for people.
    masks : tuple of bool
        The masks it can have; the first is its own when `mask_setting` is None.
    layers, attention, norm : str
        Attribute paths: from the network to its layers, from a layer to the module that receives the tokens
        and makes queries, keys and values of them, and from a layer to its LayerNorm.
    positions : str
        Attribute path from the network to its learned position embeddings.
    pre_norm : bool
        Whether the block is ``x + att(norm(x))`` (else ``norm(x + att(x))``).
    matrices : callable
        layer -> weights (h k, d), (h v, d), (m, h v), biases, number of heads and scale.
    mask_setting : str, optional
        Entry of config.json that switches the causal mask on.
    settings : dict
        Entries of config.json that are always overridden.
    required : dict
        Entries of config.json that, where present, must have this value for the maps to be ours.
    options : dict
        Keyword arguments of the network's class.
    """

    title: str
    masks: tuple
    layers: str
    attention: str
    norm: str
    positions: str
    pre_norm: bool
    matrices: Callable
    mask_setting: str | None = None
    settings: dict = field(default_factory=dict)
    required: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)

    def layers_of(self, network):
        """The list of layers of `network`."""
        return attrgetter(self.layers)(network)

    def receiver(self, network, layer, object):
        """The module whose first argument is what `object` of that layer receives."""
        module = self.layers_of(network)[layer]
        return module if object == "block" else attrgetter(self.attention)(module)


ARCHITECTURES = {
    "bert": Architecture(
        title="BERT", masks=(False, True), mask_setting="is_decoder", layers="encoder.layer",
        attention="attention.self", norm="attention.output.LayerNorm",
        positions="embeddings.position_embeddings", pre_norm=False, matrices=_bert,
        settings={"use_cache": False}, required={"position_embedding_type": "absolute"},
        options={"add_pooling_layer": False},
    ),
    "gpt2": Architecture(
        title="GPT-2", masks=(True,), layers="h", attention="attn", norm="ln_1", positions="wpe",
        pre_norm=True, matrices=_gpt2,
        # the same map, but it would compute the logits of a float64 network in float32
        settings={"use_cache": False, "reorder_and_upcast_attn": False},
    ),
}


@dataclass(frozen=True, repr=False)
class Block:
    r"""Attention sub-layer with its residual connection and LayerNorm.

    .. math:: x \mapsto \mathrm{LN}(x + f(x)) \quad\text{(post-norm, BERT)}, \qquad
              x \mapsto x + f(\mathrm{LN}(x)) \quad\text{(pre-norm, GPT-2)}

    with :math:`f` multi-head attention with its output projection. It works in batch and under `torch.func`.

    Parameters
    ----------
    attention : Attention
        The map :math:`f`, from shape (..., n, d) to shape (..., n, d).
    norm : callable
        LayerNorm of each token, from shape (..., n, d) to shape (..., n, d).
    pre_norm : bool
        Whether LayerNorm comes before attention.

    Notes
    -----
    castin2024smooth, Def. 2.2 and 2.5 for :math:`f`.
    """

    attention: Attention
    norm: Callable
    pre_norm: bool

    def __call__(self, x: Tensor) -> Tensor:
        """Output tokens, shape (..., n, d), of tokens `x`, shape (..., n, d)."""
        if self.pre_norm:
            return x + self.attention(self.norm(x))
        return self.norm(x + self.attention(x))

    def __repr__(self):
        return f"Block({'x + att(norm(x))' if self.pre_norm else 'norm(x + att(x))'}, {self.attention!r})"


def attention_object(architecture, layer, object, masked):
    r"""The attention of one layer of a network, as a map of its own.

    Parameters
    ----------
    architecture : Architecture
        How the layer stores its weights.
    layer : torch.nn.Module
        The layer.
    object : {"heads", "heads+output", "block"}
        Concatenated heads before the output projection; with the output projection and its bias; with
        residual and LayerNorm.
    masked : bool
        Whether the layer is causal.

    Returns
    -------
    Attention or Block
        A copy of the weights, cut into heads: query and key (h, k, d), value (h, v, d), output (h, m, v).

    Notes
    -----
    castin2024smooth, Def. 2.2 and 2.5.
    """
    tensors = architecture.matrices(layer)
    h, scale = tensors.pop("heads"), tensors.pop("scale")
    # a copy, so that nothing done to the map reaches the network
    tensors = {name: tensor.detach().clone() for name, tensor in tensors.items() if tensor is not None}
    for name in tensors.keys() - {"output", "output_bias"}:
        tensors[name] = tensors[name].unflatten(0, (h, -1)).contiguous()
    tensors["output"] = tensors["output"].unflatten(1, (h, -1)).movedim(1, 0).contiguous()
    if object == "heads":
        del tensors["output"]
        tensors.pop("output_bias", None)
    attention = Attention(**tensors, scale=scale, masked=masked)
    if object != "block":
        return attention
    norm = attrgetter(architecture.norm)(layer)
    weight, bias = norm.weight.detach().clone(), norm.bias.detach().clone()
    norm = partial(layer_norm, normalized_shape=norm.normalized_shape, weight=weight, bias=bias, eps=norm.eps)
    return Block(attention, norm, architecture.pre_norm)
