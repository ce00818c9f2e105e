"""Self-attention layers, cut into heads: what an architecture says of them, and the maps made of them.

An `Architecture` says where the layers lie, where attention reads its input, how the weights split into heads, and
whether the norm comes before or after the residual. Those known are in `lipnb.models.families`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm

from lipnb.attention import Attention

__all__ = ["Architecture", "OBJECTS", "Block", "attention_object"]

OBJECTS = ("heads", "heads+output", "block")


@dataclass(frozen=True)
class Architecture:
    """How one family of transformers stores multi-head attention.

    Parameters
    ----------
    title : str
        Name for people.
    masks : tuple of bool
        The masks it can have; the first is its own when `mask_setting` is None.
    layers, attention, projected, norm : str
        Attribute paths: from the network to its layers, from a layer to the module that receives the tokens
        and makes queries, keys and values of them, from a layer to the module that gives the output of attention
        (output projection included), and from a layer to its LayerNorm or RMSNorm.
    positions : str or None
        Attribute path from the network to its learned position embeddings; None where there are none.
    pre_norm : bool
        Whether the block is ``x + att(norm(x))`` (else ``norm(x + att(x))``).
    matrices : callable
        layer -> weights (h k, d), (g k, d), (g v, d), (m, h v), biases, numbers h of heads and g of those of keys, and
        scale.
    mask_setting : str, optional
        Entry of config.json that switches the causal mask on.
    settings : dict
        Entries of config.json that are always overridden.
    required : dict
        Entries of config.json that, where present, must have this value for the maps to be ours.
    options : dict
        Keyword arguments of the network's class.
    reads : {"input_ids", "pixel_values"}
        What the network reads: token ids or images.
    rotary : str, optional
        Attribute path from the network to the module that turns queries and keys by their places (RoPE).
    window : callable
        configuration, layer -> how many tokens a token of that layer sees (sliding window); None: all up to its own.
    longest : callable
        configuration -> most tokens that a sequence may have.
    interpolates : bool
        Whether it reads smaller images too, with its position embeddings interpolated.
    """

    title: str
    masks: tuple
    layers: str
    attention: str
    projected: str
    norm: str
    positions: str | None
    pre_norm: bool
    matrices: Callable
    mask_setting: str | None = None
    settings: dict = field(default_factory=dict)
    required: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)
    reads: str = "input_ids"
    rotary: str | None = None
    window: Callable = lambda config, layer: None
    longest: Callable = attrgetter("max_position_embeddings")
    interpolates: bool = False

    def layers_of(self, network):
        """The list of layers of `network`."""
        return attrgetter(self.layers)(network)

    def receiver(self, network, layer, object):
        """The module whose first argument is what `object` of that layer receives."""
        module = self.layers_of(network)[layer]
        return module if object == "block" else attrgetter(self.attention)(module)

    def giver(self, network, layer):
        """The module whose output is that of the attention of that layer, output projection included."""
        return attrgetter(self.projected)(self.layers_of(network)[layer])

    def rotation(self, network):
        """Frequencies (k / 2,) and gain of the rotary positions of `network`; None without them."""
        if self.rotary is None:
            return None
        module = attrgetter(self.rotary)(network)
        return module.inv_freq.detach().clone(), float(module.attention_scaling)


@dataclass(frozen=True, repr=False)
class Block:
    r"""Attention sub-layer with its residual connection and LayerNorm.

    .. math:: x \mapsto \mathrm{LN}(x + f(x)) \quad\text{(post-norm, BERT)}, \qquad
              x \mapsto x + f(\mathrm{LN}(x)) \quad\text{(pre-norm, GPT-2; Llama with RMSNorm)}

    with :math:`f` multi-head attention with its output projection. It works in batch and under `torch.func`.

    Parameters
    ----------
    attention : Attention
        The map :math:`f`, from shape (..., n, d) to shape (..., n, d).
    norm : callable
        LayerNorm or RMSNorm of each token, from shape (..., n, d) to shape (..., n, d).
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


def attention_object(architecture, layer, object, masked, rotation=None, window=None):
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
    rotation : tuple, optional
        From `Architecture.rotation`.
    window : int, optional
        How many tokens each one sees, where the layer has a sliding window.

    Returns
    -------
    Attention or Block
        A copy of the weights, cut into heads: query (h, k, d), key (g, k, d), value (g, v, d), output (h, m, v). The
        gain of a rotation, which queries and keys both have, is in the scale.

    Notes
    -----
    castin2024smooth, Def. 2.2 and 2.5.
    """
    tensors = architecture.matrices(layer)
    h, scale = tensors.pop("heads"), tensors.pop("scale")
    g = tensors.pop("groups", h)
    tensors = {name: tensor.detach() for name, tensor in tensors.items() if tensor is not None}
    for name in tensors.keys() - {"output", "output_bias"}:
        tensors[name] = tensors[name].unflatten(0, (h if name.startswith("query") else g, -1)).contiguous()
    tensors["output"] = tensors["output"].unflatten(1, (h, -1)).movedim(1, 0).contiguous()
    if object == "heads":
        del tensors["output"]
        tensors.pop("output_bias", None)
    frequencies, gain = (None, 1.0) if rotation is None else rotation
    attention = Attention(**tensors, scale=scale * gain**2, masked=masked, window=window, frequencies=frequencies)
    if object != "block":
        return attention
    return Block(attention, _norm(attrgetter(architecture.norm)(layer)), architecture.pre_norm)


def _norm(module):
    """LayerNorm or RMSNorm of a network, as a function with a copy of its weights."""
    weight = module.weight.detach().clone()
    if hasattr(module, "variance_epsilon"):
        return partial(rms_norm, normalized_shape=weight.shape, weight=weight, eps=module.variance_epsilon)
    return partial(
        layer_norm,
        normalized_shape=module.normalized_shape,
        weight=weight,
        bias=module.bias.detach().clone(),
        eps=module.eps,
    )
