"""Ascended inputs against `lipnb.bounds.ball_upper`: batches of random layers, plain or with further features."""

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

import torch

from lab.bounds_survey.draws import integer, normal, uniform
from lab.experiments.table import table
from lab.ledger import SLACK
from lab.verification.ascent import weighted_dense
from lipnb.attention import Attention
from lipnb.bounds import ball_upper, layer_norm_radius
from lipnb.worst_case import adam, ascend
from lipnb.worst_case.ascent import unit_slope
from lipnb.worst_case.forks import bulk_directions, forks, two_clusters

LAYERS = {"3 to 12": 75, "64": 9}  # of one block, by number of tokens
BLOCKS = {"3 to 12": 6, "64": 1}
LAYERS_IN_USE = 40  # of one block
STEPS = 40  # of an ascent
STARTS = {"fork": 0.003, "two clusters": 0.01, "random": 0.06}  # first steps of Adam from each start, in radii
ADDED = ("rotary", "partial rotary", "normalised", "capped", "relative", "sinks", "all but normalised", "all")
EPS = 0.05  # of the norms in the heads: bounds grow like its root


class Class(NamedTuple):
    """Common properties of the plain layers of a block."""

    heads: str
    mask: str
    region: str
    bias: bool
    tokens: str


class ClassInUse(NamedTuple):
    """Common properties of the layers with features in a block: the features, and the set of tokens."""

    added: str
    region: str


CLASSES = [
    Class(*one)
    for one in itertools.product(
        ("one", "several"), ("none", "causal", "window"), ("ball", "ellipsoid"), (False, True), LAYERS
    )
]
IN_USE = [ClassInUse(*one) for one in itertools.product(ADDED, ("ball", "RMSNorm"))]


@dataclass(frozen=True)
class Layers:
    r"""A batch of layers, written down plainly as a reference for `Attention`, with the sets that hold their tokens.

    `query`, `key`, `value`, `output` (b, h, k, d), (b, g, k, d), (b, g, v, d) and (b, h, m, v): keys and values for g
    heads, each shared by h / g heads of queries.
    `query_bias`, `key_bias`, `value_bias` (b, h, k), (b, g, k) and (b, g, v).
    `sees` (b,): number of tokens that each token sees under a mask, itself included; 0 without a mask.
    `radius` (b,): of a ball that holds the tokens.
    `gain` (b, d): of a norm layer that outputs the tokens; None for tokens in the ball.
    `shift` (b, d): of a LayerNorm; without it the norm layer is an RMSNorm.
    `frequencies` (p,).
    `norms` (b, h, k) and (b, g, k).
    `relative` (b, h, 2 w + 1).
    `sinks` (b, h).
    """

    n: int
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    output: torch.Tensor
    query_bias: torch.Tensor
    sees: torch.Tensor
    radius: torch.Tensor
    gain: torch.Tensor | None = None
    shift: torch.Tensor | None = None
    key_bias: torch.Tensor | None = None
    value_bias: torch.Tensor | None = None
    frequencies: torch.Tensor | None = None
    norms: tuple[torch.Tensor, torch.Tensor] | None = None
    cap: float | None = None
    relative: torch.Tensor | None = None
    sinks: torch.Tensor | None = None

    def __call__(self, x):
        """Outputs (b, n, m) of tokens (b, n, d)."""
        times, ahead = self.query.shape[1] // self.key.shape[1], torch.arange(x.shape[1])
        ahead = ahead - ahead[:, None]
        query, key, value = (self._rows(name, x) for name in ("query", "key", "value"))
        if self.norms is not None:
            query, key = (
                w[:, :, None] * y / (y.square().mean(-1, keepdim=True) + EPS).sqrt()
                for w, y in zip(self.norms, (query, key), strict=True)
            )
        query, key = self._turned(query), self._turned(key)
        key, value = (rows.repeat_interleave(times, 1) for rows in (key, value))
        logits = query @ key.mT
        if self.cap is not None:
            logits = self.cap * torch.tanh(logits / self.cap)
        if self.relative is not None:
            w = self.relative.shape[-1] // 2
            logits = logits + self.relative[:, :, ahead.clamp(-w, w) + w]
        sees = self.sees[:, None, None]
        logits = logits.masked_fill(((sees > 0) & ((ahead > 0) | (ahead <= -sees)))[:, None], -torch.inf)
        if self.sinks is not None:
            logits = torch.cat([logits, self.sinks[..., None, None].expand(*logits.shape[:-1], 1)], -1)
        return torch.einsum("bhmv,bhnv->bnm", self.output, logits.softmax(-1)[..., : x.shape[1]] @ value)

    def _rows(self, name, x):
        """Queries, keys or values of tokens, (b, h, n, k)."""
        rows, bias = torch.einsum("bhkd,bnd->bhnk", getattr(self, name), x), getattr(self, f"{name}_bias")
        return rows if bias is None else rows + bias[:, :, None]

    def _turned(self, rows):
        """Rows (b, h, n, k), as complex numbers, rotated by their positions."""
        if self.frequencies is None:
            return rows
        p = len(self.frequencies)
        angle = torch.arange(rows.shape[2], dtype=torch.float64)[:, None] * self.frequencies
        plane = torch.complex(rows[..., :p], rows[..., p : 2 * p]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([plane.real, plane.imag, rows[..., 2 * p :]], -1)

    def attention(self, i):
        """Layer i as an `Attention`."""
        names = ("query", "key", "value", "output", "query_bias", "key_bias", "value_bias", "relative", "sinks")
        given = {name: part[i] for name in names if (part := getattr(self, name)) is not None}
        if self.key_bias is None and not self.query_bias[i].any():
            del given["query_bias"]
        if self.norms is not None:
            given |= {"query_norm": self.norms[0][i], "key_norm": self.norms[1][i], "norm_eps": EPS}
        sees = int(self.sees[i])
        window = sees if 0 < sees < self.n else None
        return Attention(**given, scale=1.0, masked=sees > 0, window=window, frequencies=self.frequencies, cap=self.cap)

    def maps(self):
        r"""G (b, d, d) and :math:`\beta` (b, 1, d): the tokens are :math:`\beta + G u`, u in the unit ball."""
        b, d = len(self.radius), self.query.shape[-1]
        eye, still = torch.eye(d, dtype=torch.float64), torch.zeros(b, 1, d, dtype=torch.float64)
        if self.gain is None:
            return self.radius[:, None, None] * eye, still
        if self.shift is None:
            return math.sqrt(d) * torch.diag_embed(self.gain), still
        return math.sqrt(d) * self.gain[:, :, None] * (eye - 1 / d), self.shift[:, None]

    def upper(self):
        """`ball_upper` of each layer, shape (b,)."""
        found = []
        for i, R in enumerate(self.radius.tolist()):
            where = {"R": R}
            if self.gain is not None:
                where = {"R": math.inf, "ellipsoid": (self.gain[i], None if self.shift is None else self.shift[i])}
            found.append(ball_upper(self.attention(i), self.n, **where))
        return torch.tensor(found, dtype=torch.float64)


def draw(kind, block, *, layers=None):
    """The layers of one block and the starts of their ascents; equal arguments give equal results.

    `block`: its seed, 0 or more. Even blocks hold random layers; odd blocks of plain layers hold layers whose heads
    suit a fork.
    `layers`: number of layers; default `LAYERS` or `LAYERS_IN_USE`.
    Returns `Layers`: with largest logits t from 1 to 100, before caps and norms; for plain layers half of them from 10
    on; (b, n, d): points of the unit ball, see `Layers.maps`: for plain layers forks, two clusters and random ones in
    turn; otherwise two sides of one direction, or random.
    """
    if isinstance(kind, ClassInUse):
        name = f"in use/Class(added={kind.added!r}, region={kind.region!r})/{block}"
        g = torch.Generator().manual_seed(crc32(name.encode()))
        return _draw_in_use(g, kind, LAYERS_IN_USE if layers is None else layers)
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
    sees = {"none": 0, "causal": n}[kind.mask] if kind.mask != "window" else integer(g, 2, n - 1)
    drawn = Layers(n, **made, sees=torch.full((b,), sees), radius=radius, gain=gain, shift=shift)
    noise = unit_slope(normal(g, b, n, d), -1)
    return drawn, torch.stack([_start(drawn, i, noise[i]) for i in range(b)])


def _random(g, b, h, d):
    k, v, m = (integer(g, 1, d) for _ in range(3))
    shapes = {"query": (k, d), "key": (k, d), "value": (v, d), "output": (m, v)}
    return {name: normal(g, b, h, *shape) for name, shape in shapes.items()}


def _suited(g, b, h, d):
    """Layers whose heads all read against one direction, to the same end, with some noise in every second layer."""
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
    """Points of the unit ball (n, d) where the ascent of layer i starts: those of the layer in units of the ball."""
    what = _kind_of_start(i)
    if what == "random":
        return noise
    G, shift = (part[i] for part in layers.maps())
    f = layers.attention(i)
    bias = f.query @ shift[0] if f.query_bias is None else f.query @ shift[0] + f.query_bias
    inner = f.replace(query=f.query @ G, key=f.key @ G, value=f.value @ G, query_bias=bias)
    found = (forks if what == "fork" else two_clusters)(inner, len(noise), 1.0, bulk_directions(inner, pairs=2), keep=1)
    return found.tokens()[0] if len(found.points) else noise


def _draw_in_use(g, kind, b):
    n, d, k, h = integer(g, 3, 10), integer(g, 2, 5), integer(g, 2, 5), integer(g, 1, 4)
    groups = [one for one in range(1, h + 1) if h % one == 0][integer(g, 0, h) % (1 + (h > 1))]
    v, m = integer(g, 1, 3), integer(g, 1, 4)
    query, key = normal(g, b, h, k, d), normal(g, b, groups, k, d)
    gain = (0.3 * normal(g, b, d)).exp() if kind.region == "RMSNorm" else None
    radius = 10 ** uniform(g, b, low=-1, high=1) if gain is None else math.sqrt(d) * gain.amax(1)
    steepest = torch.linalg.matrix_norm(query, 2).amax(-1) * torch.linalg.matrix_norm(key, 2).amax(-1)
    scale = (10 ** uniform(g, b, low=0, high=2) / steepest / radius**2)[:, None, None]
    # half of the layers have no biases, a third no mask, a third no window
    bias = torch.randint(0, 2, (b, 1, 1), generator=g) * radius[:, None, None]
    sees = torch.stack([torch.zeros(b).long(), torch.full((b,), n), torch.randint(2, n, (b,), generator=g)])
    sees = sees[torch.randint(0, 3, (b,), generator=g), torch.arange(b)]
    made = {"query": scale[..., None] * query, "key": key, "value": normal(g, b, groups, v, d)}
    made |= {"output": normal(g, b, h, m, v), "query_bias": scale * bias * normal(g, b, h, k)}
    u = unit_slope(normal(g, b, n, d), -1)
    sides = torch.randint(0, 2, (b, n, 1), generator=g) * 2 - 1
    u = torch.where(torch.randint(0, 2, (b, 1, 1), generator=g) > 0, u, sides * u[:, :1])
    made |= {"key_bias": bias * normal(g, b, groups, k), "value_bias": bias * normal(g, b, groups, v)}
    more = _added(g, kind.added, b, h, groups, n, k)
    return Layers(n, **made, sees=sees, radius=radius, gain=gain, **more), u


def _added(g, added, b, h, groups, n, k):
    """Features that the layers have beyond plain heads."""
    more, every = {}, added.startswith("all")
    if "rotary" in added or every:
        p = max(1, k // 4) if added == "partial rotary" else k // 2
        more["frequencies"] = uniform(g, p, low=0.01, high=3)
    if added in ("normalised", "all"):
        more["norms"] = normal(g, b, h, k).exp(), normal(g, b, groups, k).exp()
    if added == "capped" or every:
        more["cap"] = 10 ** uniform(g, 1, low=-0.5, high=1.5).item()
    if added == "relative" or every:
        more["relative"] = 10 ** uniform(g, b, h, 1, low=-1, high=0.5) * normal(g, b, h, 2 * integer(g, 1, n) + 1)
    if added == "sinks" or every:
        more["sinks"] = 3 * normal(g, b, h)
    return more


def ascended(layers, u):
    """Tokens (b, n, d) where the norm of the Jacobian is large: steps of Adam in the unit ball, from u.

    `u` (b, n, d): starting points; the first step depends on the kind of start, which take turns.
    """
    rates = torch.tensor([STARTS[_kind_of_start(i)] for i in range(len(u))], dtype=torch.float64)[:, None, None]
    G, shift = layers.maps()
    left, refinements = layers(u).detach().flip(1), 8

    def norm(x):
        """The length of J^T w, w near the top left singular vector of J: at most the norm of J, and near it."""
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
    """Row of one block of layers of one class.

    `block`, `layers`: as for `draw`.
    `factor`: multiplies the bound. Below 1 it spoils the bound on purpose, to see that the check detects it.
    Returns the class; cases, violations (measured above the bound beyond rounding); worst, the largest measured /
    bound, and for that case: block, item, n, d, h, measured (dense Jacobian of the plain reference, by autograd),
    stated; for a plain layer start and logits (norm of A times radius squared), else g and sees.
    """
    drawn, u = draw(kind, block, layers=layers)
    found = torch.linalg.matrix_norm(weighted_dense(drawn, ascended(drawn, u)), 2)
    stated = factor * drawn.upper()
    ratios = found / stated
    if not torch.isfinite(ratios).all():
        raise ArithmeticError(f"{kind}, block {block}: a measured value or a bound is not finite.")
    item, violations = int(ratios.argmax()), int((ratios > 1 + SLACK).sum())
    row = {"cases": len(u), "violations": violations, "worst": ratios[item].item(), "block": block, "item": item}
    row |= {"n": u.shape[1], "d": u.shape[2], "h": drawn.query.shape[1]}
    if isinstance(kind, ClassInUse):
        row |= {"g": drawn.key.shape[1], "sees": int(drawn.sees[item])}
    else:
        steepest = torch.linalg.matrix_norm(drawn.key[item].mT @ drawn.query[item], 2).amax()
        row |= {"start": _kind_of_start(item), "logits": (steepest * drawn.radius[item] ** 2).item()}
    return kind._asdict() | row | {"measured": found[item].item(), "stated": stated[item].item()}


def joined(rows):
    """Rows of blocks joined: for each class the sums of cases and violations, and the worst case."""
    fields = [name for name in dict.fromkeys((*Class._fields, *ClassInUse._fields)) if name in rows]
    groups = rows.groupby(fields, sort=False)
    worst = rows.loc[groups.worst.idxmax()].set_index(fields)
    worst[["cases", "violations"]] = groups[["cases", "violations"]].sum()
    return worst.reset_index()


HOW = {"join": joined, "settings": {"slack": SLACK, "dtype": "float64", "device": "cpu"}}


@table(
    "verify-ball",
    "ascended inputs of 11,000 layers against the bound on a ball",
    over=lambda blocks: [(*kind, block) for kind in CLASSES for block in range(blocks.get(kind.tokens, 0))],
    command="make verify",
    blocks=BLOCKS,
    **HOW,
)
def block_row(heads, mask, region, bias, tokens, block, *, layers=LAYERS):
    """One row of the table before it is joined; `layers` of a block, by the number of tokens."""
    return measure(Class(heads, mask, region, bias, tokens), block, layers=layers[tokens])


@table(
    "verify-ball-in-use",
    "ascended inputs of 640 layers of attention in use against the bound on a ball",
    over=lambda blocks: [(*kind, block) for kind in IN_USE for block in range(blocks)],
    command="make verify",
    blocks=1,
    **HOW,
)
def block_row_in_use(added, region, block, *, layers=LAYERS_IN_USE):
    """One row of the table before it is joined; `layers` of a block."""
    return measure(ClassInUse(added, region), block, layers=layers)
