"""Jacobian of an attention map at an input, in closed form: products and the dense matrix."""

from functools import cached_property
from threading import Lock

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator
from torch import Tensor

from lipnb.attention import Attention
from lipnb.attention.heads import check_attention
from lipnb.checks import check_precision, check_vector, refuse_large_dense
from lipnb.jacobian import gemm
from lipnb.jacobian.cached import CachedGram
from lipnb.jacobian.linearization import Linearization, infinity_norm

__all__ = ["AttentionJacobian"]


class AttentionJacobian:
    r"""Jacobian of an attention map at an input, in closed form.

    For one head without biases, with :math:`m_i = \sum_j P_{ij} x_j` and the covariance
    :math:`\Sigma_i = \sum_j P_{ij}(x_j - m_i)(x_j - m_i)^\top`,

    .. math::
        (D_X f)(u)_i = V\Big[\Sigma_i A\, u_i + \sum_j P_{ij} (x_j - m_i)(A x_i)^\top u_j + \sum_j P_{ij} u_j\Big].

    The products never form these blocks: with :math:`t = P \circ (\dot q k^\top + q \dot k^\top)` and head output
    :math:`o`, the tangent of the head is :math:`t v + P \dot v - \mathrm{rowsum}(t)\, o`. Probabilities, queries,
    keys and values are computed once, on construction; each product then costs :math:`O(h n^2 k + h n k d)`, nearly all
    of it in matrix multiplications.

    Parameters
    ----------
    attention : Attention
        The map; any heads, biases, features and mask.
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

    Examples
    --------
    >>> import torch
    >>> from lipnb import Attention, AttentionJacobian
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> x, u = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).double(), torch.tensor([[0.0, 1.0], [0.0, 0.0]]).double()
    >>> J = AttentionJacobian(Attention.from_matrices(eye, eye), x)
    >>> J.shape
    (4, 4)
    >>> J.jvp(u).round(decimals=3)
    tensor([[0.0000, 0.8810],
            [0.0000, 0.1190]], dtype=torch.float64)
    """

    def __init__(self, attention: Attention, x: Tensor, weights: Tensor | None = None) -> None:
        check_attention(attention, "AttentionJacobian")
        attention.check_input(x, weights)
        check_precision(x)
        self._lock = Lock()  # products share buffers, and threads may share a Jacobian
        self.x = x.detach().clone()
        self.batch_shape, (self.n, self.d) = x.shape[:-2], x.shape[-2:]
        flat = None if weights is None else weights.detach().expand(x.shape[:-1]).reshape(-1, self.n)
        with torch.no_grad(), gemm.full_precision(x.dtype, x.device):
            # a copy of the map, so that later changes of its tensors have no effect
            self.attention = attention.changed(**{name: part.clone() for name, part in attention.tensors().items()})
            self._at = Linearization.of(self.attention, self.x.reshape(-1, self.n, self.d), flat)  # of a flat batch

    def __getstate__(self):
        return {name: part for name, part in vars(self).items() if name not in ("_lock", "_products")}

    def __setstate__(self, state):
        vars(self).update(state, _lock=Lock())

    @property
    def shape(self) -> tuple[int, ...]:
        """Batch shape, then (n m, n d), one matrix for each sequence."""
        return (*self.batch_shape, self.n * self.attention.output_width, self.n * self.d)

    @property
    def dtype(self) -> torch.dtype:
        """Floating point type of the products."""
        return self.x.dtype

    def operator(self) -> CachedGram:
        """A new `CachedGram` as used by `jvp`, `vjp` and `gram`, with separate buffers, for flat batches."""
        with torch.no_grad(), gemm.full_precision(self.dtype, self.x.device):
            return CachedGram(self._at)

    @cached_property
    def _products(self):
        return self.operator()

    def _each(self, name, product, u, width):
        """Apply `product` to each perturbation in `u`: (..., *batch, n, width) to (..., *batch, n, other width)."""
        check_vector(name, u, (*self.batch_shape, self.n, width), self.x, several=True)
        rows = u.detach().reshape(-1, self.batch_shape.numel() * self.n, width)
        with self._lock, torch.no_grad(), gemm.full_precision(self.dtype, u.device):
            out = torch.stack([product(one) for one in rows])
        return out.view(*u.shape[:-1], -1)

    def jvp(self, u: Tensor) -> Tensor:
        """Jacobian-vector product.

        Parameters
        ----------
        u : Tensor, shape (..., n, d)
            Perturbation of the tokens; additional leading dimensions hold several perturbations.

        Returns
        -------
        Tensor, shape (..., n, m)
            First-order change of the output tokens.
        """
        return self._each("u", lambda one: self._products.jvp(one) * self._products.unit, u, self.d)

    def vjp(self, w: Tensor) -> Tensor:
        """Vector-Jacobian product: the transpose of `jvp`.

        Parameters
        ----------
        w : Tensor, shape (..., n, m)
            Cotangent of the output tokens; additional leading dimensions hold several cotangents.

        Returns
        -------
        Tensor, shape (..., n, d)
            The gradient of <w, f(x)> in the tokens.
        """
        width = self.attention.output_width
        return self._each("w", lambda one: self._products.vjp(one) * self._products.unit, w, width)

    def gram(self, u: Tensor) -> Tensor:
        r"""The product :math:`J^\top J u`, cheaper than `jvp` and `vjp`; with token weights, in the weighted norm.

        .. math::
            M^\top M u, \qquad M = D_a^{1/2} J D_a^{-1/2} \quad (M = J \text{ without weights}).

        Parameters
        ----------
        u : Tensor, shape (..., n, d)
            Perturbation of the tokens; additional leading dimensions hold several perturbations.

        Returns
        -------
        Tensor, shape (..., n, d)
        """

        def product(one):
            flat = one.view(self.batch_shape.numel(), -1)
            return (self._products.gram(flat) * self._products.unit * self._products.unit).view_as(one)

        return self._each("u", product, u, self.d)

    def dense(self) -> Tensor:
        r"""The matrix, from the blocks of the lemma (not from products): `Linearization.blocks`.

        Returns
        -------
        Tensor, shape (..., n m, n d)
            Row `i m + a`, column `j d + c`: derivative of output coordinate `a` of token `i` in coordinate `c` of
            token `j`.

        Raises
        ------
        ValueError
            If the matrix would take more than 2 GiB in float64: use the products.
        """
        refuse_large_dense(self.shape)
        with torch.no_grad(), gemm.full_precision(self.dtype, self.x.device):
            return self._at.dense().reshape(self.shape)

    def linear_operator(self) -> LinearOperator:
        """The Jacobian of one sequence as a SciPy operator, for ``scipy.sparse.linalg.svds`` and the like.

        Returns
        -------
        scipy.sparse.linalg.LinearOperator, shape (n m, n d)
            Operator on flat NumPy vectors, and on matrices with such columns.

        Raises
        ------
        ValueError
            If the batch has more than one sequence: take one of them.

        Examples
        --------
        >>> import torch
        >>> from scipy.sparse.linalg import svds
        >>> from lipnb import Attention, AttentionJacobian
        >>> eye = torch.eye(3, dtype=torch.float64)
        >>> J = AttentionJacobian(Attention.from_matrices(eye, 2 * eye), torch.eye(4, 3, dtype=torch.float64))
        >>> svds(J.linear_operator(), 2, return_singular_vectors=False, rng=0).round(3).tolist()
        [2.61, 2.61]
        """
        if self.batch_shape.numel() != 1:
            raise ValueError(
                f"a linear operator needs one sequence, got a batch of shape {tuple(self.batch_shape)}: "
                "AttentionJacobian(attention, x[i])."
            )

        def columns(product, width):
            def of(vectors):  # (N, p), one column each
                if np.iscomplexobj(vectors):
                    raise ValueError("the Jacobian is real, and the vector complex: apply it to .real and to .imag.")
                rows = torch.from_numpy(vectors.T.copy()).to(self.x)
                found = product(rows.view(-1, *self.batch_shape, self.n, width))
                return found.flatten(1).T.cpu().numpy()

            return of, lambda vector: of(vector.reshape(-1, 1))[:, 0]

        matmat, matvec = columns(self.jvp, self.d)
        rmatmat, rmatvec = columns(self.vjp, self.attention.output_width)
        dtype = np.dtype(str(self.dtype).removeprefix("torch."))
        return LinearOperator(
            self.shape[-2:], matvec=matvec, rmatvec=rmatvec, matmat=matmat, rmatmat=rmatmat, dtype=dtype
        )

    def infinity_norm(self) -> Tensor:
        """The largest absolute row sum, shape of the batch: the local constant in the maximum norm, exactly."""
        if self._at.root is not None:  # of the weighted map
            return self.dense().abs().sum(-1).amax(-1)
        with torch.no_grad():
            return infinity_norm(self.attention, self.x)
