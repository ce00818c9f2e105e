"""The cached products behind `AttentionJacobian`: tangents and cotangents of all heads of all sequences at once."""

import torch
from torch import Tensor

from lipnb.attention import Attention
from lipnb.jacobian.weights import ScaledWeights, steep

__all__ = ["CachedProducts"]


class CachedProducts:
    r"""Products with the Jacobian of a batch of sequences, by matrix multiplications into buffers made once.

    With :math:`[\dot q, \dot k, \dot v] = u\,[W_Q, W_K, W_V]^\top` and cached probabilities P,

    .. math::
        t = P \circ \big([\dot q, q]\,[k, \dot k]^\top\big), \qquad
        \dot o = t v + P \dot v - \mathrm{rowsum}(t)\, o,

    and transposed, with :math:`z = P \circ (g v^\top - \mathrm{rowsum}(g \circ o))`, the cotangents of q, k and v are
    :math:`z k`, :math:`z^\top q` and :math:`P^\top g`. L2 scores take :math:`2s\, k_j \cdot \dot k_j` off column j of
    the product in t: a column of ones beside q, and these numbers beside :math:`\dot k`. Between the two, :math:`J^\top
    J` needs the output matrices only through :math:`W_O^\top W_O`. One product takes ``14 n d^2 + 16 n^2 d`` floating
    point operations when all widths are d; values and output matrices are kept divided by powers of two, whose product
    is `unit`.

    Parameters
    ----------
    attention : Attention
        The map.
    query, key, value, heads : Tensor, shape (b, h, n, k) or (b, h, n, v)
        Queries (scale folded in), keys, values and head outputs.
    probabilities : Tensor, shape (b, h, n, n)
        Attention probabilities.
    root : Tensor, shape (b, n), optional
        Square roots of token weights, for the norm that goes with them.
    """

    route = "cached"

    def __init__(
        self,
        attention: Attention,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        heads: Tensor,
        probabilities: Tensor,
        root: Tensor | None = None,
    ) -> None:
        dtype = attention.dtype
        b, h, n, k = query.shape
        v, d = attention.value_width, attention.width
        self.sizes = (b, h, n, k, v, d)
        self.weights = ScaledWeights.of(attention, dtype)
        self.unit, self.dtype = self.weights.unit, dtype
        value_unit = self.weights.value_unit

        self.steep = steep(query, key)

        def flat(tensor):
            return tensor.flatten(0, 1).to(dtype)

        self.probabilities, self.values = flat(probabilities), flat(value / value_unit)
        self.heads = flat(heads / value_unit)
        new = {"dtype": dtype, "device": query.device}
        self.slope = attention.slope if attention.score == "l2" else None
        more = self.slope is not None  # L2 scores have one more column
        self.queries = torch.ones(b * h, n, 2 * k + more, **new)  # [tangent, query] and 1
        self.keys = torch.empty(b * h, n, 2 * k + more, **new)  # [key, tangent] and -2s key . tangent
        self.queries[..., k : 2 * k], self.keys[..., :k] = flat(query), flat(key)
        self.root = None if root is None else root.to(dtype)[..., None]
        self._buffers = self._make_buffers()

    def _make_buffers(self):
        b, h, n, k, v, d = self.sizes
        new = {"dtype": self.dtype, "device": self.queries.device}
        more = self.slope is not None
        return {
            "square": torch.empty(b * h, n, n, **new),
            "query": torch.empty(b * h, n, k, **new),
            "key": torch.empty(b * h, n, k + more, **new),
            "value": torch.empty(b * h, n, v, **new),
            "head": torch.empty(b * h, n, v, **new),
            "joined": torch.empty(b * n, h * v, **new),
            "joined2": torch.empty(b * n, h * v, **new),
            "projected": torch.empty(b * n, h * (2 * k + v), **new),
            "out": torch.empty(b * n, d, **new),
        }

    def to(self, dtype: torch.dtype) -> "CachedProducts":
        """The same products in another floating point type, with buffers of their own."""
        new = object.__new__(CachedProducts)
        new.__dict__.update(self.__dict__)
        new.weights, new.dtype = self.weights.to(dtype), dtype
        for name in ("probabilities", "values", "heads", "queries", "keys", "root"):
            old = getattr(self, name)
            setattr(new, name, None if old is None else old.to(dtype))
        new._buffers = new._make_buffers()
        return new

    def restrict(self, index: Tensor) -> "CachedProducts":
        """The same products for the sequences `index` of the batch; a smaller batch costs less."""
        b, h, n, k, v, d = self.sizes
        new = object.__new__(CachedProducts)
        new.__dict__.update(self.__dict__)
        new.sizes = (len(index), h, n, k, v, d)
        for name in ("probabilities", "values", "heads", "queries", "keys"):
            old = getattr(self, name)
            setattr(new, name, old.unflatten(0, (b, h))[index].flatten(0, 1))
        if self.root is not None:
            new.root = self.root[index]
        new._buffers = {name: buffer[: len(buffer) // b * len(index)] for name, buffer in self._buffers.items()}
        return new

    def _split(self, projected):
        """Views (b, h, n, width) of the query, key and value parts of `projected`, shape (b n, h (2k + v))."""
        b, h, n, k, v, _ = self.sizes
        parts = projected.view(b, n, -1).split([h * k, h * k, h * v], dim=-1)
        return [part.unflatten(-1, (h, -1)).transpose(1, 2) for part in parts]

    def tangent(self, u):
        """Head output tangents, shape (b h, n, v), of token tangents `u`, shape (b n, d), in units of the values."""
        b, h, n, k, v, _ = self.sizes
        buffers, P = self._buffers, self.probabilities
        query, key, value = self._split(torch.mm(u, self.weights.projection, out=buffers["projected"]))
        self.queries.unflatten(0, (b, h))[..., :k].copy_(query)
        self.keys.unflatten(0, (b, h))[..., k : 2 * k].copy_(key)
        if self.slope is not None:
            tangent = self.keys[..., k : 2 * k]
            self.keys[..., -1] = torch.sum(self.keys[..., :k] * tangent, dim=-1).mul_(-self.slope)
        buffers["value"].unflatten(0, (b, h)).copy_(value)
        t = torch.bmm(self.queries, self.keys.mT, out=buffers["square"]).mul_(P)
        total = t.sum(-1, keepdim=True)
        if self.steep:
            t.addcmul_(P, total, value=-1)
        out = torch.bmm(t, self.values, out=buffers["head"])
        out.baddbmm_(P, buffers["value"])
        return out if self.steep else out.addcmul_(total, self.heads, value=-1)

    def cotangent(self, g):
        """Token cotangents, shape (b n, d), of head output cotangents `g`, shape (b h, n, v)."""
        b, h, n, k, v, _ = self.sizes
        buffers, P = self._buffers, self.probabilities
        z = torch.bmm(g, self.values.mT, out=buffers["square"])
        if self.steep:
            z.mul_(P)
            z.addcmul_(P, z.sum(-1, keepdim=True), value=-1)
        else:
            z.sub_((g * self.heads).sum(-1, keepdim=True)).mul_(P)
        query, key, value = self._split(buffers["projected"])
        query.copy_(torch.bmm(z, self.keys[..., :k], out=buffers["query"]).unflatten(0, (b, h)))
        back = torch.bmm(z.mT, self.queries[..., k:], out=buffers["key"])
        if self.slope is not None:
            back = back[..., :-1].addcmul_(self.keys[..., :k], back[..., -1:], value=-self.slope)
        key.copy_(back.unflatten(0, (b, h)))
        value.copy_(torch.bmm(P.mT, g, out=buffers["value"]).unflatten(0, (b, h)))
        return torch.mm(buffers["projected"], self.weights.projection.mT, out=buffers["out"])

    def join(self, heads):
        """Heads side by side: (b h, n, v) to (b n, h v)."""
        b, h, n, _, v, _ = self.sizes
        self._buffers["joined"].view(b, n, h, v).copy_(heads.unflatten(0, (b, h)).transpose(1, 2))
        return self._buffers["joined"]

    def part(self, joined):
        """Transpose of `join`, into the buffer of the heads."""
        b, h, n, _, v, _ = self.sizes
        self._buffers["head"].unflatten(0, (b, h)).copy_(joined.view(b, n, h, v).transpose(1, 2))
        return self._buffers["head"]

    def jvp(self, u: Tensor) -> Tensor:
        """J u / `unit`, shape (b n, m), of `u`, shape (b n, d)."""
        joined = self.join(self.tangent(u))
        return joined.clone() if self.weights.output is None else joined @ self.weights.output.mT

    def vjp(self, w: Tensor) -> Tensor:
        """J^T w / `unit`, shape (b n, d), of `w`, shape (b n, m); overwritten by the next product."""
        return self.cotangent(self.part(w if self.weights.output is None else w @ self.weights.output))

    def gram(self, u: Tensor) -> Tensor:
        """M^T M u / `unit`^2, shape (b, n d), of `u`, shape (b, n d); overwritten by the next product.

        M is the Jacobian J, or D^{1/2} J D^{-1/2} with token weights on the diagonal of D.
        """
        b, h, n, _, v, d = self.sizes
        u = u.to(self.dtype).view(b, n, d)
        u = u if self.root is None else u / self.root
        heads = self.tangent(u.reshape(b * n, d))
        if self.weights.output is not None or self.root is not None:
            joined = self.join(heads)
            if self.root is not None:
                joined.view(b, n, -1).mul_(self.root**2)
            heads = self.part(self.weights.through_output(joined, out=self._buffers["joined2"]))
        out = self.cotangent(heads).view(b, n, d)
        if self.root is not None:
            out.div_(self.root)
        return out.view(b, n * d)
