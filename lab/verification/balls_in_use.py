"""Ascended inputs against `lipnb.bounds.ball_upper` for attention in use: rotary, normalised, capped, with sinks."""

import itertools
import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple
from zlib import crc32

import torch

from lab.experiments.table import Table
from lab.ledger import SLACK
from lab.verification.ascent import weighted_dense
from lab.verification.balls import Layers, ascended, joined
from lab.verification.draws import integer, normal, uniform
from lipnb.attention import Attention
from lipnb.bounds import ball_upper
from lipnb.recording import Unit
from lipnb.worst_case import unit_slope

__all__ = ["CLASSES", "TABLE", "Class", "LayersInUse", "draw", "measure"]

LAYERS, BLOCKS = 40, 1
RATES = (0.003, 0.01, 0.06)  # first steps of Adam, in radii
ADDED = ("rotary", "partial rotary", "normalised", "capped", "relative", "sinks", "all but normalised", "all")
EPS = 0.05  # of the norms in the heads: bounds grow like its root


class Class(NamedTuple):
    """What the layers of a block have in common."""

    added: str
    region: str


CLASSES = [Class(*one) for one in itertools.product(ADDED, ("ball", "RMSNorm"))]


@dataclass(frozen=True)
class LayersInUse:
    r"""A batch of layers of attention in use, written down plainly as the twin of `Attention`.

    Attributes
    ----------
    plain : Layers
        Matrices, of keys and values for g heads, query biases and the sets of tokens, without a mask.
    sees : Tensor of int, shape (b,)
        How many tokens each token sees under a mask, itself included; 0 without a mask.
    key_bias, value_bias : Tensor, shapes (b, g, k) and (b, g, v)
    frequencies : Tensor, shape (p,), or None
    norms : tuple of Tensor, shapes (b, h, k) and (b, g, k), or None
    cap : float or None
    relative : Tensor, shape (b, h, 2 w + 1), or None
    sinks : Tensor, shape (b, h), or None
    """

    plain: Layers
    sees: torch.Tensor
    key_bias: torch.Tensor
    value_bias: torch.Tensor
    frequencies: torch.Tensor | None = None
    norms: tuple[torch.Tensor, torch.Tensor] | None = None
    cap: float | None = None
    relative: torch.Tensor | None = None
    sinks: torch.Tensor | None = None

    @property
    def radius(self):
        return self.plain.radius

    def __call__(self, x):
        """Outputs (b, n, m) of tokens (b, n, d)."""
        of, times, place = self.plain, self.plain.query.shape[1] // self.key_bias.shape[1], torch.arange(x.shape[1])
        ahead = place - place[:, None]
        query = torch.einsum("bhkd,bnd->bhnk", of.query, x) + of.query_bias[:, :, None]
        key = torch.einsum("bhkd,bnd->bhnk", of.key, x) + self.key_bias[:, :, None]
        value = torch.einsum("bhvd,bnd->bhnv", of.value, x) + self.value_bias[:, :, None]
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
        values = logits.softmax(-1)[..., : x.shape[1]] @ value
        return torch.einsum("bhmv,bhnv->bnm", of.output, values)

    def _turned(self, rows):
        """Rows (b, h, n, k) as complex numbers times those of their places."""
        if self.frequencies is None:
            return rows
        p = len(self.frequencies)
        angle = torch.arange(rows.shape[2], dtype=torch.float64)[:, None] * self.frequencies
        plane = torch.complex(rows[..., :p], rows[..., p : 2 * p]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([plane.real, plane.imag, rows[..., 2 * p :]], -1)

    def attention(self, i):
        """Layer i as the package knows it."""
        rest = {"frequencies": self.frequencies, "cap": self.cap, "norm_eps": EPS}
        rest |= {name: part[i] for name in ("relative", "sinks") if (part := getattr(self, name)) is not None}
        if self.norms is not None:
            rest |= {"query_norm": self.norms[0][i], "key_norm": self.norms[1][i]}
        of = self.plain
        return Attention(
            *(part[i] for part in (of.query, of.key, of.value, of.output)),
            query_bias=of.query_bias[i],
            key_bias=self.key_bias[i],
            value_bias=self.value_bias[i],
            scale=1.0,
            masked=bool(self.sees[i]),
            window=int(self.sees[i]) or None,
            **rest,
        )

    def maps(self):
        """G (b, d, d) and 0: the tokens are G u, u in the unit ball."""
        d = self.plain.query.shape[-1]
        gain = torch.ones(len(self.radius), d).double() if self.plain.gain is None else self.plain.gain
        size = math.sqrt(d) if self.plain.gain is not None else self.radius[:, None, None]
        return size * torch.diag_embed(gain), torch.zeros(len(gain), 1, d, dtype=torch.float64)

    def upper(self):
        """`ball_upper` of each layer, shape (b,)."""
        n, gain, found = len(self.plain.hidden), self.plain.gain, []
        for i, R in enumerate(self.radius.tolist()):
            where = {"R": R} if gain is None else {"R": math.inf, "ellipsoid": (gain[i], None)}
            found.append(ball_upper(self.attention(i), n, **where))
        return torch.tensor(found, dtype=torch.float64)


def draw(kind, block, *, layers=LAYERS):
    """The layers of one block and where their ascents begin; equal arguments give equal ones.

    Parameters
    ----------
    kind : Class
    block : int
        Its seed, 0 or more.
    layers : int
        How many.

    Returns
    -------
    LayersInUse
        With largest logits from 1 to 100, before caps and norms.
    Tensor, shape (b, n, d)
        Points of the unit ball, see `LayersInUse.maps`: two sides of one direction, or random.
    """
    g = torch.Generator().manual_seed(crc32(f"in use/{kind}/{block}".encode()))
    b, n, d, k = layers, integer(g, 3, 10), integer(g, 2, 5), integer(g, 2, 5)
    h = integer(g, 1, 4)
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
    plain = Layers(
        query=scale[..., None] * query,
        key=key,
        value=normal(g, b, groups, v, d),
        output=normal(g, b, h, m, v),
        query_bias=scale * bias * normal(g, b, h, k),
        hidden=torch.zeros(n, n, dtype=torch.bool),
        window=None,
        gain=gain,
        shift=None,
        radius=radius,
    )
    u = unit_slope(normal(g, b, n, d), -1)
    sides = torch.randint(0, 2, (b, n, 1), generator=g) * 2 - 1
    u = torch.where(torch.randint(0, 2, (b, 1, 1), generator=g) > 0, u, sides * u[:, :1])
    biases = {"key_bias": bias * normal(g, b, groups, k), "value_bias": bias * normal(g, b, groups, v)}
    return LayersInUse(plain, sees, **biases, **_added(g, kind.added, b, h, groups, n, k)), u


def _added(g, added, b, h, groups, n, k):
    """What the layers have beyond plain heads."""
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


def measure(kind, block, *, layers=LAYERS, factor=1.0):
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
        and of that case: block, item, n, d, h, g, sees, measured (dense Jacobian of the plain twin, by autograd) and
        stated.
    """
    drawn, u = draw(kind, block, layers=layers)
    rates = torch.tensor(RATES, dtype=torch.float64)[torch.arange(len(u)) % len(RATES)]
    found = torch.linalg.matrix_norm(weighted_dense(drawn, ascended(drawn, u, rates)), 2)
    stated = factor * drawn.upper()
    ratios = found / stated
    if not torch.isfinite(ratios).all():
        raise ArithmeticError(f"{kind}, block {block}: a measured value or a bound is not finite.")
    item = int(ratios.argmax())
    return {
        **kind._asdict(),
        "cases": len(u),
        "violations": int((ratios > 1 + SLACK).sum()),
        "worst": ratios[item].item(),
        "block": block,
        "item": item,
        "n": u.shape[1],
        "d": u.shape[2],
        "h": drawn.plain.query.shape[1],
        "g": drawn.key_bias.shape[1],
        "sees": int(drawn.sees[item]),
        "measured": found[item].item(),
        "stated": stated[item].item(),
    }


def _prepare(blocks, layers):
    settings = {"blocks": blocks, "layers": layers, "slack": SLACK, "dtype": "float64", "device": "cpu"}

    def unit(kind, block):
        key = "/".join(map(str, (*kind, block)))
        return Unit(key, lambda: [measure(kind, block, layers=layers)], 1)

    return settings, [unit(kind, block) for kind in CLASSES for block in range(blocks)]


TABLE = Table(
    "verify-ball-in-use", _prepare, {"blocks": BLOCKS, "layers": LAYERS}, partial(joined, fields=Class._fields)
)
