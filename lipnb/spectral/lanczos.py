"""Lanczos, the default solver: it stops by a certificate on the norm, or by the residual alone."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from lipnb.spectral.answer import SpectralNorm, evaluate
from lipnb.spectral.certificate import Certificate
from lipnb.spectral.krylov import Krylov
from lipnb.spectral.operator import FunctionGram, GramOperator
from lipnb.spectral.stopping import Certified, Estimated, Policy

__all__ = ["lanczos"]

CONFIRMED = 4  # the last product may differ from the Ritz value by rtol over this, relatively


def lanczos(
    operator: GramOperator | Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    rtol: float = 1e-4,
    max_steps: int = 300,
    confidence: float | None = 1 - 1e-6,
) -> SpectralNorm:
    r"""Lanczos on :math:`J^\top J` for a batch of operators, with a probabilistic certificate.

    A random start yields tridiagonal matrices whose largest eigenvalues :math:`\theta_j` increase to
    :math:`\|J\|_2^2`. An item stops when its Ritz value is settled (``min(r, r^2 / gap) / 2 <= rtol``, relative
    residual r) *and* when, with probability at least `confidence` over the start, no singular value exceeds
    :math:`(1 + \mathrm{rtol}) \sqrt{\theta_j}`:

    .. math::
        \sum_{i=0}^{j} q_i\big(\theta_j (1 + \mathrm{rtol})^2\big)^2 \ge 1 / \eta^2 ,

    where :math:`q_i` are the orthonormal polynomials of the Lanczos coefficients and :math:`\eta^2` the
    ``1 - confidence`` quantile of Beta(1/2, (N-1)/2), the law of the start's squared component along the top vector.
    The only random event concerns the start, so the statement holds at whichever step an item stops. It is proved for
    exact products; the notes state the effect of rounding, and the assumption on it in float32.

    Parameters
    ----------
    operator : GramOperator or callable
        Products with :math:`J^\top J`, (b, N) -> (b, N). Finished items leave an operator that can be restricted.
    start : Tensor, shape (b, N)
        Start vectors; the certificate is valid only if they are drawn uniformly from the sphere.
    rtol : float
        Relative tolerance on the singular value.
    max_steps : int
        Maximal number of products for each item before the last one, which gives the value; as many vectors are kept.
    confidence : float, optional
        Probability of the certificate; None stops by the residual alone, which can sit on a smaller singular value.

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

    *Orthogonality.* Each vector is made orthogonal to all earlier ones, twice if much of it cancels. The result must
    not be longer than the product, rounding aside; when an item stops, the vectors V that were multiplied must satisfy
    :math:`|V^\top V - 1| \le 1000\, \mathrm{eps}` in each entry, which the certificate allows for (the next vector is
    not checked); and one more product, at the Ritz vector v, must confirm the Ritz value to a quarter of rtol. An item
    that fails is `precision_limited`, with an infinite `upper`. Its `value` :math:`\|J v\| / \|v\|` is still a lower
    bound.

    *Rounding.* Let u be the top singular vector, :math:`\lambda` its eigenvalue, :math:`x_i = \langle u, v_i \rangle`
    its components along the Lanczos vectors and :math:`\varphi_i` that of all rounding errors in step i. Then
    :math:`x_1 = x_{k+1} / q_k(\lambda) + r_k`, with :math:`r_k = \sum_{i \le k} [(\lambda - T_k)^{-1}]_{1i}
    \varphi_i`: the bound can fail only if :math:`|x_1|` is at most :math:`\eta + \max_k |r_k|`. So

    - exact products: the bound fails with probability at most :math:`\delta` = 1 - confidence;
    - any rounding with :math:`|r_k| \le r`: at most :math:`\delta + r \sqrt{2 N / \pi}` for large N. In float64,
      at the default options and N up to 10^6, the second term is below 2 10^-7 if no :math:`\varphi_i` exceeds
      12 eps :math:`\lambda` (4 of a product, 8 where `Krylov.restart` adds): r is then at most
      :math:`12\, \mathrm{eps} \sqrt{300} / (2\, \mathrm{rtol})` at a bound rtol above the Ritz value, as for an
      item that has converged;
    - rounding whose part r along u does not depend on :math:`x_1`: at most :math:`\delta` again, because a Gaussian
      component is nowhere likelier than around 0. This is a heuristic, because :math:`T_k` in :math:`r_k` comes from
      the same start. It is the assumption in float32 ("rounding acts like noise"), where the second term exceeds
      :math:`10^{-6}` and nothing is proved for every rounding; likewise in float64 if rtol is below about
      :math:`10^{-5}`. The evidence is the count of failures in lab/benchmarks/near_degenerate.py.

    The assumption is wrong if rounding hides a product entirely. Therefore no coupling counts as smaller than
    4 eps :math:`\lambda` (a small one does not prove that the space is invariant; a random direction of that size is
    added, and the run continues), and nothing counts as certified if the contribution
    :math:`\eta (\lambda - a_1)` of the smallest start component that counts would not exceed
    :math:`4\, \mathrm{eps}\, \lambda / \sqrt N` in the first product. Such an item stops as
    `precision_limited`, with the upper bound that is still proved. Value and upper bound themselves are exact up to a
    relative 16 eps. After N steps the Krylov space is the whole space, and the value is exact up to rounding. The
    module docstring of `lipnb.spectral.certificate` names the code of each step of the proof.

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
    operator = operator if isinstance(operator, GramOperator) else FunctionGram(operator)
    stopped = _Stopped(b, start)
    policy: Policy = (
        Estimated(rtol, eps)
        if confidence is None
        else Certified(Certificate(size, confidence, max(eps, operator.eps)), batch=b, size=size, rtol=rtol)
    )
    krylov = Krylov(operator, start)
    while krylov.open.any() and krylov.steps < most:
        krylov.extend()  # one product for all items; closed ones leave the batch here
        last = krylov.steps == most
        decision = policy.decide(krylov, last)
        if decision is None:  # the policy looks at the Ritz values in a later step
            continue
        closing = krylov.open & (decision.done | decision.precision_limited | krylov.lost | last)
        krylov.check_orthonormal(closing)
        krylov.open &= ~closing
        stopped.record(krylov, decision, closing, policy.upper(krylov, decision, closing))
        krylov.restart(np.where(krylov.open, decision.restart, np.nan))
    return stopped.answer(operator, rtol)


class _Stopped:
    """Results of the items that have stopped, by item of the batch."""

    def __init__(self, b, start):
        self.vector = torch.zeros_like(start)
        self.theta, self.upper = np.zeros(b), np.full(b, np.inf)
        self.steps = np.zeros(b, dtype=np.int64)
        self.converged, self.limited = np.zeros(b, dtype=bool), np.zeros(b, dtype=bool)

    def record(self, krylov, decision, closing, upper):
        """Record the results of the rows that are `closing`."""
        rows = np.flatnonzero(closing)
        items = krylov.items[rows]
        for item, vector in zip(items, krylov.combine(decision.ritz.vectors[rows, :, -1], rows), strict=True):
            self.vector[item] = vector
        self.theta[items], self.upper[items], self.steps[items] = decision.theta[rows], upper[rows], krylov.steps
        self.converged[items] = (decision.done & ~krylov.lost)[rows]
        self.limited[items] = (decision.precision_limited | krylov.lost)[rows]

    def answer(self, operator, rtol):
        """The answer: one more product gives the value, independent of the recurrence, and must confirm theta."""
        value, residual = evaluate(operator.gram, self.vector)  # |J v| / |v|, a lower bound on the norm
        place = partial(torch.as_tensor, device=value.device)
        ritz_value, eps = place(np.sqrt(self.theta)), torch.finfo(self.vector.dtype).eps
        unconfirmed = ~((value - ritz_value).abs() <= max(rtol / CONFIRMED, 16 * eps) * ritz_value)
        return SpectralNorm(
            value,
            residual,
            steps=place(self.steps),
            converged=place(self.converged) & ~unconfirmed,
            upper=torch.where(unconfirmed, torch.inf, torch.maximum(place(np.sqrt(self.upper)), value)),
            vector=self.vector,
            precision_limited=place(self.limited) | unconfirmed,
        )
