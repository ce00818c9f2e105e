"""Lanczos, the default solver: stopped by a certificate on the norm, or by the residual alone."""

import numpy as np
import torch

from lipnb.spectral.certificate import NOISE, Certificate
from lipnb.spectral.krylov import Krylov
from lipnb.spectral.products import SpectralNorm

__all__ = ["lanczos"]

COMPACT = 0.25  # share of finished items at which the batch is made smaller
SETTLING = 3e-2  # relative residual below which a certified run reorthogonalises in full
CAUTION = 4  # without a certificate the estimated error must be this much smaller than rtol


def lanczos(gram, start, *, rtol=1e-4, max_steps=300, confidence=1 - 1e-6, restrict=None, vectors=False):
    r"""Lanczos on :math:`J^\top J` for a batch of operators, with a probabilistic certificate.

    From a random start, tridiagonal matrices whose largest eigenvalues :math:`\theta_j` increase to
    :math:`\|J\|_2^2`. An item stops when its Ritz value is settled (``min(r, r^2 / gap) / 2 <= rtol``, relative
    residual r) *and* when, with probability at least `confidence` over the start, no larger singular value hides:

    .. math::
        \sum_{i=0}^{j} q_i\big(\theta_j (1 + \mathrm{rtol})^2\big)^2 \ge 1 / \gamma^2 ,

    where :math:`q_i` are the orthonormal polynomials of the Lanczos coefficients and :math:`\gamma^2` the
    ``1 - confidence`` quantile of Beta(1/2, (N-1)/2), the law of the start's squared component along the top vector.
    The only random event is about the start, so the statement holds at whichever step an item stops. It is proved for
    exact products; what rounding does to it, and what is assumed of it in float32, is said in the notes.

    Parameters
    ----------
    gram : callable
        Products with :math:`J^\top J`, (b, N) -> (b, N).
    start : Tensor, shape (b, N)
        Start vectors, drawn uniformly from the sphere if the certificate is to mean what it says.
    rtol : float
        Relative tolerance on the singular value.
    max_steps : int
        Most products for each item; also the number of vectors kept.
    confidence : float, optional
        Probability of the certificate; None stops by the residual alone, which can sit on a smaller singular value.
    restrict : callable, optional
        From an index tensor to the operator of these items only; finished items then cost nothing.
    vectors : bool
        Whether the right singular vectors are wanted too.

    Returns
    -------
    SpectralNorm
        `value` is a lower bound on the norm up to rounding; `upper` holds with probability `confidence`, in float32
        under the assumption of the notes.

    Notes
    -----
    golub1965calculating for the equivalent bidiagonalisation; the certificate strengthens
    hochstenbach2013probabilistic by using all polynomials: the spectral measure of the start has mass at most
    :math:`1 / \sum q_i(t)^2` at any point t.

    *Rounding.* Let u be the top singular vector, :math:`\lambda` its eigenvalue, :math:`x_i = \langle u, v_i \rangle`
    its components along the Lanczos vectors and :math:`\varphi_i` that of all rounding in step i. Then
    :math:`x_1 = x_{k+1} / q_k(\lambda) + r_k`, with :math:`r_k = \sum_{i \le k} [(\lambda - T_k)^{-1}]_{1i}
    \varphi_i`: the bound can fail only if :math:`|x_1|` is at most :math:`\gamma + \max_k |r_k|`. So

    - exact products: it fails with probability at most :math:`\delta` = 1 - confidence;
    - any rounding with :math:`|r_k| \le r`: at most :math:`\delta + r \sqrt{2 N / \pi}` for large N. In float64,
      at the default options and N up to 10^6, the second term is below 10^-7 if no :math:`\varphi_i` exceeds
      4 eps :math:`\lambda`: r is then at most :math:`4\, \mathrm{eps} \sqrt{300} / (2\, \mathrm{rtol})`;
    - rounding whose part r along u does not depend on :math:`x_1`: at most :math:`\delta` again, because a Gaussian
      component is nowhere likelier than around 0. This is what is assumed in float32 ("rounding acts like noise"):
      there the second term exceeds :math:`10^{-6}`, and nothing is proved for every rounding. The evidence is the
      count of failures in benchmarks/near_degenerate.py.

    The assumption is wrong where a product is swallowed whole by rounding. So no coupling counts as smaller than
    4 eps (a small one is no proof that the space is invariant; random directions of that size are added, and the run
    goes on), and nothing is taken for certified where the weakest start that counts, :math:`\gamma`, would not be
    heard above 4 eps in the first product: see `lipnb.spectral.certificate.Certificate`. Such an item stops as
    `stuck`, with the upper bound that is still proved. Value and upper bound themselves are exact up to a relative
    16 eps. After N steps the space is whole, and the value is exact up to rounding.
    """
    b, size = start.shape
    certificate = None if confidence is None else Certificate(size, confidence, torch.finfo(start.dtype).eps)
    tiny = (16 if confidence is None else NOISE) * torch.finfo(start.dtype).eps
    keep = vectors or confidence is not None or start.dtype == torch.float64
    krylov, left = Krylov(gram, start, keep=keep), np.arange(b)
    vector = torch.zeros_like(start, memory_format=torch.contiguous_format) if vectors else None
    value, residual, upper = np.zeros(b), np.zeros(b), np.full(b, np.inf)
    steps, converged, stuck = np.zeros(b, dtype=np.int64), np.zeros(b, dtype=bool), np.zeros(b, dtype=bool)
    for step in range(1, min(max_steps, size) + 1):
        krylov.advance()
        ritz, exhausted = krylov.ritz(), krylov.exhausted(tiny)
        theta, last = np.maximum(ritz.values[:, -1], 0), step == min(max_steps, size)
        if confidence is None:
            done, deaf = exhausted | (ritz.error <= rtol / CAUTION), np.zeros(len(left), dtype=bool)
        else:
            limit = theta * (1 + rtol) ** 2
            settled = (ritz.error <= rtol) & certificate.mass(krylov, theta, limit)
            done = settled & certificate.heard(krylov, limit)
            done |= (step == size) | ((theta == 0) & (krylov.off_diagonal[:, -1] == 0))
            deaf = settled & ~done & ~exhausted
            krylov.full |= bool((ritz.residual < SETTLING).any())  # orthogonality is lost as Ritz values settle
        fresh = ~(converged | stuck)[left]
        items = left[fresh]
        value[items], residual[items], steps[items] = np.sqrt(theta[fresh]), ritz.residual[fresh], step
        if vectors:
            ready = np.flatnonzero(fresh & (done | deaf | last))
            for row, item in zip(krylov.combine(ritz.vectors[ready, :, -1], ready), left[ready], strict=True):
                vector[item] = row
        if confidence is not None:
            upper[left[fresh & done]] = value[left[fresh & done]] * (1 + rtol)
            if (rest := fresh & ~done & (deaf | last)).any():
                upper[left[rest]] = np.sqrt(certificate.largest(krylov, theta)[rest])
        converged[left[fresh]] = done[fresh]
        stuck[left[fresh]] = deaf[fresh]
        open_ = ~(converged | stuck)[left]
        if last or not open_.any():
            break
        if confidence is not None and (spent := np.flatnonzero(open_ & exhausted)).size:
            krylov.renew(spent, tiny * theta[spent])
            krylov.full = True
        unfinished = np.flatnonzero(open_)
        if restrict is not None and len(unfinished) <= (1 - COMPACT) * len(left):
            left = left[unfinished]
            krylov.restrict(unfinished, restrict(torch.from_numpy(left).to(start.device)))
    return SpectralNorm(
        *(torch.from_numpy(field).to(start.device) for field in (value, residual, steps, converged, upper)),
        vector=vector,
        stuck=torch.from_numpy(stuck).to(start.device),
    )
