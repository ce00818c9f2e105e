"""Which products a Jacobian is solved with: cached, streamed, separable or automatic, by the memory they need."""

import os

import torch

from lipnb.checks import check_weights
from lipnb.jacobian import AttentionJacobian, AutodiffJacobian, gemm
from lipnb.jacobian.particles import SeparableJacobian, separable_pays
from lipnb.jacobian.streamed import StreamedProducts
from lipnb.spectral import evaluate, lanczos, power_iteration

__all__ = [
    "DENSE_SIZE",
    "AutodiffProducts",
    "batches",
    "cached_bytes",
    "dense_answer",
    "double_products",
    "in_units",
    "memory_allowance",
    "products_of",
    "solved",
]

# unknowns n d up to which a dense singular value decomposition is as fast as Lanczos: measured at 40 for 100 inputs at
# once, 85 for 10 and 200 for one; one number, so that no answer depends on how many are asked for
DENSE_SIZE = 48
MASKED_STREAM = 1024  # tokens from which masked attention is streamed: skipping its empty half then saves more
KERNEL_RTOL = 1e-8  # error of a separable kernel, well below the tolerance of any solve; float32 has its own limit
LINEAR = 1e-11  # products in float64 are linear up to this, relatively; those that float32 has a part in are not
KEPT_VECTORS = 32  # Lanczos vectors that a solve is expected to keep
ALLOWANCE = 2**31  # default memory for what is cached on the CPU


def memory_allowance(device):
    """Bytes that cached products may take by default.

    On a GPU half of its free memory; else 2 GiB, or a quarter of the machine's memory where that is less.
    """
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 2
    try:
        return min(ALLOWANCE, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)
    except (ValueError, OSError, AttributeError):  # not said by this system
        return ALLOWANCE


def cached_bytes(attention, n):
    """Bytes that the cached products of one sequence of n tokens take, Lanczos vectors included.

    Parameters
    ----------
    attention : Attention
        The map.
    n : int
        Number of tokens.

    Returns
    -------
    int
    """
    h, k, v, d = attention.heads, attention.key_width, attention.value_width, attention.width
    squares = 3 * h * n * n  # probabilities, one buffer, and a copy when the batch shrinks
    rows = n * (h * (10 * k + 12 * v) + (KEPT_VECTORS + 6) * d)
    return (squares + rows) * attention.dtype.itemsize


def batches(attention, n, count, memory):
    """Sequences solved together so that their cached products fit in `memory` bytes; 0 when not even one does."""
    return min(count, memory // cached_bytes(attention, n))


class AutodiffProducts:
    """The seam of the solvers for any differentiable map: `gram` on flat vectors, from automatic differentiation.

    Parameters
    ----------
    f : callable
        From tokens (..., n, d) to (..., n, m).
    x : Tensor, shape (..., n, d)
        Tokens.
    weights : Tensor, shape (..., n), optional
        Token weights of the norm.
    """

    unit = 1.0

    def __init__(self, f, x, weights=None):
        if weights is not None:
            check_weights(weights, x)
        self.jacobian, self.shape = AutodiffJacobian(f, x), x.shape
        self.root = None if weights is None else weights.sqrt().expand(x.shape[:-1])[..., None]

    def gram(self, u):
        """M^T M u, shape (b, N), of `u`, shape (b, N)."""
        u = u.reshape(self.shape)
        if self.root is None:
            out = self.jacobian.vjp(self.jacobian.jvp(u))
        else:
            out = self.jacobian.vjp(self.root**2 * self.jacobian.jvp(u / self.root)) / self.root
        return out.reshape(self.shape[:-2].numel(), -1)


def double_products(f, x, weights, start):
    """Products of a callable at inputs in lower precision made in float64, or None where `f` cannot.

    A callable that holds float32 tensors refuses float64 tokens, or mixes the two. It is found out by products that
    are not linear: the sum of two differs from the product of the sum by far more than float64 rounds.

    Parameters
    ----------
    f, x, weights
        As for `AutodiffProducts`.
    start : Tensor, shape (b, N), float64
        Vectors to try.

    Returns
    -------
    AutodiffProducts or None
    """
    if x.dtype == torch.float64:
        return None
    try:
        products = AutodiffProducts(f, x.double(), None if weights is None else weights.double())
        parts = products.gram(start), products.gram(start.flip(1))
        misfit = products.gram(start + start.flip(1)) - sum(parts)
    except (RuntimeError, TypeError, ValueError):  # what PyTorch and callables raise for a precision they do not take
        return None
    return products if (misfit.norm(dim=1) <= LINEAR * parts[0].norm(dim=1)).all() else None


def solved(products, start, method, solve):
    """The answer of a solver for the Jacobian, from products divided by their unit."""
    if method == "power":
        found = power_iteration(products.gram, start, rtol=solve["rtol"], max_steps=solve["max_steps"])
    else:
        restrict = getattr(products, "restrict", None)
        found = lanczos(products.gram, start, restrict=restrict and (lambda index: restrict(index).gram), **solve)
    return in_units(found, products.unit)


def in_units(found, unit):
    """An answer of a solver, its value and upper bound times the unit of the products."""
    return found._replace(value=found.value * unit, upper=found.upper * unit)


class SeparableProducts:
    """The seam of the solvers for one long sequence of particles: `gram` from a separable kernel, in linear time."""

    unit = 1.0

    def __init__(self, attention, x, weights=None):
        heavy = None if weights is None else weights[0]
        self.root = None if heavy is None else heavy.sqrt()
        self.jacobian = SeparableJacobian(attention, x[0], heavy, rtol=_kernel_rtol(x))

    def gram(self, u):
        """M^T M u, shape (1, N), of `u`, shape (1, N)."""
        return self.jacobian.gram(u.view(self.jacobian.n, self.jacobian.d), scale=self.root).view_as(u)


def _kernel_rtol(x):
    return max(KERNEL_RTOL, 64 * torch.finfo(x.dtype).eps)


def products_of(attention, x, weights, memory):
    """The products for a batch of sequences of an attention map, and the name of the route.

    Parameters
    ----------
    attention : Attention
        The map.
    x : Tensor, shape (b, n, d)
        Tokens.
    weights : Tensor, shape (b, n), optional
        Token weights.
    memory : int
        Bytes that cached products may take.

    Returns
    -------
    products : HeadProducts, SeparableProducts or StreamedProducts
    route : {"cached", "separable", "streamed"}
        Cached where it fits; else separable for particles in few dimensions whose kernel allows it; else streamed,
        as is masked attention of `MASKED_STREAM` tokens or more.
    """
    with gemm.fastest(x.dtype, x.device):
        long_masked = attention.masked and x.shape[1] >= MASKED_STREAM
        if cached_bytes(attention, x.shape[1]) <= memory and not long_masked:
            return AttentionJacobian(attention, x, weights).products(), "cached"
        heavy = None if weights is None else weights[0]
        if len(x) == 1 and separable_pays(attention, x[0], heavy, rtol=_kernel_rtol(x)):
            return SeparableProducts(attention, x, weights), "separable"
        return StreamedProducts(attention, x, weights), "streamed"


def dense_answer(jacobian, x, weights):
    """Value, residual, steps, convergence and upper bound from the singular values of the dense Jacobian.

    Parameters
    ----------
    jacobian : AttentionJacobian or AutodiffJacobian
        With ``dense()``.
    x : Tensor, shape (..., n, d)
        Tokens.
    weights : Tensor, shape (..., n), optional
        Token weights of the norm.

    Returns
    -------
    tuple of Tensor, shape (b,)
    """
    matrix = jacobian.dense()
    if weights is not None:
        root = weights.sqrt().expand(x.shape[:-1])[..., None]
        rows = root.expand(*root.shape[:-1], matrix.shape[-2] // x.shape[-2]).flatten(-2)
        matrix = rows[..., :, None] * matrix / root.expand(x.shape).flatten(-2)[..., None, :]
    matrix = matrix.flatten(0, -3) if matrix.ndim > 2 else matrix[None]
    if not torch.isfinite(matrix).all():
        raise ValueError(
            "the Jacobian holds NaN or infinite values: the map is not differentiable at this input, or "
            "overflows in its precision."
        )
    unit = matrix.abs().amax((-2, -1)).clamp_min(torch.finfo(x.dtype).tiny)  # squares of what is left are representable
    matrix = matrix / unit[:, None, None]
    _, values, vectors = torch.linalg.svd(matrix, full_matrices=False)
    _, residual = evaluate(lambda u: (matrix.mT @ (matrix @ u[..., None]))[..., 0], vectors[..., 0, :])
    value = values[..., 0].double() * unit
    upper = value * (1 + 8 * sum(matrix.shape[-2:]) * torch.finfo(x.dtype).eps)
    return (
        value,
        residual,
        torch.zeros_like(value, dtype=torch.int64),
        torch.ones_like(value, dtype=torch.bool),
        upper,
    )
