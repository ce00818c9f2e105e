"""Products with the Jacobian from cached attention probabilities, of all heads of all sequences at once."""

from dataclasses import replace

import torch
from torch import Tensor

from lipnb.jacobian.linearization import Linearization
from lipnb.jacobian.matrices import ScaledMatrices
from lipnb.spectral import GramOperator

__all__ = ["CachedGram"]


class CachedGram(GramOperator):
    r"""Products with the Jacobian of a batch of sequences, by matrix multiplications into buffers made once.

    With :math:`[\dot q, \dot k, \dot v] = u\,[W_Q, W_K, W_V]^\top` and cached probabilities P,

    .. math::
        t = P \circ \big([\dot q, q]\,[k, \dot k]^\top\big), \qquad
        \dot o = t v + P \dot v - \mathrm{rowsum}(t)\, o,

    and transposed, with :math:`z = P \circ (g v^\top - \mathrm{rowsum}(g \circ o))`, the cotangents of q, k and v are
    :math:`z k`, :math:`z^\top q` and :math:`P^\top g`. L2 scores subtract :math:`2s\, k_j \cdot \dot k_j` from
    column j of the product in t, by a column of ones next to q, and these numbers next to :math:`\dot k`. Between
    tangents and cotangents, :math:`J^\top J` applies the output matrices and their transpose. One product takes ``16 n
    d^2 + 16 n^2 d`` floating point operations when all widths are d; values and output matrices are kept divided by
    powers of two, whose product is `unit`.

    Norms and rotations of queries and keys act by a `lipnb.attention.RowJacobian` after the projection, and before it
    in the transpose; the slopes of a cap multiply t and z. The r query heads that share a key head are stacked:
    products treat them as r n rows against n columns, and thereby sum over them.

    Parameters
    ----------
    at : Linearization
        Linearization of a batch (b, n, d).
    """

    name = "cached"

    def __init__(self, at: Linearization) -> None:
        self.matrices = ScaledMatrices.of(at.attention, at.attention.dtype)
        self.unit, value_unit = self.matrices.unit, self.matrices.value_unit
        self.near_hard = at.near_hard
        offset = None if at.offset is None else at.offset / value_unit
        self._place(replace(at, value=at.value / value_unit, heads=at.heads / value_unit, offset=offset))
        self._buffers = self._make_buffers()
        self._view()

    def _place(self, at):
        """Copy queries and keys into the matrices to be multiplied; `at` keeps views of them."""
        att, (b, h, n, k) = at.attention, at.query.shape
        g, self.dtype = att.groups, att.dtype
        self.sizes = (b, h, g, n, k, att.value_width, att.width)
        self.slope = att.slope if att.score == "l2" else None
        columns, new = 2 * k + (self.slope is not None), {"dtype": self.dtype, "device": at.query.device}
        self.queries = torch.ones(b * g, h // g * n, columns, **new)  # [tangent, query] and 1
        self.keys = torch.empty(b * g, n, columns, **new)  # [key, tangent] and -2s key . tangent
        self.queries[..., k : 2 * k], self.keys[..., :k] = self._flat(at.query), self._flat(at.key)
        query, key = self.queries.view(b, h, n, -1)[..., k : 2 * k], self.keys.view(b, g, n, -1)[..., :k]
        self.at = replace(at, query=query, key=key)
        self.probabilities, self.values, self.heads = map(self._flat, (at.probabilities, at.value, at.heads))
        self.cap_slope = None if at.cap_slope is None else self._flat(at.cap_slope)
        self.offset = None if at.offset is None else self._flat(at.offset)

    def _flat(self, rows):
        """Reshape keys and values to (b g, n, .), and tensors of queries to (b g, r n, .)."""
        return rows.reshape(self.sizes[0] * self.sizes[2], -1, rows.shape[-1])

    def _make_buffers(self):
        b, h, g, n, k, v, d = self.sizes
        new = {"dtype": self.dtype, "device": self.queries.device}
        more, rows = self.slope is not None, h // g * n
        return {
            "square": torch.empty(b * g, rows, n, **new),
            "query": torch.empty(b * g, rows, k, **new),
            "key": torch.empty(b * g, n, k + more, **new),
            "value": torch.empty(b * g, n, v, **new),
            "head": torch.empty(b * g, rows, v, **new),
            "joined": torch.empty(b * n, h * v, **new),
            "joined2": torch.empty(b * n, h * v, **new),
            "projected": torch.empty(b * n, h * k + g * (k + v), **new),
            "out": torch.empty(b * n, d, **new),
        }

    def restrict(self, index: Tensor) -> "CachedGram":
        """The operator of the sequences `index` of the batch; a smaller batch costs less."""
        new, b = object.__new__(CachedGram), self.sizes[0]
        new.matrices, new.unit, new.near_hard = self.matrices, self.unit, self.near_hard
        new._place(self.at.restrict(index))
        new._buffers = {name: buffer[: len(buffer) // b * len(index)] for name, buffer in self._buffers.items()}
        new._view()
        return new

    def _view(self):
        """Make the views used by each product, once: (b, h or g, n, width) of buffers and of multiplied matrices."""
        b, h, g, n, k, v, _ = self.sizes
        buffers = self._buffers
        parts = buffers["projected"].view(b, n, -1).split([h * k, g * k, g * v], dim=-1)
        # the query, key and value parts of `projected`, (b n, h k + g (k + v))
        self._query, self._key, self._value = (
            part.unflatten(-1, (-1, width)).transpose(1, 2) for part, width in zip(parts, (k, k, v), strict=True)
        )
        self._query_tangent = self.queries.view(b, h, n, -1)[..., :k]
        self._key_tangent = self.keys.view(b, g, n, -1)[..., k : 2 * k]
        self._value_tangent = buffers["value"].view(b, g, n, v)
        self._back_query = buffers["query"].view(b, h, n, k)
        self._head, self._joined = buffers["head"].view(b, h, n, v), buffers["joined"].view(b, n, h, v).transpose(1, 2)

    def tangent(self, u):
        """Tangents of head outputs, shape (b g, r n, v), in units of values, from tangents `u` of tokens (b n, d)."""
        k, buffers, P = self.sizes[4], self._buffers, self.probabilities
        torch.mm(u, self.matrices.projection, out=buffers["projected"])
        of_query, of_key = self.at.of_query, self.at.of_key
        self._query_tangent.copy_(self._query if of_query is None else of_query.forward(self._query))
        self._key_tangent.copy_(self._key if of_key is None else of_key.forward(self._key))
        if self.slope is not None:
            tangent = self.keys[..., k : 2 * k]
            self.keys[..., -1] = torch.sum(self.keys[..., :k] * tangent, dim=-1).mul_(-self.slope)
        self._value_tangent.copy_(self._value)
        t = torch.bmm(self.queries, self.keys.mT, out=buffers["square"]).mul_(P)
        if self.cap_slope is not None:
            t.mul_(self.cap_slope)
        total = t.sum(-1, keepdim=True)
        if self.near_hard:
            t.addcmul_(P, total, value=-1)
        out = torch.bmm(t, self.values, out=buffers["head"])
        out.baddbmm_(P, buffers["value"])
        taken = self.offset if self.near_hard else self.heads
        return out if taken is None else out.addcmul_(total, taken, value=-1)

    def cotangent(self, w):
        """Cotangents of tokens, shape (b n, d), from cotangents `w` of head outputs, shape (b g, r n, v)."""
        b, _, g, _, k, *_ = self.sizes
        buffers, P = self._buffers, self.probabilities
        z = torch.bmm(w, self.values.mT, out=buffers["square"])
        if self.near_hard:
            z.mul_(P)
            total = z.sum(-1, keepdim=True)
            z.addcmul_(P, total if self.offset is None else total + (w * self.offset).sum(-1, keepdim=True), value=-1)
        else:
            z.sub_((w * self.heads).sum(-1, keepdim=True)).mul_(P)
        if self.cap_slope is not None:
            z.mul_(self.cap_slope)
        of_query, of_key = self.at.of_query, self.at.of_key
        torch.bmm(z, self.keys[..., :k], out=buffers["query"])
        self._query.copy_(self._back_query if of_query is None else of_query.transposed(self._back_query))
        back = torch.bmm(z.mT, self.queries[..., k:], out=buffers["key"])
        if self.slope is not None:
            back = back[..., :-1].addcmul_(self.keys[..., :k], back[..., -1:], value=-self.slope)
        back = back.unflatten(0, (b, g))
        self._key.copy_(back if of_key is None else of_key.transposed(back))
        torch.bmm(P.mT, w, out=buffers["value"])
        self._value.copy_(self._value_tangent)
        return torch.mm(buffers["projected"], self.matrices.projection.mT, out=buffers["out"])

    def join(self, heads):
        """Concatenate heads: (b g, r n, v) to (b n, h v)."""
        self._joined.copy_(heads.view_as(self._head))
        return self._buffers["joined"]

    def part(self, joined):
        """Transpose of `join`, into the buffer of the heads."""
        b, h, _, n, _, v, _ = self.sizes
        self._head.copy_(joined.view(b, n, h, v).transpose(1, 2))
        return self._buffers["head"]

    def heuristic_start(self) -> Tensor:
        """Unit vectors, shape (b, n d), often near the top right singular vectors of trained layers.

        Each token is weighted by the attention it receives, in the direction that values stretch most: if all attend to
        one token and attention is held fixed, this is the top singular vector. Nothing is proved in other cases.
        """
        b, h, g, n, *_, d = self.sizes
        rows = self.probabilities.view(b, h, n, n).sum(1, dtype=torch.float64)
        if self.at.root is None:
            attended = rows.sum(1)
        else:
            attended = (self.at.root.double() ** 2 * rows).sum(1) / self.at.root.double()[..., 0]
        attended = attended / attended.norm(dim=1, keepdim=True)
        return (attended[..., None] * self.matrices.steepest(g)).to(self.dtype).view(b, n * d)

    def jvp(self, u: Tensor) -> Tensor:
        """J u / `unit`, shape (b n, m), for `u`, shape (b n, d)."""
        joined = self.join(self.tangent(u))
        return joined.clone() if self.matrices.output is None else joined @ self.matrices.output.mT

    def vjp(self, w: Tensor) -> Tensor:
        """J^T w / `unit`, shape (b n, d), for `w`, shape (b n, m); overwritten by the next product."""
        return self.cotangent(self.part(w if self.matrices.output is None else w @ self.matrices.output))

    def gram(self, u: Tensor) -> Tensor:
        """M^T M u / unit^2, shape (b, n d), for `u`, shape (b, n d); overwritten by the next product.

        M is the Jacobian J, or D^{1/2} J D^{-1/2} with token weights on the diagonal of D.
        """
        b, _, _, n, *_, d = self.sizes
        u = u.to(self.dtype).view(b, n, d)
        u = u if self.at.root is None else u / self.at.root
        heads = self.tangent(u.reshape(b * n, d))
        if self.matrices.output is not None or self.at.root is not None:
            joined = self.join(heads)
            if self.at.root is not None:
                joined.view(b, n, -1).mul_(self.at.root**2)
            heads = self.part(self.matrices.through_output(joined, out=self._buffers["joined2"]))
        out = self.cotangent(heads).view(b, n, d)
        if self.at.root is not None:
            out.div_(self.at.root)
        return out.view(b, n * d)
