"""Domain of the tokens: a ball, the outputs of a LayerNorm, or their intersection, as an image of a unit ball."""

import math
from typing import NamedTuple

import torch
from scipy.optimize import brentq
from torch import Tensor

from lipnb.attention import Attention
from lipnb.bounds.ball import regions_of


class Domain(NamedTuple):
    r"""Domain of tokens :math:`c + B u` with :math:`|u| \le 1`, of norm at most R if R is finite."""

    centre: Tensor  # c, (r,), and
    map: Tensor  # B, (r, s), in the coordinates of the searched map; a number means a multiple of the identity
    whole: tuple[Tensor, Tensor]  # c and B in all coordinates, (d,) and (d, s)
    inner: Tensor  # u of a shortest token, (s,), toward which tokens outside the ball are moved
    R: float  # infinite if the ball contains the ellipsoid

    def tokens(self, u: Tensor) -> Tensor:
        """Tokens in the coordinates of the searched map, shape (..., r), from u (..., s)."""
        return _affine(self.centre, self.map, u)

    def whole_tokens(self, u: Tensor) -> Tensor:
        """Tokens in all coordinates, shape (..., d), from u (..., s)."""
        return _affine(*self.whole, u)

    def inside(self, u: Tensor) -> Tensor:
        r"""Project u: radially to the unit ball, then, if :math:`|c + B u| > R`, toward `inner`."""
        u = u / torch.linalg.vector_norm(u, dim=-1, keepdim=True).clamp_min(1)
        if self.R == math.inf:
            return u
        start = self.whole_tokens(self.inner)
        way = self.whole_tokens(u) - start
        a, b, room = way.square().sum(-1), way @ start, self.R**2 - start.square().sum()
        # the largest share t of the way with |start + t way| <= R
        share = (((b**2 + a * room.clamp_min(0)).sqrt() - b) / a.clamp_min(1e-300)).clamp(0, 1)
        return self.inner + share[..., None] * (u - self.inner)

    def pulled(self, attention: Attention) -> Attention:
        """Plain heads as a map of u, after `tokens`: logits and outputs up to constants; derivatives are in u."""
        shift = attention.query @ self.centre
        bias = shift if attention.query_bias is None else attention.query_bias + shift
        rows = {name: getattr(attention, name) for name in ("query", "key", "value")}
        parts = {name: self.map * part if self.map.ndim == 0 else part @ self.map for name, part in rows.items()}
        return attention.replace(**parts, query_bias=bias if bias.any() else None)

    def spanned(self, attention: Attention) -> tuple[Attention, "Domain"]:
        """The map restricted to the span of its rows, if that has fewer coordinates, and its domain.

        The smaller domain has all tokens of this one as the map sees them; with a ball and an ellipsoid, where the
        length of a token matters too, only part of them.
        """
        rows = torch.cat([part.flatten(0, 1) for part in (attention.query, attention.key, attention.value)])
        if len(rows) + 1 >= attention.width:
            return attention, self
        ball = self.map.ndim == 0
        moves = rows if ball else rows @ self.map
        if self.R < math.inf:
            moves = torch.cat([moves, self.inner[None]])
        basis, along = (torch.linalg.qr(part.mT).Q for part in (rows, moves))
        centre, whole = self.whole[0], self.map * along if ball else self.map @ along
        small = self.map if ball else basis.mT @ whole
        parts = {name: getattr(attention, name) @ basis for name in ("query", "key", "value")}
        return attention.replace(**parts), Domain(centre @ basis, small, (centre, whole), self.inner @ along, self.R)


def _affine(centre, matrix, u):
    return centre + (matrix * u if matrix.ndim == 0 else u @ matrix.mT)


def domain_of(attention: Attention, R: float, ellipsoid: tuple[Tensor, Tensor | None] | None) -> Domain:
    """The domain of tokens in the ball and of the LayerNorm `ellipsoid`, as for `ball_upper`; float64, on the CPU."""
    regions, reach = regions_of(attention, R, ellipsoid)
    region = regions[-1]
    if ellipsoid is None:
        size = torch.tensor(float(R), dtype=torch.float64, device="cpu")
        return Domain(region.centre, size, (region.centre, size), region.centre, math.inf)
    inner = nearest(region.centre, region.map)
    least = torch.linalg.vector_norm(region.centre + region.map @ inner).item()
    if least > R * (1 + 1e-12):
        raise ValueError(f"no token of the ellipsoid is in the ball: R must be at least {least:.6g}, got {R!r}.")
    cut = R if reach == R else math.inf  # all outputs of the LayerNorm may lie in the ball
    return Domain(region.centre, region.map, (region.centre, region.map), inner, cut)


def nearest(centre: Tensor, matrix: Tensor) -> Tensor:
    r"""The u in the unit ball that minimises :math:`|c + B u|`, shape (s,).

    .. math:: u = -(B^\top B + \lambda I)^{-1} B^\top c,

    with :math:`\lambda = 0` if then :math:`|u| \le 1`, else the :math:`\lambda` that gives length 1.

    >>> nearest(torch.tensor([3.0, 1.0]).double(), torch.tensor([[2.0, 0.0], [0.0, 4.0]]).double()).norm().item() <= 1
    True
    >>> nearest(torch.tensor([1.0, 1.0]).double(), torch.tensor([[2.0, 0.0], [0.0, 4.0]]).double()).tolist()
    [-0.5, -0.25]
    """
    h, basis = torch.linalg.eigh(matrix.mT @ matrix)
    g = -(basis.mT @ (matrix.mT @ centre))
    flat = h <= 1e-13 * h[-1]  # directions that move no token
    h, g = h.clamp_min(0), g.masked_fill(flat, 0)

    def coordinates(lift):
        return g / torch.where(flat, 1, h + lift)

    excess = coordinates(0).norm().item() - 1
    if excess > 0:  # the length falls with lambda, and is below 1 at |B^T c|
        u = coordinates(
            brentq(lambda lift: coordinates(lift).norm().item() - 1, 0, g.norm().item(), xtol=1e-300, rtol=1e-14)
        )
        return basis @ (u / u.norm())
    return basis @ coordinates(0)
