"""Lanczos in two precisions: search and proof with cheap products, the value finished with exact ones."""

import numpy as np
import torch

from lipnb.spectral.certificate import NOISE, least_log_mass, log_christoffel
from lipnb.spectral.krylov import Krylov
from lipnb.spectral.lanczos import CAUTION, COMPACT, lanczos
from lipnb.spectral.products import SpectralNorm

__all__ = ["mixed_lanczos", "share"]

# relative error allowed for the largest eigenvalue of an operator rounded to this type
ROUNDING = {torch.bfloat16: 1e-2, torch.float16: 1e-2, torch.float32: 1e-5}
LEAST_GAP = 1e-3
ROOM = 0.8  # least share of the top value that the rest may take when all that was seen is set aside
SETTLING = 0.3  # relative residual below which the search reorthogonalises in full


def mixed_lanczos(low, high, start, second, *, rtol=1e-4, max_steps=300, confidence=1 - 1e-6):
    r"""Lanczos with most products in low precision, and a certificate that such products can give.

    First a *search* in low precision, to the residual stop. Then a *finish*: Lanczos in full precision from the
    vector found, y, seldom more than one or two products, gives the value :math:`\theta` with its residual
    :math:`\rho`. Last a *proof*: low-precision Lanczos from a second random start on the orthogonal complement of
    everything the search has seen. There, no value close to :math:`\theta` is left to tell apart, so few products
    and little precision show that nothing as large hides: if :math:`J^\top J` is at most
    :math:`\theta (1 - g)` on the complement of y, then

    .. math::
        \|J\|_2^2 \le \theta \, (1 + \rho^2 / g) .

    Items whose second value is too close for the low precision are solved again by `lanczos` in full precision.

    Parameters
    ----------
    low, high : objects with ``gram(u)`` and ``restrict(index)``
        The operators in low and in full precision; ``low.dtype`` says which.
    start, second : Tensor, shape (b, N)
        Two independent random starts, in full precision.
    rtol, max_steps, confidence
        As for `lipnb.spectral.lanczos`; `max_steps` limits each part by itself.

    Returns
    -------
    SpectralNorm
        `steps` counts products of either precision. `upper` holds with probability `confidence` over both starts, if
        rounding moves the largest eigenvalue of the complement by less than 1 % (bfloat16) or 1e-5 (float32), and
        does so whatever the start: see the notes.

    Notes
    -----
    Three things can go wrong, each with probability at most :math:`\delta / 3`, :math:`\delta` = 1 - confidence:

    1. The proof on the complement of everything seen. Given the first start, this complement is a fixed space, and
       the second start, which is independent of the first, has a projection there of uniform direction. The theorem
       of the certificate holds for it: the proof is wrong only if its component along the top vector there is small.
    2. The proof on the complement of the top vector alone, where the first has failed. It uses the second start again,
       so it is not independent of the first proof; but by itself it is wrong only if the component of the projection
       along another fixed vector is small.
    3. `lanczos` in full precision, where both have failed. It is wrong only if the component of the first start along
       the top vector is small.

    An answer that is wrong has gone wrong in one of these three ways, so the probabilities add up to
    :math:`\delta` at most, whatever decides which of them is tried.
    """
    b, size = start.shape
    confidence = share(confidence)
    search = _search(low, start, rtol / CAUTION, min(max_steps, size))
    gap = 1 - search.second
    if confidence is not None:
        gap = (gap - ROUNDING[low.dtype]) / 2  # the rest is left to the proof
    value, residual, steps = _finish(high, search, 2 * rtol * np.maximum(gap, LEAST_GAP), max_steps)
    found = [search.settled & (steps < max_steps)]
    steps += search.steps
    upper = np.full(b, np.inf)
    if confidence is not None:
        found.append(_prove(low, second, search, value, residual, rtol, max_steps, confidence, steps))
        upper = value * (1 + rtol)
    converged, stuck = np.logical_and.reduce(found), np.zeros(b, dtype=bool)
    again = np.flatnonzero(~converged)
    if len(again):
        index = torch.from_numpy(again).to(start.device)
        rest = high.restrict(index)
        full = lanczos(
            rest.gram,
            start[index],
            rtol=rtol,
            max_steps=max_steps,
            confidence=confidence,
            restrict=lambda left: rest.restrict(left).gram,
        )
        value[again], residual[again], upper[again] = (
            field.cpu().numpy() for field in (full.value, full.residual, full.upper)
        )
        converged[again], stuck[again] = full.converged.cpu().numpy(), full.stuck.cpu().numpy()
        steps[again] += full.steps.cpu().numpy()
    return SpectralNorm(
        *(torch.from_numpy(field).to(start.device) for field in (value, residual, steps, converged, upper)),
        stuck=torch.from_numpy(stuck).to(start.device),
    )


def share(confidence):
    """The confidence that each of the three parts of a mixed solve needs; None stays None."""
    return None if confidence is None else 1 - (1 - confidence) / 3


class _search:
    """Low-precision Lanczos to the residual stop, and what it saw of each item.

    Attributes
    ----------
    vectors : Tensor, shape (b, N)
        Top Ritz vectors.
    seen : list of Tensor, shape (m, N)
        Orthonormal Lanczos vectors.
    values, couplings : list of ndarray, shape (m - 1,)
        Ritz values but the top one, and the couplings of their vectors to what was not seen, relative to the top value.
    second : ndarray, shape (b,)
        Second Ritz value over the first.
    steps, settled : ndarray, shape (b,)
    """

    def __init__(self, low, start, tolerance, max_steps):
        b = len(start)
        self.vectors, self.seen = torch.empty_like(start), [None] * b
        self.values, self.couplings = [None] * b, [None] * b
        self.second, self.steps = np.zeros(b), np.zeros(b, dtype=np.int64)
        self.settled = np.zeros(b, dtype=bool)
        tiny = 16 * torch.finfo(start.dtype).eps
        krylov, left = Krylov(low.gram, start), np.arange(b)
        for step in range(1, max_steps + 1):
            krylov.advance()
            ritz = krylov.ritz()
            done = krylov.exhausted(tiny) | (ritz.error <= tolerance)
            krylov.full |= bool((ritz.residual < SETTLING).any())
            fresh = np.flatnonzero(~self.settled[left] & (done | (step == max_steps)))
            tops = krylov.combine(ritz.vectors[fresh, :, -1], fresh)
            for top, i in enumerate(fresh):
                item, values = left[i], ritz.values[i] / max(ritz.values[i, -1], np.finfo(float).tiny)
                couplings = krylov.off_diagonal[i, -1] * ritz.last[i] / max(ritz.values[i, -1], np.finfo(float).tiny)
                self.values[item], self.couplings[item] = values[:-1], couplings[:-1]
                self.seen[item] = krylov.basis[i, :step].clone()
                self.vectors[item] = tops[top]
                self.steps[item] = step
                self.second[item] = values[-2] if step > 1 else 0
            self.settled[left] |= done
            if self.settled.all():
                break
            unfinished = np.flatnonzero(~self.settled[left])
            if len(unfinished) <= (1 - COMPACT) * len(left):
                left = left[unfinished]
                krylov.restrict(unfinished, low.restrict(torch.from_numpy(left).to(start.device)).gram)


def _finish(high, search, enough, max_steps):
    """Values, residuals and steps of full-precision Lanczos from the vectors of the search.

    An item stops when its squared relative residual is at most `enough`, shape (b,): divided by twice the gap to the
    second value, it bounds the relative error of the value.
    """
    b, size = search.vectors.shape
    krylov, left = Krylov(high.gram, search.vectors), np.arange(b)
    value, residual, steps = np.zeros(b), np.zeros(b), np.full(b, max_steps)
    open_ = np.ones(b, dtype=bool)
    for step in range(1, min(max_steps, size) + 1):
        krylov.advance()
        ritz = krylov.ritz()
        done = ritz.residual**2 <= enough[left]
        done |= krylov.exhausted(16 * torch.finfo(search.vectors.dtype).eps)
        fresh = np.flatnonzero(open_[left] & done)
        items = left[fresh]
        value[items], residual[items] = np.sqrt(np.maximum(ritz.values[fresh, -1], 0)), ritz.residual[fresh]
        steps[items], open_[items] = step, False
        if not open_.any():
            break
        unfinished = np.flatnonzero(open_[left])
        if len(unfinished) <= (1 - COMPACT) * len(left):
            left = left[unfinished]
            krylov.restrict(unfinished, high.restrict(torch.from_numpy(left).to(search.vectors.device)).gram)
    return value, residual, steps


def _prove(low, second, search, value, residual, rtol, max_steps, confidence, steps):
    """Whether nothing larger hides in the complement of the vector found, shape (b,); adds its products to `steps`.

    Everything seen is set aside where it is weakly coupled to the rest, which shortens the proof; where that fails,
    or costs the rest too much of its ceiling, the vector alone.
    """
    gap = np.maximum(residual**2 / (2 * rtol), LEAST_GAP)
    ceiling = 1 - ROUNDING[low.dtype] - gap  # relative to the value
    room = np.array([_room(*item) for item in zip(ceiling, search.values, search.couplings, strict=True)])
    # after N steps in low precision nothing is left to look at, and nothing is proved: rounding has led the search
    room[[len(seen) == second.shape[1] for seen in search.seen]] = 0
    proved = np.zeros(len(value), dtype=bool)
    for aside, limit in ((search.seen, np.where(room >= ROOM, room, 0)), (search.vectors[:, None], ceiling)):
        items = np.flatnonzero(~proved & (limit > 0))
        if len(items):
            _prove_below(low, second, aside, value**2 * limit, items, max_steps, confidence, proved, steps)
    return proved


def _prove_below(low, second, aside, limit, left, max_steps, confidence, proved, steps):
    """Mark in `proved` the items whose complement of `aside` is shown to lie below `limit`."""
    size, deepest = second.shape[1], max(len(aside[item]) for item in left)
    against = second.new_zeros(len(left), deepest, size)
    for i, item in enumerate(left):
        against[i, : len(aside[item])] = aside[item]
    log_mass = np.array([least_log_mass(size - len(aside[item]), confidence) for item in left])
    index = torch.from_numpy(left).to(second.device)
    krylov = Krylov((low.restrict(index) if len(left) < len(second) else low).gram, second[index], against, keep=False)
    noise, tiny = NOISE * torch.finfo(low.dtype).eps, 16 * torch.finfo(second.dtype).eps
    alive = np.ones(len(left), dtype=bool)
    while alive.any() and krylov.steps < max_steps:
        krylov.advance()
        steps[left[alive]] += 1
        theta = krylov.ritz().values[:, -1]
        # no coupling counts as smaller than the noise: a space that is used up proves nothing
        coupling = np.maximum(krylov.off_diagonal, (noise * np.maximum(theta, 0))[:, None])
        alive &= theta < limit[left]  # a Ritz value above the limit: no proof from here
        done = alive & (log_christoffel(krylov.diagonal, coupling, limit[left]) >= -log_mass)
        proved[left[done]] = True
        alive &= ~done & ~krylov.exhausted(tiny)
        going = np.flatnonzero(alive)
        if 0 < len(going) <= (1 - COMPACT) * len(left):
            left, log_mass, alive = left[going], log_mass[going], alive[going]
            krylov.restrict(going, low.restrict(torch.from_numpy(left).to(second.device)).gram)


def _room(ceiling, values, couplings):
    """How large the rest may be so that, coupled to vectors of these Ritz values, it stays below the ceiling."""
    if (values >= ceiling).any():
        return 0.0
    return ceiling - (couplings**2 / (ceiling - values)).sum()
