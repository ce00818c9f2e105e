"""The `GramOperator` of a Jacobian: cached, streamed, separable, automatic or dense, chosen by memory.

Each is M^T M with M the Jacobian J, or D^{1/2} J D^{-1/2} with token weights on the diagonal of D.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from lipnb.attention import Attention
from lipnb.checks import memory_allowance, refuse_large_dense
from lipnb.jacobian import gemm
from lipnb.jacobian.autodiff import LINEAR, AutodiffJacobian, RecordedJacobian
from lipnb.jacobian.cached import CachedGram
from lipnb.jacobian.linearization import Linearization
from lipnb.jacobian.rounding_error import linearized
from lipnb.spectral import GramOperator, MatrixGram

# unknowns n d up to which a dense singular value decomposition is as fast as Lanczos: measured at 24 for 1,000 inputs
# at once, 40 to 48 for 100, 85 to 128 for 10 and 200 for one; one number, so that answers do not depend on the number
# of inputs
DENSE_SIZE = 48
MASKED_STREAM = 1024  # tokens from which masked attention is streamed: skipping its empty half then saves more
KERNEL_RTOL, KERNEL_SHARE = 1e-8, 0.1  # largest error of a separable kernel; its share of the tolerance
MOST_GAP = 8 * torch.finfo(torch.bfloat16).eps  # nonlinearity beyond which products of a map fit no type
REWRITTEN = "write it without the terms that cancel (where they leave nothing, its constant is 0)"
KEPT_VECTORS = 32  # Lanczos vectors that a solve is expected to keep


class AutodiffGram(GramOperator):
    """Gram operator of any differentiable map, by automatic differentiation.

    Parameters
    ----------
    f : callable
        From tokens (..., n, d) to (..., n, m).
    x : Tensor, shape (..., n, d)
        Tokens.
    weights : Tensor, shape (..., n), optional
        Token weights of the norm.

    Attributes
    ----------
    precision : torch.dtype
        Precision in which `f` computes, from `AutodiffJacobian`.
    vectors : torch.dtype
        Type of a solver's vectors: `precision`, so that the solver relies on no more digits than the products have;
        float64 if `precision` has 16 bits, or if PyTorch lowers float32 products, including those of the solver.
    """

    name = "autodiff"

    def __init__(self, f: Callable[[Tensor], Tensor], x: Tensor, weights: Tensor | None = None) -> None:
        self.jacobian, self._tokens, self._dtype = RecordedJacobian(f, x), x.shape, x.dtype
        self.root = None if weights is None else weights.sqrt().expand(x.shape[:-1])[..., None]
        self.unit, self._scale = self.jacobian.unit.flatten(), self.jacobian.unit.to(x)[..., None, None]
        self.precision = self.jacobian.precision
        whole = self.precision in (torch.float32, torch.float64) and not gemm.lowered(x.device)
        self.vectors = self.precision if whole else torch.float64
        self.eps = torch.finfo(self.precision).eps

    def check(self, rtol: float, certified: bool) -> None:
        """Raise ValueError if products of `f` have too few digits for this tolerance, or for any certificate."""
        kind = self.precision
        if kind == self._dtype:
            return
        short = kind.itemsize < torch.float32.itemsize
        least = 8 * max(torch.finfo(kind).eps, self.jacobian.gap if short else 0)
        if rtol < least or (certified and short):
            wanted = f"use rtol of at least {least:.1e}" + (" and confidence=None" if certified and short else "")
            if least >= 1:
                wanted = REWRITTEN
            why = "a part of it is in such a type, or large numbers cancel in it"
            if gemm.lowered(self.jacobian.x.device):
                why = "leave torch.autocast, set torch.set_float32_matmul_precision('highest')"
            elif self.jacobian.x.device.type == "cuda":
                why += ", or a convolution rounds to TF32 (set torch.backends.cudnn.allow_tf32 = False)"
            raise ValueError(
                f"this map computes in {_name(kind)} precision or less (its products are linear only to "
                f"{self.jacobian.gap:.0e}): {why}; give the map and its tokens in a higher precision, or "
                f"{wanted}."
            )

    def gram(self, u: Tensor) -> Tensor:
        """M^T M u / unit^2, shape (b, N), for `u`, shape (b, N), in the type of u."""
        kind, u = u.dtype, u.reshape(self._tokens).to(self._dtype)
        image = self.jacobian.jvp(u if self.root is None else u / self.root) / self._scale
        out = self.jacobian.vjp(image if self.root is None else self.root**2 * image) / self._scale
        out = out if self.root is None else out / self.root
        return out.reshape(self._tokens[:-2].numel(), -1).to(kind)


class DenseGram(MatrixGram):
    """The explicit `matrix`, (b, M, N), of a Jacobian at tokens x (..., n, d), with weights (..., n) or none."""

    def __init__(self, jacobian: Linearization | AutodiffJacobian, x: Tensor, weights: Tensor | None = None) -> None:
        matrix = jacobian.dense()
        if isinstance(jacobian, AutodiffJacobian) and jacobian.gap > MOST_GAP:
            raise ValueError(
                f"products of this map are linear only to {jacobian.gap:.0e}, because large numbers cancel in it: "
                "give the map "
                f"and its tokens in a higher precision, or {REWRITTEN}."
            )
        self.precision = jacobian.precision if isinstance(jacobian, AutodiffJacobian) else x.dtype
        if weights is not None:
            root = weights.sqrt().expand(x.shape[:-1])[..., None]
            rows = root.expand(*root.shape[:-1], matrix.shape[-2] // x.shape[-2]).flatten(-2)
            matrix = rows[..., :, None] * matrix / root.expand(x.shape).flatten(-2)[..., None, :]
        matrix = matrix.to(x.dtype)
        super().__init__(matrix.flatten(0, -3) if matrix.ndim > 2 else matrix[None])


@torch.no_grad()
def operator_of(
    f: Attention | Callable[[Tensor], Tensor],
    x: Tensor,
    weights: Tensor | None,
    *,
    memory: float = 0,
    dense: bool | None = None,
    rtol: float = 1e-4,
) -> GramOperator:
    """The operator of the Jacobian of `f` at `x`, (b, n, d), or (..., n, d) for a callable, with weights (b, n).

    For a callable: automatic or dense. For an `Attention`: cached if it fits in `memory` bytes; else separable for
    particles in few dimensions, if their kernel allows; else streamed, as is masked attention of `MASKED_STREAM` tokens
    or more. `dense`: whether to form the matrix; None: only for an attention with at most `DENSE_SIZE` unknowns.

    Examples
    --------
    >>> import torch
    >>> from lipnb import Attention
    >>> from lipnb.jacobian.operators import operator_of
    >>> eye = torch.eye(4)
    >>> attention, x = Attention.from_matrices(eye, eye), torch.ones(1, 20, 4)
    >>> [operator_of(attention, x, None, memory=memory, dense=None).name for memory in (2**30, 1)]
    ['cached', 'streamed']
    >>> [operator_of(torch.sin, x, None, memory=1, dense=dense).name for dense in (None, True)]
    ['autodiff', 'dense']
    """
    if not isinstance(f, Attention):
        return DenseGram(AutodiffJacobian(f, x), x, weights) if dense else AutodiffGram(f, x, weights)
    if x[0].numel() <= DENSE_SIZE if dense is None else dense:
        refuse_large_dense((x.shape[1] * f.output_width, x[0].numel()))
        own = None if weights is None else weights.double()
        at, error = linearized(f.to(dtype=torch.float64), x.double(), own, blocks=True)
        return _counting(DenseGram(at, x, weights), error)
    n = x.shape[1]
    if cached_bytes(f, n) <= memory and not (f.masked and n >= MASKED_STREAM):
        at, error = linearized(f, x, weights)
        return _counting(CachedGram(at), error)
    return _of_long(f, x, weights, rtol)


def _counting(operator, error):
    """The operator, with the `jacobian_error` of its linearization."""
    operator.error = error
    return operator


def _of_long(f, x, weights, rtol):
    """The operator of sequences (b, n, d) that are not cached: separable, or else streamed."""
    from lipnb.jacobian.separable import SeparableGram  # only now: most solves need neither
    from lipnb.jacobian.streamed import StreamedGram

    error = min(KERNEL_RTOL, KERNEL_SHARE * rtol) if x.dtype == torch.float64 else KERNEL_SHARE * rtol
    fine = error >= 64 * torch.finfo(x.dtype).eps  # no kernel is more accurate
    found = None
    if len(x) == 1 and fine:  # in float64: one kernel for all logits, and its products are few
        own = None if weights is None else weights.double()
        found = SeparableGram.if_it_pays(f.to(dtype=torch.float64), x.double(), own, rtol=error)
    return StreamedGram(f, x, weights) if found is None else found


def operators_of(
    f: Attention, x: Tensor, weights: Tensor | None, *, memory: float | None, dense: bool | None, rtol: float
) -> Iterator[tuple[slice, GramOperator]]:
    """Operators of an attention at x (b, n, d): for all sequences if dense, else for as many as fit in `memory`."""
    memory = memory_allowance(x.device) if memory is None else memory
    dense = x[0].numel() <= DENSE_SIZE if dense is None else dense
    together = len(x) if dense else max(1, int(min(len(x), memory / cached_bytes(f, x.shape[1]))))
    for first in range(0, len(x), together):
        some = slice(first, first + together)
        own = None if weights is None else weights[some]
        yield some, operator_of(f, x[some], own, memory=memory, dense=dense, rtol=rtol)


def _name(kind):
    return str(kind).removeprefix("torch.")


def cached_bytes(attention: Attention, n: int) -> int:
    """Bytes that the cached products of one sequence of n tokens take, Lanczos vectors included."""
    h, k, v, d = attention.heads, attention.key_width, attention.value_width, attention.width
    # in float64 logits and probabilities, with a cap two more; then a copy in the type of the tokens. What products
    # keep is less: probabilities, a buffer, a copy when the batch shrinks; slopes of a cap and their copy
    squares = (2 if attention.cap is None else 4) * torch.float64.itemsize + attention.dtype.itemsize
    rows = n * (h * (10 * k + 12 * v) + (KEPT_VECTORS + 6) * d)
    return squares * h * n * n + rows * attention.dtype.itemsize


def double_operator(
    f: Callable[[Tensor], Tensor], x: Tensor, weights: Tensor | None, start: Tensor, *, dense: bool = False
) -> AutodiffGram | DenseGram | None:
    """The operator of a callable at lower-precision inputs, computed in float64; None if `f` does not support it.

    A callable with float32 tensors rejects float64 tokens, or mixes the two types. The latter is detected by nonlinear
    products: the sum of two differs from the product of the sum by far more than float64 rounding. The test uses
    `start`, vectors (b, N) in float64. `dense`: whether to form the matrix.
    """
    if x.dtype == torch.float64:
        return None
    try:
        products = AutodiffGram(f, x.double(), None if weights is None else weights.double())
        parts = products.gram(start), products.gram(start.flip(1))
        misfit = products.gram(start + start.flip(1)) - sum(parts)
    except (RuntimeError, TypeError, ValueError):  # PyTorch or the callable may raise any of these
        return None
    if (misfit.norm(dim=1) > LINEAR * parts[0].norm(dim=1)).any():
        return None
    if not dense:
        return products
    return DenseGram(products.jacobian, x.double(), None if weights is None else weights.double())
