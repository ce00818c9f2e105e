"""Faults of ports and kernels, planted in one layer of a network of transformers, to see what `lipnb drift` finds.

A fault changes weights of the layer, or what its modules compute, before the layer is cast to the type of the run.
Every fault has up to three sizes, 0 to 2. It lies in the attention half of a layer (input to the stream after
attention), in the MLP half (from there to the output), or in both. A few lie outside the layers.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.functional import gelu, hardswish, relu
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

LOW = torch.bfloat16  # the wrong type of a fault
WIDER = {torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.float32: torch.float64}  # of a sum
BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
OUTSIDE = ("embedding", "logits")  # places outside the layers


class Parts(NamedTuple):
    """Names of the modules in a layer of a family; `first`, `last`: the halves of its norms, "layer" after both."""

    attention: str
    out: str
    up: str
    down: str
    act: str
    norm: str
    second: str
    first: str = "attention"
    last: str = "mlp"


FAMILIES = {
    "bert": Parts(  # its norms come after the halves: the first begins the other half
        "attention.self",
        "attention.output.dense",
        "intermediate.dense",
        "output.dense",
        "intermediate.intermediate_act_fn",
        "attention.output.LayerNorm",
        "output.LayerNorm",
        first="mlp",
        last="layer",
    ),
    "gpt2": Parts("attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj", "mlp.act", "ln_1", "ln_2"),
    "llama": Parts(
        "self_attn",
        "self_attn.o_proj",
        "mlp.up_proj",
        "mlp.down_proj",
        "mlp.act_fn",
        "input_layernorm",
        "post_attention_layernorm",
    ),
}


@dataclass(frozen=True)
class Site:
    """Where a fault is planted: a layer in float64, what is known of it, and the type that it will be cast to."""

    layer: Any
    config: Any
    dtype: torch.dtype
    tokens: int

    @property
    def family(self) -> str:
        """Its type of model, as transformers names it."""
        return self.config.model_type

    @property
    def causal(self) -> bool:
        """Whether tokens see no later ones."""
        return self.family != "bert"

    @property
    def head_dim(self) -> int:
        """Numbers in a head."""
        return getattr(self.config, "head_dim", self.config.hidden_size // self.config.num_attention_heads)

    def part(self, name: str) -> Any:
        """A module of the layer by its name in `Parts`."""
        return self.layer.get_submodule(getattr(FAMILIES[self.family], name))

    def rows(self, name: str) -> torch.Tensor:
        """Weight of a part or of "query", "key", "value", a view (out, in) to write into."""
        if name not in ("query", "key", "value"):
            return _out_in(self.part(name))
        if self.family == "gpt2":
            return _out_in(self.part("attention").c_attn).chunk(3)[("query", "key", "value").index(name)]
        return _out_in(getattr(self.part("attention"), name if self.family == "bert" else f"{name[0]}_proj"))


def _out_in(module):
    weight = module.weight.data
    return weight.T if type(module).__name__ == "Conv1D" else weight


class Absent(LookupError):
    """Error of a fault that is none in the type of the run."""


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    `plant`: ``plant(site, size)``. `amounts`: its sizes in words or numbers. `half`: "attention", "mlp", "both", "first
    norm", "last norm", or a place outside the layers. `families`: the types of model that can have it.
    """

    plant: Callable
    amounts: tuple
    half: str
    families: tuple

    def half_in(self, family: str, size: int) -> str:
        """The half in a family; norms stand in different halves, and a small truncation is attention's alone."""
        if self.half in ("first norm", "last norm"):
            return getattr(FAMILIES[family], self.half.split()[0])
        if self.half == "grows":
            return "both" if size else "attention"
        return self.half


FAULTS: dict[str, Fault] = {}


def fault(kind: str, *amounts: Any, half: str, families: tuple[str, ...] = (*FAMILIES,)) -> Callable:
    """Decorator that registers the function that plants a kind of fault, see `Fault`."""

    def register(plant):
        FAULTS[kind] = Fault(plant, amounts, half, families)
        return plant

    return register


def rounded(x: torch.Tensor, dtype: torch.dtype = LOW) -> torch.Tensor:
    """Numbers rounded to another type, in their own."""
    return x.to(dtype).to(x.dtype)


def truncated(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of a wider type cast to `dtype` by cutting digits off, towards zero."""
    near = x.to(dtype)
    over = near.to(x.dtype).abs() > x.abs()  # sign and magnitude: the pattern before is the next smaller number
    return torch.where(over, (near.view(BITS[dtype]) - over.to(BITS[dtype])).view(dtype), near)


# how a module is made to compute something else; each works in a copy of the module too


def _computing(module, forward):
    """Let a module compute ``forward(module, usual, *args, **kwargs)``; `usual` is its method."""
    kind = type(module)

    def other(self, *args, **kwargs):
        return forward(self, lambda *a, **k: kind.forward(self, *a, **k), *args, **kwargs)

    module.__class__ = type(kind.__name__, (kind,), {"forward": other, "__module__": kind.__module__})


def _given(module, **changes):
    """Change keyword arguments of a module's calls: name -> function of the value and of the module's first tokens."""

    def changed(module, args, kwargs):
        tokens = args[0] if args else kwargs["hidden_states"]
        return args, kwargs | {name: change(kwargs.get(name), tokens) for name, change in changes.items()}

    module.register_forward_pre_hook(changed, with_kwargs=True)


class _Softmax(TorchFunctionMode):
    """Mode in which the softmax is another function of the logits (..., n)."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.nn.functional.softmax, torch.softmax, torch.Tensor.softmax):
            return self.function(args[0])
        return func(*args, **(kwargs or {}))


def _running_sum(x):
    """Sum over the last axis, one term after the other, each rounded."""
    total = torch.zeros_like(x[..., 0])
    for term in x.unbind(-1):
        total = rounded(total + term)
    return total[..., None]


# attention


@fault("attention scale", 1.001, 1.01, 1.1, half="attention")
def _scale(site, size):
    site.part("attention").scaling *= FAULTS["attention scale"].amounts[size]


@fault("softmax in a wrong type", "bfloat16", "bfloat16 running sum", "float8", half="attention")
def _softmax(site, size):
    def probabilities(logits):
        if size == 2:
            return rounded(logits.softmax(-1), torch.float8_e4m3fn)
        weights = rounded((logits - logits.amax(-1, keepdim=True)).exp())
        total = _running_sum(weights) if size else rounded(weights.sum(-1, keepdim=True))
        return rounded(weights / total)

    def forward(module, usual, *args, **kwargs):
        with _Softmax(probabilities):
            return usual(*args, **kwargs)

    _computing(site.part("attention"), forward)


def _hiding(site, hides):
    """Give attention a mask; `hides` (n, n) tells which tokens a token (row) does not see."""

    def mask(before, tokens):
        low = torch.finfo(tokens.dtype).min
        return torch.zeros(hides.shape, dtype=tokens.dtype).masked_fill(hides, low)[None, None]

    _given(site.part("attention"), attention_mask=mask)


def _distance(site):
    """How far a token (column) is before another one (row), and whether it is hidden by right."""
    place = torch.arange(site.tokens)
    distance = place[:, None] - place
    return distance, (distance < 0) if site.causal else torch.zeros_like(distance, dtype=bool)


@fault("mask off by one", "one token", "all tokens", "several", half="attention")
def _mask(site, size):
    distance, hides = _distance(site)
    if site.causal:  # one or all tokens see the next one; no token sees itself, except the first
        middle = site.tokens // 2
        if size == 0:
            hides[middle, middle + 1] = False
        else:
            hides = distance < -1 if size == 1 else distance <= 0
        hides[0, 0] = False
    else:  # the last token, or four, are taken for padding
        hides[site.tokens // 2 if size == 0 else slice(None), -4 if size == 2 else -1 :] = True
    _hiding(site, hides)


@fault("window off by one", "all but one token", "three quarters", "one half", half="attention")
def _window(site, size):
    distance, hides = _distance(site)
    window = (site.tokens - 1, 3 * site.tokens // 4, site.tokens // 2)[size]
    _hiding(site, hides | (distance.abs() >= window))


@fault("heads share other keys", "two heads", "two groups", "all heads", half="attention", families=("llama",))
def _head_order(site, size):
    heads, keys = site.config.num_attention_heads, site.config.num_key_value_heads
    group = heads // keys
    order = list(range(heads))  # head that stands at each place
    if size == 2:  # repeated as a block, in place of each in its turn: head h reads keys h mod `keys`
        order = sorted(range(heads), key=lambda head: (head % keys, head // keys))
    else:
        count = group if size else 1
        order[:count], order[group : group + count] = order[group : group + count], order[:count]
    _in_order(site.rows("query"), order, 0)
    _in_order(site.rows("out"), order, 1)


def _in_order(weight, order, dim):
    parts = weight.clone().chunk(len(order), dim)
    weight.copy_(torch.cat([parts[one] for one in order], dim))


def _frequencies(site):
    return site.config.rope_parameters["rope_theta"] ** -(
        torch.arange(0, site.head_dim, 2, dtype=torch.float64) / site.head_dim
    )


def _rotating_by(site, angles, stored=lambda x: x):
    """Rotate queries and keys by other angles, ``angles(places)`` (n, k/2)."""

    def tables(before, tokens):
        found = angles(torch.arange(tokens.shape[1], dtype=torch.float64)[:, None])
        found = torch.cat((found, found), -1)[None]
        return tuple(stored(one.to(tokens.dtype)) for one in (found.cos(), found.sin()))

    _given(site.part("attention"), position_embeddings=tables)


@fault("rotary base", 1.01, 1.1, 10.0, half="attention", families=("llama",))
def _base(site, size):
    inverse = _frequencies(site)
    step = torch.arange(len(inverse), dtype=torch.float64) / len(inverse)
    _rotating_by(site, lambda place: place * inverse * FAULTS["rotary base"].amounts[size] ** -step)


@fault("rotation in bfloat16", "frequencies", "angles", "tables", half="attention", families=("llama",))
def _rotation_type(site, size):
    inverse = _frequencies(site)
    if size == 2:
        if site.dtype == LOW:
            raise Absent("in bfloat16 the tables of transformers are in bfloat16")
        _rotating_by(site, lambda place: place * inverse, rounded)
    else:
        _rotating_by(site, lambda place: rounded(place * rounded(inverse), LOW if size else place.dtype))


@fault("interleaved rotation", "one head", "half of the heads", "all heads", half="attention", families=("llama",))
def _interleaved(site, size):
    keys = site.config.num_key_value_heads
    count = (1, max(1, keys // 2), keys)[size]  # heads of keys, with all queries that read them
    order = torch.arange(site.head_dim).view(-1, 2).T.flatten()
    for name, heads in (("query", site.config.num_attention_heads), ("key", keys)):
        part = site.rows(name).unflatten(0, (heads, site.head_dim))[: count * heads // keys]
        part.copy_(part[:, order].clone())


@fault("positions off by one", 1, 2, 8, half="attention", families=("llama",))
def _positions(site, size):
    """Queries rotated by that many positions more than keys."""
    step = FAULTS["positions off by one"].amounts[size]
    angle = step * _frequencies(site)
    query = site.rows("query").unflatten(0, (-1, site.head_dim))
    one, other = (part.clone() for part in query.chunk(2, 1))
    query.copy_(
        torch.cat(
            (
                one * angle.cos()[:, None] - other * angle.sin()[:, None],
                other * angle.cos()[:, None] + one * angle.sin()[:, None],
            ),
            1,
        )
    )


@fault("LoRA not merged", 0.001, 0.01, 0.1, half="attention")
def _lora(site, size):
    draw = torch.Generator().manual_seed(0)
    for name in ("query", "value"):
        weight = site.rows(name)
        change = torch.randn(len(weight), 8, generator=draw, dtype=weight.dtype)
        change = change @ torch.randn(8, weight.shape[1], generator=draw, dtype=weight.dtype)
        weight.add_(change * (FAULTS["LoRA not merged"].amounts[size] * weight.norm() / change.norm()))


def _without(bias, size):
    """Set the largest entry of a bias, every other one, or all to zero."""
    bias.data[(bias.data.abs().argmax(), slice(None, None, 2), slice(None))[size]] = 0


@fault("missing bias of attention", "largest entry", "half", "all", half="attention", families=("bert", "gpt2"))
def _attention_bias(site, size):
    _without(site.part("out").bias, size)


# the MLP


@fault("missing bias of the MLP", "largest entry", "half", "all", half="mlp", families=("bert", "gpt2"))
def _bias(site, size):
    _without(site.part("up").bias, size)


@fault("missing rows of a weight", "one", "one eighth", "half", half="mlp")
def _shard(site, size):
    weight = site.rows("up")
    weight[: (1, len(weight) // 8, len(weight) // 2)[size]] = 0


@fault("quantised tensor", "8 bits", "6 bits", "4 bits", half="mlp")
def _quantised(site, size):
    weight, most = site.rows("down"), 2 ** ((8, 6, 4)[size] - 1) - 1
    step = weight.abs().amax(1, keepdim=True) / most
    weight.copy_((weight / step).round() * step)


def _quick_gelu(x):
    return x * torch.sigmoid(1.702 * x)


def _tanh_gelu(x):
    return gelu(x, approximate="tanh")


@fault("other activation", "nearest", "quick GELU", "farthest", half="mlp")
def _activation(site, size):
    nearest = {"bert": _tanh_gelu, "gpt2": gelu, "llama": hardswish}[site.family]
    other = (nearest, _quick_gelu, _tanh_gelu if site.family == "llama" else relu)[size]
    _computing(site.part("act"), lambda module, usual, x: other(x))


@fault("gate in bfloat16", "activation", "and product", "and inputs", half="mlp")
def _gate(site, size):
    if site.dtype == LOW:
        raise Absent("in bfloat16 all is in bfloat16")
    before = rounded if size == 2 else lambda x: x
    _computing(site.part("act"), lambda module, usual, x: rounded(usual(before(x))))
    if size == 2:
        _computing(site.part("up"), lambda module, usual, x: rounded(usual(x)))
    if size:
        _computing(site.part("down"), lambda module, usual, x: usual(rounded(x)))


# norms


@fault("eps of a norm", 1e-6, 1e-4, 1e-2, half="first norm")
def _eps(site, size):
    norm = site.part("norm")
    setattr(norm, "eps" if hasattr(norm, "eps") else "variance_epsilon", FAULTS["eps of a norm"].amounts[size])


@fault("norm in bfloat16", "factor", "squares", "running sum", half="last norm")
def _norm_type(site, size):
    def forward(module, usual, x):
        y = x.to(WIDER.get(x.dtype, x.dtype))
        if bias := hasattr(module, "bias"):
            y = y - y.mean(-1, keepdim=True)
        squares = rounded(y * y) if size else y * y
        mean = _running_sum(squares) / x.shape[-1] if size == 2 else squares.mean(-1, keepdim=True)
        y = y * rounded(((rounded(mean) if size else mean) + (module.eps if bias else module.variance_epsilon)).rsqrt())
        return (y.to(x.dtype) * module.weight + module.bias) if bias else module.weight * y.to(x.dtype)

    _computing(site.part("second"), forward)


# the whole layer


@fault("truncation", "output of attention", "all products", "output of the layer", half="grows")
def _truncation(site, size):
    names = {0: ["out"], 1: ["out", "up", "down"]}.get(size)
    for module in [site.layer] if names is None else map(site.part, names):
        _computing(module, cut_off(site.dtype))


def cut_off(dtype: torch.dtype) -> Callable:
    """Forward that computes in a wider type and cuts digits off its result; in float64 all but those of float32."""
    dtype = torch.float32 if dtype == torch.float64 else dtype
    wide = WIDER[dtype]

    def forward(module, usual, *args, **kwargs):
        held = [(one, one.data) for one in module.parameters()]
        try:
            for one, data in held:
                one.data = data.to(wide)
            args, kwargs = tree_map_only(torch.Tensor, lambda x: _to(x, wide), (args, kwargs))
            found = usual(*args, **kwargs)
        finally:
            for one, data in held:
                one.data = data
        return tree_map_only(torch.Tensor, lambda x: truncated(x.to(wide), dtype).to(held[0][1].dtype), found)

    return forward


def _to(x, dtype):
    return x.to(dtype) if x.is_floating_point() else x


# outside the layers: the site's layer is the whole network, and the result a module with its other weight


@fault("learned positions off by one", 1, 2, 8, half="embedding", families=("bert", "gpt2"))
def _learned(site, size):
    name = {"bert": "embeddings.position_embeddings", "gpt2": "wpe"}[site.family]
    table = site.layer.base_model.get_submodule(name)
    return table, table.weight.roll(-FAULTS["learned positions off by one"].amounts[size], 0)


@fault("tied weights not tied", "0.1 % off", "1 % off", "as drawn", half="logits", families=("gpt2", "llama"))
def _untied(site, size):
    head = site.layer.get_output_embeddings()
    noise = torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(0), dtype=head.weight.dtype)
    noise *= head.weight.norm() / math.sqrt(noise.numel())
    return head, noise if size == 2 else head.weight + (0.001, 0.01)[size] * noise


def faulty(
    reference: Any,
    kind: str,
    size: int,
    number: int,
    dtype: torch.dtype,
    tokens: int,
    strength: float = 1.0,
    config: Any = None,
) -> Any:
    """A copy of a layer of a network in float64, with a fault of a layer; not yet cast to the type of the run.

    `strength`: part of the change of the weights that is made. `config`: configuration that the copy reads its kernel
    from; default: that of the reference.
    """
    own, layer = reference.inner.config, reference.layers[number]
    copy = deepcopy(layer, {id(own): own if config is None else config})
    with torch.no_grad():
        FAULTS[kind].plant(Site(copy, own, dtype, tokens), size)
        if strength < 1:
            for one, before in zip(copy.parameters(), layer.parameters(), strict=True):
                one.data = before + strength * (one - before)
    return copy


@contextmanager
def planted(
    reference: Any, low: Any, kind: str, size: int, layers: list[int], tokens: int, strength: float = 1.0
) -> Iterator[Any]:
    """A network of a type with a fault, inside a block; then it is as before.

    `reference`, `low`: one network, a `lipscan.drift.passes.Network`, in float64 and cast to a type. In `low` layers
    are replaced by copies of those of the reference that have the fault and are then cast.
    `kind`, `size`, `strength`: the fault. `layers`: where, ignored by faults outside the layers. `tokens`: length of
    the texts.
    Raises `Absent` if that is no fault in this type.
    """
    if FAULTS[kind].half in OUTSIDE:
        module, weight = FAULTS[kind].plant(Site(reference.whole, reference.inner.config, low.dtype, tokens), size)
        name = next(name for name, other in reference.whole.named_modules() if other is module)
        weight = torch.nn.Parameter(weight.detach().to(low.dtype), requires_grad=False)
        changes = [(low.whole.get_submodule(name), "weight", weight)]
    else:
        stack, config = low.inner.get_submodule(low.architecture.layers), low.inner.config
        copies = [faulty(reference, kind, size, number, low.dtype, tokens, strength, config) for number in layers]
        changes = [(stack, str(number), copy.to(low.dtype)) for number, copy in zip(layers, copies, strict=True)]
    kept = [(module, name, getattr(module, name)) for module, name, _ in changes]
    try:
        for module, name, value in changes:
            setattr(module, name, value)
        yield low
    finally:
        for module, name, value in kept:
            setattr(module, name, value)
