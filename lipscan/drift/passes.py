"""Passes of a network that record the states between its layers, and put given states in their place."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from lipnb.threads import turn
from lipscan.drift.precision import cast
from lipscan.models import ARCHITECTURES, Model
from lipscan.models.hooks import Call, first_of
from lipscan.models.network import run

SAME = 1e-7  # relative difference up to which two float64 tensors are one: some networks keep tables in float32
SHORT = 8  # tokens of the pass that finds the halves of a layer


@dataclass(frozen=True)
class Network:
    """A network that can be run, and its layers.

    Attributes
    ----------
    whole, inner : torch.nn.Module
        The network with its output layer if it has one, and the part of it that holds the layers.
    architecture : lipscan.models.layers.Architecture
        Where they lie.
    halves : dict
        Layer -> names of the modules, in the layer, whose outputs are added to the stream: attention's and the MLP's.
        Layers where they are not known are absent.
    """

    whole: Any
    inner: Any
    architecture: Any
    halves: dict[int, tuple[str, str]] = field(default_factory=dict)

    @property
    def layers(self) -> list[Any]:
        """Layers in the order of their use, with repeats for shared ones."""
        return [*self.architecture.layers_of(self.inner)]

    @property
    def dtype(self) -> torch.dtype:
        """Floating point type of its weights."""
        return next(one.dtype for one in self.inner.parameters() if one.is_floating_point())

    def to(self, dtype: torch.dtype) -> "Network":
        """A copy in another type, see `lipscan.drift.precision.cast`; itself if it has that type below float64."""
        if dtype == self.dtype != torch.float64:
            return self
        place = next(name for name, module in self.whole.named_modules() if module is self.inner)
        whole = cast(self.whole, dtype)
        return replace(self, whole=whole, inner=whole.get_submodule(place))


def network_of(model: Any) -> Network:
    """The network of a `Model`, or a network of transformers whose family is known.

    ValueError for one that does not read token ids, or whose layers are not known.
    """
    if isinstance(model, Model):
        if model.architecture.reads != "input_ids":
            raise ValueError(f"{model.name} does not read text: drift compares networks that read token ids.")
        try:
            whole = model.language_model
        except ValueError:  # it has no logits
            whole = model.module
        return Network(whole, model.module, model.architecture)
    kind = getattr(getattr(model, "config", None), "model_type", "")
    architecture = ARCHITECTURES.get(kind)
    if architecture is None or architecture.parts or architecture.reads != "input_ids":
        raise ValueError(
            f"{type(model).__name__} is not a network whose layers are known here: give a model of lipnb.models.load, "
            "or a network of transformers that reads text."
        )
    return Network(model, architecture.network_of(model.base_model), architecture)


@dataclass
class Pass:
    """Recorded states of one pass.

    Attributes
    ----------
    hidden : list of Tensor, shape (b, n, d)
        Input of the first layer, then the output of each layer; the last one before the final norm.
    attention, mlp : dict
        Layer -> output of that half before it is added to the stream, (b, n, d).
    logits : Tensor, shape (b, n, vocabulary), or None
        Logits of the output layer.
    final : Tensor, shape (b, n, d)
        The last state after the final norm, or the last state itself in a network without one.
    experts : dict
        Layer -> experts chosen for each token by a mixture of experts, (b n, k), sorted.
    routing : dict
        Layer -> what they are chosen by, logits (b n, number of experts).
    calls : list of Call
        The call of each layer, to repeat it with other tokens.
    """

    hidden: list[Tensor] = field(default_factory=list)
    attention: dict[int, Tensor] = field(default_factory=dict)
    mlp: dict[int, Tensor] = field(default_factory=dict)
    logits: Tensor | None = None
    final: Tensor | None = None
    experts: dict[int, Tensor] = field(default_factory=dict)
    routing: dict[int, Tensor] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)


@torch.no_grad()
def passed(
    network: Network,
    ids: Tensor,
    streams: Sequence[Tensor] | None = None,
    attention: dict[int, Tensor] | None = None,
    mlp: dict[int, Tensor] | None = None,
) -> Pass:
    """One pass over token ids (b, n).

    Parameters
    ----------
    network : Network
        What is run.
    ids : LongTensor, shape (b, n)
        Token ids.
    streams : sequence of Tensor, shape (b, n, d), optional
        States to put in the place of the network's own: each layer receives its entry, whatever the layer before gave,
        and the output layer receives the last one. The pass records what the layers made of them.
    attention : dict, optional
        Layer -> (b, n, d): put in the place of what attention gives, after that is recorded. With `streams`, the output
        of a layer is then that of its MLP half.
    mlp : dict, optional
        The same for what the MLP gives. With both, the output of a layer is what comes after its halves.

    Returns
    -------
    Pass
        States of this pass.
    """
    found, layers = Pass(), network.layers
    given = [] if streams is None else [one.to(network.dtype) for one in streams]
    put = {number: one.to(network.dtype) for number, one in (attention or {}).items()}
    last = {number: one.to(network.dtype) for number, one in (mlp or {}).items()}

    def begin(module, args, kwargs):
        number = len(found.calls)
        call = Call(module, number, args, kwargs)
        found.calls.append(call)
        if number == 0:
            found.hidden.append(call.tokens.detach())
        return call.with_tokens(given[number]) if given else None

    def end(module, args, output):
        found.hidden.append(first_of(output).detach())
        if given and len(found.calls) == len(layers):
            return _with_first(output, given[-1])
        return None

    def attended(module, args, output):
        number = len(found.calls) - 1
        if number not in network.halves or layers[number].get_submodule(network.halves[number][0]) is not module:
            return None
        found.attention[number] = first_of(output).detach()
        return _with_first(output, put[number]) if number in put else None

    def mixed(module, args, output):
        number = len(found.calls) - 1
        if number not in network.halves or layers[number].get_submodule(network.halves[number][1]) is not module:
            return None
        found.mlp[number] = first_of(output).detach()
        return _with_first(output, last[number]) if number in last else None

    def routed(module, args, output):
        if isinstance(output, tuple) and not output[-1].is_floating_point():
            found.experts[len(found.calls) - 1] = output[-1].sort(-1).values
            found.routing[len(found.calls) - 1] = output[0].detach()

    def ended(module, args, output):
        found.final = output[0].detach()

    with turn():
        hooks = [network.inner.register_forward_hook(ended)]
        try:
            for layer in dict.fromkeys(layers):
                hooks.append(layer.register_forward_pre_hook(begin, with_kwargs=True))
                hooks.append(layer.register_forward_hook(end))
            for place, hook in ((0, attended), (1, mixed)):
                modules = [layers[number].get_submodule(names[place]) for number, names in network.halves.items()]
                hooks += [module.register_forward_hook(hook) for module in dict.fromkeys(modules)]
            routers = [one for layer in layers for one in layer.modules() if type(one).__name__.endswith("Router")]
            hooks += [module.register_forward_hook(routed) for module in dict.fromkeys(routers)]
            output = run(network.whole, "input_ids", ids.to(network.inner.device))
        finally:
            for hook in hooks:
                hook.remove()
    found.logits = getattr(output, "logits", None)
    return found


def _with_first(output, tokens):
    """The output of a module with other tokens."""
    return (tokens, *output[1:]) if isinstance(output, tuple | list) else tokens


@torch.no_grad()
def with_halves(network: Network, ids: Tensor) -> Network:
    """The network, in float64, with the halves of its layers: modules whose outputs add up to what a layer does.

    Of a layer with norms before its halves the output is input + attention + MLP, of one with norms after them it is
    norm(y + MLP) with y = norm(input + attention). Both are tried, on the first tokens of some ids (b, n).
    """
    found: dict[int, tuple[str, str]] = {}
    layers, ids = network.layers, ids[:1, :SHORT]
    own = passed(network, ids)
    for number, layer in enumerate(layers):
        if network.architecture.attends(layer):
            names = _halves(network.architecture, own.calls[number], *own.hidden[number : number + 2])
            if names is not None:
                found[number] = names
    return replace(network, halves=found)


def _halves(architecture, call, before, after):
    """Names of the modules of the two halves in a layer that maps one state to another, or None."""
    names = {module: name for name, module in call.module.named_modules() if name}
    received: dict[str, Tensor] = {}
    gave: dict[str, Tensor] = {}

    def hook(module, args, kwargs, output):
        tokens = next((one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)), None)
        for place, value in ((received, tokens), (gave, first_of(output))):
            if isinstance(value, Tensor) and value.shape == before.shape:
                place[names[module]] = value.detach()

    with turn():
        hooks = [module.register_forward_hook(hook, with_kwargs=True) for module in names]
        try:
            call.again(before)
        finally:
            for one in hooks:
                one.remove()
    attention = [architecture.after, architecture.projected, architecture.attention]
    attention = [name for name in dict.fromkeys(attention) if isinstance(name, str) and name in gave]
    for first in attention:
        for second, mlp in gave.items():
            if second not in attention and _same(before + gave[first] + mlp, after):
                return first, second
    for first in attention:
        norms = [norm for norm in received if norm in gave]
        middles = [gave[norm] for norm in norms if _same(before + gave[first], received[norm])]
        ends = [received[norm] for norm in norms if _same(gave[norm], after)]
        for second, mlp in gave.items():
            if any(_same(middle + mlp, end) for middle in middles for end in ends):
                return first, second
    return None


def _same(one, other):
    return bool((one - other).norm() <= SAME * other.norm())
