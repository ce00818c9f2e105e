"""Closed forms by trial: attention of a family without an entry, interpreted as a known layout.

The tensors (names and shapes) and settings of a module suggest a few interpretations, here called readings. One is
accepted only if every layer's own module agrees with it to rounding: on two texts of each of two lengths, on tokens so
large that logits saturate, on tokens as small as an epsilon, and with each length of the configuration shortened in
turn, so that a window or a chunk larger than these texts is detected too. Otherwise the module is differentiated.
"""

import itertools
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lipnb.attention import Attention
from lipscan.models.changes import Draws
from lipscan.models.hooks import Call, capture
from lipscan.models.layers import Architecture
from lipscan.models.module_attention import HEADS
from lipscan.models.network import ROUNDING, allowed, one_call, run, some_inputs
from lipscan.models.split_heads import cut, linear_maps

LENGTHS = (10, 14)  # tokens, not multiples of a window to which a network would pad
SEEDS = (1, 2)  # of the two texts
MOST = 64  # tokens up to which a text is lengthened to detect a window
SHORT = 5  # tokens to which a length of the configuration is shortened
STEEP = 20.0  # logits that reveal a cap, a wrong scale or a wrong rotation, but not rounding in float32
CLIPPED, COARSE = 2.0**10, 1e-2  # scale of the tokens that reveals clipped rows; rounding may move a few rows there
TINY = 2.0**-6  # scale of the tokens that reveals the epsilon of a norm
LIKE_A_LENGTH = re.compile(r"window|chunk|block|top_?k|local_att|floor|original|max_pos|thresh|length|stride|span|seq")
LIKE_A_WINDOW = re.compile(r"window|local_att")
FAILS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

PART = r"^(?:w|linear_?|proj_?)?({})(?:_?(?:proj|lin|linear|layer|map))?$"
QUERY, KEY, VALUE = (re.compile(PART.format(names)) for names in ("q|query", "k|key", "v|value"))
FUSED = re.compile(r"qkv|query_key_value|^c_attn$|^in_proj$|^w_pack$|^att_proj$")
OUTPUT = re.compile(r"^(?:o|out|output|dense|c_proj|proj|wo)(?:_?(?:proj|lin|linear|layer|dense))?$")
WIDTHS = ("head_dim", "attention_head_size", "head_size", "d_kv", "key_value_proj_dim", "kv_channels", "d_head")
SCALES = ("scaling", "scale", "softmax_scale", "scaling_factor", "inv_norm_factor")
CAPS = ("attn_logit_softcapping", "attn_logit_softcap", "attn_logits_soft_cap", "softcap", "logit_cap")


@dataclass(frozen=True)
class Layout:
    """Layout of the attention module in a layer; called with a layer, it returns the input of `split_heads.arguments`.

    Parameters
    ----------
    inner, output : str
        Paths from a layer to its attention module, and to the linear map of the output.
    parts : tuple of str
        Paths from that module to the maps of queries, keys and values; or to one fused map.
    by_group : bool
        For a fused map: whether queries, key and value of the first group come first; else all queries, keys, values.
    scale : str or float, optional
        Path from the module to the scale of the logits, or the scale; None: one over the root of a head's width.
    norms : tuple of str, optional
        Paths from the module to the norms of queries and keys.
    cap, sinks : str, optional
        Paths from the module to the cap of the logits, and to the logits of sinks.
    """

    inner: str
    output: str
    parts: tuple[str, ...]
    by_group: bool = False
    scale: str | float | None = None
    norms: tuple[str, str] | None = None
    cap: str | None = None
    sinks: str | None = None

    def __call__(self, layer: Any) -> dict[str, Any]:
        """Weights, biases, numbers of heads and settings of a layer."""
        module, output = layer.get_submodule(self.inner), layer.get_submodule(self.output)
        linear = [module.get_submodule(path) for path in self.parts]
        if len(linear) == 3:
            query, key, value = linear
            said = linear_maps(query, key, value, output)
            k = _said(module, WIDTHS) or len(said["query"]) // _heads(module)
            said |= {"heads": len(said["query"]) // k, "groups": len(said["key"]) // k}
        else:
            said = self._one_map(module, linear[0], output)
            k = len(said["query"]) // said["heads"]
        if isinstance(self.scale, str):
            said["scale"] = float(attrgetter(self.scale)(module))
        else:
            said["scale"] = k**-0.5 if self.scale is None else self.scale
        if self.norms is not None:
            query, key = map(module.get_submodule, self.norms)
            said |= {"query_norm": query, "key_norm": key}
        said["cap"] = None if self.cap is None else attrgetter(self.cap)(module)
        said["sinks"] = None if self.sinks is None else attrgetter(self.sinks)(module).flatten()
        return said

    def _one_map(self, module, linear, output):
        """Queries, keys and values of a fused map, whose number of rows determines the number of groups."""
        columns = type(linear).__name__ == "Conv1D"
        rows, last = (each.weight.T if columns else each.weight for each in (linear, output))
        h = _heads(module)
        k = _said(module, WIDTHS) or last.shape[1] // h
        g = (len(rows) // k - h) // 2
        if g < 1 or h % g or len(rows) != (h + 2 * g) * k:
            raise ValueError("the rows of the map of queries, keys and values do not fit its heads.")
        said = cut(rows, linear.bias, h, g, self.by_group)
        return said | {"output": last, "output_bias": output.bias, "heads": h, "groups": g}

    def __str__(self):
        return "separate projections" if len(self.parts) == 3 else "one projection of queries, keys and values"


class Window(NamedTuple):
    """A window defined by an entry of the configuration: the entry divided by `over`, plus `more`."""

    entry: str
    over: int = 1
    more: int = 0


@dataclass(frozen=True)
class Windows:
    """Windows of all layers, as `Architecture.window`."""

    of: tuple[Window | None, ...]

    def __call__(self, config: Any, layer: Any, number: int) -> int | None:
        """Tokens that a token of this layer sees on each side, itself included; None: all."""
        window = self.of[number]
        return None if window is None else getattr(config, window.entry) // window.over + window.more


class Choice(NamedTuple):
    """One reading of a layer, without its mask."""

    layout: Layout
    rotary: str | None
    pairs: str
    window: Window | None


class Pass(NamedTuple):
    """One pass of the network: call and output of each attention module, by layer."""

    shortened: tuple[str, int] | None  # the length of the configuration that was shortened, and its original value
    calls: dict[int, tuple[Call, Tensor]]


@torch.no_grad()
def tried(network: Any, architecture: Architecture, masked: bool) -> Architecture:
    """The architecture with a closed form of all its attention, if a reading agrees with the network's own modules.

    Parameters
    ----------
    network : torch.nn.Module
        A network whose attention `architecture` locates, and whose mask is `masked`.
    architecture : Architecture
        Without `matrices`.
    masked : bool
        Whether attention is causal.

    Returns
    -------
    Architecture
        With `matrices` and a description in `found`; the given one if no reading agrees in every layer.
    """
    exact = network.dtype in (torch.float32, torch.float64)  # rounding of narrower types would hide differences
    if architecture.reads != "input_ids" or not exact or not architecture.attending(network):
        return architecture
    try:
        with Draws():  # a module called alone may draw random numbers too
            trials = (_Trial(network, place, masked).found() for place in _places(network, architecture))
            return next(filter(None, trials), architecture)
    except FAILS:  # arbitrary code of a family: what cannot be interpreted is left as it is
        return architecture


class _Trial:
    """Passes of a network, and the search for readings that agree with its modules."""

    def __init__(self, network, architecture, masked):
        self.network, self.architecture, self.masked = network, architecture, masked
        self.layers = architecture.layers_of(network)
        self.attending = architecture.attending(network)
        self.longest = architecture.longest(network.config)
        lengths = {pair for root in (network.config, *map(self._receiver, self.attending)) for pair in _lengths(root)}
        windows = {key: getattr(network.config, key, None) for key, _ in lengths if LIKE_A_WINDOW.search(key)}
        windows = {key: size for key, size in windows.items() if type(size) is int and size > 0}
        first, second = LENGTHS
        second = max([second, *(size + 2 for size in windows.values() if size <= MOST - 2)])
        self.lengths = sorted({min(first, self.longest), min(second, self.longest)})
        if len(self.lengths) < 2 or self.lengths[0] < SHORT + 2:
            raise ValueError("its texts are too short to tell two lengths apart.")
        most = self.lengths[-1]
        self.passes = [self._pass(n, seed) for n, seed in itertools.product(self.lengths[::-1], SEEDS)]
        self.hidden = sorted((key, size) for key, size in lengths if most <= size < self.longest)
        self.windows = sorted(windows)

    def _pass(self, n, seed, shortened=None):
        """A pass over a random text; ValueError if layers receive other tokens than the network reads."""
        number_of, places = self.architecture.call_of, {}
        for number in self.attending:
            module, giver = (
                getattr(self.architecture, which)(self.network, number) for which in ("attention_of", "giver")
            )
            places[number] = module, giver, number_of(self.network, number)
        inputs = some_inputs(self.network, self.architecture.reads, n, seed=seed)
        with _shorter(self.network, shortened), capture(*(one for both in places.values() for one in both[:2])) as seen:
            run(self.network, self.architecture.reads, inputs)
        calls = {}
        for number, (module, giver, call) in places.items():
            given = one_call(seen, module, call)
            if given.tokens.shape[:2] != inputs.shape:
                raise ValueError("its layers receive other tokens than the network reads.")
            calls[number] = given, one_call(seen, giver, call).given
        return Pass(shortened, calls)

    def found(self):
        """The architecture of the reading that agrees with all modules, or None."""
        choices, misfits = {}, [0.0]
        probes = [one for one in map(self._probe, self.hidden) if one is not None]
        limits = {*self.hidden} - {probe.shortened for probe in probes}
        last = None
        for number in self.attending:
            own = self._own(number)
            last = self._search(number, own, last)
            if last is None:
                return None
            for probe in probes:
                window = self._window(number, own, last, probe)
                if window is False:
                    limits.add(probe.shortened)
                else:
                    last = last._replace(window=window)
            misfit = max(self._misfit(number, own, last, one) for one in self.passes)
            inside = max(self._misfit_inside(number, last, one) for one in self.passes)
            if not misfit <= ROUNDING or not inside <= allowed(self.network.dtype):
                return None
            misfits.append(misfit)
            choices[number] = last
        return self._architecture(choices, min((size - 1 for _, size in limits), default=None), max(misfits))

    def _probe(self, length):
        """A pass with one length of the configuration shortened; None if the network then does not run."""
        try:
            return self._pass(self.lengths[-1], SEEDS[0], length)
        except FAILS:
            return None

    def _receiver(self, number):
        return self.architecture.attention_of(self.network, number)

    def _own(self, number):
        """Function for the output of a layer's own module in float64, of a call, its tokens and a shortened length."""
        module = self._receiver(number)
        giver = self.architecture.giver(self.network, number)
        inside = next((path for path, one in module.named_modules() if one is giver), None)
        copies = [deepcopy(part) for part in (module, *([giver] if inside is None else []))]
        for parameter in itertools.chain.from_iterable(copy.parameters() for copy in copies):
            parameter.data = parameter.data.double()
        copy, *outside = copies

        def own(call: Call, x: Tensor, shortened: tuple[str, int] | None) -> Tensor:
            call = replace(call, module=copy, args=_double(call.args), kwargs=_double(call.kwargs))
            with _shorter(copy, shortened), capture(copy.get_submodule(inside or "")) as calls:
                given = call.again(x)
            return outside[0](given) if outside else calls[-1].given

        return own

    def _attention(self, number, choice, shortened=None, n=None):
        """The map of a layer according to one reading, in the network's type."""
        count = len(self.layers)
        read = replace(
            self.architecture,
            matrices=choice.layout,
            rotary=(choice.rotary,) * count,
            pairs=choice.pairs,
            window=Windows((choice.window,) * count),
        )
        with _shorter(self.network, shortened):
            return read.attention_object(self.network, number, "heads+output", self.masked, n)

    def _misfit(self, number, own, choice, one):
        """Largest relative difference between a reading and the layer's module in float64, at several sizes of tokens.

        Stops at the first that exceeds rounding. At the size where rows may be clipped, only coarse differences count.
        """
        call, _ = one.calls[number]
        f = self._attention(number, choice, one.shortened, call.tokens.shape[1]).to(torch.float64)
        x = call.tokens.double()
        worst = 0.0
        for times in (_steep(f, x), 1.0, TINY, CLIPPED):
            ours, theirs = f(times * x), own(call, times * x, one.shortened)
            misfit = _relative(ours, theirs)
            if times < CLIPPED or not misfit <= COARSE:
                worst = max(misfit, worst)  # NaN first, so that it stays
            if not worst <= ROUNDING:
                return math.inf if math.isnan(worst) else worst
        return worst

    def _misfit_inside(self, number, choice, one):
        """Relative difference between a reading and the output of the module inside the network."""
        call, given = one.calls[number]
        return _relative(self._attention(number, choice, None, call.tokens.shape[1])(call.tokens), given)

    def _search(self, number, own, last):
        """The first reading of a layer that agrees on the longest text, or None; starts with the previous layer's.

        Windows too long for this text are left to `_window`.
        """
        first = [] if last is None else [last._replace(window=window) for window in self._visible()]
        for choice in itertools.chain(first, self._readings(number, last)):
            try:
                if self._misfit(number, own, choice, self.passes[0]) <= ROUNDING:
                    return choice
            except FAILS:  # tensors without the required shapes
                continue
        return None

    def _visible(self):
        seen = [key for key in self.windows if getattr(self.network.config, key) < self.lengths[-1]]
        return [None, *(window for key in seen for window in self._windows_by(key))]

    def _windows_by(self, key):
        if self.masked:
            return [Window(key), Window(key, 1, 1)]
        return [Window(key, 2, 1), Window(key, 1, 1), Window(key), Window(key, 2, 0)]

    def _window(self, number, own, choice, probe):
        """The window with which a reading agrees after one length is shortened; False if none does."""
        key = probe.shortened[0]
        windows = self._windows_by(key) if key in self.windows else []
        for window in [choice.window, *windows]:
            try:
                if self._misfit(number, own, choice._replace(window=window), probe) <= ROUNDING:
                    return window
            except FAILS:
                continue
        return False

    def _readings(self, number, last):
        layer = self.layers[number]
        inner, output = self.architecture.attention, self.architecture.projected
        turned = [*_turns(self.network, self.layers, number)]
        for layout in _layouts(layer, inner, output):
            for rotary, pairs in [*itertools.product(turned, ("halves", "neighbours")), (None, "halves")]:
                for window in self._visible():
                    yield Choice(layout, rotary, pairs, window)

    def _architecture(self, choices, reach, misfit):
        """The architecture of all layers together; None if layers need different readings."""
        kinds = {(choice.layout, choice.pairs) for choice in choices.values() if choice.rotary is not None}
        layouts = {choice.layout for choice in choices.values()}
        whole = self.architecture.giver(self.network, self.attending[0]) in {
            *self._receiver(self.attending[0]).modules()
        }
        if len(layouts) > 1 or len(kinds) > 1 or (reach is not None and not whole):
            return None
        (layout,), pairs = layouts, next((pairs for _, pairs in kinds), "halves")
        every = [choices.get(number) for number in range(len(self.layers))]
        read = replace(
            self.architecture,
            matrices=layout,
            rotary=tuple(None if choice is None else choice.rotary for choice in every),
            pairs=pairs,
            window=Windows(tuple(None if choice is None else choice.window for choice in every)),
            reach=reach,
        )
        f = read.attention_object(self.network, self.attending[0], "heads+output", self.masked, self.lengths[-1])
        (short, long), words = self.lengths, ", ".join([str(layout), *f.more])
        beyond = "" if reach is None else f"; beyond {reach} tokens these modules are differentiated"
        return replace(
            read,
            found=f"closed form found by trial: read as {words}; the network's own modules agree to "
            f"{max(misfit, 1e-16):.0e} in every layer, on two texts of {short} and of {long} tokens{beyond}",
        )


def _relative(ours, theirs):
    """Norm of the difference over the norm of the second; NaN passes through."""
    if not isinstance(theirs, Tensor) or ours.shape != theirs.shape:
        return math.inf
    size = theirs.double().norm().item()
    return (ours - theirs).double().norm().item() / size if size else float(ours.double().norm().item() > 0)


def _steep(f: Attention, x: Tensor) -> float:
    """Power of two that scales tokens so that the largest logit is about `STEEP`, or beyond the cap."""
    query, key, _ = f.project(x)
    largest = f.products(query, key).abs().max().item()
    wanted = max(STEEP, 2 * (f.cap or 0))
    if not 0 < largest < math.inf:
        return 1.0
    return min(2.0 ** round(math.log2(wanted / largest) / 2), CLIPPED / 2)


def _double(given):
    """Arguments of a call with their floating point tensors in float64."""
    if isinstance(given, Tensor):
        return given.double() if given.is_floating_point() else given
    if type(given) in (tuple, list):
        return type(given)(map(_double, given))
    return {key: _double(value) for key, value in given.items()} if type(given) is dict else given


def _said(module, names):
    """First of these attributes that a module, or its configuration, has as a positive integer; else None."""
    for where in (module, getattr(module, "config", None)):
        for name in names:
            if type(size := getattr(where, name, None)) is int and size > 0:
                return size
    return None


def _heads(module):
    heads = _said(module, HEADS)
    if heads is None:
        raise LookupError("it does not state its number of heads.")
    return heads


def _configs(root):
    """Configurations of a network and of its modules, without repeats."""
    found, todo = {}, [getattr(module, "config", None) for module in root.modules()]
    while todo:
        config = todo.pop()
        if hasattr(config, "to_dict") and id(config) not in found:
            found[id(config)] = config
            todo += vars(config).values()
    return [*found.values()]


def _lengths(root):
    """Attributes of a configuration, or a module, that may be numbers of tokens: pairs of name and number.

    Includes the parameters of rotations, and lists with one number for each layer.
    """
    todo = [vars(one) for one in root.modules()] if isinstance(root, torch.nn.Module) else [vars(root)]
    while todo:
        entries = todo.pop()
        for name, one in entries.items():
            if isinstance(one, dict) and not isinstance(root, torch.nn.Module):
                todo.append(one)
            elif LIKE_A_LENGTH.search(str(name)):
                each = one if isinstance(one, list | tuple) else [one]
                yield from ((name, int(size)) for size in each if type(size) in (int, float) and size == size // 1 > 0)


@contextmanager
def _shorter(root: Any, length: tuple[str, int] | None) -> Iterator[None]:
    """Context in which one length is shortened, in the configurations and wherever modules store it."""
    if length is None:
        yield
        return
    key, size = length

    def changed(entries):
        return {name: other(name, one) for name, one in entries.items()}

    def other(name, one):
        if isinstance(one, dict):
            return changed(one)
        if name == key and isinstance(one, list | tuple):
            return [SHORT if part == size else part for part in one]
        return SHORT if name == key and one == size else one

    before = [(vars(config), dict(vars(config))) for config in _configs(root)]
    keeping = [module for module in root.modules() if vars(module).get(key) == size]
    try:
        for entries, old in before:
            entries.update(changed(old))
        for module in keeping:
            vars(module)[key] = SHORT
        yield
    finally:
        for entries, old in before:
            entries.clear()
            entries.update(old)
        for module in keeping:
            vars(module)[key] = size


def _layouts(layer, outer, projected):
    """Readings that the names and shapes of a module's tensors allow, the most likely first."""
    module = layer.get_submodule(outer)
    linear = {path: one for path, one in module.named_modules() if path and _is_linear(one)}
    names = {path: path.rpartition(".")[2].lower() for path in linear}
    found = [[path for path, name in names.items() if kind.search(name)] for kind in (QUERY, KEY, VALUE)]
    one = [path for path, name in names.items() if FUSED.search(name)]
    if all(len(paths) == 1 for paths in found) and not one:
        parts, orders = [paths[0] for paths in found], (False,)
    elif len(one) == 1:
        parts, orders = one, (False, True)
    else:
        return
    others = [path for path in linear if path not in parts]
    output = [path for path in others if OUTPUT.search(names[path])] or others
    if projected is not None and _is_linear(layer.get_submodule(projected)):
        last = projected
    elif len(output) == 1:
        last = f"{outer}.{output[0]}"
    else:
        return
    places = {path.rpartition(".")[0] for path in parts}
    if len(places) > 1:
        return
    inner = ".".join(filter(None, [outer, *places]))  # in BERT they lie in a module of the module
    module, parts = layer.get_submodule(inner), [path.rpartition(".")[2] for path in parts]
    scales = [name for name in SCALES if _is_number(getattr(module, name, None))]
    caps = [name for name in (*CAPS, *(f"config.{name}" for name in CAPS)) if _is_number(_at(module, name))]
    sinks = next((name for name, one in module.named_parameters() if "sink" in name), None)
    for order, norms, cap, scale in itertools.product(
        orders, [*_norms(module), None], [*caps[:1], None], [*scales, None, 1.0]
    ):
        yield Layout(inner, last, tuple(parts), order, scale, norms, cap, sinks)


def _places(network, architecture):
    """Architectures with candidates for the module that receives the tokens: attention, or a module inside it."""
    layer = architecture.layers_of(network)[architecture.attending(network)[0]]
    yield architecture
    for layout in itertools.islice(_layouts(layer, architecture.attention, architecture.projected), 1):
        if layout.inner != architecture.attention:
            yield replace(architecture, attention=layout.inner, projected=layout.output)


def _norms(module):
    """Pairs of paths to the norms of queries and keys, or the same path twice for a shared norm."""
    by = {}
    for path, one in module.named_modules():
        words = {*path.rpartition(".")[2].lower().split("_")}
        if path and not _is_linear(one) and ("norm" in path or words & {"ln", "layernorm"}):
            kinds = {"query": {"q", "query"}, "key": {"k", "key"}, "both": {"qk"}}
            by |= {kind: path for kind, its in kinds.items() if words & its and kind not in by}
    if "query" in by and "key" in by:
        yield by["query"], by["key"]
    if "both" in by:
        yield by["both"], by["both"]


def _turns(network, layers, number):
    """Paths to modules that may rotate queries and keys of a layer: in the network, or inside that layer."""
    inside = {id(one): i for i, layer in enumerate(layers) for one in layer.modules()}
    for path, module in network.named_modules():
        tables = any(name.endswith("inv_freq") for name, _ in module.named_buffers(recurse=False))
        if tables and inside.get(id(module), number) == number:
            yield path


def _is_linear(module):
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim == 2 and not isinstance(module, torch.nn.Embedding)


def _is_number(value):
    scalar = isinstance(value, Tensor) and value.ndim == 0
    return scalar or (isinstance(value, int | float) and not isinstance(value, bool) and value > 0)


def _at(module, path):
    for name in path.split("."):
        module = getattr(module, name, None)
    return module
