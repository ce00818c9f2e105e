"""Ascended inputs against `lipnb.bounds.ball_upper`: each of a random layer of its own, with logits that matter."""

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

import torch

from lab.experiments.table import Table
from lab.ledger import SLACK
from lab.verification.ascent import weighted_dense
from lab.verification.draws import integer, normal, uniform
from lipnb.attention import Attention
from lipnb.bounds import ball_upper, layer_norm_radius
from lipnb.recording import Unit
from lipnb.worst_case import adam, ascend, unit_slope
from lipnb.worst_case.forks import bulk_directions, forks, two_clusters

__all__ = ["BLOCKS", "CLASSES", "TABLE", "Class", "Layers", "ascended", "draw", "measure"]

LAYERS = {"3 to 12": 75, "64": 9}  # of one block, by how many tokens there are
BLOCKS = {"3 to 12": 6, "64": 1}
STEPS = 40  # of an ascent
STARTS = {"fork": 0.003, "two clusters": 0.01, "random": 0.06}  # first steps of Adam from there, in radii


class Class(NamedTuple):
    """What the layers of a block have in common."""

    heads: str
    mask: str
    region: str
    bias: bool
    tokens: str


CLASSES = [
    Class(*one)
    for one in itertools.product(
        ("one", "several"), ("none", "causal", "window"), ("ball", "ellipsoid"), (False, True), LAYERS
    )
]


@dataclass(frozen=True)
class Layers:
    r"""A batch of layers, written down plainly as the twin of `Attention`, on the sets that hold their tokens.

    Attributes
    ----------
    query, key, value, output : Tensor, shapes (b, h, k, d) twice, (b, h, v, d) and (b, h, m, v)
    query_bias : Tensor, shape (b, h, k)
    hidden : Tensor, shape (n, n)
        Whether token i does not see token j.
    window : int or None
        As for `Attention`; `hidden` says the same.
    gain, shift : Tensor, shape (b, d), or None
        Of a LayerNorm that gives the tokens; None for tokens in the ball of radius `radius`.
    radius : Tensor, shape (b,)
        Of a ball that holds the tokens.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    output: torch.Tensor
    query_bias: torch.Tensor
    hidden: torch.Tensor
    window: int | None
    gain: torch.Tensor | None
    shift: torch.Tensor | None
    radius: torch.Tensor

    def __call__(self, x):
        """Outputs (b, n, m) of tokens (b, n, d)."""
        query = torch.einsum("bhkd,bnd->bhnk", self.query, x) + self.query_bias[:, :, None]
        key = torch.einsum("bhkd,bnd->bhnk", self.key, x)
        logits = (query @ key.mT).masked_fill(self.hidden, -torch.inf)
        values = logits.softmax(-1) @ torch.einsum("bhvd,bnd->bhnv", self.value, x)
        return torch.einsum("bhmv,bhnv->bnm", self.output, values)

    def attention(self, i):
        """Layer i as the package knows it."""
        biases = {"query_bias": self.query_bias[i]} if self.query_bias[i].any() else {}
        masked = bool(self.hidden.any())
        f = Attention(self.query[i], self.key[i], self.value[i], self.output[i], scale=1.0, masked=masked, **biases)
        return f.replace(window=self.window)

    def maps(self):
        r"""G (b, d, d) and :math:`\beta` (b, 1, d): the tokens are :math:`\beta + G u`, u in the unit ball."""
        b, d = len(self.radius), self.query.shape[-1]
        eye = torch.eye(d, dtype=torch.float64)
        if self.gain is None:
            return self.radius[:, None, None] * eye, torch.zeros(b, 1, d, dtype=torch.float64)
        return math.sqrt(d) * self.gain[:, :, None] * (eye - 1 / d), self.shift[:, None]

    def upper(self):
        """`ball_upper` of each layer, shape (b,)."""
        n, found = len(self.hidden), []
        for i, R in enumerate(self.radius.tolist()):
            where = {"R": R} if self.gain is None else {"R": math.inf, "ellipsoid": (self.gain[i], self.shift[i])}
            found.append(ball_upper(self.attention(i), n, **where))
        return torch.tensor(found, dtype=torch.float64)


def draw(kind, block, *, layers=None):
    """The layers of one block and where their ascents begin; equal arguments give equal ones.

    Parameters
    ----------
    kind : Class
    block : int
        Its seed, 0 or more. Even blocks hold random layers, odd ones those whose heads a fork suits.
    layers : int, optional
        How many; default `LAYERS`.

    Returns
    -------
    Layers
        With largest logits t from 1 to 100, half of them from 10 on.
    Tensor, shape (b, n, d)
        Points of the unit ball, see `Layers.maps`: forks, two clusters and random ones in turn.
    """
    g = torch.Generator().manual_seed(crc32(f"{kind}/{block}".encode()))
    b = LAYERS[kind.tokens] if layers is None else layers
    n, d = (64, 2) if kind.tokens == "64" else (integer(g, 3, 12), integer(g, 2, 6))
    d += kind.region == "ellipsoid" and d < 6  # whose outputs span one direction less
    h = 1 if kind.heads == "one" else integer(g, 2, 3)
    made = _suited(g, b, h, d) if block % 2 or kind.tokens == "64" else _random(g, b, h, d)
    size = kind.bias * 10 ** uniform(g, b, 1, 1, low=-1, high=0.5)
    made["query_bias"] = size * normal(g, b, h, made["query"].shape[2])
    gain = shift = None
    radius = 10 ** uniform(g, b, low=-1, high=1)
    if kind.region == "ellipsoid":
        gain, shift = (0.3 * normal(g, b, d)).exp(), 0.5 * normal(g, b, d)
        radius = torch.tensor([layer_norm_radius(*one) for one in zip(gain, shift, strict=True)], dtype=torch.float64)
    steepest = torch.linalg.matrix_norm(made["key"].mT @ made["query"], 2).amax(-1)
    t = 10 ** uniform(g, b, low=1 if kind.tokens == "64" else 0, high=2)
    scale = (t / steepest / radius**2)[:, None, None]
    made |= {
        "query": scale[..., None] * made["query"],
        "query_bias": scale * radius[:, None, None] * made["query_bias"],
    }
    window = integer(g, 2, n - 1) if kind.mask == "window" else None
    i = torch.arange(n)[:, None]
    hidden = (i < i.T) & (kind.mask != "none") | (i - i.T >= (window or n))
    drawn = Layers(**made, hidden=hidden, window=window, gain=gain, shift=shift, radius=radius)
    noise = unit_slope(normal(g, b, n, d), -1)
    return drawn, torch.stack([_start(drawn, i, noise[i]) for i in range(b)])


def _random(g, b, h, d):
    k, v, m = (integer(g, 1, d) for _ in range(3))
    shapes = {"query": (k, d), "key": (k, d), "value": (v, d), "output": (m, v)}
    return {name: normal(g, b, h, *shape) for name, shape in shapes.items()}


def _suited(g, b, h, d):
    """All heads read against one direction, to the same end, with some noise in every second layer."""
    eye = torch.eye(d, dtype=torch.float64).expand(b, h, d, d)
    basis = torch.linalg.qr(normal(g, b, 1, d, d)).Q
    shrink = torch.cat([torch.ones(b, 1, 1), uniform(g, b, 1, d - 1, low=0, high=1)], -1)
    noise = 0.2 * (torch.arange(b) % 2)[:, None, None, None] * normal(g, b, h, d, d)
    sizes, strengths = (uniform(g, b, h, 1, 1, low=1, high=2) for _ in range(2))
    return {
        "query": -sizes * ((basis * shrink[..., None, :]) @ basis.mT + noise),
        "key": eye.contiguous(),
        "value": strengths * eye,
        "output": eye.contiguous(),
    }


def _kind_of_start(i):
    return [*STARTS][i % len(STARTS)]


def _start(layers, i, noise):
    """Points of the unit ball (n, d) where the ascent of layer i begins: those of the layer in units of the ball."""
    what = _kind_of_start(i)
    if what == "random":
        return noise
    G, shift = (part[i] for part in layers.maps())
    f = layers.attention(i)
    bias = f.query @ shift[0] if f.query_bias is None else f.query @ shift[0] + f.query_bias
    inner = f.replace(query=f.query @ G, key=f.key @ G, value=f.value @ G, query_bias=bias)
    found = (forks if what == "fork" else two_clusters)(inner, len(noise), 1.0, bulk_directions(inner, pairs=2), keep=1)
    return found.tokens()[0] if len(found.points) else noise


def worsened(layers, u):
    """Tokens (b, n, d) where the norm of the Jacobian is large, with the steps that go with the start of each."""
    rates = torch.tensor([STARTS[_kind_of_start(i)] for i in range(len(u))], dtype=torch.float64)
    return ascended(layers, u, rates)


def ascended(layers, u, rates):
    """Tokens (b, n, d) where the norm of the Jacobian is large: steps of Adam in the unit ball, from u.

    Parameters
    ----------
    layers : Layers
        Or others with `maps`.
    u : Tensor, shape (b, n, d)
        Where to begin.
    rates : Tensor, shape (b,)
        First steps, in radii.
    """
    (G, shift), rates = layers.maps(), rates[:, None, None]
    left, refinements = layers(u).detach().flip(1), 8

    def norm(x):
        """The length of J^T w, w near the top left singular vector of J: at most its norm, and next to it."""
        nonlocal left, refinements
        there = x.detach()
        pull = torch.func.vjp(layers, there)[1]
        for _ in range(refinements):
            right = unit_slope(pull(left)[0], (1, 2))
            left = unit_slope(torch.func.jvp(layers, (there,), (right,))[1], (1, 2))
        refinements = 2  # from here on the last vector is a good start
        (pulled,) = torch.autograd.grad((layers(x) * left).sum(), x, create_graph=True)
        return torch.linalg.vector_norm(pulled, dim=(1, 2))

    def inside(y):
        return y / (rates * torch.linalg.vector_norm(y, dim=-1, keepdim=True)).clamp_min(1)

    def tokens(y):
        return shift + (rates * y) @ G.mT

    move = adam(1.0, falling=STEPS, inside=inside)
    (y,), _ = ascend(lambda y: norm(tokens(y)), (u / rates,), move, steps=STEPS, log=True)
    return tokens(inside(y))


def measure(kind, block, *, layers=None, factor=1.0):
    """One block of layers of one class.

    Parameters
    ----------
    kind : Class
    block, layers
        As for `draw`.
    factor : float
        The bound is multiplied by it. Below 1 it spoils the bound on purpose: the check must see that.

    Returns
    -------
    dict
        The class; cases, violations (measured above the bound beyond rounding); worst, the largest measured / bound,
        and of that case: block, item, n, d, h, start, logits (norm of A times radius squared), measured (dense
        Jacobian of the plain twin, by autograd), stated.
    """
    drawn, u = draw(kind, block, layers=layers)
    found = torch.linalg.matrix_norm(weighted_dense(drawn, worsened(drawn, u)), 2)
    stated = factor * drawn.upper()
    ratios = found / stated
    if not torch.isfinite(ratios).all():
        raise ArithmeticError(f"{kind}, block {block}: a measured value or a bound is not finite.")
    item = int(ratios.argmax())
    logits = torch.linalg.matrix_norm(drawn.key[item].mT @ drawn.query[item], 2).amax() * drawn.radius[item] ** 2
    return {
        **kind._asdict(),
        "cases": len(u),
        "violations": int((ratios > 1 + SLACK).sum()),
        "worst": ratios[item].item(),
        "block": block,
        "item": item,
        "n": u.shape[1],
        "d": u.shape[2],
        "h": drawn.query.shape[1],
        "start": _kind_of_start(item),
        "logits": logits.item(),
        "measured": found[item].item(),
        "stated": stated[item].item(),
    }


def joined(table, fields=Class._fields):
    """Rows of blocks joined: for each class the sums of cases and violations, and the worst case."""
    groups = table.groupby(list(fields), sort=False)
    worst = table.loc[groups.worst.idxmax()].set_index(list(fields))
    worst[["cases", "violations"]] = groups[["cases", "violations"]].sum()
    return worst.reset_index()


def _prepare(blocks, layers):
    settings = {"blocks": blocks, "layers": layers, "slack": SLACK, "dtype": "float64", "device": "cpu"}

    def unit(kind, block):
        key = "/".join(map(str, (*kind, block)))
        return Unit(key, lambda: [measure(kind, block, layers=layers[kind.tokens])], 1)

    return settings, [unit(kind, block) for kind in CLASSES for block in range(blocks.get(kind.tokens, 0))]


# by the number of tokens: blocks of each class, and layers of a block
TABLE = Table("verify-ball", _prepare, {"blocks": BLOCKS, "layers": LAYERS}, joined)
