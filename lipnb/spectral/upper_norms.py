r"""Lengths and spectral norms in float64 as upper bounds: the rounding of their computation is counted.

With :math:`u = 2^{-53}` a sum of c products errs by at most :math:`\gamma_c = c u / (1 - c u)` times the sum of the
absolute products, in any order (higham2002accuracy, section 3.1).
"""

import torch

UNIT = 2.0**-53
EXACT_WORK = 2e9  # matrices times order^3 up to which eigenvalues are computed, not bounded by a trace


def gamma(count):
    r"""The relative error :math:`\gamma_c = c u / (1 - c u)` of `count` roundings, as of a sum of so many products."""
    return count * UNIT / (1 - count * UNIT)


def length(tensor, dim=-1):
    """Upper bound on the Euclidean length over one or several dimensions, with its rounding, for any number of entries.

    Entries are first divided by the largest, so that squares cannot underflow. For c entries each quotient errs by u,
    the sum of squares by c u, the root by half of both and u of itself, product and last factor by u each: 8 u in
    addition to c u are more than enough. The largest entry must be a normal number.
    """
    if not tensor.numel():
        return torch.linalg.vector_norm(tensor, dim=dim)
    size = tensor.abs().amax(dim, keepdim=True)
    unit = torch.linalg.vector_norm(tensor / torch.where(size > 0, size, 1), dim=dim)
    return size.amax(dim) * unit * (1 + gamma(tensor.numel() // max(1, unit.numel()) + 8))


def triangle(matrix):
    """The triangular factor R of M = Q R, for which :math:`|M y| = |R y|`."""
    return torch.linalg.qr(matrix, mode="r").R


def largest_eigenvalue(gram):
    """The largest eigenvalue of symmetric matrices (..., b, b), up to rounding, or an upper bound on it."""
    try:
        return torch.linalg.eigvalsh(gram)[..., -1]
    except torch.linalg.LinAlgError:  # no convergence, seen once in 100,000 cases
        frobenius = length(gram, (-2, -1))
        if not torch.isfinite(frobenius).all():
            raise
        return frobenius


def largest_singular(matrix):
    r"""Upper bound on the spectral norm of a matrix, tight to about 1e-8.

    .. math:: \|M\|_2^2 \le s^2 \big(\lambda_{\max}(G) + (\gamma_{a+2} + 8 (b + 1) u)\,\mathrm{tr}\,G\big), \qquad
        G = (M / s)^\top (M / s), \quad s = \max |M_{ij}| .

    Parameters
    ----------
    matrix : Tensor, shape (..., a, b)
        Float64; a batch of matrices.

    Returns
    -------
    Tensor, shape (...)
        An upper bound. The product errs by at most :math:`\gamma_{a+2}` times the trace, the two divisions included;
        that LAPACK's eigenvalues err by at most :math:`8 (b + 1) u` times the trace is assumed, not proved.
    """
    a, b = matrix.shape[-2:]
    if b > a:
        matrix, (a, b) = matrix.mT, (b, a)
    size = matrix.abs().amax((-2, -1)) if matrix.numel() else matrix.new_zeros(matrix.shape[:-2])
    unit = matrix / torch.where(size > 0, size, 1)[..., None, None]
    gram = unit.mT @ unit
    trace = torch.diagonal(gram, dim1=-2, dim2=-1).sum(-1)
    top = largest_eigenvalue(gram) if b else trace
    return size * (top.clamp_min(0) + (gamma(a + 2) + 8 * (b + 1) * UNIT) * trace).sqrt() * (1 + 8 * UNIT)


def largest_singular_of_each(matrices, lot=None):
    r"""Upper bounds on the norms of matrices (c, a, b), shape (c,), from a trace of powers if that is much cheaper.

    .. math:: \|M\|_2 \le \big(\mathrm{tr}\,(M^\top M)^4\big)^{1/8} = \|(M^\top M)^2\|_F^{1/4} ,

    above the norm by at most a factor, the eighth root of the rank. The choice assumes `lot` matrices, by default c;
    with a given lot the bound of a matrix does not depend on the number of others.
    """
    c, a, b = matrices.shape
    if b > a:
        matrices, (a, b) = matrices.mT, (b, a)
    if (c if lot is None else lot) * b**3 <= EXACT_WORK:
        return largest_singular(matrices)
    size = matrices.abs().amax((-2, -1))
    unit = matrices / torch.where(size > 0, size, 1)[:, None, None]
    gram = unit.mT @ unit
    trace = torch.diagonal(gram, dim1=-2, dim2=-1).sum(-1)
    power = torch.linalg.matrix_norm(gram @ gram).sqrt()  # >= the largest eigenvalue of the computed Gram matrix
    return size * (power + 2 * (gamma(a + 2) + gamma(b**2 + 2)) * trace).sqrt() * (1 + 8 * UNIT)
