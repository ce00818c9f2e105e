r"""Linearization of attention at one input for `lipnb.certify`: in float64, with known errors of all numbers.

It is not a `lipnb.jacobian.linearization.Linearization`, because of the proof in `lipnb.bounds.rounding`. Line 2 needs
keys and values projected from centred tokens: centring them afterwards would leave the rounding of the subtracted part.
Line 4 needs :math:`P_{ij} \sqrt{a_i / a_j}` from logarithms, since it may be nonzero although P underflows to zero. The
errors of a row need the column of the sink. All products would differ.
"""

import torch

from lipnb.attention import RowJacobian
from lipnb.attention.features import fixed_keys, keys_shift_invariant
from lipnb.attention.rope_norm import Norm, rotation
from lipnb.checks import at_once


class RoundedLinearization:
    r"""Ingredients of the three terms at one input of shape (n, d), in float64.

    Keys and values are those of :math:`x_j - \bar x` for one fixed :math:`\bar x` near the mean, without biases, where
    this changes neither attention nor Jacobian: it adds one vector to all outputs, and one number to each row of
    logits. Not centred are keys that are rotated or normalised, or used with a cap or sinks, and values used with
    sinks.

    Attributes
    ----------
    query, key, value : Tensor, shape (h, n, k) or (h, n, v)
        Queries (scale folded in), keys and values of each head, keys and values repeated if shared.
    key_tokens, value_tokens : Tensor, shape (n, d)
        The tokens from which keys and values are projected.
    rows : dict
        The rows that became queries and keys, by name, shape (h, n, k): before norms and rotations.
    norms : dict
        Their `Norm` or None, by name.
    of_query, of_key : RowJacobian or None
        Jacobians of queries and of keys in their rows; None if they are the rows.
    fixed_keys : bool
        Whether keys are one matrix times the tokens at every position.
    heads_per_key : int
        Number of consecutive heads with the same keys.
    products : Tensor, shape (h, n, n)
        Products of queries and keys, before caps and added terms.
    log_weights : Tensor, shape (n,), or None
        Logarithms of the token weights, shifted so that the largest is 0; `log_size` is the largest modulus before the
        shift.
    logits : Tensor, shape (h, n, n or n + 1)
        Logits minus the largest of their row, minus infinity where hidden; with sinks as the last column.
    P, Pt : Tensor, shape (h, n, n)
        Attention, and :math:`P_{ij} \sqrt{a_i / a_j}`; `P_with_sink` and `Pt_with_sink` include the sink's column.
    cap_slope : Tensor, shape (h, n, n), or None
        Slopes :math:`\kappa'` of the cap.
    capped_P, capped_Pt : Tensor, shape (h, n, n)
        `P` and `Pt` times these slopes.
    mean : Tensor, shape (h, n, v)
        :math:`o_i`.
    slope : Tensor, shape (h, n, d)
        :math:`b_i = (M^k_i)^\top q_i`, where :math:`M^k_j` is the derivative of key j in its token: :math:`W_K` for
        plain heads.
    output : Tensor, shape (h, m, v)
        Output matrices.
    R : Tensor, shape (p, h v)
        Triangular, :math:`|W_O y| = |R y|` for all heads side by side.
    """

    def __init__(self, attention, x, weights=None, *, heads_per_key=None):
        attention.check_score("this bound")
        self.heads_per_key = attention.heads // attention.groups if heads_per_key is None else heads_per_key
        self.attention = att = attention.expand_groups()
        self.n, self.heads, self.x = len(x), att.heads, x
        centred = x - x.mean(0)
        self.fixed_keys, shift_invariant = fixed_keys(att), keys_shift_invariant(att)
        self.key_tokens = centred if shift_invariant else x
        self.value_tokens = centred if att.sinks is None else x
        self.rows = {
            "query": _rows(att.query, x, att.query_bias),
            "key": _rows(att.key, self.key_tokens, None if shift_invariant else att.key_bias),
        }
        self.turn = None if att.frequencies is None else rotation(att.frequencies, self.n, x.dtype)
        self.norms = {
            name: None if weight is None else Norm(weight, att.norm_eps, att.joint_norm)
            for name, weight in (("query", att.query_norm), ("key", att.key_norm))
        }
        self.of_query, self.of_key = (
            None if norm is None and self.turn is None else RowJacobian(self.turn, norm, self.rows[name])
            for name, norm in self.norms.items()
        )
        query, self.key = (
            rows if of is None else of.value(rows)
            for of, rows in zip((self.of_query, self.of_key), self.rows.values(), strict=True)
        )
        self.query = att.scale * query
        self.value = _rows(att.value, self.value_tokens, None if att.sinks is None else att.value_bias)
        self.hidden = att.hidden(self.n)
        self.products, self.log_weights, self.log_size = self.query @ self.key.mT, None, 0.0
        self._attend(weights)
        self.mean = self.P @ self.value
        self.slope = (self.query if self.of_key is None else self.of_key.transposed(self.query)) @ att.key
        self.output = att.output_matrices()
        # outputs in orthonormal coordinates: |W_O y| = |R y|
        self.R = torch.linalg.qr(self.output.movedim(0, 1).flatten(1), mode="r").R

    def _attend(self, weights):
        """Set logits, P, and Pt = exp(logit + log sqrt(a_i / a_j) - log of the sum of the row)."""
        largest = 0.0
        if weights is not None:
            logs = weights.log()
            self.log_size, largest = logs.abs().max(), logs.max()
            self.log_weights = logs - largest
        logits, self.cap_slope = _logits(self.attention, self.products, self.log_weights, largest)
        self.logits = logits - logits.amax(-1, keepdim=True)
        self.P_with_sink = self.Pt_with_sink = self.logits.softmax(-1)
        if weights is not None:
            sums = self.logits.logsumexp(-1, keepdim=True)
            self.Pt_with_sink = (self.logits + self.log_root_ratio() - sums).exp()
        self.P, self.Pt = self.P_with_sink[..., : self.n], self.Pt_with_sink[..., : self.n]
        self.capped_P, self.capped_Pt = (
            one if self.cap_slope is None else one * self.cap_slope for one in (self.P, self.Pt)
        )

    def log_root_ratio(self):
        """Logarithms of the roots of a_i / a_j, shape (n, n); with sinks plus a column of zeros."""
        half = (self.log_weights[:, None] - self.log_weights) / 2
        return half if self.attention.sinks is None else torch.nn.functional.pad(half, (0, 1))

    @property
    def entries(self):
        """Number of entries of the largest array made for each output token."""
        v = self.value.shape[-1]
        return max(self.heads * self.n * v, (self.heads * v) ** 2)

    def row_blocks(self):
        """Slices of output tokens i whose arrays fit in memory."""
        step = at_once(self.entries)
        return [slice(i, i + step) for i in range(0, self.n, step)]

    def z(self, rows, T):
        """z_ij / T_ij = sqrt(a_i / a_j) P_ij (v_j - o_i) / T_ij, (rows, h, n, v); P with slopes of the cap, T > 0."""
        gap = self.value[:, None] - self.mean[:, rows, None]  # (h, i, j, v)
        return gap.mul_((self.capped_Pt[:, rows] / T.movedim(1, 0))[..., None]).movedim(0, 1)

    def covariance(self, rows):
        """s C_i = s sum_l P_il v_l k_l^T - s o_i (sum_l P_il k_l)^T, (rows, h, v, k), P with the slopes of the cap."""
        P = self.capped_P[:, rows]
        C = torch.einsum("hij,hjv,hjk->ihvk", P, self.value, self.key)
        C = C - torch.einsum("hiv,hik->ihvk", self.mean[:, rows], P @ self.key)
        return self.attention.scale * C

    def in_query_rows(self, rows, matrices):
        """Matrices times D_i, the Jacobians of queries i in their rows, (rows, h, a, k); M^q_i = D_i W_Q."""
        if self.of_query is None:
            return matrices
        return self.of_query.at(rows).transposed(matrices.permute(2, 1, 0, 3)).permute(2, 1, 0, 3)

    def query_term(self, rows):
        """R [s C_i D_i]_h, heads side by side, (rows, p, h k); times W_Q it is block i of the query term."""
        R = self.R.unflatten(1, (self.heads, -1)).movedim(1, 0)  # (h, p, v)
        return self.in_query_rows(rows, R @ self.covariance(rows)).transpose(1, 2).flatten(2)

    def jvp(self, u):
        r"""Products with the Jacobian, :math:`D_a^{1/2} J D_a^{-1/2}`, (c, n, m), for perturbations `u` (c, n, d).

        .. math:: t = P \circ \kappa' \circ s \dot q k^\top + \tilde P \circ \kappa' \circ q \dot k^\top, \qquad
            \dot o = t v - \mathrm{rowsum}(t)\, o + \tilde P \dot v
        """
        att = self.attention
        query, key, value = (torch.einsum("cnd,hkd->chnk", u, matrix) for matrix in (att.query, att.key, att.value))
        query = query if self.of_query is None else self.of_query.forward(query)
        key = key if self.of_key is None else self.of_key.forward(key)
        t = self.capped_P * (att.scale * query @ self.key.mT) + self.capped_Pt * (self.query @ key.mT)
        heads = t @ self.value - t.sum(-1, keepdim=True) * self.mean + self.Pt @ value
        return torch.einsum("chnv,hmv->cnm", heads, self.output)

    def vjp(self, w):
        """Products with the transposed Jacobian, (c, n, d), for cotangents `w` (c, n, m)."""
        att = self.attention
        g = torch.einsum("cnm,hmv->chnv", w, self.output)
        z = g @ self.value.mT - (g * self.mean).sum(-1, keepdim=True)
        query, key = att.scale * (self.capped_P * z) @ self.key, (self.capped_Pt * z).mT @ self.query
        query = query if self.of_query is None else self.of_query.transposed(query)
        key = key if self.of_key is None else self.of_key.transposed(key)
        pulled = ((query, att.query), (key, att.key), (self.Pt.mT @ g, att.value))
        return sum(torch.einsum("chnk,hkd->cnd", part, matrix) for part, matrix in pulled)


def _logits(att, products, log_weights, largest):
    """Logits (h, n, n or n + 1), with the sinks' column, and slopes of the cap, from products of queries and keys.

    As in `Attention.logits`, with the sinks as a column. The weights were divided by their largest, and so is the
    exponential of a sink.
    """
    n = products.shape[-1]
    logits, cap_slope = att.logits(products.clone(), log_weights, n)  # it may write in place, so a copy
    if att.sinks is not None:
        logits = torch.cat([logits, (att.sinks - largest)[:, None, None].expand(-1, n, 1)], -1)
    return logits, cap_slope


def _rows(matrix, tokens, bias):
    """Rows (h, n, k) of tokens (n, d) under matrices (h, k, d), with biases (h, k) or None."""
    rows = torch.einsum("nd,hkd->hnk", tokens, matrix)
    return rows if bias is None else rows + bias[:, None]
