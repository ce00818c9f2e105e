"""Largest singular value of an operator known by its two products, batched, with the residual of every answer.

Nothing here knows of attention: the solvers take two functions, ``jvp`` and ``vjp``, and a start vector.
"""

from typing import NamedTuple

import numpy as np
import torch
from scipy.special import betaincinv

__all__ = ["SpectralNorm", "golub_kahan", "power_iteration", "start_vectors"]

MISS_PROBABILITY = 1e-6  # chance, over the random start, that the Lanczos stop accepts a value too small


class SpectralNorm(NamedTuple):
    """Largest singular values of a batch of operators, and how the computation went.

    Attributes
    ----------
    value : Tensor, shape (b,)
        :math:`\\|J v\\|` at the returned unit vector: a lower bound on the spectral norm, up to rounding.
    residual : Tensor, shape (b,)
        :math:`\\|J^\\top J v - \\sigma^2 v\\| / \\sigma^2`, evaluated afresh at the end. Some singular value lies
        within ``residual / 2`` of `value`, relatively; the residual alone does not say that it is the largest.
    steps : Tensor of int, shape (b,)
        Products with :math:`J^\\top J` until the item stopped, the final evaluation not counted.
    converged : Tensor of bool, shape (b,)
        Whether the stopping rule was met within the allowed steps.
    """

    value: torch.Tensor
    residual: torch.Tensor
    steps: torch.Tensor
    converged: torch.Tensor


def start_vectors(batch, shape, *, seed, dtype, device):
    """A Gaussian unit start vector, the same for every item, so that no answer depends on its neighbours.

    Parameters
    ----------
    batch : int
        Number of items b.
    shape : tuple of int
        Shape of one vector.
    seed : int
        Seed of a generator of its own; the global random state is neither read nor changed.

    Returns
    -------
    Tensor, shape (b, *shape)
        Unit vectors, drawn on the CPU in float64 so that every device and precision starts alike.
    """
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return (start / start.norm()).to(dtype=dtype, device=device).expand(batch, *shape)


def _norm(vectors):
    """Euclidean norms, shape (b,), of `vectors`, shape (b, ...), accumulated in float64."""
    return torch.linalg.vector_norm(vectors.flatten(1), dim=1, dtype=torch.float64)


def _scale(factors, vectors):
    """`vectors` (b, ...), each times its entry of `factors` (b,)."""
    return vectors * factors.to(vectors.dtype).view(-1, *[1] * (vectors.ndim - 1))


def _inverse(numbers):
    """1 / numbers, and 0 where the number is 0."""
    return torch.where(numbers > 0, 1 / numbers.clamp_min(torch.finfo(numbers.dtype).tiny), 0)


def _check_finite(numbers):
    if not torch.isfinite(numbers).all():
        raise ValueError("a Jacobian product is NaN or infinite: the map is not differentiable at this input, or "
                         "overflows in its precision.")


def evaluate(jvp, vjp, vectors):
    """The quotient :math:`\\|J v\\| / \\|v\\|` and its relative residual at given vectors.

    Parameters
    ----------
    jvp, vjp : callable
        Products with J and its transpose.
    vectors : Tensor, shape (b, ...)
        Approximate right singular vectors, of any norm.

    Returns
    -------
    value, residual : Tensor, shape (b,)
        A lower bound on the spectral norm, and :math:`\\|J^\\top J v - \\sigma^2 v\\| / \\sigma^2` for unit v.
    """
    vectors = _scale(_inverse(_norm(vectors)), vectors)
    image = jvp(vectors)
    value = _norm(image)
    residual = _norm(vjp(image) - _scale(value**2, vectors)) * _inverse(value**2)
    _check_finite(residual)
    return value, residual


def power_iteration(jvp, vjp, start, *, rtol=1e-4, max_steps=1000):
    r"""Power iteration on :math:`J^\top J`, the tangent fed back, stopped by a relative residual.

    .. math::
        v_{m+1} = J^\top J u_m, \qquad \mu_{m+1} = \langle u_m, v_{m+1} \rangle = \|J u_m\|^2, \qquad
        u_{m+1} = v_{m+1} / \|v_{m+1}\|, \qquad \sqrt{\mu_m} \to \|J\|_2 .

    Parameters
    ----------
    jvp, vjp : callable
        Products with J, (b, ...) -> (b, ...), and with its transpose.
    start : Tensor, shape (b, ...)
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
    """
    vectors = _scale(_inverse(_norm(start)), start)
    b = len(start)
    value, residual = (torch.zeros(b, dtype=torch.float64, device=start.device) for _ in range(2))
    steps = torch.zeros(b, dtype=torch.int64, device=start.device)
    done = torch.zeros(b, dtype=torch.bool, device=start.device)
    for step in range(1, max_steps + 1):
        image = jvp(vectors)
        product = vjp(image)
        mu = _norm(image) ** 2
        misfit = _norm(product - _scale(mu, vectors)) * _inverse(mu)
        _check_finite(misfit)
        value, residual = torch.where(done, value, mu.sqrt()), torch.where(done, residual, misfit)
        steps = torch.where(done, steps, step)
        done |= misfit / 2 <= rtol
        if done.all():
            break
        vectors = _scale(_inverse(_norm(product)), product)
    return SpectralNorm(value, residual, steps, done)


def _log_christoffel(diagonal, off_diagonal, t):
    r"""log of :math:`\sum_{i=0}^{j} q_i(t)^2`, with q_i the orthonormal polynomials of the Lanczos coefficients.

    Parameters
    ----------
    diagonal, off_diagonal : ndarray, shape (b, j)
        Lanczos coefficients a_1..a_j and b_1..b_j, all b_i positive.
    t : ndarray, shape (b,)
        Points to the right of the Ritz values.

    Returns
    -------
    ndarray, shape (b,)
    """
    # q_i is kept as a ratio to the running root of the sum, so that nothing overflows
    log_sum, q, before = np.zeros(len(t)), np.ones(len(t)), np.zeros(len(t))
    for i in range(diagonal.shape[1]):
        coupling = off_diagonal[:, i - 1] * before if i else 0.0
        after = ((t - diagonal[:, i]) * q - coupling) / off_diagonal[:, i]
        growth = np.sqrt(1 + after**2)
        q, before, log_sum = after / growth, q / growth, log_sum + 2 * np.log(growth)
    return log_sum


def golub_kahan(jvp, vjp, start, *, rtol=1e-4, max_steps=300):
    r"""Golub-Kahan bidiagonalisation (Lanczos on :math:`J^\top J`) with a guard against stopping too early.

    From a Gaussian start, bidiagonal matrices :math:`B_j` with :math:`J V_j = U_j B_j`; their largest singular value
    :math:`\sqrt{\theta_j}` increases to :math:`\|J\|_2`. The right vectors are reorthogonalised in full. An item stops
    when its Ritz value is settled (``min(r, r^2 / gap) / 2 <= rtol``, relative residual r) *and* when, with
    probability at least ``1 - 1e-6`` over the start, no larger singular value hides:

    .. math::
        \sum_{i=0}^{j} q_i\big(\theta_j (1 + \mathrm{rtol})^2\big)^2 \ge 1 / \gamma^2 ,

    where :math:`q_i` are the orthonormal polynomials of the Lanczos coefficients and :math:`\gamma^2` the
    :math:`10^{-6}` quantile of Beta(1/2, (N-1)/2), the law of the start's squared component along the top vector.

    Parameters
    ----------
    jvp, vjp : callable
        Products with J, (b, ...) -> (b, ...), and with its transpose.
    start : Tensor, shape (b, ...)
        Start vectors, drawn uniformly from the sphere if the guard is to mean what it says.
    rtol : float
        Relative tolerance on the singular value.
    max_steps : int
        Most products with :math:`J^\top J`; also the number of vectors kept.

    Returns
    -------
    SpectralNorm
        `value` is a lower bound on the norm, re-evaluated as :math:`\|J v\|` at the Ritz vector.

    Notes
    -----
    golub1965calculating for the bidiagonalisation; the guard strengthens hochstenbach2013probabilistic by using all
    polynomials: the spectral measure of the start has mass at most 1 / sum q_i(t)^2 at any point t.
    """
    b, size, device = len(start), start[0].numel(), start.device
    log_mass = np.log(betaincinv(0.5, (size - 1) / 2, MISS_PROBABILITY)) if size > 1 else 0.0
    tiny = 16 * torch.finfo(start.dtype).eps
    right = _scale(_inverse(_norm(start)), start)
    basis, left, beta = [right.flatten(1)], 0.0, torch.zeros(b, dtype=torch.float64, device=device)
    alphas, betas = np.zeros((b, 0)), np.zeros((b, 0))
    ritz = [np.ones(1)] * b
    steps, settled, done = np.zeros(b, dtype=np.int64), np.zeros(b, dtype=bool), np.zeros(b, dtype=bool)
    for step in range(1, min(max_steps, size) + 1):
        left = jvp(right) - (_scale(beta, left) if step > 1 else 0.0)
        alpha = _norm(left)
        left = _scale(_inverse(alpha), left)
        residual = (vjp(left) - _scale(alpha, right)).flatten(1)
        vectors = torch.stack(basis, dim=1)  # (b, j, N)
        for _ in range(2):  # twice is enough
            residual = residual - torch.einsum("bj,bjN->bN", torch.einsum("bjN,bN->bj", vectors, residual), vectors)
        beta = _norm(residual)
        _check_finite(alpha + beta)
        alphas = np.concatenate([alphas, alpha.cpu().numpy()[:, None]], axis=1)
        betas = np.concatenate([betas, beta.cpu().numpy()[:, None]], axis=1)
        top, vector, exhausted = _rayleigh_ritz(alphas, betas, tiny, rtol, log_mass)
        exhausted |= step == size
        for item in np.flatnonzero(~done):
            ritz[item], steps[item] = vector[item], step
        settled |= ~done & (top | exhausted)
        done |= settled
        if done.all():
            break
        right = _scale(_inverse(beta), residual.unflatten(1, start.shape[1:]))
        basis.append(right.flatten(1))
    weights = torch.zeros(b, len(basis), dtype=start.dtype)
    for item, vector in enumerate(ritz):
        weights[item, : len(vector)] = torch.from_numpy(vector)
    vectors = torch.einsum("bj,bjN->bN", weights.to(device), torch.stack(basis, dim=1))
    value, misfit = evaluate(jvp, vjp, vectors.unflatten(1, start.shape[1:]))
    return SpectralNorm(value, misfit, torch.from_numpy(steps).to(device), torch.from_numpy(settled).to(device))


def _rayleigh_ritz(alphas, betas, tiny, rtol, log_mass):
    """Stopping test and top Ritz vectors from the bidiagonal entries.

    Parameters
    ----------
    alphas, betas : ndarray, shape (b, j)
        Diagonal and superdiagonal of the bidiagonal matrices; the last beta couples to the next vector.
    tiny : float
        Relative size below which a coupling counts as zero.
    rtol, log_mass : float
        Tolerance, and log of the least squared component of the start along the top vector.

    Returns
    -------
    top : ndarray of bool, shape (b,)
        Both stopping conditions hold.
    vector : ndarray, shape (b, j)
        Coordinates of the top Ritz vectors in the Lanczos basis.
    exhausted : ndarray of bool, shape (b,)
        The Krylov space is invariant: nothing more can be learnt from this start.
    """
    j = alphas.shape[1]
    diagonal, coupling = alphas**2, alphas * betas
    diagonal[:, 1:] += betas[:, :-1] ** 2
    matrix = np.zeros((len(alphas), j, j))
    index = np.arange(j)
    matrix[:, index, index] = diagonal
    matrix[:, index[1:], index[:-1]] = coupling[:, :-1]  # eigh reads the lower triangle
    values, vectors = np.linalg.eigh(matrix)
    theta, vector = values[:, -1], vectors[:, :, -1]
    exhausted = np.minimum(alphas[:, -1], betas[:, -1]) <= tiny * np.sqrt(np.maximum(theta, 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        residual = coupling[:, -1] * np.abs(vector[:, -1]) / theta
        gap = (theta - values[:, -2]) / theta if j > 1 else np.ones(len(theta))
        error = np.minimum(residual, residual**2 / gap) / 2
        mass = _log_christoffel(diagonal, np.where(coupling > 0, coupling, np.nan), theta * (1 + rtol) ** 2)
        top = (error <= rtol) & (mass >= -log_mass)
    return top, vector, exhausted
