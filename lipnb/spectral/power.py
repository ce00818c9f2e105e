"""Power iteration, the method of the paper, with the tangent fed back and a relative rule."""

from collections.abc import Callable

import torch
from torch import Tensor

from lipnb.spectral.answer import SpectralNorm, quotient
from lipnb.spectral.operator import GramOperator, operator_of
from lipnb.spectral.vectors import inverse, norms, scaled

__all__ = ["power_iteration"]


def power_iteration(
    operator: GramOperator | Callable[[Tensor], Tensor], start: Tensor, *, rtol: float = 1e-4, max_steps: int = 1000
) -> SpectralNorm:
    r"""Power iteration on :math:`J^\top J`, the tangent fed back, stopped by a relative residual.

    .. math::
        v_{m+1} = J^\top J u_m, \qquad \mu_{m+1} = \langle u_m, v_{m+1} \rangle = \|J u_m\|^2, \qquad
        u_{m+1} = v_{m+1} / \|v_{m+1}\|, \qquad \sqrt{\mu_m} \to \|J\|_2 .

    Parameters
    ----------
    operator : GramOperator or callable
        Products with :math:`J^\top J`, (b, N) -> (b, N).
    start : Tensor, shape (b, N)
        Start vectors, not orthogonal to the top right singular vectors.
    rtol : float
        An item stops when half its relative residual is at most `rtol`: some singular value is then within
        `rtol`, relatively. That it is the largest is likely, not certain.
    max_steps : int
        Most products with :math:`J^\top J`.

    Returns
    -------
    SpectralNorm
        `value` is a lower bound on the norm.

    Notes
    -----
    castin2024smooth, appendix E.1, with a relative rule where the released code has an absolute one.

    Examples
    --------
    >>> import torch
    >>> from lipnb.spectral import power_iteration, start_vectors
    >>> factors = torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)
    >>> start = start_vectors(1, 3, seed=0, dtype=torch.float64, device="cpu")
    >>> round(power_iteration(lambda u: factors**2 * u, start).value.item(), 3)
    3.0
    """
    operator, vectors = operator_of(operator), scaled(inverse(norms(start)), start)
    b = len(start)
    value, residual = (torch.zeros(b, dtype=torch.float64, device=start.device) for _ in range(2))
    steps = torch.zeros(b, dtype=torch.int64, device=start.device)
    done = torch.zeros(b, dtype=torch.bool, device=start.device)
    for step in range(1, max_steps + 1):
        product = operator.gram(vectors)
        (mu, misfit), size = quotient(vectors, product), norms(product)
        value, residual = torch.where(done, value, mu.sqrt()), torch.where(done, residual, misfit)
        steps = torch.where(done, steps, step)
        done |= (misfit / 2 <= rtol) & ((mu > 0) | (size == 0))
        if done.all():
            break
        vectors = scaled(inverse(size), product)
    return SpectralNorm(
        value, residual, steps, done, upper=torch.full_like(value, torch.inf), precision_limited=torch.zeros_like(done)
    )
