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
    """What is kept of one sequence.

    Queries, keys and values have one more column, so that products subtract logarithms of row sums, and row sums,
    without a pass of their own.
    """

    near_hard: bool
    query_column: Tensor  # (h, n, k + 1): the last column is minus the logarithm of the row's sum, or 0 with a cap
    key_column: Tensor  # (g, n, k + 1): 1
    value_column: Tensor  # (g, n, v + 1): 1
    heads: Tensor  # (h, n, v)
    sums: Tensor | None  # (h, n, 1): those logarithms where a cap keeps them out of the products
    added: Tensor | None
    of_query: Local
    of_key: Local

    @property
    def query(self) -> Tensor:
        """Queries alone, (h, n, k)."""
        return self.query_column[..., :-1]

    @property
    def key(self) -> Tensor:
        """Keys alone, (g, n, k)."""
        return self.key_column[..., :-1]

    @property
    def value(self) -> Tensor:
        """Values alone, (g, n, v)."""
        return self.value_column[..., :-1]


class _Tangents(NamedTuple):
    """What becomes of a change u of one sequence, and where its image under J^T J is collected."""

    queries: Tensor  # (h, n, 2 k or 2 k + 1): [tangent, query] and, with L2 scores, 1
    keys: Tensor  # (g, n, as many): [key, tangent] and -2s key . tangent
    value: Tensor  # (g, n, v): the values' tangents
    back_query: Tensor  # (h, n, k)
    back_key: Tensor  # (g, n, k or k + 1)
    back_value: Tensor  # (g, n, v)


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
        att, cap_slope = self.attention, None
        logits = torch.bmm(query, key[:, columns].mT, out=self._tile(0, rows, columns))
        if att.cap is not None:
            cap_slope = torch.cosh(logits.div_(att.cap), out=self._tile(2, rows, columns)).square_().reciprocal_()
            logits.tanh_().mul_(att.cap)
        each = logits.view(att.heads, -1, logits.shape[-1])
        if added is not None:
            each += added[..., columns]
        att.place(each, self.x.shape[1], rows, columns)
        return logits, cap_slope

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
            *att.local(x),
        )

    @gemm.by_fastest
    def gram(self, u: Tensor) -> Tensor:
        """M^T M u / `unit`^2, shape (b, n d), as `CachedGram.gram`."""
        return torch.stack([self._gram(item, one.view_as(self.x[0])).flatten() for item, one in enumerate(u)])

    def _gram(self, item, u):
        """J^T J u of one sequence, (n, d) of (n, d): project, tile by tile through the heads and back, pull back."""
        one, root = self._cached[item], None if self.root is None else self.root[item]
        projected = (u if root is None else u / root) @ self.weights.projection
        parts = self._parts(projected)
        tangents = self._tangents(one, parts)
        for rows, columns in self._tiles():
            self._add_tile(one, tangents, None if root is None else root[rows], rows, columns)
        back_key = tangents.back_key
        if self.attention.score == "l2":
            back_key = back_key[..., :-1].addcmul(one.key, back_key[..., -1:], value=-self.attention.slope)
        # the parts are views of what is multiplied by the matrices
        parts[0].copy_(one.of_query.transposed(tangents.back_query))
        parts[1].copy_(one.of_key.transposed(back_key))
        parts[2].copy_(tangents.back_value)
        out = projected @ self.weights.projection.mT
        return out if root is None else out / root

    def _parts(self, projected):
        """Views (h or g, n, width) of the query, key and value parts of `projected`, (n, h k + g (k + v))."""
        att = self.attention
        h, g, k, v = att.heads, att.groups, att.key_width, att.value_width
        parts = projected.split([h * k, g * k, g * v], -1)
        return [part.unflatten(-1, (-1, width)).transpose(0, 1) for part, width in zip(parts, (k, k, v), strict=True)]

    def _tangents(self, one, parts):
        """Tangents of queries, keys and values beside what they are multiplied with, and zeros for the way back."""
        att, d_key = self.attention, one.of_key.forward(parts[1])
        queries = torch.cat([one.of_query.forward(parts[0]), one.query], -1)
        keys = torch.cat([one.key, d_key], -1)
        if att.score == "l2":
            queries = torch.cat([queries, torch.ones_like(one.query[..., :1])], -1)
            keys = torch.cat([keys, -att.slope * (one.key * d_key).sum(-1, keepdim=True)], -1)
        back_key = one.key.new_zeros(*one.key.shape[:2], queries.shape[-1] - att.key_width)
        return _Tangents(
            queries, keys, parts[2].contiguous(), torch.empty_like(one.query), back_key, torch.zeros_like(one.value)
        )

    def _add_tile(self, one, tangents, root, rows, columns):
        """The tangents of the heads in these rows, through the output matrices, and their share of the way back."""
        att, count = self.attention, rows.stop - rows.start
        queries, heads = att.grouped(tangents.queries[:, rows]), att.grouped(one.heads[:, rows])
        P, cap_slope = self._logits(att.grouped(one.query_column[:, rows]), one.key_column, one.added, rows, columns)
        P = (P if one.sums is None else P.sub_(att.grouped(one.sums[:, rows]))).exp_()
        # t = P (q' k + q k'), o' = t v + P v' - rowsum(t) o
        t = torch.bmm(queries, tangents.keys[:, columns].mT, out=self._tile(1, rows, columns)).mul_(P)
        t = t if cap_slope is None else t.mul_(cap_slope)
        total = t.sum(-1, keepdim=True)
        if one.near_hard:
            t.addcmul_(P, total, value=-1)
        o = torch.bmm(t, one.value[:, columns]).baddbmm_(P, tangents.value[:, columns])
        if not one.near_hard:
            o.addcmul_(total, heads, value=-1)
        # W_O^T W_O, with the token weights between
        joined = att.ungrouped(o, count).transpose(0, 1).flatten(1)
        if root is not None:
            joined = joined * root**2
        through = self.weights.through_output(joined).unflatten(-1, (att.heads, att.value_width))
        w = att.grouped(through.transpose(0, 1)).contiguous()
        # z = P (w v - rowsum(w o)), and back: z k, z^T q, P^T w
        tangents.back_value[:, columns].baddbmm_(P.mT, w)
        spread = torch.zeros_like(total) if one.near_hard else -(w * heads).sum(-1, keepdim=True)
        z = torch.bmm(torch.cat([w, spread], -1), one.value_column[:, columns].mT, out=t).mul_(P)
        if one.near_hard:
            z.addcmul_(P, z.sum(-1, keepdim=True), value=-1)
        z = z if cap_slope is None else z.mul_(cap_slope)
        tangents.back_query[:, rows] = att.ungrouped(torch.bmm(z, one.key[:, columns]), count)
        tangents.back_key[:, columns].baddbmm_(z.mT, queries[..., att.key_width :])
