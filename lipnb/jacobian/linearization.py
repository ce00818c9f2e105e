"""The Jacobian of attention at an input: its ingredients, its plain products and its blocks."""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from lipnb.attention import Attention, RowJacobian
from lipnb.attention.heads import check_attention
from lipnb.checks import at_once
from lipnb.jacobian import gemm

__all__ = ["Linearization", "infinity_norm"]

NEAR_HARD = 1e-5  # rounding of the logits from which row sums are subtracted entry by entry


@dataclass(frozen=True, eq=False, kw_only=True)
class Projected:
    """Queries, keys and values at tokens (..., n, d), with their derivatives: a `Linearization` without P.

    Attributes
    ----------
    attention : Attention
        The map without the biases that change no derivative: added to a bias of 1e6, float32 tokens would lose all
        digits.
    query, key, value : Tensor, shape (..., h, n, k), (..., g, n, k) and (..., g, n, v)
        Queries (slope folded in) and keys, both centred for L2 scores, and values.
    of_query, of_key : RowJacobian or None
        Jacobians of queries and of keys in their projections, through norms and rotations; None if they are the
        projections themselves.
    added : Tensor, shape (..., h or 1, 1, n), or None
        Terms added to the logits of each key.
    root : Tensor, shape (..., n, 1), or None
        Square roots of the token weights, for the weighted norm.
    sink_bias : Tensor, shape (h, 1, v) or (..., h, 1, v), or None
        With sinks, what `value` does not include: the bias of values, and their mean if they are `centred`.
    """

    attention: Attention
    query: Tensor
    key: Tensor
    value: Tensor
    of_query: RowJacobian | None
    of_key: RowJacobian | None
    added: Tensor | None
    root: Tensor | None
    sink_bias: Tensor | None

    @classmethod
    def of(cls, attention: Attention, x: Tensor, weights: Tensor | None = None) -> Self:
        """Linearise at tokens `x`, shape (..., n, d), with optional token weights (..., n). Differentiable."""
        attention = attention.without_irrelevant_biases()
        query, key, value, of_query, of_key = attention.project_with_derivatives(x)
        added = None
        if attention.score == "l2":
            query, key = attention.centred(query, key)
        if attention.score == "l2" or weights is not None:
            added = attention.added_to_logits(key, weights)
        bias = attention.value_bias  # kept only with sinks
        if bias is not None:
            value = torch.einsum("...nd,hkd->...hnk", x, attention.value)
            bias = bias.repeat_interleave(attention.heads // attention.groups, 0)[:, None]
        return cls(
            attention=attention,
            query=query,
            key=key,
            value=value,
            of_query=of_query,
            of_key=of_key,
            added=added,
            root=None if weights is None else weights.sqrt()[..., None],
            sink_bias=bias,
        )

    def restrict(self, index: Tensor) -> Self:
        """The part for the sequences `index` of a batch."""
        some: dict[str, Any] = {}
        for name, one in vars(self).items():
            if one is not None and name not in ("attention", "sink_bias"):
                some[name] = one.restrict(index) if isinstance(one, RowJacobian) else one[index]
        return replace(self, **some)

    def centred(self) -> Self:
        """The same Jacobian with values, and keys where they may be shifted, relative to their mean.

        One vector added to all values changes neither v_j - o_i nor, without sinks, anything else; added to all keys,
        it adds one number to each row of logits, which the softmax removes if no cap and no sink compares it. Far from
        zero, products of the uncentred rows would lose digits.
        """
        att, key = self.attention, self.key
        if att.score == "dot" and att.cap is None and att.sinks is None:  # L2 scores: already centred
            key = key - key.mean(-2, keepdim=True)
        centre = self.value.mean(-2, keepdim=True)
        bias = None  # without sinks it changes nothing
        if att.sinks is not None:
            bias = centre.repeat_interleave(att.heads // att.groups, -3)
            bias = bias if self.sink_bias is None else bias + self.sink_bias
        return replace(self, key=key, value=self.value - centre, sink_bias=bias)

    def to(self, attention: Attention) -> Self:
        """The same in the type of `attention`, the same map in that type: every number rounded once."""
        made: dict[str, Any] = {"attention": attention.without_irrelevant_biases()}
        for name, one in vars(self).items():
            if one is not None and name != "attention":
                made[name] = one.to(attention.dtype)
        return replace(self, **made)

    @property
    def near_hard(self) -> bool:
        """Whether logits are so large that row sums must be subtracted from t and z themselves, in one more pass.

        For nearly hard attention ``t v - rowsum(t) o`` is a small difference of numbers as large as the logits.
        """
        query, key = (torch.linalg.vector_norm(rows, dim=-1).amax() for rows in (self.query, self.key))
        return bool(query * key * torch.finfo(self.query.dtype).eps > NEAR_HARD)


@dataclass(frozen=True, eq=False, kw_only=True)
class Linearization(Projected):
    r"""Linearization of attention at tokens (..., n, d): queries, keys, values, P, head outputs and derivatives.

    The products of every route are built from these, and so is the matrix. `jvp` and `vjp` here follow the formulas
    directly; `lipnb.jacobian.cached` computes the same in buffers, `lipnb.jacobian.streamed` by tiles.

    Attributes
    ----------
    attention, query, key, value, of_query, of_key, added, root, sink_bias
        As in `lipnb.jacobian.linearization.Projected`.
    probabilities : Tensor, shape (..., h, n, n)
        Attention probabilities.
    cap_slope : Tensor, shape (..., h, n, n), or None
        Slopes of the cap of the logits; None without a cap.
    heads : Tensor, shape (..., h, n, v)
        Head outputs without the bias of the values, to be subtracted from values.
    offset : Tensor, shape (..., h, n, v), or None
        The difference of `heads` and P times the values: with attention p to the sinks and a bias b of the values,
        :math:`v_j + b - o_i = v_j - (\sum_l P_{il} v_l - p_i b)`, where no digits are lost to b.

    Examples
    --------
    >>> import torch
    >>> from lipnb import Attention
    >>> from lipnb.jacobian.linearization import Linearization
    >>> at = Linearization.of(Attention.from_matrices(torch.zeros(2, 2), torch.eye(2)), torch.eye(2))
    >>> at.heads
    tensor([[[0.5000, 0.5000],
             [0.5000, 0.5000]]])
    """

    probabilities: Tensor
    cap_slope: Tensor | None
    heads: Tensor
    offset: Tensor | None

    @classmethod
    def of(cls, attention: Attention, x: Tensor, weights: Tensor | None = None) -> Self:
        """Linearise at tokens `x`, shape (..., n, d), with optional token weights (..., n). Differentiable."""
        return cls.at(Projected.of(attention, x, weights))

    @classmethod
    def at(cls, base: Projected) -> Self:
        """Linearise from queries, keys and values. Differentiable."""
        P, cap_slope, sinks = base.attention.attend(base.query, base.key, base.added)
        heads, offset = base.attention.average(P, base.value), None
        if base.sink_bias is not None and sinks is not None:
            offset = -sinks * base.sink_bias
            heads = heads + offset
        return cls(**vars(base), probabilities=P, cap_slope=cap_slope, heads=heads, offset=offset)

    def jvp(self, u: Tensor) -> Tensor:
        r"""J u, shape (..., n, m), for changes `u` of the tokens, shape (..., n, d). Differentiable.

        .. math::
            t = P \circ \kappa' \circ (\dot q k^\top + q \dot k^\top), \qquad
            \dot o = t v + P \dot v - \mathrm{rowsum}(t)\, o

        with :math:`\dot q_i \cdot k_j + (q_i - \sigma k_j) \cdot \dot k_j` in brackets for L2 scores.
        """
        att, shared = self.attention, self._shared
        query, key, value = (
            torch.einsum("...nd,hkd->...hnk", u, matrix) for matrix in (att.slope * att.query, att.key, att.value)
        )
        query = query if self.of_query is None else self.of_query.forward(query)
        key = key if self.of_key is None else self.of_key.forward(key)
        products = query @ shared(self.key).mT + self.query @ shared(key).mT
        if att.score == "l2":
            products = products - att.slope * shared((self.key * key).sum(-1)[..., None, :])
        t = self._slopes * products
        heads = t @ shared(self.value) + self.probabilities @ shared(value) - t.sum(-1, keepdim=True) * self.heads
        return att.combine(heads)

    def vjp(self, w: Tensor) -> Tensor:
        """J^T w, shape (..., n, d), for cotangents `w` of the outputs, shape (..., n, m): `jvp` transposed."""
        att, shared = self.attention, self._shared
        g = att.combine_transposed(w)
        z = self._slopes * (g @ shared(self.value).mT - (g * self.heads).sum(-1, keepdim=True))
        query, key, value = z @ shared(self.key), z.mT @ self.query, self.probabilities.mT @ g
        if att.score == "l2":
            key = key - att.slope * shared(self.key) * z.sum(-2)[..., None]
        key = self._summed(key)
        query = query if self.of_query is None else self.of_query.transposed(query)
        key = key if self.of_key is None else self.of_key.transposed(key)
        matrices = att.slope * att.query, att.key, att.value
        parts = zip((query, key, self._summed(value)), matrices, strict=True)
        return sum(torch.einsum("...hnk,hkd->...nd", part, matrix) for part, matrix in parts)  # type: ignore[return-value]

    @property
    def _slopes(self):
        """P times the slopes of the cap: derivative of the softmax in the logits before the cap, without row sums."""
        return self.probabilities if self.cap_slope is None else self.probabilities * self.cap_slope

    def _shared(self, rows):
        """Rows (..., g, ., .) of keys and values repeated for their heads, (..., h, ., .)."""
        return rows.repeat_interleave(self.attention.heads // self.attention.groups, -3)

    def _summed(self, rows):
        """Transpose of `_shared`."""
        return rows.unflatten(-3, (self.attention.groups, -1)).sum(-3)

    def dense(self) -> Tensor:
        """The matrix of the Jacobian, shape (..., n m, n d), from its `blocks`."""
        blocks = self.blocks()
        return blocks.flatten(-4, -3).flatten(-2)

    def blocks(self, first: int = 0, last: int | None = None) -> Tensor:
        r"""Blocks of the Jacobian for output tokens first <= i < last.

        .. math::
            J_{ij} = \sum_h W_O^{(h)} \Big[P_{ij}\big(W_V + (v_j - o_i)\, b_{ij}^\top\big)
                     + \delta_{ij} \sum_l P_{il} (v_l - o_i)\, c_{il}^\top\Big],

        with :math:`b_{ij} = \sigma K_j^\top q_i` and :math:`\sigma = s` for dot products, :math:`b_{ij} = \sigma
        K_j^\top (q_i - k_j)` and :math:`\sigma = 2s` for L2 scores, and :math:`c_{il} = \sigma Q_i^\top k_l`. The
        derivatives of queries and keys in their tokens, :math:`Q_i` and :math:`K_j`, are :math:`W_Q` and :math:`W_K`
        for plain heads; a cap multiplies b and c by its slope. Keys and values that heads share are repeated here.

        Parameters
        ----------
        first, last : int
            Range of the output tokens i; by default all.

        Returns
        -------
        Tensor, shape (..., last - first, m, n, d)

        Notes
        -----
        castin2024smooth, Lemma C.2, D.1, E.2; kim2021lipschitz, the Jacobian of L2 attention.
        """
        attention = self.attention
        times = attention.heads // attention.groups
        query, P, heads = (part[..., first:last, :] for part in (self.query, self.probabilities, self.heads))
        key, value = (part.repeat_interleave(times, -3) for part in (self.key, self.value))
        of_query, of_key = (  # (..., h or g, n or 1, k, d)
            matrix[:, None] if of is None else of.matrices(matrix)
            for of, matrix in ((self.of_query, attention.query), (self.of_key, attention.key))
        )
        of_key = of_key.repeat_interleave(times, -4)
        of_query = of_query[..., first:last, :, :] if of_query.shape[-3] > 1 else of_query
        slope = torch.einsum("...hik,...hjkd->...hijd", query, of_key)
        curve = attention.slope * torch.einsum("...hlk,...hikd->...hild", key, of_query)
        spread = P[..., None] * (value[..., None, :, :] - heads[..., None, :])  # P_ij (v_j - o_i)
        if self.cap_slope is not None:
            spread = spread * self.cap_slope[..., first:last, :, None]
        matrix = attention.value.repeat_interleave(times, 0)
        blocks = torch.einsum("...hij,hvd->...hivjd", P, matrix) + torch.einsum(
            "...hijv,...hijd->...hivjd", spread, slope.expand(*spread.shape[:-1], -1)
        )
        if attention.score == "l2":
            ends = attention.slope * (key[..., None, :] @ of_key)[..., 0, :]
            blocks = blocks - torch.einsum("...hijv,...hjd->...hivjd", spread, ends)
        diagonal = torch.einsum("...hilv,...hild->...hvdi", spread, curve.expand(*spread.shape[:-1], -1))
        torch.diagonal(blocks, offset=first, dim1=-4, dim2=-2).add_(diagonal)
        if attention.output is None:
            return blocks.movedim(-5, -4).flatten(-4, -3)
        return torch.einsum("...hivjd,hmv->...imjd", blocks, attention.output)


def infinity_norm(attention: Attention, x: Tensor) -> Tensor:
    r"""Norm of the Jacobian in the maximum norm of all coordinates, exactly: its largest absolute row sum.

    .. math:: \|J\|_\infty = \max_{i, a} \sum_{j, c} \big|(J_{ij})_{ac}\big|

    Parameters
    ----------
    attention : Attention
        The map.
    x : Tensor, shape (..., n, d)
        Tokens; the result is differentiable in them.

    Returns
    -------
    Tensor, shape of the batch
        The local Lipschitz constant in the maximum norm.

    Raises
    ------
    ValueError
        As `Attention.check_input`.

    Examples
    --------
    >>> import torch
    >>> from lipnb import Attention
    >>> from lipnb.jacobian import infinity_norm
    >>> zero, value = torch.zeros(2, 2), torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    >>> infinity_norm(Attention.from_matrices(zero, value), torch.zeros(3, 2)).item()  # uniform: the norm of V
    3.0
    """
    check_attention(attention, "infinity_norm")
    attention.check_input(x)
    n = x.shape[-2]
    step = at_once(x[..., 0].numel() * attention.heads * attention.value_width * attention.width)
    with gemm.full_precision(x.dtype, x.device):
        at = Linearization.of(attention, x)
        blocks = (at.blocks(first, min(first + step, n)) for first in range(0, n, step))
        return torch.stack([block.abs().sum((-2, -1)).amax((-2, -1)) for block in blocks]).amax(0)
