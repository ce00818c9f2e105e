"""Lanczos, the default solver: stopped by a certificate on the norm, or by the residual alone."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lipnb.spectral.answer import SpectralNorm, each_field, evaluate
from lipnb.spectral.certificate import NOISE, Certificate
from lipnb.spectral.krylov import Krylov, open_steps

__all__ = ["lanczos"]

LOST = 1e3  # rounding units by which Lanczos vectors may miss being orthonormal; sqrt(eps) would still do for T
DENIAL = 4  # part of rtol by which the last product may differ from the Ritz value
PATIENCE = 3  # most steps without a look at the Ritz values while settled items wait for their proof
CAUTION = 4  # without a certificate the estimated error must be this much smaller than rtol


def lanczos(
    gram: Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    rtol: float = 1e-4,
    max_steps: int = 300,
    confidence: float | None = 1 - 1e-6,
    restrict: Callable[[Tensor], Callable[[Tensor], Tensor]] | None = None,
) -> SpectralNorm:
    r"""Lanczos on :math:`J^\top J` for a batch of operators, with a probabilistic certificate.

    From a random start, tridiagonal matrices whose largest eigenvalues :math:`\theta_j` increase to
    :math:`\|J\|_2^2`. An item stops when its Ritz value is settled (``min(r, r^2 / gap) / 2 <= rtol``, relative
    residual r) *and* when, with probability at least `confidence` over the start, no singular value exceeds
    :math:`(1 + \mathrm{rtol}) \sqrt{\theta_j}`:

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
        Most products for each item before the last one, which gives the value; also the number of vectors kept.
    confidence : float, optional
        Probability of the certificate; None stops by the residual alone, which can sit on a smaller singular value.
    restrict : callable, optional
        From an index tensor to the operator of these items only; finished items then cost nothing.

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

    *Orthogonality.* Each vector is made orthogonal to all before it. What this leaves of a product must not be longer
    than the product; when an item stops, the vectors V that products were made with must satisfy
    :math:`|V^\top V - 1| \le 1000\, \mathrm{eps}` in each entry (the one that comes next is not checked); and one more
    product, at the Ritz vector v, must confirm the Ritz value to a quarter of rtol. An item that fails is `stuck`,
    with an infinite `upper`. Its `value` :math:`\|J v\| / \|v\|` is a lower bound all the same.

    *Rounding.* Let u be the top singular vector, :math:`\lambda` its eigenvalue, :math:`x_i = \langle u, v_i \rangle`
    its components along the Lanczos vectors and :math:`\varphi_i` that of all rounding in step i. Then
    :math:`x_1 = x_{k+1} / q_k(\lambda) + r_k`, with :math:`r_k = \sum_{i \le k} [(\lambda - T_k)^{-1}]_{1i}
    \varphi_i`: the bound can fail only if :math:`|x_1|` is at most :math:`\gamma + \max_k |r_k|`. So

    - exact products: it fails with probability at most :math:`\delta` = 1 - confidence;
    - any rounding with :math:`|r_k| \le r`: at most :math:`\delta + r \sqrt{2 N / \pi}` for large N. In float64,
      at the default options and N up to 10^6, the second term is below 10^-7 if no :math:`\varphi_i` exceeds
      4 eps :math:`\lambda`: r is then at most :math:`4\, \mathrm{eps} \sqrt{300} / (2\, \mathrm{rtol})`;
    - rounding whose part r along u does not depend on :math:`x_1`: at most :math:`\delta` again, because a Gaussian
      component is nowhere likelier than around 0: a heuristic, because :math:`T_k` in :math:`r_k` comes from the same
      start. This is what is assumed in float32 ("rounding acts like noise"): there the second term exceeds
      :math:`10^{-6}`, and nothing is proved for every rounding. The evidence is the count of failures in
      lab/benchmarks/near_degenerate.py.

    The assumption is wrong where a product is swallowed whole by rounding. So no coupling counts as smaller than
    4 eps (a small one is no proof that the space is invariant; random directions of that size are added, and the run
    goes on), and nothing is taken for certified where the weakest start that counts, :math:`\gamma`, would not be
    heard above 4 eps in the first product: see `lipnb.spectral.certificate.Certificate`. Such an item stops as
    `stuck`, with the upper bound that is still proved. Value and upper bound themselves are exact up to a relative
    16 eps. After N steps the space is whole, and the value is exact up to rounding.

    Examples
    --------
    >>> import torch
    >>> from lipnb.spectral import lanczos, start_vectors
    >>> factors = torch.linspace(0, 3, 200, dtype=torch.float64)  # the singular values of a diagonal operator
    >>> start = start_vectors(1, 200, seed=0, dtype=torch.float64, device="cpu")
    >>> found = lanczos(lambda u: factors**2 * u, start)
    >>> round(found.value.item(), 2), found.upper.item() >= 3, found.steps.item() < 100
    (3.0, True, True)
    """
    b, size = start.shape
    most, eps = min(max_steps, size), torch.finfo(start.dtype).eps
    certificate = None if confidence is None else Certificate(size, confidence, eps)
    tiny = (16 if certificate is None else NOISE) * eps
    krylov = Krylov(gram, start)
    found, vector, square = _nothing_yet(b), torch.zeros_like(start), np.zeros(b)
    is_open, tops, looked = np.ones(b, dtype=bool), np.full(b, np.nan), 0
    for items in open_steps(krylov, is_open, most, restrict):
        exhausted, last, rows = krylov.exhausted(tiny), krylov.steps == most, is_open[items]
        due = last or (exhausted | krylov.lost).any() or krylov.steps - looked > PATIENCE
        if certificate is not None and not due and not np.isnan(tops[items[rows]]).any():
            # all are settled and wait for their proof: no Ritz value is asked for until one may have it
            waiting = np.where(rows, tops[items], 1)
            if not (certificate.mass(krylov, waiting, waiting * (1 + rtol) ** 2) & rows).any():
                continue
        ritz, looked = krylov.ritz(), krylov.steps
        theta = np.maximum(ritz.values[:, -1], 0)
        if certificate is None:
            done, deaf = exhausted | (ritz.error <= rtol / CAUTION), np.zeros_like(rows)
        else:
            limit = theta * (1 + rtol) ** 2
            settled = ritz.error <= rtol
            tops[items] = np.where(settled, theta, np.nan)
            if settled.any():
                settled &= certificate.mass(krylov, theta, limit)
            done = settled.copy()
            if settled.any():
                done &= certificate.heard(krylov, limit)
            done |= (krylov.steps == size) | ((theta == 0) & (krylov.off_diagonal[:, -1] == 0))
            deaf = settled & ~done & ~exhausted
        closed = np.flatnonzero(rows & (done | deaf | last | krylov.lost))
        krylov.lost[closed] |= ~(krylov.orthonormality(closed) <= LOST * eps)
        done, deaf = done & ~krylov.lost, deaf | krylov.lost
        now = items[closed]
        for top, item in zip(krylov.combine(ritz.vectors[closed, :, -1], closed), now, strict=True):
            vector[item] = top
        square[now], found.steps[now] = theta[closed], krylov.steps
        found.converged[now], found.stuck[now] = done[closed], deaf[closed]
        if certificate is not None and closed.size:
            upper = np.where(done, limit, np.inf)
            if (unproved := (~done & ~krylov.lost)[closed]).any():
                upper[closed[unproved]] = certificate.largest(krylov, theta)[closed[unproved]]
            found.upper[now] = np.sqrt(upper[closed])
        is_open[now] = False
        if certificate is not None and not last and (spent := np.flatnonzero(is_open[items] & exhausted)).size:
            krylov.renew(spent, tiny * theta[spent])
    found = each_field(found, lambda field: torch.from_numpy(field).to(start.device))
    # one product more: |J v| / |v| is a lower bound on the norm, whatever the recurrence did
    value, residual = evaluate(gram, vector)
    ritz_value = torch.from_numpy(np.sqrt(square)).to(start.device)
    denied = ~((value - ritz_value).abs() <= np.maximum(rtol / DENIAL, 16 * eps) * ritz_value)
    return found._replace(
        value=value,
        residual=residual,
        vector=vector,
        converged=found.converged & ~denied,
        stuck=found.stuck | denied,
        upper=torch.where(denied, torch.inf, torch.maximum(found.upper, value)),
    )


def _nothing_yet(b):
    """An answer for b items to write into, of arrays; the vectors stay out."""
    return SpectralNorm(
        value=np.zeros(b),
        residual=np.zeros(b),
        steps=np.zeros(b, dtype=np.int64),
        converged=np.zeros(b, dtype=bool),
        upper=np.full(b, np.inf),
        stuck=np.zeros(b, dtype=bool),
    )
