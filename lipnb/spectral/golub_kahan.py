"""Golub-Kahan bidiagonalisation, the default solver, guarded against stopping at the wrong singular value."""

import numpy as np
import torch
from scipy.special import betaincinv

from lipnb.spectral.products import SpectralNorm, check_finite, evaluate, inverse, norms, scaled

__all__ = ["golub_kahan"]

MISS_PROBABILITY = 1e-6  # chance, over the random start, that the stop accepts a value too small


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
    right = scaled(inverse(norms(start)), start)
    basis, left, beta = right.flatten(1)[:, None], 0.0, torch.zeros(b, dtype=torch.float64, device=device)
    alphas, betas = np.zeros((b, 0)), np.zeros((b, 0))
    ritz = [np.ones(1)] * b
    steps, done = np.zeros(b, dtype=np.int64), np.zeros(b, dtype=bool)
    for step in range(1, min(max_steps, size) + 1):
        left = jvp(right) - (scaled(beta, left) if step > 1 else 0.0)
        alpha = norms(left)
        left = scaled(inverse(alpha), left)
        residual = (vjp(left) - scaled(alpha, right)).flatten(1)
        vectors = basis[:, :step]
        for _ in range(2):  # twice is enough
            residual = residual - torch.einsum("bj,bjN->bN", torch.einsum("bjN,bN->bj", vectors, residual), vectors)
        beta = norms(residual)
        check_finite(alpha + beta)
        alphas = np.concatenate([alphas, alpha.cpu().numpy()[:, None]], axis=1)
        betas = np.concatenate([betas, beta.cpu().numpy()[:, None]], axis=1)
        top, vector, exhausted = _rayleigh_ritz(alphas, betas, tiny, rtol, log_mass)
        exhausted |= step == size
        for item in np.flatnonzero(~done):
            ritz[item], steps[item] = vector[item], step
        done |= top | exhausted
        if done.all():
            break
        right = scaled(inverse(beta), residual.unflatten(1, start.shape[1:]))
        if step == basis.shape[1]:  # room for as many again: each vector is copied once on average
            basis = torch.cat([basis, torch.empty_like(basis)], dim=1)
        basis[:, step] = right.flatten(1)
    weights = torch.zeros(b, max(steps), dtype=start.dtype)
    for item, vector in enumerate(ritz):
        weights[item, : len(vector)] = torch.from_numpy(vector)
    vectors = torch.einsum("bj,bjN->bN", weights.to(device), basis[:, : max(steps)])
    value, misfit = evaluate(jvp, vjp, vectors.unflatten(1, start.shape[1:]))
    return SpectralNorm(value, misfit, torch.from_numpy(steps).to(device), torch.from_numpy(done).to(device))


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
