r"""How far the pieces that float64 has are from the true ones, to every order: what `lipnb.certify` adds as rounding.

Hats are computed, :math:`u = 2^{-53}`, :math:`\gamma_c = c u / (1 - c u)`; a sum of c products errs by
:math:`\gamma_c` times the sum of their absolute values, in any order. Sums of positive numbers below are themselves
computed, with relative errors below :math:`2^{-32}`, the `MORE` by which they are enlarged. In the units of `in_units`
what multiplies a number later on is below :math:`2^{700}` (lengths :math:`2^{400}`, scale and norms of rows
:math:`2^{150}` each), so that what underflow takes, :math:`2^{-1074}` an operation, stays below `TINY` in the logits
and in the result. A norm that squares its entries would take more, all of
a vector below :math:`2^{-537}`: those that are factors of a bound divide by the largest entry first (`length`).

1. *Projections.* :math:`|\hat k - k| \le \gamma_{d+4} |W_K| |x - \bar x| =: r^k`, and so :math:`r^v`;
   :math:`|\hat q - q| \le |s| \gamma_{d+4} (|W_Q| |x| + |b_Q|) =: r^q`. Rows that are normalised or turned:
   `RowErrors`.
2. *Logits.* :math:`\hat\ell = \mathrm{fl}(\hat q \cdot \hat k + \log a)`, no product of errors dropped:
   :math:`|\hat\ell_{ij} - \ell_{ij}| \le |\hat q_i| \cdot (\gamma_{k+4} |\hat k_j| + r^k_j) + r^q_i \cdot
   (|\hat k_j| + r^k_j) + 8 u\, (|\log a_j - \max \log a| + \max |\log a|)`. Subtracting the maximum adds u times
   the difference, exp, sum and quotient together :math:`\gamma_{n+16}` (exp, log, tanh and cosh are taken to be
   within four units): :math:`t_{ij}`. A cap c has slopes in [0, 1] and values in [-c, c]: an error t of the product
   becomes at most :math:`\min(t + 2 u |\hat\ell|, 2 c) + 16 u c`, and its slope :math:`\kappa' = \cosh^{-2}(\ell / c)`
   moves by at most :math:`0.77\, (t + 2 u |\hat\ell|) / c + 32 u`. What is added by distance, B, costs
   :math:`8 u |B|`. A sink is one more column, whose logit is given.
3. *Probabilities.* :math:`P_{ij} = \hat P_{ij} e^{\theta_{ij}} / \sum_l \hat P_{il} e^{\theta_{il}}` with
   :math:`|\theta_{ij}| \le t_{ij}`. The denominator lies between :math:`e^{-T_i}` and :math:`e^{T_i}`,
   :math:`T_i = \log \sum_l \hat P_{il} e^{t_{il}}` (below by Jensen: :math:`\sum \hat P \theta \ge -\sum \hat P t \ge
   -T_i`). So :math:`|\hat P_{ij} - P_{ij}| \le \hat P_{ij} (e^{t_{ij} + T_i} - 1) =: E_{ij}`, and as rows add up to
   one, the largest entry of a row changes by no more than all others together: this is hard attention, where
   :math:`E_{ij}` is below :math:`e^{\text{gap}}` though the errors of the logits are large. With weights
   :math:`\sqrt{a_i / a_j}` multiplies both sides.
4. *Jacobian*, for any P within E: `change`. 5. *Its arithmetic*: `arithmetic`.
"""

import math

import torch

from lipnb.attention.rope_norm import normalised
from lipnb.bounds.rounding import UNIT, gamma, largest_singular, length

__all__ = ["MORE", "TINY", "Accuracy", "orthogonality"]

MORE = 1 + 2.0**-32  # sums of 2^20 positive numbers
TINY = 2.0**-300
FARTHEST = 2.0**400  # of lengths that norms divide by: squares beyond it, or below its inverse, are not trusted


class RowErrors:
    r"""Rounding of the rows that become queries (without their scale) or keys, and how much a change is stretched.

    A row :math:`y = W x + b` becomes :math:`R\, N(y)`, or one of the two, or stays. The rotation R is the table of
    cosines and sines that the map itself has, exact by definition, and not quite orthogonal. With
    :math:`N(y) = w \circ r y`, :math:`r = (|y|^2 / K + \epsilon)^{-1/2}`, :math:`u = r y`, errors
    :math:`|\hat y - y| \le r^y` and :math:`\eta = |r^y| / \sqrt K`:

    1. :math:`1 / r` is the length of :math:`(y / \sqrt K, \sqrt \epsilon)`, so it moves by at most :math:`\eta`. Hence
       :math:`r \le r^+ := (1 / \hat r - \eta)^{-1}`, if that is positive, and
       :math:`|\hat r - r| \le \delta := r^+ \hat r \eta + \gamma_{K+16} \hat r`.
    2. Entry by entry :math:`|\hat u - u| \le |\hat y| \delta + r^+ r^y + \gamma_8 |\hat y| \hat r`.
    3. The derivative :math:`w \circ r (I - u u^\top / K)` has norm at most :math:`\max |w|\, r^+`, for
       :math:`|u|^2 \le K`, and moves by at most :math:`\max |w| (\delta + 3 r^+ |\hat u - u| / \sqrt K)`.
    4. R stretches by at most :math:`g = \max (\cos^2 + \sin^2)^{1/2}`, entry by entry as :math:`|R|`; its products
       err by :math:`\gamma_8 |R| |y|`.

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


LARGEST = 2.0**150  # of the probabilities with the root of the weights


class Accuracy:
    """Distances of `Pieces` from the truth.

    Attributes
    ----------
    E, Et : Tensor, shape (h, n, n)
        Entrywise, of `P` and `Pt`.
    e : Tensor, shape (h, n)
        Row sums of E.
    D, Dt : Tensor, shape (h, n, n)
        Entrywise, of `steep` and `steep_t`: E and Et without a cap.
    query, keys, values : Tensor, shape (h, n, k) or (h, n, v)
        Entrywise, of queries, keys and values.
    steepest, slopes : Tensor, shape (h, n)
        Largest length of a slope :math:`b_{ij} = (M^k_j)^\\top q_i`, true or computed, and of its change.
    """

    def __init__(self, pieces):
        att, self.pieces = pieces.attention, pieces
        self._of_query = RowErrors(pieces, "query", pieces.x)
        self._of_key = RowErrors(pieces, "key", pieces.key_tokens)
        self.keys, self.query = self._of_key.error, abs(att.scale) * self._of_query.error + TINY**2
        sizes = torch.einsum("nd,hkd->hnk", pieces.value_tokens.abs(), att.value.abs())
        if att.sinks is not None and att.value_bias is not None:
            sizes = sizes + att.value_bias.abs()[:, None]
        self.values = gamma(pieces.x.shape[1] + 4) * MORE * sizes + TINY**2
        if pieces.fixed_keys:
            back = torch.einsum("hnk,hkd->hnd", self.query, att.key.abs())
            own = torch.einsum("hnk,hkd->hnd", pieces.query.abs(), att.key.abs())
            self.slopes = MORE * length(back + gamma(att.key_width + 4) * own)
            self.steepest = length(pieces.slopes) * MORE + self.slopes
        else:
            known, error = MORE * length(pieces.query), MORE * length(self.query)
            stretch, moved = self._of_key.stretch[:, None], self._of_key.moved[:, None]
            self.slopes = MORE * (stretch * error + moved * known)
            self.steepest = MORE * (stretch * (known + error) + moved * known)
        t = self._logits()
        self.E, self.Et = (one[..., : pieces.n] for one in self._probabilities(t))
        self.e = MORE * self.E.sum(-1)
        self.D, self.Dt = (
            (error if pieces.cap_slope is None else MORE * (error + P * self._bends()))
            for error, P in ((self.E, pieces.P), (self.Et, pieces.Pt))
        )

    def _products(self):
        """Bounds on the errors of the products of queries and keys, (h, n, n)."""
        pieces, keys = self.pieces, self.pieces.keys.abs()
        gamma_k = gamma(pieces.attention.key_width + 4)
        return pieces.query.abs() @ (gamma_k * keys + self.keys).mT + self.query @ (keys + self.keys).mT

    def _bends(self):
        """Bounds on the errors of the slopes of the cap, (h, n, n)."""
        moved = self._products() + 2 * UNIT * self.pieces.products.abs()
        return MORE * (0.77 * moved / self.pieces.attention.cap).clamp_max(1) + 32 * UNIT

    def _logits(self):
        """Bounds t on the errors of the logits below the largest of their rows, exp and sum included, as `below`."""
        pieces, att = self.pieces, self.pieces.attention
        n, t = pieces.n, self._products()
        if att.cap is not None:
            t = (MORE * t + 2 * UNIT * pieces.products.abs()).clamp_max(2 * att.cap) + 16 * UNIT * att.cap
        if pieces.logs is not None:
            t = t + 8 * UNIT * (pieces.logs.abs() + pieces.log_size)
        if att.relative is not None:
            t = t + 8 * UNIT * att.place(torch.zeros_like(t), n).abs()
        t = t + 2 * UNIT * pieces.below[..., :n].abs() + gamma(n + 16)
        t = MORE * (t if pieces.hidden is None else t.masked_fill(pieces.hidden, 0))
        if att.sinks is None:
            return t
        size = att.sinks.abs()[:, None] + (0 if pieces.logs is None else pieces.log_size)
        sink = 8 * UNIT * (size + pieces.below[..., n].abs()) + gamma(n + 16)
        return torch.cat([t, MORE * sink[..., None]], -1)

    def _probabilities(self, t):
        """E and Et, from the errors of the logits, a column for sinks among them."""
        pieces = self.pieces
        seen = torch.isfinite(pieces.below)
        total = pieces.below.logsumexp(-1, keepdim=True)
        T = (pieces.below + t).logsumexp(-1, keepdim=True) - total
        epsilon = MORE * (t + MORE * T.clamp_min(0) + gamma(4 * pieces.n + 64))

        def error(P, exponent, epsilon):
            far = (exponent + epsilon).exp()  # |P - P'| <= max(P, P')
            near = P * torch.expm1(epsilon.clamp_max(1))
            return torch.where(seen, MORE * torch.where(epsilon < 0.5, near, far) + TINY**3, 0)

        E = error(pieces.whole, pieces.below - total, epsilon).clamp_max(1)
        top = pieces.below.argmax(-1, keepdim=True)
        others = MORE * E.scatter(-1, top, 0).sum(-1, keepdim=True) + gamma(pieces.n + 16)
        at_top = torch.minimum(others, E.gather(-1, top))
        E = E.scatter(-1, top, at_top)
        if pieces.logs is None:
            return E, E
        half = pieces.half_ratio().expand_as(E)
        exponent = pieces.below + half - total
        added = 16 * UNIT * (torch.where(seen, pieces.below.abs(), 0) + half.abs() + pieces.log_size + total)
        Et = error(pieces.whole_t, exponent, MORE * (epsilon + added))
        at_top = torch.minimum(
            half.gather(-1, top).exp() * at_top
            + torch.expm1(2 * MORE * (added + gamma(pieces.n + 16)).gather(-1, top)) * pieces.whole_t.gather(-1, top),
            Et.gather(-1, top),
        )
        return E, Et.scatter(-1, top, MORE * at_top)

    def resolved(self):
        """Whether float64 resolves attention and norms: every row to within one half, and nothing too large."""
        known = self._of_query.resolved and self._of_key.resolved
        return known and bool(
            (self.e <= 0.5).all() and torch.isfinite(self.Et).all() and (self.pieces.Pt <= LARGEST).all()
        )

    def sizes(self):
        r"""Lengths of values, of the keys and of :math:`s (M^q_i)^\top k_j`, at most, with their errors; each (h,)."""
        pieces, att = self.pieces, self.pieces.attention
        values, keys = (
            (length(known) + length(error)).amax(-1) * MORE
            for known, error in ((pieces.values, self.values), (pieces.keys, self.keys))
        )
        if not self._of_query.plain:
            wrong = MORE * length(self.keys).amax(-1)
            lost = MORE * abs(att.scale) * (self._of_query.stretch * wrong + self._of_query.moved * keys)
            return values, keys, MORE * (abs(att.scale) * self._of_query.stretch * keys + lost), lost
        lost = abs(att.scale) * (gamma(att.key_width + 4) * pieces.keys.abs() + self.keys) @ att.query.abs()
        lost = length(lost) * MORE
        return values, keys, (length(att.scale * pieces.keys @ att.query) + lost).amax(-1) * MORE, lost.amax(-1)

    def change(self):
        r"""Bound on the norm of the change of the Jacobian from the pieces to the truth.

        With :math:`\nu = \max |v_j|`, :math:`\rho = \max |r^v_j|`, :math:`e_i = \sum_l E_{il} \le 1/2`: the mean moves
        by :math:`|\hat o_i - o_i| = |\sum_l (\hat P - P)_{il} \hat v_l + P_{il} (\hat v - v)_l| \le \nu e_i + \rho`, so
        the gap :math:`g_{ij} = v_j - o_i`, of length at most :math:`2 \nu`, by :math:`\nu e_i + 2 \rho`, and
        :math:`|\hat g_{ij}| \le 5 \nu`. In telescoping sums, nothing dropped, for each head

        .. math::
            |\hat P \hat g \hat b - P g b| &\le |\hat P - P| |g| |b| + \hat P |\hat g - g| |b|
                + \hat P |\hat g| |\hat b - b|, \\
            |\hat C_i - C_i| &\le 5 \nu e_i \alpha + (\nu e_i + 2 \rho) \alpha + 2 \nu\, \delta\alpha,

        :math:`\alpha` and :math:`\delta\alpha` the largest :math:`|s W_Q^\top k_j|` and its error; the value term moves
        by :math:`\|E\|_F \|W_V\|`. The query term is block diagonal, the largest block counts; :math:`\|W_O\|`
        multiplies all.
        """
        pieces, att = self.pieces, self.pieces.attention
        nu, _, alpha, lost = self.sizes()
        rho, nu = MORE * length(self.values).amax(-1)[:, None], nu[:, None]
        gap, slope = nu * self.e + 2 * rho, self.steepest
        key = 2 * nu * slope * length(self.Dt) + length(pieces.Pt) * (gap * slope + 5 * nu * self.slopes)
        query = ((5 * nu * MORE * self.D.sum(-1) + gap) * alpha[:, None] + 2 * nu * lost[:, None]).amax(-1)
        value = length(self.Et, (-2, -1)) * largest_singular(att.value)
        return MORE**4 * (largest_singular(pieces.output) * (value + length(key) + query)).sum()

    def arithmetic(self):
        r"""A number that bounds the Jacobian of the pieces, and :math:`\gamma_c` of which bounds its arithmetic.

        Every number replaced by its absolute value or a factor by its Frobenius norm, which no orthogonal
        transformation changes: :math:`\sum_h \|W_O\|_F \big(\|\hat P\|_F \|W_V\|_F + 5 \nu \|W_K\|_F \|(\hat P_{ij}
        |\hat q_i|)\|_F + 5 \nu \kappa |s| \|W_Q\|_F\big)`, :math:`\kappa = \max |k_j|`. Returned with its
        :math:`\gamma_c`: c counts all sums on the way from the pieces to a norm, and eight units for each row of a
        factorisation.
        """
        pieces, att = self.pieces, self.pieces.attention

        def frobenius(matrix):
            return length(matrix, (-2, -1))

        nu, kappa, *_ = self.sizes()
        key = 5 * nu * self._of_key.whole * length(length(pieces.Pt) * length(pieces.query))
        query = 5 * nu * kappa * abs(att.scale) * self._of_query.whole
        parts = frobenius(pieces.output) * (frobenius(pieces.Pt) * frobenius(att.value) + key + query)
        n, d = pieces.x.shape
        count = (
            16 * (n + d + att.key_width + att.value_width + att.output_width)
            + 4 * att.heads * (att.value_width + att.key_width)
            + 256
        )
        if any(pieces.norms.values()):
            count += 16 * att.heads * att.key_width
        return MORE**4 * parts.sum(), gamma(count)


def orthogonality(basis):
    """How far the columns of `basis` (n, r) are from orthonormal, at most: the norm of their Gram matrix less one."""
    n, r = basis.shape
    if r == 0:
        return 0.0
    gram = basis.mT @ basis - torch.eye(r, dtype=basis.dtype, device=basis.device)
    return MORE * (torch.linalg.matrix_norm(gram).item() + 2 * gamma(n + 4) * math.sqrt(r) * n**0.5)
