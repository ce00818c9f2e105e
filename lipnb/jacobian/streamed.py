"""Products with the Jacobian of long sequences in memory linear in n: each product recomputes the rows of P."""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from lipnb.attention import Attention
from lipnb.checks import at_once
from lipnb.jacobian.linearization import Projected
from lipnb.jacobian.matrices import ScaledMatrices
from lipnb.jacobian.rounding_error import jacobian_error, projected, received, squares
from lipnb.spectral import GramOperator

ROWS = (16, 512)  # least and most rows of a tile: fewer make matrix products inefficient, more leave the cache


class _Sequence(NamedTuple):
    """Tensors kept for one sequence.

    Queries, keys and values have one more column, so that products also subtract logarithms of row sums, and row sums,
    without a separate pass.
    """

    at: Projected  # in the type of the tokens; its values are a view of the first columns of the last
    queries: Tensor  # (h, n, k + 1), float64: the last column is minus the logarithm of the row's sum, or 0 with a cap
    keys: Tensor  # (g, n, k + 1), float64: 1
    added: Tensor | None  # (h or 1, 1, n), float64: as in `Projected`
    values: Tensor  # (g, n, v + 1): 1
    heads: Tensor  # (h, n, v): as in `Linearization`
    offset: Tensor | None  # (h, n, v): as there
    sums: Tensor | None  # (h, n, 1), float64: these logarithms if a cap keeps them out of the products
    near_hard: bool
    error: Tensor  # (): as `jacobian_error`


class _Tangents(NamedTuple):
    """Tangents of a change u of one sequence, and accumulators for its image under J^T J."""

    queries: Tensor  # (h, n, 2 k or 2 k + 1): [tangent, query] and, with L2 scores, 1
    keys: Tensor  # (g, n, as many): [key, tangent] and -2s key . tangent
    value: Tensor  # (g, n, v): the values' tangents
    back_query: Tensor  # (h, n, k)
    back_key: Tensor  # (g, n, k or k + 1)
    back_value: Tensor  # (g, n, v)


class StreamedGram(GramOperator):
    r"""Gram operator with the products of `CachedGram` but without n x n matrices, by tiles of rows.

    A row of :math:`J^\top J u` needs one row of P only, twice: for the tangent of that row, and, after the output
    matrices, for its share of the cotangents. So each product recomputes each tile of P once from queries, keys and
    log-sum-exponentials: ``18 n^2 d`` operations in place of ``16 n^2 d``, half as many when masked, because tiles
    above the diagonal are skipped, as are those before a window. Tiles of P are computed in float64 and rounded to the
    type of the tokens, or float32 would err by eps times the logits.

    Parameters
    ----------
    attention : Attention
        The map.
    x : Tensor, shape (b, n, d)
        Tokens of independent sequences, processed one after the other.
    weights : Tensor, shape (b, n), optional
        Positive token weights.
    rows : int, optional
        Rows of a tile; chosen from n and h by default.
    """

    name = "streamed"

    def __init__(self, attention: Attention, x: Tensor, weights: Tensor | None = None, rows: int | None = None) -> None:
        self.attention, self.n = attention, x.shape[1]
        self.matrices = ScaledMatrices.of(attention, x.dtype)
        self.unit = self.matrices.unit
        self.rows = rows or max(ROWS[0], min(ROWS[1], at_once(self.n * attention.heads, x.dtype)))
        # buffers for logits, for t and z, and for the slopes of a cap
        size = attention.heads * self.rows * self.n
        self._fine = attention.to(dtype=torch.float64)
        self._tile_buffers = x.new_empty(2 if attention.cap is None else 3, size)
        self._fine_buffers = self._tile_buffers  # in float64, for logits and slopes of the cap
        if x.dtype != torch.float64:
            self._fine_buffers = x.new_empty(1 if attention.cap is None else 2, size, dtype=torch.float64)
        self._sequences = [self._cache(one, None if weights is None else weights[i]) for i, one in enumerate(x)]
        self.error = torch.stack([one.error for one in self._sequences])

    def restrict(self, index: Tensor) -> "StreamedGram":
        """The operator of the sequences `index` of the batch."""
        new = object.__new__(StreamedGram)
        new.__dict__.update(self.__dict__, _sequences=[self._sequences[i] for i in index.tolist()])
        return new

    def _tiles(self):
        """Rows and columns of each tile, two slices."""
        for first in range(0, self.n, self.rows):
            last = min(first + self.rows, self.n)
            yield slice(first, last), self.attention.seen(self.n, first, last)

    def _tile(self, which, rows, columns, fine=False):
        """One of the buffers as a tensor of shape (g, r rows, columns)."""
        g, r = self.attention.groups, self.attention.heads // self.attention.groups
        shape = (g, r * (rows.stop - rows.start), columns.stop - columns.start)
        return (self._fine_buffers if fine else self._tile_buffers)[which, : math.prod(shape)].view(shape)

    def _logits(self, query, key, added, rows, columns):
        """Logits of one tile, (g, r rows, columns), from its queries (g, r rows, k), and slopes of the cap or None.

        Mask, relative positions and token weights are included.
        """
        tile, heads = self._tile(0, rows, columns, fine=True), self.attention.heads
        products = torch.bmm(query, key[:, columns].mT, out=tile)
        slopes = self._tile(-1, rows, columns, fine=True)  # without a cap nothing is written there; t uses it later
        each, slopes_of_each = (tile.view(heads, -1, tile.shape[-1]) for tile in (products, slopes))
        self._fine.logits(each, added, self.n, rows, columns, slopes=slopes_of_each)
        return products, None if self.attention.cap is None else slopes

    def _cache(self, x, weights):
        """The `_Sequence` at tokens (n, d): columns, head outputs and logarithms of row sums, and the error."""
        at = projected(self.attention, x, weights)
        att, query, key, value = at.attention, at.query, at.key, at.value
        heads, sums = value.new_empty(att.heads, self.n, att.value_width), value.new_empty(att.heads, self.n, 1)
        columns_of_squares, offset = squares(at), None
        means = value.new_empty(att.heads, self.n, columns_of_squares.shape[-1])
        got = value.new_zeros(att.heads, self.n)
        for rows, columns in self._tiles():
            logits, _ = self._logits(att.grouped(query[:, rows]), key, at.added, rows, columns)
            each = logits.view(att.heads, -1, logits.shape[-1])
            with_sinks = each if att.sinks is None else att.with_sinks(each)
            sums[:, rows] = total = with_sinks.logsumexp(-1, keepdim=True)
            each.sub_(total).exp_()
            count = rows.stop - rows.start
            heads[:, rows] = att.ungrouped(logits @ value[:, columns], count)
            means[:, rows] = att.ungrouped(logits @ columns_of_squares[:, columns], count)
            got[:, columns] += received(None if at.root is None else at.root[rows], each)
        if at.sink_bias is not None:
            offset = -(att.sinks[:, None, None] - sums).exp() * at.sink_bias
            heads += offset
        error = jacobian_error(at, x, means, got, heads, offset, self.attention)
        one, unit = torch.ones_like(key[..., :1]), self.matrices.value_unit
        queries = torch.cat([query, -sums if att.cap is None else torch.zeros_like(sums)], -1)
        values = torch.cat([value / unit, one], -1).to(x.dtype)
        near, offset = at.to(self.attention), None if offset is None else (offset / unit).to(x.dtype)
        return _Sequence(
            replace(near, value=values[..., :-1]),
            queries,
            torch.cat([key, one], -1),
            at.added,
            values,
            (heads / unit).to(x.dtype),
            offset,
            None if att.cap is None else sums,
            near.near_hard,
            error,
        )

    def gram(self, u: Tensor) -> Tensor:
        """M^T M u / unit^2, shape (b, n d), as `CachedGram.gram`."""
        pairs = zip(self._sequences, u, strict=True)
        return torch.stack([self._gram(one, change.view(self.n, -1)).flatten() for one, change in pairs])

    def _gram(self, one, u):
        """J^T J u of one sequence, (n, d): project u, go through the heads and back tile by tile, pull back."""
        at, root = one.at, one.at.root
        projected = (u if root is None else u / root) @ self.matrices.projection
        parts = self._parts(projected)
        tangents = self._tangents(at, parts)
        for rows, columns in self._tiles():
            self._add_tile(one, tangents, rows, columns)
        back_key = tangents.back_key
        if self.attention.score == "l2":
            back_key = back_key[..., :-1].addcmul(at.key, back_key[..., -1:], value=-self.attention.slope)
        # the parts are views of `projected`, which the matrices multiply next
        back_query = tangents.back_query
        parts[0].copy_(back_query if at.of_query is None else at.of_query.transposed(back_query))
        parts[1].copy_(back_key if at.of_key is None else at.of_key.transposed(back_key))
        parts[2].copy_(tangents.back_value)
        out = projected @ self.matrices.projection.mT
        return out if root is None else out / root

    def _parts(self, projected):
        """Views (h or g, n, width) of the query, key and value parts of `projected`, (n, h k + g (k + v))."""
        att = self.attention
        h, g, k, v = att.heads, att.groups, att.key_width, att.value_width
        parts = projected.split([h * k, g * k, g * v], -1)
        return [part.unflatten(-1, (-1, width)).transpose(0, 1) for part, width in zip(parts, (k, k, v), strict=True)]

    def _tangents(self, at, parts):
        """Tangents of queries, keys and values, next to their multipliers, and zeros for the way back."""
        att = self.attention
        d_query = parts[0] if at.of_query is None else at.of_query.forward(parts[0])
        d_key = parts[1] if at.of_key is None else at.of_key.forward(parts[1])
        queries = torch.cat([d_query, at.query], -1)
        keys = torch.cat([at.key, d_key], -1)
        if att.score == "l2":
            queries = torch.cat([queries, torch.ones_like(at.query[..., :1])], -1)
            keys = torch.cat([keys, -att.slope * (at.key * d_key).sum(-1, keepdim=True)], -1)
        back_key = at.key.new_zeros(*at.key.shape[:2], queries.shape[-1] - att.key_width)
        return _Tangents(
            queries, keys, parts[2].contiguous(), torch.empty_like(at.query), back_key, torch.zeros_like(at.value)
        )

    def _probabilities(self, one, rows, columns):
        """P of one tile, shape (g, r rows, columns), recomputed, and slopes of the cap or None."""
        att = self.attention
        P, cap_slope = self._logits(att.grouped(one.queries[:, rows]), one.keys, one.added, rows, columns)
        P = P if one.sums is None else P.sub_(att.grouped(one.sums[:, rows]))
        P = self._normalised(one, P, rows) if one.near_hard else P.exp_()
        if self._fine_buffers is self._tile_buffers:
            return P, cap_slope
        slopes = None if cap_slope is None else self._tile(-1, rows, columns).copy_(cap_slope)
        return self._tile(0, rows, columns).copy_(P), slopes

    def _normalised(self, one, logits, rows):
        """P from whole rows of logits minus the stored logarithms of their sums, in place, with newly computed sums.

        The products behind the stored logarithms may have been rounded differently, by eps times the large logits. Rows
        of P would then not sum to one, and total - total * (sum of P) would not be small compared with t.
        """
        sink, top = self.attention.sinks, logits.amax(-1, keepdim=True)
        if sink is not None:
            stored = -one.queries[:, rows, -1:] if one.sums is None else one.sums[:, rows]
            sink = self.attention.grouped(sink[:, None, None] - stored)
            top = torch.maximum(top, sink)
        P = logits.sub_(top).exp_()
        sums = P.sum(-1, keepdim=True)
        return P.div_(sums if sink is None else sums + (sink - top).exp())

    def _add_tile(self, one, tangents, rows, columns):
        r"""Add the contribution of one tile: tangents of its rows, through the output matrices, and back.

        .. math::
            t = P \circ \kappa' \circ (\dot q k^\top + q \dot k^\top), \quad
            \dot o = t v + P \dot v - \mathrm{rowsum}(t)\, o, \quad
            w = W_O^\top W_O \dot o, \quad z = P \circ \kappa' \circ (w v^\top - \mathrm{rowsum}(w \circ o)),

        and back: z k to the queries, :math:`z^\top q` to the keys, :math:`P^\top w` to the values. If attention is
        nearly hard, row sums are subtracted from t and z themselves.
        """
        att, count = self.attention, rows.stop - rows.start
        queries, taken = att.grouped(tangents.queries[:, rows]), one.offset if one.near_hard else one.heads
        taken = None if taken is None else att.grouped(taken[:, rows])  # multiplier of the row sum of t
        P, cap_slope = self._probabilities(one, rows, columns)
        t = torch.bmm(queries, tangents.keys[:, columns].mT, out=self._tile(1, rows, columns)).mul_(P)
        t = t if cap_slope is None else t.mul_(cap_slope)
        total = t.sum(-1, keepdim=True)
        if one.near_hard:
            t.addcmul_(P, total, value=-1)
        o = torch.bmm(t, one.at.value[:, columns]).baddbmm_(P, tangents.value[:, columns])
        if taken is not None:
            o.addcmul_(total, taken, value=-1)
        # w, with the token weights between W_O and its transpose
        joined = att.ungrouped(o, count).transpose(0, 1).flatten(1)
        if (root := one.at.root) is not None:
            joined = joined * root[rows] ** 2
        through = self.matrices.through_output(joined).unflatten(-1, (att.heads, att.value_width))
        w = att.grouped(through.transpose(0, 1)).contiguous()
        tangents.back_value[:, columns].baddbmm_(P.mT, w)
        spread = torch.zeros_like(total) if taken is None else -(w * taken).sum(-1, keepdim=True)
        both = torch.cat([w, torch.zeros_like(spread) if one.near_hard else spread], -1)
        z = torch.bmm(both, one.values[:, columns].mT, out=t).mul_(P)
        if one.near_hard:
            z.addcmul_(P, spread - z.sum(-1, keepdim=True))
        z = z if cap_slope is None else z.mul_(cap_slope)
        tangents.back_query[:, rows] = att.ungrouped(torch.bmm(z, one.at.key[:, columns]), count)
        tangents.back_key[:, columns].baddbmm_(z.mT, queries[..., att.key_width :])
