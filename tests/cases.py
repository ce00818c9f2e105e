"""Attention maps to test on, float64: random sizes and options, every pair of features, extreme numbers."""

import itertools
import random
from functools import cache
from typing import NamedTuple

import torch

from lipnb import Attention, AutodiffJacobian


class Case(NamedTuple):
    """A random map with an input of its own."""

    attention: Attention
    x: torch.Tensor
    weights: torch.Tensor | None


def normal(*shape, seed=0):
    """Random numbers, the same each time."""
    return drawn(seed)(*shape)


def normals(seed, *shapes):
    """Random tensors of these shapes."""
    normal = drawn(seed)
    return [normal(*shape) for shape in shapes]


def drawn(seed):
    """A function that draws one tensor after another."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)


def random_case(seed, *, n=None, spread=1.0, dtype=torch.float64, score="dot"):
    """Case number `seed`: its sizes and options follow from the number, so a failure can be called again.

    `spread` scales the tokens: small is near-uniform attention, large is near-hard attention.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    def integer(high):
        return int(torch.randint(1, high + 1, (), generator=generator))

    h, k, d, v, m = integer(4), integer(8), integer(12), integer(8), integer(12)
    n = n or integer(64 if seed // 8 % 2 else 16)
    bias = seed % 8 >= 3
    attention = Attention(
        normal(h, k, d) / d**0.5,
        normal(h, k, d) / d**0.5,
        normal(h, v, d) / d**0.5,
        normal(h, m, v) / v**0.5 if seed % 3 else None,
        query_bias=normal(h, k) if bias else None,
        key_bias=normal(h, k) if bias else None,
        value_bias=normal(h, v) if bias else None,
        output_bias=normal(m if seed % 3 else h * v) if bias else None,
        masked=seed % 2 == 1,
        score=score,
    )
    weights = (torch.rand(2, n, generator=generator, dtype=torch.float64) + 1e-3).to(dtype) if seed % 5 == 0 else None
    return Case(attention, spread * normal(2, n, d), weights)


CASES = [(seed, spread) for seed in range(24) for spread in (0.3, 1.0, 4.0)]


FEATURES = {
    "score": ("dot", "l2"),
    "hidden": ("nothing", "later tokens", "all but a window", "what is far"),
    "weighted": (False, True),
    "output": (None, 1, 5),
    "biased": (False, True),
    "shared keys": (False, True),
    "rotary": (None, torch.float64, torch.float32),
    "norms": ("none", "queries", "keys", "all heads together"),
    "distances": (None, 1, 31),
    "cap": (None, 0.5, 3.0),
    "sinks": (False, True),
    "spread": (0.3, 1.0, 4.0),
    "tokens": (1, 2, 6, 13),
}


def pairs(features):
    """All pairs of features that a choice of them has."""
    return set(itertools.combinations(features.items(), 2))


def possible(score="dot", cap=None, sinks=False, **others):
    """Whether there is such attention: caps and sinks go with dot products only."""
    return score == "dot" or (cap is None and not sinks)


@cache
def covering(tries=300):
    """Choices of features, each with as many pairs that none before it has as one of some random tries finds."""
    draw, chosen = random.Random(3), []
    every = [
        itertools.product(*({(a, x) for x in FEATURES[a]} for a in two)) for two in itertools.combinations(FEATURES, 2)
    ]
    left = {pair for two in every for pair in two if possible(**dict(pair))}
    while left:
        random_ones = ({name: draw.choice(values) for name, values in FEATURES.items()} for _ in range(tries))
        best = max(filter(lambda one: possible(**one), random_ones), key=lambda one: len(pairs(one) & left))
        chosen, left = [*chosen, best], left - pairs(best)
    return chosen


KINDS = range(24)  # any two features stand together in one of them


def of_a_kind(number, *, n=None, seed=0):
    """What `Attention` is made of for one choice of `covering`, two sequences and weights or None."""
    kind, draw = covering()[number], random.Random(100 * seed + number)
    normal = drawn(1000 * seed + number)
    g, times = draw.choice((1, 2, 3)), draw.choice((2, 3)) if kind["shared keys"] else 1
    k, d, v, n = draw.choice((2, 3, 6)), draw.choice((1, 4, 7)), draw.choice((1, 3)), n or kind["tokens"]
    h, hidden = g * times, kind["hidden"]
    given = {"query": normal(h, k, d), "key": normal(g, k, d), "value": normal(g, v, d), "score": kind["score"]}
    given |= {
        "scale": draw.choice((None, 0.7)),
        "cap": kind["cap"],
        "masked": hidden in ("later tokens", "all but a window"),
    }
    given["window"] = draw.choice((1, 3)) if hidden in ("all but a window", "what is far") else None
    given["output"] = kind["output"] and normal(h, kind["output"], v)
    if kind["biased"]:
        given |= {"query_bias": normal(h, k), "key_bias": normal(g, k), "value_bias": normal(g, v)}
        given["output_bias"] = normal(kind["output"] or h * v)
    if kind["rotary"]:
        given["frequencies"] = normal(draw.choice((1, k // 2))).abs().to(kind["rotary"])
    if kind["norms"] in ("queries", "all heads together"):
        given |= {"query_norm": normal(h, k), "norm_eps": draw.choice((1e-6, 0.3))}
    if kind["norms"] in ("keys", "all heads together"):
        given["key_norm"] = normal(g, k)
    given["joint_norm"] = kind["norms"] == "all heads together"
    if kind["distances"]:
        given["relative"] = normal(h, kind["distances"])
    if kind["sinks"]:
        given["sinks"] = normal(h)
    return given, kind["spread"] * normal(2, n, d), normal(2, n).exp() if kind["weighted"] else None


def every_kind(number, *, n=None, seed=0):
    """A map of one choice of `covering`, two sequences and weights or None."""
    given, x, weights = of_a_kind(number, n=n, seed=seed)
    return Case(Attention(**given), x, weights)


def derivative(f, x, weights=None):
    """The dense Jacobian of each sequence (b, n m, n d) by automatic differentiation."""
    return AutodiffJacobian(lambda y: f(y, weights), x).dense()


def weighted(J, x, weights):
    """D^{1/2} J D^{-1/2} of each sequence, of which the constant is the norm; J itself without weights."""
    if weights is None:
        return J
    root = weights.sqrt()
    rows = root.repeat_interleave(J.shape[-2] // x.shape[-2], -1)
    return rows[..., :, None] * J / root.repeat_interleave(x.shape[-1], -1)[..., None, :]


def constant(f, x, weights=None):
    """The constant of each sequence by `torch.func` and all singular values, with nothing of the solvers."""

    def dense(x, weights=None):
        J = torch.func.jacrev(lambda y: f(y) if weights is None else f(y, weights))(x)
        if weights is not None:
            J = weights.sqrt()[:, None, None, None] * J / weights.sqrt()[:, None]
        return J.flatten(2).flatten(0, 1)

    given = (x,) if weights is None else (x, weights)
    return torch.linalg.matrix_norm(dense(*given) if x.ndim == 2 else torch.func.vmap(dense)(*given), 2)


def truth_of(f, x, weights=None):
    """The constant of one sequence in float64, as a number, whatever the type of a map."""
    return constant(f.to(dtype=torch.float64), x.double(), None if weights is None else weights.double()).item()


def relative(got, expected):
    """Largest error relative to the largest entry."""
    return ((got - expected).abs().max() / expected.abs().max().clamp_min(1e-300)).item()


def extreme_case(seed):
    """A map, tokens, weights or None and columns with zeros, dead heads, equal tokens, and powers of two to 2^1000."""
    g = torch.Generator().manual_seed(seed)

    def pick(*items):
        return items[int(torch.randint(len(items), (), generator=g))]

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    dtype, most = pick((torch.float64, 1000), (torch.float64, 1000), (torch.float32, 120))
    h, n, d, k, v, m = (pick(*sizes) for sizes in ((1, 2, 3), (1, 2, 3, 4), (1, 2, 3), (1, 2), (1, 2), (1, 2)))

    def extreme(tensor):
        how, unit = (
            pick("plain", "plain", "zero", "whole", "head", "entry"),
            2.0 ** pick(-most, -most // 2, most // 2, most, -30, 30),
        )
        if how == "head":
            tensor[0] *= unit
        if how == "entry":
            tensor.view(-1)[0] *= unit
        return tensor * {"zero": 0.0, "whole": unit}.get(how, 1.0)

    given = {"query": extreme(normal(h, k, d)), "key": extreme(normal(h, k, d)), "value": extreme(normal(h, v, d))}
    if pick(0, 1):
        given["output"] = extreme(normal(h, m, v))
    if pick(0, 1):
        given |= {"query_bias": extreme(normal(h, k)), "key_bias": extreme(normal(h, k))}
    if h > 1 and pick(0, 1):  # heads of which only values or only outputs are there
        given["value"][0] *= pick(0.0, 2.0**-most)
        if "output" in given:
            given["output"][-1] *= pick(0.0, 2.0**-most)
    x = extreme(normal(n, d))
    x = pick(x, x, x, 0 * x, x[:1].expand(n, d).clone())
    weights = pick(None, None, normal(n).exp(), (1380 * torch.rand(n, generator=g, dtype=torch.float64) - 690).exp())
    top, least = torch.finfo(dtype).max / 4, torch.finfo(dtype).tiny
    given = {name: one.clamp(-top, top).to(dtype) for name, one in given.items()}
    masked = pick(False, True)
    attention = Attention(**given, masked=masked, window=pick(None, 1, 2) if masked else None)
    weights = None if weights is None else weights.clamp(least, top).to(dtype)
    return attention, x.clamp(-top, top).to(dtype), weights, pick(None, 0, 1, 3, 1000)


def l2_parameters(seed, *, size=1.0):
    """Query, value and output matrices of a random case."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    h, k, d, v, m = (int(torch.randint(1, 5, (), generator=generator)) for _ in range(5))
    return size * normal(h, k, d), normal(h, v, d), normal(h, m, v) if seed % 3 else None


def windowed(w, seed=0, *, h=2, k=3, d=4, score="dot"):
    return Attention(
        normal(h, k, d, seed=seed),
        normal(h, k, d, seed=seed + 1),
        normal(h, 3, d, seed=seed + 2),
        normal(h, 5, 3, seed=seed + 3),
        query_bias=normal(h, k, seed=seed + 4),
        masked=True,
        window=w,
        score=score,
    )


NAMES = ("query", "key", "value", "output", "query_bias", "value_bias", "output_bias")


def parts_of_a_map(seed=0, n=20, h=2, k=3, d=4):
    """Parameters of a map, and tokens, too many for the dense route."""
    shapes = (h, k, d), (h, k, d), (h, k, d), (h, 5, k), (h, k), (h, k), (5,)
    drawn = (normal(*shape, seed=10 * seed + i) for i, shape in enumerate(shapes))
    return dict(zip(NAMES, drawn, strict=True)), normal(n, d, seed=999 + seed)


def narrow_layer(seed, heads=1, *, output=True, bias=True, masked=False, d=5):
    """Random heads of key width 2, not alike."""
    normal = drawn(seed)
    return Attention(
        normal(heads, 2, d),
        normal(heads, 2, d),
        normal(heads, 3, d),
        normal(heads, 4, 3) if output else None,
        query_bias=normal(heads, 2) if bias else None,
        masked=masked,
    )


ADDED = {
    "shared": lambda normal: {},
    "rotary": lambda normal: {"frequencies": torch.tensor([1.0, 0.1])},
    "partial": lambda normal: {"frequencies": torch.tensor([0.7]).double()},
    "normalised": lambda normal: {"query_norm": normal(4, 5), "key_norm": normal(2, 5), "norm_eps": 0.05},
    "joint": lambda normal: {"query_norm": normal(4, 5), "key_norm": normal(2, 5), "norm_eps": 0.3, "joint_norm": True},
    "queries": lambda normal: {"query_norm": normal(4, 5), "norm_eps": 0.3, "frequencies": torch.tensor([2.0, 0.3])},
    "keys": lambda normal: {"key_norm": normal(2, 5), "norm_eps": 0.3, "frequencies": torch.tensor([2.0, 0.3])},
    "capped": lambda normal: {"cap": 1.5},
    "relative": lambda normal: {"relative": 3 * normal(4, 5)},
    "sinks": lambda normal: {"sinks": normal(4)},
}


def layer_in_use(normal, d=3, *, bias=True, **rest):
    """A random layer of four heads on two of keys, of width 5."""
    biases = {"query_bias": normal(4, 5), "key_bias": normal(2, 5), "value_bias": 2 * normal(2, 2)} if bias else {}
    return Attention(normal(4, 5, d), normal(2, 5, d), normal(2, 2, d), normal(4, 3, 2), **biases, **rest)


def function(forward, backward, jvp=None, wrap=lambda back: back):
    """An autograd function of z: as extensions write it, without forward mode, unless `jvp` is given."""

    def old(ctx, z):
        ctx.save_for_backward(z)
        return forward(z)

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    parts = {"forward": old, "backward": wrap(lambda ctx, w: backward(ctx.saved_tensors[0], w))}
    if jvp:
        parts |= {"forward": lambda z: forward(z), "setup_context": keep}
        parts |= {"jvp": lambda ctx, u: jvp(ctx.saved_tensors[0], u)}
    parts = {name: staticmethod(part) for name, part in parts.items()} | {"generate_vmap_rule": jvp is not None}
    return type("Function", (torch.autograd.Function,), parts).apply
