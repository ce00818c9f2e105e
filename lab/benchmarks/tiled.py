"""The exact Jacobian of attention in tiles of the probability matrix: O(n^2) time, memory of one tile."""

import torch
from torch import Tensor

from lipnb.attention import Attention
from lipnb.checks import check_weights

__all__ = ["TiledJacobian"]


class TiledJacobian:
    r"""Exact Jacobian of attention at n particles; recomputes the probabilities tile by tile.

    Reference for the separable kernel and for KeOps. A tile of probabilities is only multiplied by thin matrices: with
    :math:`C_i = \sum_j P_{ij} (v_j - o_i) k_j^\top` computed once,

    .. math::
        \dot f_i = C_i \dot q_i + \sum_j P_{ij} \dot v_j + \sum_j P_{ij} v_j (\dot k_j \cdot q_i)
                   - o_i \sum_j P_{ij} (\dot k_j \cdot q_i).

    Intended for small heads: it sums k v + k + v channels, so a product takes :math:`O(h n^2 k v)`.

    Parameters
    ----------
    attention : Attention
        Any map: heads, biases, output and mask are supported.
    x : Tensor, shape (n, d)
        One set of particles.
    weights : Tensor, shape (n,), optional
        Positive weights.
    tile : int
        Rows of a tile of probabilities; it has four times as many columns.
    rows : Tensor of int, shape (r,), optional
        Output particles to keep: the Jacobian then has r m rows. Default: all.

    Raises
    ------
    ValueError
        As for `Attention.check_input`; also if `x` does not have the shape (n, d).

    Notes
    -----
    castin2024smooth, Lemma C.2, D.1 (masked), C.6 (weights). Exact up to rounding.

    Examples
    --------
    >>> import torch
    >>> from lipnb import Attention
    >>> from lab.benchmarks.tiled import TiledJacobian
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> J = TiledJacobian(Attention.from_matrices(0 * eye, eye), torch.zeros(4, 2, dtype=torch.float64))
    >>> J.jvp(torch.ones(4, 2, dtype=torch.float64))[0]  # uniform attention: the mean of the perturbation
    tensor([1., 1.], dtype=torch.float64)
    """

    @torch.no_grad()
    def __init__(
        self,
        attention: Attention,
        x: Tensor,
        weights: Tensor | None = None,
        *,
        tile: int = 256,
        rows: Tensor | None = None,
    ) -> None:
        attention.check_plain("TiledJacobian")
        attention.check_input(x, weights)
        if x.ndim != 2:
            raise ValueError(f"x must have shape (n, d), one set of particles, got {tuple(x.shape)}.")
        self.attention, self.tile = attention, tile
        self.n, self.d = x.shape
        self.rows = torch.arange(self.n, device=x.device) if rows is None else rows
        query, self._key, self._value = attention.project(x)
        self._key = self._key - self._key.mean(-2, keepdim=True)  # leaves all probabilities unchanged and saves digits
        self._value = self._value - self._value.mean(-2, keepdim=True)  # leaves the Jacobian unchanged
        self._query = query[:, self.rows]
        self._added = attention.added_to_logits(self._key, weights)
        k, v = attention.key_width, attention.value_width
        self._log_sums = torch.full_like(self._query[..., 0], -torch.inf)
        for some, columns in self._tiles():
            sums = self._logits(some, columns).logsumexp(-1)
            self._log_sums[:, some] = torch.logaddexp(self._log_sums[:, some], sums)
        pairs = (self._value[..., None] * self._key[..., None, :]).flatten(-2)
        means = self._sum(torch.cat([self._value, self._key, pairs], -1))
        self._heads, mean_key, pairs = means.split([v, k, v * k], -1)
        self._covariance = pairs.unflatten(-1, (v, k)) - self._heads[..., None] * mean_key[..., None, :]

    @property
    def shape(self) -> tuple[int, int]:
        """(r m, n d), with r = n unless rows were chosen."""
        return (len(self.rows) * self.attention.output_width, self.n * self.d)

    def _tiles(self):
        for start in range(0, len(self.rows), self.tile):
            some = slice(start, start + self.tile)
            rows = self.rows[some]
            seen = self.attention.seen(self.n, int(rows.min()), int(rows.max()) + 1)
            for column in range(seen.start, seen.stop, 4 * self.tile):
                yield some, slice(column, min(column + 4 * self.tile, seen.stop))

    def _logits(self, some, columns):
        logits = self._query[:, some] @ self._key[:, columns].mT
        if self._added is not None:
            logits += self._added[..., columns]
        return self.attention.hide(logits, self.n, self.rows[some], columns)

    def _probabilities(self, some, columns):
        return self._logits(some, columns).sub_(self._log_sums[:, some, None]).exp_()

    def _sum(self, channels):
        """P times `channels`, shape (h, n, C): (h, r, C)."""
        out = channels.new_zeros(len(channels), len(self.rows), channels.shape[-1])
        for some, columns in self._tiles():
            out[:, some] += self._probabilities(some, columns) @ channels[:, columns]
        return out

    def _sum_transposed(self, channels):
        """P transposed times `channels`, shape (h, r, C): (h, n, C)."""
        out = channels.new_zeros(len(channels), self.n, channels.shape[-1])
        for some, columns in self._tiles():
            out[:, columns] += self._probabilities(some, columns).mT @ channels[:, some]
        return out

    @torch.no_grad()
    def jvp(self, u: Tensor) -> Tensor:
        """Jacobian-vector product: change of the outputs, shape (r, m), for a perturbation `u`, shape (n, d)."""
        if u.shape != (self.n, self.d):
            raise ValueError(f"u must have shape {(self.n, self.d)}, got {tuple(u.shape)}.")
        att = self.attention
        k, v = att.key_width, att.value_width
        d_query, d_key, d_value = att.scale * u[self.rows] @ att.query.mT, u @ att.key.mT, u @ att.value.mT
        pairs = (d_key[..., None] * self._value[..., None, :]).flatten(-2)
        d_value, d_key, pairs = self._sum(torch.cat([d_value, d_key, pairs], -1)).split([v, k, k * v], -1)
        moved = torch.einsum("hnk,hnkv->hnv", self._query, pairs.unflatten(-1, (k, v)))
        shift = (self._query * d_key).sum(-1, keepdim=True)
        own = torch.einsum("hnvk,hnk->hnv", self._covariance, d_query)
        return att.combine(own + d_value + moved - shift * self._heads)

    @torch.no_grad()
    def vjp(self, w: Tensor) -> Tensor:
        """Vector-Jacobian product, the transpose of `jvp`: (n, d) from cotangents `w`, shape (r, m)."""
        att = self.attention
        if w.shape != (len(self.rows), att.output_width):
            raise ValueError(f"w must have shape {(len(self.rows), att.output_width)}, got {tuple(w.shape)}.")
        k, v = att.key_width, att.value_width
        g = att.combine_transposed(w)
        shift = self._query * (g * self._heads).sum(-1, keepdim=True)
        pairs = (self._query[..., None] * g[..., None, :]).flatten(-2)
        d_value, shift, pairs = self._sum_transposed(torch.cat([g, shift, pairs], -1)).split([v, k, k * v], -1)
        d_key = torch.einsum("hnkv,hnv->hnk", pairs.unflatten(-1, (k, v)), self._value) - shift
        d_query = att.scale * torch.einsum("hnvk,hnv->hnk", self._covariance, g)
        out = torch.einsum("hnk,hkd->nd", d_key, att.key) + torch.einsum("hnv,hvd->nd", d_value, att.value)
        return out.index_add_(0, self.rows, torch.einsum("hnk,hkd->nd", d_query, att.query))

    def gram(self, u: Tensor, scale: Tensor | None = None) -> Tensor:
        """vjp(jvp(u)); with `scale`, the square roots of the weights, shape (n,), as `SeparableJacobian.gram`."""
        if scale is None:
            return self.vjp(self.jvp(u))
        check_weights(scale, u)
        scale = scale[:, None]
        return self.vjp(scale[self.rows] ** 2 * self.jvp(u / scale)) / scale
