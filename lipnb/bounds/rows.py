r"""Rounding of the rows that become queries and keys, and how much what becomes of them can stretch a change.

A row :math:`y = W x + b` becomes :math:`R\, N(y)`, or one of the two, or stays. The rotation R is the table of cosines
and sines that the map itself has, exact by definition, and not quite orthogonal. With
:math:`N(y) = w \circ r y`, :math:`r = (|y|^2 / K + \epsilon)^{-1/2}`, :math:`u = r y`, errors
:math:`|\hat y - y| \le r^y` and :math:`\eta = |r^y| / \sqrt K`:

1. :math:`1 / r` is the length of :math:`(y / \sqrt K, \sqrt \epsilon)`, so it moves by at most :math:`\eta`. Hence
   :math:`r \le r^+ := (1 / \hat r - \eta)^{-1}`, if that is positive, and
   :math:`|\hat r - r| \le \delta := r^+ \hat r \eta + \gamma_{K+16} \hat r`.
2. Entry by entry :math:`|\hat u - u| \le |\hat y| \delta + r^+ r^y + \gamma_8 |\hat y| \hat r`.
3. The derivative :math:`w \circ r (I - u u^\top / K)` has norm at most :math:`\max |w|\, r^+`, for
   :math:`|u|^2 \le K`, and moves by at most :math:`\max |w| (\delta + 3 r^+ |\hat u - u| / \sqrt K)`.
4. R stretches by at most :math:`g = \max (\cos^2 + \sin^2)^{1/2}`, entry by entry as :math:`|R|`; its products err by
   :math:`\gamma_8 |R| |y|`.
"""

import math

import torch

from lipnb.attention.rope_norm import normalised
from lipnb.bounds.rounding import gamma, largest_singular, length

__all__ = ["MORE", "TINY", "RowErrors"]

MORE = 1 + 2.0**-32  # sums of 2^20 positive numbers
TINY = 2.0**-300
FARTHEST = 2.0**400  # of lengths that norms divide by: squares beyond it, or below its inverse, are not trusted


class RowErrors:
    """Of the queries (without their scale) or of the keys of `Pieces`.

    Parameters
    ----------
    pieces : Pieces
    name : {"query", "key"}
    tokens : Tensor, shape (n, d)
        What the rows are made of.

    Attributes
    ----------
    error : Tensor, shape (h, n, k)
        Entrywise, of the finished rows.
    plain : bool
        Whether nothing becomes of the rows.
    stretch, moved : Tensor, shape (h,)
        Largest norm of the derivative of a finished row in its token, true or computed; by how much the computed one is
        wrong.
    absolute, whole : Tensor, shape (h,)
        Largest norm of the derivative of a finished row in the row that the matrix gives, and in its token, with all
        numbers replaced by their absolute values, at most.
    resolved : bool
        Whether every length that a norm divides by is known to be positive.
    """

    def __init__(self, pieces, name, tokens):
        matrix, bias = getattr(pieces.attention, name), getattr(pieces.attention, f"{name}_bias")
        sizes = torch.einsum("nd,hkd->hnk", tokens.abs(), matrix.abs())
        if bias is not None:
            sizes = sizes + bias.abs()[:, None]
        rows, norm = pieces.rows[name], pieces.norms[name]
        self.error = gamma(tokens.shape[1] + 4) * MORE * sizes + TINY**2
        self.plain, self.resolved = norm is None and pieces.turn is None, True
        joint = norm is not None and norm.joint
        self.stretch = MORE * largest_singular(matrix.flatten(0, 1) if joint else matrix).expand(pieces.heads)
        self.moved = torch.zeros_like(self.stretch)
        self.absolute = torch.ones_like(self.stretch)
        if norm is not None:
            factor, lost = self._normalise(rows, norm)
            self.stretch, self.moved, self.absolute = factor * self.stretch, lost * self.stretch, 2 * factor
        if pieces.turn is not None:
            gain = MORE * max(1.0, sum(part.square() for part in pieces.turn).amax().sqrt().item())
            once = self._turned(normalised(rows, norm).abs(), pieces.turn)
            self.error = MORE * (self._turned(self.error, pieces.turn) + gamma(8) * once)
            self.stretch, self.moved, self.absolute = gain * self.stretch, gain * self.moved, 2 * self.absolute
        self.absolute = MORE * self.absolute.expand(pieces.heads)
        self.whole = MORE * self.absolute * length(matrix.flatten(0, 1) if joint else matrix, (-2, -1))

    def _normalise(self, rows, norm):
        """Errors of normalised rows; how much a norm stretches, and its error, (h,) each."""
        dims, count = ((-3, -1), rows.shape[-3] * rows.shape[-1]) if norm.joint else ((-1,), rows.shape[-1])

        def long(tensor):  # (h or 1, n, 1)
            return MORE * length(tensor, dims).reshape(-1, rows.shape[-2], 1) / math.sqrt(count)

        inverse, eta = (norm.mean(rows.square()) + norm.eps).rsqrt(), long(self.error)
        least = (1 - gamma(count + 16)) / inverse - eta
        inside = (least > 0) & (inverse <= FARTHEST) & (inverse >= 1 / FARTHEST)
        self.resolved = bool(inside.all())
        most = MORE / torch.where(inside, least, 1)
        delta = MORE * (most * inverse * eta + gamma(count + 16) * inverse)
        unit = MORE * (rows.abs() * (delta + gamma(8) * inverse) + most * self.error)
        weight = norm.weight.abs()
        self.error = MORE * weight[:, None] * unit + TINY**2
        largest = weight.amax(-1)[:, None, None]
        lost = largest * (delta + 3 * most * long(unit))
        return MORE * (largest * most).amax((1, 2)), MORE * lost.amax((1, 2))

    @staticmethod
    def _turned(sizes, turn):
        """Positive rows under the absolute values of the rotation."""
        cos, sin = (part.abs() for part in turn)
        p = cos.shape[-1]
        first, second, rest = sizes.split([p, p, sizes.shape[-1] - 2 * p], -1)
        return torch.cat([first * cos + second * sin, second * cos + first * sin, rest], -1)
