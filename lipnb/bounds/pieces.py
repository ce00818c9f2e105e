"""What the Jacobian at an input is made of, as float64 has it."""

import torch

from lipnb.attention import Local
from lipnb.attention.features import fixed_keys, loose_keys
from lipnb.attention.rope_norm import Norm, normalised, rotation, turned
from lipnb.checks import at_once

__all__ = ["Pieces"]


class Pieces:
    r"""Everything the terms are made of, at one input of shape (n, d), in float64.

    Keys and values are those of :math:`x_j - \bar x` for one fixed :math:`\bar x` near the mean, without biases, where
    this changes neither attention nor Jacobian: it adds one vector to all outputs, and one number to each row of
    logits. Not so, and as they are: keys that are turned or normalised, under a cap or beside sinks; values beside
    sinks.

    Attributes
    ----------
    query, keys, values : Tensor, shape (h, n, k) or (h, n, v)
        Queries (scale folded in), keys and values, of each head its own.
    rows : dict
        The rows that became queries and keys, by name, shape (h, n, k): before norms and rotations.
    norms : dict
        Their `Norm` or None, by name.
    local : tuple of Local
        Derivatives of queries and of keys in their rows.
    times : int
        How many heads, one after another, have the same keys.
    products : Tensor, shape (h, n, n)
        Products of queries and keys, before caps and what else is added.
    logs : Tensor, shape (n,), or None
        Logarithms of the token weights, the largest of them 0; before, `log_size` was the largest absolute value.
    below : Tensor, shape (h, n, n or n + 1)
        Logits below the largest of their row; with sinks these are the last column.
    P, Pt : Tensor, shape (h, n, n)
        Attention, and :math:`P_{ij} \sqrt{a_i / a_j}`.
    cap_slope : Tensor, shape (h, n, n), or None
        Slopes of the cap.
    steep, steep_t : Tensor, shape (h, n, n)
        `P` and `Pt` times these slopes.
    means, slopes : Tensor, shape (h, n, v) and (h, n, d)
        :math:`o_i` and :math:`b_i = (M^k_i)^\top q_i`, where :math:`M^k_j` is the derivative of key j in its token:
        :math:`W_K` for plain heads.
    output : Tensor, shape (h, m, v)
        Output matrices.
    R : Tensor, shape (p, h v)
        Triangular, :math:`|W_O y| = |R y|` for all heads side by side.
    """

    def __init__(self, attention, x, weights=None, *, times=None):
        attention.check_score("this bound")
        self.times = attention.heads // attention.groups if times is None else times
        self.attention = att = attention.expand_groups()
        self.n, self.heads, self.x = len(x), att.heads, x
        centred = x - x.mean(0)
        self.fixed_keys, loose = fixed_keys(att), loose_keys(att)
        self.key_tokens = centred if loose else x
        self.value_tokens = centred if att.sinks is None else x
        self.rows = {
            "query": _rows(att.query, x, att.query_bias),
            "key": _rows(att.key, self.key_tokens, None if loose else att.key_bias),
        }
        self.turn = rotation(att.frequencies, self.n, x.dtype)
        self.norms = {
            name: None if weight is None else Norm(weight, att.norm_eps, att.joint_norm)
            for name, weight in (("query", att.query_norm), ("key", att.key_norm))
        }
        query, self.keys = (turned(normalised(self.rows[name], norm), self.turn) for name, norm in self.norms.items())
        self.local = tuple(Local(self.turn, norm, self.rows[name]) for name, norm in self.norms.items())
        self.query = att.scale * query
        self.values = _rows(att.value, self.value_tokens, None if att.sinks is None else att.value_bias)
        self.hidden = att.hidden(self.n)
        self._attend(weights)
        self.means = self.P @ self.values
        self.slopes = self.local[1].transposed(self.query) @ att.key
        self.output = att.output_matrices()
        # outputs in orthonormal coordinates: |W_O y| = |R y|
        self.R = torch.linalg.qr(self.output.movedim(0, 1).flatten(1), mode="r").R

    def _attend(self, weights):
        att, n = self.attention, self.n
        self.products, self.logs, largest = self.query @ self.keys.mT, None, 0.0
        logits, self.cap_slope = att.capped(self.products)
        if weights is not None:
            self.logs = weights.log()
            self.log_size, largest = self.logs.abs().max(), self.logs.max()
            self.logs = self.logs - largest
            logits = logits + self.logs
        logits = att.place(logits.clone(), n)  # which writes: `products` are to stay what they are
        if att.sinks is not None:
            logits = torch.cat([logits, (att.sinks - largest)[:, None, None].expand(-1, n, 1)], -1)
        self.below = logits - logits.amax(-1, keepdim=True)
        self.whole = self.below.softmax(-1)
        self.whole_t = (
            self.whole
            if weights is None
            else (self.below + self.half_ratio() - self.below.logsumexp(-1, keepdim=True)).exp()
        )
        self.P, self.Pt = self.whole[..., :n], self.whole_t[..., :n]
        self.steep, self.steep_t = (
            one if self.cap_slope is None else one * self.cap_slope for one in (self.P, self.Pt)
        )

    def half_ratio(self):
        """Half the logarithm of a_i / a_j, shape (n, n); with sinks one more column, of zeros."""
        half = (self.logs[:, None] - self.logs) / 2
        return half if self.attention.sinks is None else torch.nn.functional.pad(half, (0, 1))

    @property
    def entries(self):
        """Entries of the largest array made for each output token."""
        v = self.values.shape[-1]
        return max(self.heads * self.n * v, (self.heads * v) ** 2)

    def some_rows(self):
        """Slices of output tokens whose arrays fit."""
        step = at_once(self.entries)
        return [slice(i, i + step) for i in range(0, self.n, step)]

    def spread(self, rows, weights):
        """z_ij with the root of the token weights, over `weights` (rows, h, n or 1): shape (rows, h, n, v)."""
        gap = self.values[:, None] - self.means[:, rows, None]  # (h, i, j, v)
        return gap.mul_((self.steep_t[:, rows] / weights.movedim(1, 0))[..., None]).movedim(0, 1)

    def covariance(self, rows):
        """s C_i, (rows, h, v, k)."""
        steep = self.steep[:, rows]
        C = torch.einsum("hij,hjv,hjk->ihvk", steep, self.values, self.keys)
        C = C - torch.einsum("hiv,hik->ihvk", self.means[:, rows], steep @ self.keys)
        return self.attention.scale * C

    def pulled(self, rows, covariance):
        """Rows (rows, h, a, k) times the derivatives of queries in their rows: W_Q is what is left."""
        return self.local[0].at(rows).transposed(covariance.permute(2, 1, 0, 3)).permute(2, 1, 0, 3)

    def query_term(self, rows):
        """R diag_h(s C_i) times the derivatives of queries in their rows, (rows, p, h k)."""
        R = self.R.unflatten(1, (self.heads, -1)).movedim(1, 0)  # (h, p, v)
        return self.pulled(rows, R @ self.covariance(rows)).transpose(1, 2).flatten(2)

    def jvp(self, u):
        """Products with the Jacobian (of the norm with weights) of perturbations `u` (c, n, d), shape (c, n, m)."""
        att = self.attention
        query, key, value = (torch.einsum("cnd,hkd->chnk", u, matrix) for matrix in (att.query, att.key, att.value))
        query, key = (local.forward(rows) for local, rows in zip(self.local, (query, key), strict=True))
        t = self.steep * (att.scale * query @ self.keys.mT) + self.steep_t * (self.query @ key.mT)
        heads = t @ self.values - t.sum(-1, keepdim=True) * self.means + self.Pt @ value
        return torch.einsum("chnv,hmv->cnm", heads, self.output)

    def vjp(self, w):
        """Products with the transpose, (c, n, m) to (c, n, d)."""
        att = self.attention
        g = torch.einsum("cnm,hmv->chnv", w, self.output)
        z = g @ self.values.mT - (g * self.means).sum(-1, keepdim=True)
        query, key = att.scale * (self.steep * z) @ self.keys, (self.steep_t * z).mT @ self.query
        query, key = (local.transposed(rows) for local, rows in zip(self.local, (query, key), strict=True))
        pulled = ((query, att.query), (key, att.key), (self.Pt.mT @ g, att.value))
        return sum(torch.einsum("chnk,hkd->cnd", part, matrix) for part, matrix in pulled)


def _rows(matrix, tokens, bias):
    """Rows (h, n, k) of tokens (n, d) under matrices (h, k, d), with biases (h, k) or None."""
    rows = torch.einsum("nd,hkd->hnk", tokens, matrix)
    return rows if bias is None else rows + bias[:, None]
