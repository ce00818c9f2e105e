"""Other solvers than Lanczos: power iteration, the method of the paper, and dense decomposition."""

from collections.abc import Callable

import torch
from torch import Tensor

from lipnb.spectral.answer import SpectralNorm, evaluate, quotient
from lipnb.spectral.operator import FunctionGram, GramOperator
from lipnb.spectral.vectors import check_finite, inverse, least_norm, norms, scaled

__all__ = ["power_iteration"]


def power_iteration(
    operator: GramOperator | Callable[[Tensor], Tensor], start: Tensor, *, rtol: float = 1e-4, max_steps: int = 1000
) -> SpectralNorm:
    r"""Power iteration on :math:`J^\top J` from `start`, (b, N); `value` is a lower bound.

    .. math::
        v_{m+1} = J^\top J u_m, \qquad \mu_{m+1} = \langle u_m, v_{m+1} \rangle = \|J u_m\|^2, \qquad
        u_{m+1} = v_{m+1} / \|v_{m+1}\|, \qquad \sqrt{\mu_m} \to \|J\|_2 .

    castin2024smooth, appendix E.1, with a relative stopping rule in place of the absolute one of the released code:
    an item stops when half its relative residual is at most `rtol`. Some singular value is then within `rtol`,
    relatively; it is likely, but not certain, that it is the largest.
    """
    operator = operator if isinstance(operator, GramOperator) else FunctionGram(operator)
    vectors = scaled(inverse(norms(start)), start)
    b = len(start)
    value, residual = (torch.zeros(b, dtype=torch.float64, device=start.device) for _ in range(2))
    steps = torch.zeros(b, dtype=torch.int64, device=start.device)
    done, underflowed = (torch.zeros(b, dtype=torch.bool, device=start.device) for _ in range(2))
    for step in range(1, max_steps + 1):
        product = operator.gram(vectors)
        (mu, misfit), size = quotient(vectors, product), norms(product)
        value, residual = torch.where(done, value, mu.sqrt()), torch.where(done, residual, misfit)
        steps = torch.where(done, steps, step)
        underflowed |= (size < least_norm(vectors.dtype)) & ((size > 0) | (mu > 0))
        done |= (misfit / 2 <= rtol) & ((mu > 0) | (size == 0)) | underflowed
        if done.all():
            break
        vectors = scaled(torch.where(done, 0, inverse(size)), product)
    return SpectralNorm(
        value, residual, steps, done & ~underflowed, torch.full_like(value, torch.inf), precision_limited=underflowed
    )


def dense_norm(matrices: Tensor) -> SpectralNorm:
    """Largest singular values of matrices (b, M, N) of any scale, by decomposition: the dense route.

    `steps` is 0 and `converged` true. `upper` is the value times 1 + 8 (M + N) eps, the rounding of a decomposition.
    """
    check_finite(matrices)
    rounding = torch.finfo(matrices.dtype)
    unit = matrices.abs().amax((-2, -1)).clamp_min(rounding.tiny)  # squares of scaled entries are representable
    matrices = matrices / unit[:, None, None]
    _, values, vectors = torch.linalg.svd(matrices, full_matrices=False)
    _, residual = evaluate(lambda u: (matrices.mT @ (matrices @ u[..., None]))[..., 0], vectors[..., 0, :])
    value = values[..., 0].double() * unit
    return SpectralNorm(
        value,
        residual,
        steps=torch.zeros_like(value, dtype=torch.int64),
        converged=torch.ones_like(value, dtype=torch.bool),
        upper=value * (1 + 8 * sum(matrices.shape[-2:]) * rounding.eps),
        vector=vectors[..., 0, :],
        precision_limited=torch.zeros_like(value, dtype=torch.bool),
    )
