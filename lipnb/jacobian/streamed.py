"""Products with the Jacobian of long sequences, in memory linear in n: rows of P are made again at each product."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lipnb.attention import Attention, Local
from lipnb.checks import at_once
from lipnb.jacobian import gemm
from lipnb.jacobian.linearization import near_hard
from lipnb.jacobian.weights import ScaledWeights
from lipnb.spectral import GramOperator

__all__ = ["StreamedGram"]

ROWS = (16, 512)  # fewest and most of a tile, whatever fits: fewer waste matrix products, more leave the cache


class _Item(NamedTuple):
    """What is kept of one sequence; queries, keys and values with one more column."""

    near_hard: bool
    query: Tensor  # (h, n, k + 1): the last column is minus the logarithm of the row's sum, or 0 with a cap
    key: Tensor  # (g, n, k + 1): 1
    value: Tensor  # (g, n, v + 1): 1
    heads: Tensor  # (h, n, v)
    sums: Tensor | None  # (h, n, 1): those logarithms where a cap keeps them out of the products
    added: Tensor | None
    local: tuple[Local, Local]


class StreamedGram(GramOperator):
    r"""The products of `CachedGram` without its n x n matrices, one tile of rows at a time.

    A row of :math:`J^\top J u` needs one row of P only, twice: for the tangent of that row, and, once the output
    matrices are applied to it, for its share of the cotangents. So each tile of P is recomputed once a product from
    queries, keys and log-sum-exponentials; ``18 n^2 d`` operations in place of ``16 n^2 d``, half of it when masked,
    because tiles above the diagonal are never made, and those before a window neither.

    Parameters
    ----------
    attention : Attention
        The map.
    x : Tensor, shape (b, n, d)
        Tokens of independent sequences, which are taken one after the other.
    weights : Tensor, shape (b, n), optional
        Positive token weights.
    rows : int, optional
        Rows of a tile; chosen from n and h by default.
    """

    name = "streamed"

    def __init__(self, attention: Attention, x: Tensor, weights: Tensor | None = None, rows: int | None = None) -> None:
        self.attention, self.x, self.weighted = attention, x, weights
        self.root = None if weights is None else weights.sqrt()[..., None]
        self.weights = ScaledWeights.of(attention, x.dtype)
        self.unit = self.weights.unit
        n = x.shape[1]
        self.rows = rows or max(ROWS[0], min(ROWS[1], at_once(n * attention.heads, x.dtype)))
        self._tile_buffers = x.new_empty(2 if attention.cap is None else 3, attention.heads * self.rows * n)
        self._cached = [self._cache(item) for item in range(len(x))]

    def restrict(self, index: Tensor) -> "StreamedGram":
        """The same products for the sequences `index` of the batch."""
        new = object.__new__(StreamedGram)
        new.__dict__.update(self.__dict__)
        new.x = self.x[index]
        for name in ("root", "weighted"):
            setattr(new, name, None if getattr(self, name) is None else getattr(self, name)[index])
        new._cached = [self._cached[i] for i in index.tolist()]
        return new

    def _tiles(self):
        """Rows and columns of each tile, two slices."""
        n = self.x.shape[1]
        for first in range(0, n, self.rows):
            last = min(first + self.rows, n)
            yield slice(first, last), self.attention.seen(n, first, last)

    def _tile(self, which, rows, columns):
        """Buffer 0, 1 or 2 as a tensor of shape (g, r rows, columns)."""
        g, r = self.attention.groups, self.attention.heads // self.attention.groups
        shape = (g, r * (rows.stop - rows.start), columns.stop - columns.start)
        return self._tile_buffers[which, : math.prod(shape)].view(shape)

    def _logits(self, query, key, added, rows, columns):
        """Logits of one tile, shape (g, r rows, columns), of its queries (g, r rows, k), and slopes of the cap or None.

        Mask, relative positions and token weights are included.
        """
        att, bend = self.attention, None
        logits = torch.bmm(query, key[:, columns].mT, out=self._tile(0, rows, columns))
        if att.cap is not None:
            bend = torch.cosh(logits.div_(att.cap), out=self._tile(2, rows, columns)).square_().reciprocal_()
            logits.tanh_().mul_(att.cap)
        each = logits.view(att.heads, -1, logits.shape[-1])
        if added is not None:
            each += added[..., columns]
        att.place(each, self.x.shape[1], rows, columns)
        return logits, bend

    def _cache(self, item):
        """Queries, keys, values, head outputs and log-sum-exponentials of one sequence."""
        att, x = self.attention, self.x[item]
        query, key, value = att.project(x)
        query, key = att.centred(query, key)
        added = att.added_to_logits(key, None if self.weighted is None else self.weighted[item])
        value = value / self.weights.value_unit
        heads, sums = x.new_empty(att.heads, len(x), att.value_width), x.new_empty(att.heads, len(x), 1)
        for rows, columns in self._tiles():
            logits, _ = self._logits(att.grouped(query[:, rows]), key, added, rows, columns)
            each = logits.view(att.heads, -1, logits.shape[-1])
            sums[:, rows] = total = att.log_sums(each)
            each.sub_(total).exp_()
            heads[:, rows] = att.ungrouped(logits @ value[:, columns], len(x[rows]))
        one = torch.ones_like(key[..., :1])
        return _Item(
            near_hard(query, key),
            torch.cat([query, -sums if att.cap is None else torch.zeros_like(sums)], -1),
            torch.cat([key, one], -1),
            torch.cat([value, one], -1),
            heads,
            None if att.cap is None else sums,
            added,
            att.local(x),
        )

    @gemm.by_fastest
    def gram(self, u: Tensor) -> Tensor:
        """M^T M u / `unit`^2, shape (b, n d), as `CachedGram.gram`."""
        return torch.stack([self._gram(item, one.view_as(self.x[0])).flatten() for item, one in enumerate(u)])

    def _gram(self, item, u):
        # one more column makes the products subtract log-sum-exponentials and row sums without a pass of their own
        att, (is_near_hard, query1, key1, value1, heads, sums, added, local) = self.attention, self._cached[item]
        query, key, value = query1[..., :-1], key1[..., :-1], value1[..., :-1]
        root = None if self.root is None else self.root[item]
        h, g, k, v = att.heads, att.groups, att.key_width, att.value_width
        projected = (u if root is None else u / root) @ self.weights.projection
        parts = projected.split([h * k, g * k, g * v], -1)
        parts = [part.unflatten(-1, (-1, width)).transpose(0, 1) for part, width in zip(parts, (k, k, v), strict=True)]
        queries = torch.cat([local[0].forward(parts[0]), query], -1)  # [tangent, query] and, with L2 scores, 1
        d_key = local[1].forward(parts[1])
        keys = torch.cat([key, d_key], -1)  # [key, tangent] and -2s key . tangent
        if att.score == "l2":
            queries = torch.cat([queries, torch.ones_like(query[..., :1])], -1)
            keys = torch.cat([keys, -att.slope * (key * d_key).sum(-1, keepdim=True)], -1)
        d_value = parts[2].contiguous()
        back_query = torch.empty_like(query)
        back_key, back_value = key.new_zeros(*key.shape[:2], queries.shape[-1] - k), torch.zeros_like(value)
        for rows, columns in self._tiles():
            many, queries_here, heads_here = len(u[rows]), att.grouped(queries[:, rows]), att.grouped(heads[:, rows])
            P, bend = self._logits(att.grouped(query1[:, rows]), key1, added, rows, columns)
            P = (P if sums is None else P.sub_(att.grouped(sums[:, rows]))).exp_()
            t = torch.bmm(queries_here, keys[:, columns].mT, out=self._tile(1, rows, columns)).mul_(P)
            t = t if bend is None else t.mul_(bend)
            total = t.sum(-1, keepdim=True)
            if is_near_hard:
                t.addcmul_(P, total, value=-1)
            o = torch.bmm(t, value[:, columns]).baddbmm_(P, d_value[:, columns])
            if not is_near_hard:
                o.addcmul_(total, heads_here, value=-1)
            joined = att.ungrouped(o, many).transpose(0, 1).flatten(1)
            if root is not None:
                joined = joined * root[rows] ** 2
            w = att.grouped(self.weights.through_output(joined).unflatten(-1, (h, v)).transpose(0, 1)).contiguous()
            back_value[:, columns].baddbmm_(P.mT, w)
            spread = torch.zeros_like(total) if is_near_hard else -(w * heads_here).sum(-1, keepdim=True)
            z = torch.bmm(torch.cat([w, spread], -1), value1[:, columns].mT, out=t).mul_(P)
            if is_near_hard:
                z.addcmul_(P, z.sum(-1, keepdim=True), value=-1)
            z = z if bend is None else z.mul_(bend)
            back_query[:, rows] = att.ungrouped(torch.bmm(z, key[:, columns]), many)
            back_key[:, columns].baddbmm_(z.mT, queries_here[..., k:])
        if att.score == "l2":
            back_key = back_key[..., :-1].addcmul(key, back_key[..., -1:], value=-att.slope)
        parts[0].copy_(local[0].transposed(back_query))
        parts[1].copy_(local[1].transposed(back_key))
        parts[2].copy_(back_value)
        out = projected @ self.weights.projection.mT
        return out if root is None else out / root
