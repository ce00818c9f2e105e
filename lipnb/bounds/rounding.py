r"""Bounds on all rounding errors: norms as upper bounds, and the distance of the float64 linearization from the truth.

Lines 1 to 8 are those of the proof in the book, "Rounding, line by line" (notebooks/62_certified_bracket.py), which
lists the assumptions on float64 and the libraries. With :math:`u = 2^{-53}` a sum of c products errs by at most
:math:`\gamma_c = c u / (1 - c u)` times the sum of the absolute products, in any order (higham2002accuracy, section
3.1), with fused multiply-adds too, in which a product shares the rounding of its addition; hats are computed.
Everything is counted to every order.

1. *Units* of `in_units`, in which nothing overflows and underflow changes logits and result by at most `TINY`.
   `RoundingErrors.raised` marks the heads that `in_units` raises. A norm that squares its entries would lose more,
   namely entire vectors below :math:`2^{-537}`: norms that are factors of a bound first divide by the largest entry
   (`length`).
2. *Projections.* :math:`|\hat k - k| \le \gamma_{d+4} |W_K| |x - \bar x| =: r^k`, and likewise :math:`r^v`;
   :math:`|\hat q - q| \le |s| \gamma_{d+4} (|W_Q| |x| + |b_Q|) =: r^q`. Rows that are normalised or
   rotated: `RowErrors`, lines 2a to 2d.
3. *Logits.* :math:`\hat\ell = \mathrm{fl}(\hat q \cdot \hat k + \log a)`, no product of errors dropped:
   :math:`|\hat\ell_{ij} - \ell_{ij}| \le |\hat q_i| \cdot (\gamma_{k+4} |\hat k_j| + r^k_j) + r^q_i \cdot
   (|\hat k_j| + r^k_j) + 8 u\, (|\log a_j - \max \log a| + \max |\log a|)`. Subtracting the maximum adds 2 u times
   the difference, exp, sum and quotient together :math:`\gamma_{n+16}`: :math:`t_{ij}`. A cap c has slopes in [0, 1]
   and values in [-c, c]: an error t of the product becomes at most
   :math:`\min(t + 2 u |\hat\ell|, 2 c) + 16 u c`, and its slope :math:`\kappa' = \cosh^{-2}(\ell / c)` moves by at
   most :math:`0.77\, (t + 2 u |\hat\ell|) / c + 32 u`. Relative positions B add :math:`8 u |B|`. A sink is one more
   column, whose logit is given.
4. *Probabilities.* :math:`P_{ij} = \hat P_{ij} e^{\theta_{ij}} / \sum_l \hat P_{il} e^{\theta_{il}}` with
   :math:`|\theta_{ij}| \le t_{ij}`. The denominator lies between :math:`e^{-T_i}` and :math:`e^{T_i}`,
   :math:`T_i = \log \sum_l \hat P_{il} e^{t_{il}}` (below by Jensen: :math:`\sum \hat P \theta \ge -\sum \hat P t \ge
   -T_i`). So :math:`|\hat P_{ij} - P_{ij}| \le \hat P_{ij} (e^{t_{ij} + T_i} - 1) =: E_{ij}`, and since
   rows sum to one, the largest entry of a row changes by no more than all others together: this covers hard attention,
   where :math:`E_{ij}` is below :math:`e^{-\text{gap}}` although the errors of the logits are large. With weights
   :math:`\sqrt{a_i / a_j}` multiplies both sides.
5. *Jacobian*, for any P within E: `RoundingErrors.jacobian_error`.
6. *Its arithmetic*: `RoundingErrors.arithmetic`, in the key term `lipnb.bounds.term_bounds`.
7. *Norms*: `lipnb.spectral.upper_norms`, `lipnb.bounds.cholesky_certificates`.
8. *The bounds themselves*, sums of positive numbers over tokens, heads or one width: with up to `MOST` terms their
   relative errors are below :math:`2^{-32}`, and they are enlarged by `MORE`. Larger sums are refused (`sums_counted`);
   `length`, also of matrices, counts its own rounding.
"""

import math

import torch

from lipnb.attention import Feature
from lipnb.attention.rope_norm import normalised
from lipnb.attention.units import MAX_GAP
from lipnb.spectral.upper_norms import UNIT, gamma, largest_singular, length

MOST = 2**20
MORE = 1 + 2.0**-32  # for sums of up to MOST positive numbers: gamma of 2^20 is about 2^-33
TINY = 2.0**-300  # loss of logits and result by underflow: line 1; TINY^2 for a row, TINY^3 for a probability
FARTHEST = 2.0**400  # limit for divisors of norms and their inverses: beyond it, squares are not trusted
LARGEST = 2.0**150  # limit for probabilities times the root of the weights


def sums_counted(at):
    """Whether no sum that relies on `MORE` has more than `MOST` terms."""
    att = at.attention
    return max(at.n, at.heads, att.width, att.key_width, att.value_width) <= MOST


def orthogonality(basis):
    r"""Upper bound on the deviation :math:`\|B^\top B - I\|_F` of the columns of `basis` B (n, r) from orthonormality.

    The computed Gram matrix errs by at most :math:`\gamma_n |B|^\top |B|`, whose Frobenius norm is at most the square
    of that of B; the difference from I errs by one unit of each of the two.
    """
    n, r = basis.shape
    if r == 0:
        return 0.0
    gram = basis.mT @ basis - torch.eye(r, dtype=basis.dtype, device=basis.device)
    return MORE * (length(gram, (0, 1)) + gamma(n + 4) * (length(basis, (0, 1)).square() + math.sqrt(r))).item()


class RowErrors:
    r"""Rounding of the rows of queries (without their scale) or keys, and of their derivatives.

    A row :math:`y = W x + b` becomes :math:`R\, N(y)`, with one or both of R and N, or is used unchanged. The rotation
    R has the cosines and sines of the map itself, exact by definition, and is not quite orthogonal. Lines 2a to 2d of
    the book, with
    :math:`N(y) = w \circ r y`, :math:`r = (|y|^2 / K + \epsilon)^{-1/2}`, :math:`z = r y`, errors
    :math:`|\hat y - y| \le r^y` and :math:`\eta = |r^y| / \sqrt K`:

    - *2a.* :math:`1 / r` is the length of :math:`(y / \sqrt K, \sqrt \epsilon)`, so it moves by at most :math:`\eta`.
      Hence :math:`r \le r^+ := ((1 - \gamma_{K+16}) / \hat r - \eta)^{-1}`, if that is positive, and
      :math:`|\hat r - r| \le \delta := r^+ \hat r \eta + \gamma_{K+16} \hat r`.
    - *2b.* Entry by entry :math:`|\hat z - z| \le |\hat y| \delta + r^+ r^y + \gamma_8 |\hat y| \hat r`.
    - *2c.* The derivative :math:`w \circ r (I - z z^\top / K)` has norm at most :math:`\max |w|\, r^+`, for
      :math:`|z|^2 \le K`, and moves by at most :math:`\max |w| (\delta + 3 r^+ |\hat z - z| / \sqrt K)`.
    - *2d.* R stretches by at most :math:`g = \max (\cos^2 + \sin^2)^{1/2}`, entry by entry as :math:`|R|`; its products
      err by :math:`\gamma_8 |R| |y|`.

    The arguments are `at`, the `name` "query" or "key", and the tokens (n, d) of the rows.

    Attributes
    ----------
    error : Tensor, shape (h, n, k)
        Entrywise errors of the finished rows: :math:`r^q / |s|` or :math:`r^k`.
    identity : bool
        Whether the finished rows are the projected rows, without norm and rotation.
    derivative, derivative_error : Tensor, shape (h,)
        Largest norm of the derivative of a finished row in its token, true or computed, and of the error of this
        derivative.
    absolute_in_row, absolute_in_token : Tensor, shape (h,)
        Largest norm of the derivative of a finished row in its row, and in its token, with all numbers replaced by
        their absolute values.
    resolved : bool
        Whether every length that a norm divides by is known to be positive.
    """

    def __init__(self, at, name, tokens):
        matrix, bias = getattr(at.attention, name), getattr(at.attention, f"{name}_bias")
        sizes = torch.einsum("nd,hkd->hnk", tokens.abs(), matrix.abs())
        if bias is not None:
            sizes = sizes + bias.abs()[:, None]
        rows, norm = at.rows[name], at.norms[name]
        self.error = gamma(tokens.shape[1] + 4) * MORE * sizes + TINY**2  # r^y = gamma_{d+4} (|W| |x| + |b|)
        self.identity, self.resolved = norm is None and at.turn is None, True
        if norm is not None and norm.joint:
            matrix = matrix.flatten(0, 1)  # one mean square for all heads: their rows are one
        self.derivative = MORE * largest_singular(matrix).expand(at.heads)
        self.derivative_error = torch.zeros_like(self.derivative)
        self.absolute_in_row = torch.ones_like(self.derivative)
        if norm is not None:
            factor, factor_error = self._normalise(rows, norm)
            self.derivative, self.derivative_error = factor * self.derivative, factor_error * self.derivative
            self.absolute_in_row = 2 * factor  # |I| + |z| |z|^T / K has norm 2
        if at.turn is not None:
            g = MORE * max(1.0, sum(part.square() for part in at.turn).amax().sqrt().item())
            turned_sizes = self._turned(normalised(rows, norm).abs(), at.turn)  # |R| |y|
            self.error = MORE * (self._turned(self.error, at.turn) + gamma(8) * turned_sizes)  # line 2d
            self.derivative, self.derivative_error = g * self.derivative, g * self.derivative_error
            self.absolute_in_row = 2 * self.absolute_in_row  # | |R| | <= |cos| + |sin| <= sqrt(2) g
        self.absolute_in_row = MORE * self.absolute_in_row.expand(at.heads)
        self.absolute_in_token = MORE * self.absolute_in_row * length(matrix, (-2, -1))

    def _normalise(self, rows, norm):
        """Set errors of normalised rows; return the norm of the derivative of N, and that of its error, (h,) each."""
        dims, K = ((-3, -1), rows.shape[-3] * rows.shape[-1]) if norm.joint else ((-1,), rows.shape[-1])

        def root_mean_square(tensor):  # (h or 1, n, 1)
            return MORE * length(tensor, dims).reshape(-1, rows.shape[-2], 1) / math.sqrt(K)

        r, eta = (norm.mean(rows.square()) + norm.eps).rsqrt(), root_mean_square(self.error)
        least = (1 - gamma(K + 16)) / r - eta  # line 2a: of 1 / r
        inside = (least > 0) & (r <= FARTHEST) & (r >= 1 / FARTHEST)
        self.resolved = bool(inside.all())
        r_upper = MORE / torch.where(inside, least, 1)  # r^+
        delta = MORE * (r_upper * r * eta + gamma(K + 16) * r)
        unit_error = MORE * (rows.abs() * (delta + gamma(8) * r) + r_upper * self.error)  # line 2b
        weight = norm.weight.abs()
        self.error = MORE * weight[:, None] * unit_error + TINY**2
        largest = weight.amax(-1)[:, None, None]
        derivative_error = largest * (delta + 3 * r_upper * root_mean_square(unit_error))  # line 2c
        return MORE * (largest * r_upper).amax((1, 2)), MORE * derivative_error.amax((1, 2))

    @staticmethod
    def _turned(sizes, turn):
        """Apply the absolute values of the rotation to positive rows."""
        cos, sin = (part.abs() for part in turn)
        p = cos.shape[-1]
        first, second, rest = sizes.split([p, p, sizes.shape[-1] - 2 * p], -1)
        return torch.cat([first * cos + second * sin, second * cos + first * sin, rest], -1)


class RoundingErrors:
    r"""Distances of a `RoundedLinearization` from the truth: :math:`r^q, r^k, r^v`, E and derived bounds.

    Attributes
    ----------
    E, Et : Tensor, shape (h, n, n)
        Entrywise errors of `P` and `Pt`: line 4.
    e : Tensor, shape (h, n)
        Row sums of E.
    capped_E, capped_Et : Tensor, shape (h, n, n)
        Entrywise errors of `capped_P` and `capped_Pt`; without a cap E and Et.
    query, key, value : Tensor, shape (h, n, k) or (h, n, v)
        Entrywise errors :math:`r^q`, :math:`r^k` and :math:`r^v`: line 2.
    slope, longest_slope : Tensor, shape (h, n)
        Largest length of the error of a slope :math:`b_{ij} = (M^k_j)^\top q_i`, and of the slope, true or computed.
    """

    def __init__(self, at):
        att, self.at = at.attention, at
        self._of_query = RowErrors(at, "query", at.x)
        self._of_key = RowErrors(at, "key", at.key_tokens)
        # line 2
        self.key, self.query = self._of_key.error, abs(att.scale) * self._of_query.error + TINY**2
        sizes = torch.einsum("nd,hkd->hnk", at.value_tokens.abs(), att.value.abs())
        if att.sinks is not None and att.value_bias is not None:
            sizes = sizes + att.value_bias.abs()[:, None]
        self.value = gamma(at.x.shape[1] + 4) * MORE * sizes + TINY**2
        self.slope, self.longest_slope = self._slopes()
        # lines 3 and 4
        self.E, self.Et = (one[..., : at.n] for one in self._probability_errors(self._logit_errors()))
        self.e = MORE * self.E.sum(-1)
        # |P^ k^ - P k| <= |P^ - P| + P^ |k^ - k|, for slopes k of the cap, at most 1
        self.capped_E, self.capped_Et = (
            (error if at.cap_slope is None else MORE * (error + P * self._cap_slope_errors()))
            for error, P in ((self.E, at.P), (self.Et, at.Pt))
        )

    def _slopes(self):
        """Bounds on the lengths of errors of slopes, and of slopes, (h, n) each."""
        at, att = self.at, self.at.attention
        if at.fixed_keys:  # |W_K^T|(r^q + gamma |q|)
            by_query = torch.einsum("hnk,hkd->hnd", self.query, att.key.abs())
            sizes = torch.einsum("hnk,hkd->hnd", at.query.abs(), att.key.abs())
            error = MORE * length(by_query + gamma(att.key_width + 4) * sizes)
            return error, length(at.slope) * MORE + error
        # |M^k^T q| in norms: |M^k| |r^q| + |M^k's error| |q|
        query, query_error = MORE * length(at.query), MORE * length(self.query)
        M, M_error = self._of_key.derivative[:, None], self._of_key.derivative_error[:, None]
        error = MORE * (M * query_error + M_error * query)
        return error, MORE * (M * (query + query_error) + M_error * query)

    def _product_errors(self):
        """Bounds on the errors of the products of queries and keys, (h, n, n)."""
        at, key = self.at, self.at.key.abs()
        gamma_k = gamma(at.attention.key_width + 4)
        # |q^| (gamma_{k+4} |k^| + r^k) + r^q (|k^| + r^k)
        return at.query.abs() @ (gamma_k * key + self.key).mT + self.query @ (key + self.key).mT

    def _cap_slope_errors(self):
        """Bounds on the errors of the slopes of the cap, (h, n, n): 0.77 (t + 2 u |logit|) / c + 32 u."""
        t = self._product_errors() + 2 * UNIT * self.at.products.abs()
        return MORE * (0.77 * t / self.at.attention.cap).clamp_max(1) + 32 * UNIT

    def _logit_errors(self):
        """Bounds t, shaped like `logits`, on the errors of logits minus the largest of their row, with exp and sum."""
        at, att = self.at, self.at.attention
        n, t = at.n, self._product_errors()
        if att.cap is not None:  # min(t + 2 u |logit|, 2 c) + 16 u c
            t = (MORE * t + 2 * UNIT * at.products.abs()).clamp_max(2 * att.cap) + 16 * UNIT * att.cap
        if at.log_weights is not None:
            t = t + 8 * UNIT * (at.log_weights.abs() + at.log_size)
        if Feature.RELATIVE in att.more:
            t = t + 8 * UNIT * att.logits(torch.zeros_like(t), None, n)[0].abs()
        # the difference from the largest; exp, sum and quotient
        t = t + 2 * UNIT * at.logits[..., :n].abs() + gamma(n + 16)
        t = MORE * (t if at.hidden is None else t.masked_fill(at.hidden, 0))
        if att.sinks is None:
            return t
        size = att.sinks.abs()[:, None] + (0 if at.log_weights is None else at.log_size)
        sink = 8 * UNIT * (size + at.logits[..., n].abs()) + gamma(n + 16)
        return torch.cat([t, MORE * sink[..., None]], -1)

    def _probability_errors(self, t):
        """E and Et, from the errors t of the logits, both with the column of sinks if any."""
        at = self.at
        seen = torch.isfinite(at.logits)
        log_sum = at.logits.logsumexp(-1, keepdim=True)
        T = (at.logits + t).logsumexp(-1, keepdim=True) - log_sum  # log sum_l P_il e^t_il
        exponent_error = MORE * (t + MORE * T.clamp_min(0) + gamma(4 * at.n + 64))

        def error(P, log_P, exponent_error):
            far = (log_P + exponent_error).exp()  # |P - P'| <= max(P, P')
            near = P * torch.expm1(exponent_error.clamp_max(1))  # P (e^{t + T} - 1)
            return torch.where(seen, MORE * torch.where(exponent_error < 0.5, near, far) + TINY**3, 0)

        E = error(at.P_with_sink, at.logits - log_sum, exponent_error).clamp_max(1)
        # rows sum to one: the largest entry changes by no more than all others together
        top = at.logits.argmax(-1, keepdim=True)
        others = MORE * E.scatter(-1, top, 0).sum(-1, keepdim=True) + gamma(at.n + 16)
        at_top = torch.minimum(others, E.gather(-1, top))
        E = E.scatter(-1, top, at_top)
        if at.log_weights is None:
            return E, E
        # with weights sqrt(a_i / a_j) multiplies both sides; `rounding`: that of its logarithm, added to the logit
        half = at.log_root_ratio().expand_as(E)
        log_Pt = at.logits + half - log_sum
        rounding = 16 * UNIT * (torch.where(seen, at.logits.abs(), 0) + half.abs() + at.log_size + log_sum)
        Et = error(at.Pt_with_sink, log_Pt, MORE * (exponent_error + rounding))
        top_rounding = torch.expm1(2 * MORE * (rounding + gamma(at.n + 16)).gather(-1, top))
        at_top = torch.minimum(
            half.gather(-1, top).exp() * at_top + top_rounding * at.Pt_with_sink.gather(-1, top), Et.gather(-1, top)
        )
        return E, Et.scatter(-1, top, MORE * at_top)

    def resolved(self):
        """Whether float64 resolves attention and norms: every row to within one half, and nothing too large."""
        known = self._of_query.resolved and self._of_key.resolved and sums_counted(self.at)
        return known and bool((self.e <= 0.5).all() and torch.isfinite(self.Et).all() and (self.at.Pt <= LARGEST).all())

    def lengths(self):
        r"""The bounds :math:`\nu, \kappa, \alpha, \delta\alpha`, (h,) each.

        They bound the lengths of values, of keys and of :math:`s (M^q_i)^\top k_j`, errors included, and of the errors
        of the last.
        """
        at, att = self.at, self.at.attention
        nu, kappa = (
            (length(known) + length(error)).amax(-1) * MORE
            for known, error in ((at.value, self.value), (at.key, self.key))
        )
        if self._of_query.identity:  # |W_Q^T|(r^k + gamma |k|)
            error = abs(att.scale) * (gamma(att.key_width + 4) * at.key.abs() + self.key) @ att.query.abs()
            error = length(error) * MORE
            alpha = (length(att.scale * at.key @ att.query) + error).amax(-1) * MORE
            return nu, kappa, alpha, error.amax(-1)
        # |M^q| |r^k| + |M^q's error| |k|
        M, M_error, key_error = self._of_query.derivative, self._of_query.derivative_error, length(self.key).amax(-1)
        error = MORE * abs(att.scale) * (M * (MORE * key_error) + M_error * kappa)
        return nu, kappa, MORE * (abs(att.scale) * M * kappa + error), error

    def jacobian_error(self):
        r"""Line 5: a bound on the norm of the difference between the Jacobians of the linearization and of the truth.

        With :math:`\nu = \max |v_j|`, :math:`\rho = \max |r^v_j|`, :math:`e_i = \sum_l E_{il} \le 1/2`: the mean moves
        by :math:`|\hat o_i - o_i| = |\sum_l (\hat P - P)_{il} \hat v_l + P_{il} (\hat v - v)_l| \le \nu e_i + \rho`, so
        the gap :math:`g_{ij} = v_j - o_i`, of length at most :math:`2 \nu`, by :math:`\nu e_i + 2 \rho`, and
        :math:`|\hat g_{ij}| \le 5 \nu`. In telescoping sums, nothing dropped, for each head

        .. math::
            |\hat P \hat g \hat b - P g b| &\le |\hat P - P| |g| |b| + \hat P |\hat g - g| |b|
                + \hat P |\hat g| |\hat b - b|, \\
            |s (\hat C_i - C_i) W_Q| &\le 5 \nu e'_i \alpha + (\nu e_i + 2 \rho) \alpha + 2 \nu\, \delta\alpha,

        :math:`\alpha` and :math:`\delta\alpha` the largest :math:`|s W_Q^\top k_j|` and its error, :math:`e'_i` the
        sum of row i of the errors of P times the slopes of the cap; the value term moves by :math:`\|E\|_F \|W_V\|`,
        with token weights in E. The query term is block diagonal, so that its largest block counts; :math:`\|W_O\|`
        multiplies everything.
        """
        at, att = self.at, self.at.attention
        nu, _, alpha, alpha_error = self.lengths()
        rho, nu = MORE * length(self.value).amax(-1)[:, None], nu[:, None]
        gap_error, b = nu * self.e + 2 * rho, self.longest_slope
        # Frobenius norms over j here and over i below
        key = 2 * nu * b * length(self.capped_Et) + length(at.Pt) * (gap_error * b + 5 * nu * self.slope)
        query = (5 * nu * MORE * self.capped_E.sum(-1) + gap_error) * alpha[:, None] + 2 * nu * alpha_error[:, None]
        value = length(self.Et, (-2, -1)) * largest_singular(att.value)
        # at most four nested sums above lack their MORE
        return MORE**4 * (largest_singular(at.output) * (value + length(key) + query.amax(-1))).sum()

    def arithmetic(self):
        r"""Line 6: bounds (h,) on the computed Jacobian of each head, and :math:`\gamma_c` for its arithmetic.

        Every number is replaced by its absolute value, or a factor by its Frobenius norm, which no orthogonal
        transformation changes: :math:`\|W_O\|_F \big(\|\hat P\|_F \|W_V\|_F + 5 \nu \|W_K\|_F \|(\hat P_{ij}
        |\hat q_i|)\|_F + 5 \nu \kappa |s| \|W_Q\|_F\big)`, :math:`\kappa = \max |k_j|`; for rows that are
        normalised or rotated `absolute_in_token` stands for :math:`\|W_K\|_F` and :math:`\|W_Q\|_F`. In
        :math:`\gamma_c`, c counts all sums from the linearization to a norm, and eight units for each row of a
        factorisation.
        """
        at, att = self.at, self.at.attention

        def frobenius(matrix):
            return length(matrix, (-2, -1))

        nu, kappa, *_ = self.lengths()
        key = 5 * nu * self._of_key.absolute_in_token * length(length(at.Pt) * length(at.query))
        query = 5 * nu * kappa * abs(att.scale) * self._of_query.absolute_in_token
        heads = frobenius(at.output) * (frobenius(at.Pt) * frobenius(att.value) + key + query)
        n, d = at.x.shape
        count = (
            16 * (n + d + att.key_width + att.value_width + att.output_width)
            + 4 * att.heads * (att.value_width + att.key_width)
            + 256
        )
        if any(at.norms.values()):
            count += 16 * att.heads * att.key_width
        return MORE**4 * heads, gamma(count)

    def raised(self):
        """Line 1: mask (h,) of heads that `in_units` may have raised: their true size may be anything down to zero."""
        at = self.at
        sizes = at.attention.value.abs().amax((1, 2)) * at.output.abs().amax((1, 2))
        return sizes <= 2.0**-MAX_GAP
