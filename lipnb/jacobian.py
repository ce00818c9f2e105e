"""Jacobians of attention at an input: closed form, and the autodiff twin for any differentiable map.

Both give the two products that a solver needs, and a dense matrix that tests and small cases compare with.
"""

import math

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["AttentionJacobian", "AutodiffJacobian"]

DENSE_ENTRIES = 2**28  # 2 GiB in float64; above it a dense Jacobian is refused


def _refuse_large_dense(shape):
    """Raise before a dense Jacobian of more than `DENSE_ENTRIES` entries is built."""
    if math.prod(shape) > DENSE_ENTRIES:
        raise ValueError(f"a dense Jacobian of shape {tuple(shape)} would hold {math.prod(shape):.1e} entries: "
                         "use jvp and vjp, or local_lipschitz(method='lanczos').")


class AttentionJacobian:
    r"""Jacobian of an attention map at an input, in closed form.

    For one head without biases, with :math:`m_i = \sum_j P_{ij} x_j` and the covariance
    :math:`\Sigma_i = \sum_j P_{ij}(x_j - m_i)(x_j - m_i)^\top`,

    .. math::
        (D_X f)(u)_i = V\Big[\Sigma_i A\, u_i + \sum_j P_{ij} (x_j - m_i)(A x_i)^\top u_j + \sum_j P_{ij} u_j\Big].

    The products never form these blocks: with :math:`t = P \circ (\dot q k^\top + q \dot k^\top)` and head output
    :math:`o`, the tangent of the head is :math:`t v + P \dot v - \mathrm{rowsum}(t)\, o`. Probabilities, queries,
    keys and values are computed once, here; then each product costs :math:`O(h n^2 k + h n k d)`.

    Parameters
    ----------
    attention : Attention
        The map, any heads, biases and mask.
    x : Tensor, shape (..., n, d)
        Tokens; leading dimensions are a batch of independent sequences.
    weights : Tensor, shape (n,) or (..., n), optional
        Positive token weights; the Jacobian is then that of the weighted map :math:`f_a` (for the norm that goes
        with the weights, see `lipnb.local_lipschitz`).

    Raises
    ------
    ValueError
        As `Attention.check_input`.

    Notes
    -----
    castin2024smooth, Lemma C.2 (one head), D.1 (masked), E.2 (biases), C.6 (weights).
    """

    def __init__(self, attention, x, weights=None):
        attention.check_input(x, weights)
        self.attention = attention
        self.batch_shape, (self.n, self.d) = x.shape[:-2], x.shape[-2:]
        self._query, self._key, self._value = attention.project(x)
        self._probabilities = attention.probabilities_of(self._query, self._key, weights)
        self._heads = self._probabilities @ self._value

    @property
    def shape(self):
        """Batch shape, then (n m, n d), one matrix for each sequence."""
        return (*self.batch_shape, self.n * self.attention.output_width, self.n * self.d)

    def _check(self, name, u, width):
        expected = (*self.batch_shape, self.n, width)
        if u.ndim < len(expected) or u.shape[-len(expected):] != expected:
            raise ValueError(f"{name} must have shape {expected} (leading dimensions may be added), "
                             f"got {tuple(u.shape)}.")

    def jvp(self, u):
        """Jacobian-vector product.

        Parameters
        ----------
        u : Tensor, shape (..., n, d)
            Perturbation of the tokens; more leading dimensions than `x` had mean several perturbations.

        Returns
        -------
        Tensor, shape (..., n, m)
            First-order change of the output tokens.
        """
        self._check("u", u, self.d)
        att = self.attention
        d_query = att.scale * torch.einsum("...nd,hkd->...hnk", u, att.query)
        d_key = torch.einsum("...nd,hkd->...hnk", u, att.key)
        d_value = torch.einsum("...nd,hvd->...hnv", u, att.value)
        t = self._probabilities * (d_query @ self._key.mT + self._query @ d_key.mT)
        return att.combine(t @ self._value + self._probabilities @ d_value - t.sum(-1, keepdim=True) * self._heads)

    def vjp(self, w):
        """Vector-Jacobian product: the transpose of `jvp`.

        Parameters
        ----------
        w : Tensor, shape (..., n, m)
            Cotangent of the output tokens; more leading dimensions than `x` had mean several cotangents.

        Returns
        -------
        Tensor, shape (..., n, d)
            The gradient of <w, f(x)> in the tokens.
        """
        self._check("w", w, self.attention.output_width)
        att = self.attention
        g = att.combine_transposed(w)
        z = self._probabilities * (g @ self._value.mT - (g * self._heads).sum(-1, keepdim=True))
        return (att.scale * torch.einsum("...hnk,hkd->...nd", z @ self._key, att.query)
                + torch.einsum("...hnk,hkd->...nd", z.mT @ self._query, att.key)
                + torch.einsum("...hnv,hvd->...nd", self._probabilities.mT @ g, att.value))

    def dense(self):
        r"""The matrix itself, block by block from the lemma (not by products).

        .. math::
            J_{ij} = \sum_h W_O^{(h)} \Big[P_{ij}\big(W_V + (v_j - o_i)\, b_i^\top\big)
                     + \delta_{ij} \sum_l P_{il} (v_l - o_i)\, c_l^\top\Big],
            \qquad b_i = s\, W_K^\top q_i, \quad c_l = s\, W_Q^\top k_l .

        Returns
        -------
        Tensor, shape (..., n m, n d)
            Row `i m + a`, column `j d + c`: derivative of output coordinate `a` of token `i` in coordinate `c` of
            token `j`.

        Raises
        ------
        ValueError
            "a dense Jacobian of shape ... would hold ... entries": use the products.
        """
        _refuse_large_dense(self.shape)
        att, P = self.attention, self._probabilities
        slope = torch.einsum("...hik,hkd->...hid", self._query, att.key)  # b_i; the scale is in the query
        curve = att.scale * torch.einsum("...hlk,hkd->...hld", self._key, att.query)  # c_l
        spread = P[..., None] * (self._value[..., None, :, :] - self._heads[..., :, None, :])  # P_ij (v_j - o_i)
        blocks = (torch.einsum("...hij,hvd->...hivjd", P, att.value)
                  + torch.einsum("...hijv,...hid->...hivjd", spread, slope))
        torch.diagonal(blocks, dim1=-4, dim2=-2).add_(torch.einsum("...hilv,...hld->...hvdi", spread, curve))
        if att.output is None:
            joined = blocks.movedim(-5, -4).flatten(-4, -3)
        else:
            joined = torch.einsum("...hivjd,hmv->...imjd", blocks, att.output)
        return joined.flatten(-4, -3).flatten(-2, -1)


class AutodiffJacobian:
    """Jacobian of any differentiable map of tokens at an input, by automatic differentiation.

    The slow twin of `AttentionJacobian`, and the only route for maps without a closed form here. A batch is
    treated as independent sequences, so the map must not mix them.

    Parameters
    ----------
    f : callable
        From tokens (..., n, d) to outputs (..., n, m), differentiable by `torch.func`.
    x : Tensor, shape (..., n, d)
        Tokens; leading dimensions are a batch of independent sequences.

    Raises
    ------
    ValueError
        "x must have shape (..., n, d)", "the map must return ...".

    Notes
    -----
    Fused attention kernels have no forward-mode derivative, so `f` runs with PyTorch's plain attention kernel.
    """

    def __init__(self, f, x):
        if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.ndim < 2 or x.numel() == 0:
            raise ValueError("x must be a floating point tensor of shape (..., n, d) with at least one token.")
        if not torch.isfinite(x).all():
            raise ValueError("x holds NaN or infinite values: remove them first.")
        self.f, self.x = f, x.detach()
        self.batch_shape = x.shape[:-2]
        with sdpa_kernel(SDPBackend.MATH):
            out, self._pullback = torch.func.vjp(f, self.x)
        if not isinstance(out, torch.Tensor) or out.shape[:-2] != self.batch_shape or out.ndim != x.ndim:
            got = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
            raise ValueError(f"the map must return one tensor of shape {(*self.batch_shape, 'n', 'm')}, got {got}.")
        self._out_shape = out.shape

    @property
    def shape(self):
        """Batch shape, then (outputs, inputs) of one sequence, both flattened."""
        return (*self.batch_shape, math.prod(self._out_shape[-2:]), math.prod(self.x.shape[-2:]))

    def jvp(self, u):
        """Jacobian-vector product, shape (..., n, m), of `u`, shape (..., n, d)."""
        with sdpa_kernel(SDPBackend.MATH):
            return torch.func.jvp(self.f, (self.x,), (u,))[1]  # [1] is the tangent, [0] the output

    def vjp(self, w):
        """Vector-Jacobian product, shape (..., n, d), of `w`, shape (..., n, m)."""
        return self._pullback(w)[0]

    def dense(self):
        """The matrix, shape (..., n m, n d), one row at a time by reverse mode; refused when it is too large."""
        _refuse_large_dense(self.shape)
        rows = torch.zeros(self._out_shape, dtype=self.x.dtype, device=self.x.device).flatten(-2)
        dense = []
        for i in range(rows.shape[-1]):
            rows.zero_()[..., i] = 1
            dense.append(self.vjp(rows.unflatten(-1, self._out_shape[-2:])).flatten(-2))
        return torch.stack(dense, dim=-2)
