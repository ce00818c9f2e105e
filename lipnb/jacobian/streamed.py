"""Products with the Jacobian of long sequences, in memory linear in n: rows of P are made again at each product."""

import math

import torch
from torch import Tensor

from lipnb.attention import Attention
from lipnb.checks import at_once
from lipnb.jacobian.weights import ScaledWeights, steep

__all__ = ["StreamedProducts"]

ROWS = (16, 512)  # fewest and most of a tile, whatever fits: fewer waste matrix products, more leave the cache


class StreamedProducts:
    r"""The products of `CachedProducts` without its n x n matrices, one tile of rows at a time.

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

    route = "streamed"

    def __init__(self, attention: Attention, x: Tensor, weights: Tensor | None = None, rows: int | None = None) -> None:
        self.attention, self.x, self.weighted = attention, x, weights
        self.root = None if weights is None else weights.sqrt()[..., None]
        self.weights = ScaledWeights.of(attention, x.dtype)
        self.unit = self.weights.unit
        n = x.shape[1]
        self.rows = rows or max(ROWS[0], min(ROWS[1], at_once(n * attention.heads, x.dtype)))
        self._tile_buffers = x.new_empty(2, attention.heads * self.rows * n)
        self._cached = [self._cache(item) for item in range(len(x))]

    def restrict(self, index: Tensor) -> "StreamedProducts":
        """The same products for the sequences `index` of the batch."""
        new = object.__new__(StreamedProducts)
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
        """Buffer 0 or 1 as a tensor of shape (h, rows, columns)."""
        shape = (self.attention.heads, rows.stop - rows.start, columns.stop - columns.start)
        return self._tile_buffers[which, : math.prod(shape)].view(shape)

    def _logits(self, query, key, added, rows, columns):
        """Logits of one tile, shape (h, rows, columns), the mask and the token weights included."""
        logits = torch.bmm(query[:, rows], key[:, columns].mT, out=self._tile(0, rows, columns))
        if added is not None:
            logits += added[..., columns]
        return self.attention.hide(logits, self.x.shape[1], rows, columns)

    def _cache(self, item):
        """Queries, keys, values, head outputs and log-sum-exponentials of one sequence."""
        query, key, value = self.attention.project(self.x[item])
        query, key = self.attention.centred(query, key)
        added = self.attention.added_to_logits(key, None if self.weighted is None else self.weighted[item])
        value = value / self.weights.value_unit
        heads, logsumexp = torch.empty_like(value), torch.empty_like(value[..., :1])
        for rows, columns in self._tiles():
            logits = self._logits(query, key, added, rows, columns)
            logsumexp[:, rows] = total = logits.logsumexp(-1, keepdim=True)
            heads[:, rows] = logits.sub_(total).exp_() @ value[:, columns]
        one = torch.ones_like(logsumexp)
        return (
            steep(query, key),
            torch.cat([query, -logsumexp], -1),
            torch.cat([key, one], -1),
            torch.cat([value, one], -1),
            heads,
            added,
        )

    def gram(self, u: Tensor) -> Tensor:
        """M^T M u / `unit`^2, shape (b, n d), as `CachedProducts.gram`."""
        return torch.stack([self._gram(item, one.view_as(self.x[0])).flatten() for item, one in enumerate(u)])

    def _gram(self, item, u):
        # one more column makes the products subtract log-sum-exponentials and row sums without a pass of their own
        att, (is_steep, query1, key1, value1, heads, added) = self.attention, self._cached[item]
        query, key, value = query1[..., :-1], key1[..., :-1], value1[..., :-1]
        root = None if self.root is None else self.root[item]
        h, k, v = att.heads, att.key_width, att.value_width
        projected = (u if root is None else u / root) @ self.weights.projection
        parts = [part.unflatten(-1, (h, -1)).transpose(0, 1) for part in projected.split([h * k, h * k, h * v], -1)]
        queries = torch.cat([parts[0], query], -1)  # [tangent, query] and, with L2 scores, 1
        keys = torch.cat([key, parts[1]], -1)  # [key, tangent] and -2s key . tangent
        if att.score == "l2":
            queries = torch.cat([queries, torch.ones_like(query[..., :1])], -1)
            keys = torch.cat([keys, -att.slope * (key * parts[1]).sum(-1, keepdim=True)], -1)
        d_value = parts[2].contiguous()
        back_key, back_value = torch.zeros_like(queries[..., k:]), torch.zeros_like(value)
        for rows, columns in self._tiles():
            P = self._logits(query1, key1, added, rows, columns).exp_()
            t = torch.bmm(queries[:, rows], keys[:, columns].mT, out=self._tile(1, rows, columns)).mul_(P)
            total = t.sum(-1, keepdim=True)
            if is_steep:
                t.addcmul_(P, total, value=-1)
            o = torch.bmm(t, value[:, columns]).baddbmm_(P, d_value[:, columns])
            if not is_steep:
                o.addcmul_(total, heads[:, rows], value=-1)
            joined = o.transpose(0, 1).flatten(1)
            if root is not None:
                joined = joined * root[rows] ** 2
            g = self.weights.through_output(joined).unflatten(-1, (h, v)).transpose(0, 1).contiguous()
            back_value[:, columns].baddbmm_(P.mT, g)
            spread = torch.zeros_like(total) if is_steep else -(g * heads[:, rows]).sum(-1, keepdim=True)
            z = torch.bmm(torch.cat([g, spread], -1), value1[:, columns].mT, out=t).mul_(P)
            if is_steep:
                z.addcmul_(P, z.sum(-1, keepdim=True), value=-1)
            parts[0][:, rows] = torch.bmm(z, key[:, columns])
            back_key[:, columns].baddbmm_(z.mT, queries[:, rows, k:])
        if att.score == "l2":
            back_key = back_key[..., :-1].addcmul(key, back_key[..., -1:], value=-att.slope)
        parts[1].copy_(back_key)
        parts[2].copy_(back_value)
        out = projected @ self.weights.projection.mT
        return out if root is None else out / root
