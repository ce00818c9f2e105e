"""Lanczos in two precisions: search and proof with cheap products, the value finished with exact ones."""

from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from lipnb.spectral.answer import SpectralNorm, each_field, put
from lipnb.spectral.certificate import NOISE, least_log_mass, noisy_log_christoffel
from lipnb.spectral.krylov import Krylov, open_steps
from lipnb.spectral.lanczos import CAUTION, lanczos

__all__ = ["mixed_lanczos", "share"]

# relative error allowed for the largest eigenvalue of an operator rounded to this type
ROUNDING = {torch.bfloat16: 1e-2, torch.float16: 1e-2, torch.float32: 1e-5}
LEAST_GAP = 1e-3
ROOM = 0.8  # least share of the top value that the rest may take when all that was seen is set aside
SETTLING = 0.3  # relative residual below which the search reorthogonalises in full


class Operator(Protocol):
    """What a solve in two precisions asks of an operator: products, in which type, and those of some items alone."""

    dtype: torch.dtype

    def gram(self, u: Tensor) -> Tensor: ...

    def restrict(self, index: Tensor) -> "Operator": ...


def mixed_lanczos(
    low: Operator,
    high: Operator,
    start: Tensor,
    second: Tensor,
    *,
    rtol: float = 1e-4,
    max_steps: int = 300,
    confidence: float | None = 1 - 1e-6,
) -> SpectralNorm:
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

    Examples
    --------
    >>> import torch
    >>> from lipnb.spectral import mixed_lanczos, start_vectors
    >>> class Diagonal:
    ...     def __init__(self, factors, dtype):
    ...         self.factors, self.dtype = factors.to(dtype), dtype
    ...
    ...     def gram(self, u):
    ...         return self.factors**2 * u.to(self.dtype)
    ...
    ...     def restrict(self, index):
    ...         return Diagonal(self.factors[index], self.dtype)
    >>> factors = torch.linspace(0, 1, 200, dtype=torch.float64).square()[None]
    >>> start, second = (start_vectors(1, 200, seed=s, dtype=torch.float64, device="cpu") for s in (0, 1))
    >>> low, high = Diagonal(factors, torch.float32), Diagonal(factors, torch.float64)
    >>> found = mixed_lanczos(low, high, start, second)
    >>> round(found.value.item(), 3), found.converged.item()
    (1.0, True)
    """
    b, size = start.shape
    confidence = share(confidence)
    search = _search(low, start, rtol / CAUTION, min(max_steps, size))
    gap = 1 - search.second
    if confidence is not None:
        gap = (gap - ROUNDING[low.dtype]) / 2  # the rest is left to the proof
    finish = _finish(high, search.vectors, 2 * rtol * np.maximum(gap, LEAST_GAP), max_steps)
    steps, converged = search.steps + finish.steps, search.settled & (finish.steps < max_steps)
    upper = np.full(b, np.inf)
    if confidence is not None:
        proof = _prove(low, second, search, finish, rtol=rtol, max_steps=max_steps, confidence=confidence)
        steps, converged, upper = steps + proof.steps, converged & proof.proved, finish.value * (1 + rtol)
    found = each_field(
        SpectralNorm(finish.value, finish.residual, steps, converged, upper, stuck=np.zeros(b, dtype=bool)),
        lambda field: torch.from_numpy(field).to(start.device),
    )
    again = torch.nonzero(~found.converged)[:, 0]
    if len(again):
        rest = high.restrict(again)
        full = lanczos(
            rest.gram,
            start[again],
            rtol=rtol,
            max_steps=max_steps,
            confidence=confidence,
            restrict=lambda index: rest.restrict(index).gram,
        )
        found = put(found, again, full._replace(steps=found.steps[again] + full.steps))
    return found


def share(confidence: float | None) -> float | None:
    """The confidence that each of the three parts of a mixed solve needs; None stays None."""
    return None if confidence is None else 1 - (1 - confidence) / 3


class Search(NamedTuple):
    """What low-precision Lanczos saw of each item.

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

    vectors: Tensor
    seen: list
    values: list
    couplings: list
    second: np.ndarray
    steps: np.ndarray
    settled: np.ndarray


def _search(low, start, tolerance, most):
    """Low-precision Lanczos to the residual stop."""
    b, tiny = len(start), 16 * torch.finfo(start.dtype).eps
    search = Search(
        vectors=torch.empty_like(start),
        seen=[None] * b,
        values=[None] * b,
        couplings=[None] * b,
        second=np.zeros(b),
        steps=np.zeros(b, dtype=np.int64),
        settled=np.zeros(b, dtype=bool),
    )
    krylov, is_open = Krylov(low.gram, start), np.ones(b, dtype=bool)
    for items in open_steps(krylov, is_open, most, lambda index: low.restrict(index).gram):
        ritz, step = krylov.ritz(), krylov.steps
        done = krylov.exhausted(tiny) | (ritz.error <= tolerance)
        krylov.full |= bool((ritz.residual < SETTLING).any())
        rows = np.flatnonzero(is_open[items] & (done | (step == most)))
        for row, top in zip(rows, krylov.combine(ritz.vectors[rows, :, -1], rows), strict=True):
            item, unit = items[row], max(ritz.values[row, -1], np.finfo(float).tiny)
            search.vectors[item], search.seen[item] = top, krylov.basis[:step, row].clone()
            search.values[item] = ritz.values[row, :-1] / unit
            search.couplings[item] = krylov.off_diagonal[row, -1] * ritz.last[row, :-1] / unit
            search.second[item] = search.values[item][-1] if step > 1 else 0
            search.steps[item] = step
        search.settled[items] |= done
        is_open[items] &= ~done
    return search


class Finish(NamedTuple):
    """Values and residuals in full precision, and the products they took; each of shape (b,)."""

    value: np.ndarray
    residual: np.ndarray
    steps: np.ndarray


def _finish(high, vectors, enough, max_steps):
    """Full-precision Lanczos from the vectors found, shape (b, N).

    An item stops when its squared relative residual is at most `enough`, shape (b,): divided by twice the gap to the
    second value, it bounds the relative error of the value.
    """
    b, size = vectors.shape
    finish = Finish(np.zeros(b), np.zeros(b), np.full(b, max_steps))
    krylov, is_open = Krylov(high.gram, vectors), np.ones(b, dtype=bool)
    for items in open_steps(krylov, is_open, min(max_steps, size), lambda index: high.restrict(index).gram):
        ritz = krylov.ritz()
        done = (ritz.residual**2 <= enough[items]) | krylov.exhausted(16 * torch.finfo(vectors.dtype).eps)
        rows = is_open[items] & done
        now = items[rows]
        finish.value[now], finish.residual[now] = np.sqrt(np.maximum(ritz.values[rows, -1], 0)), ritz.residual[rows]
        finish.steps[now], is_open[now] = krylov.steps, False
    return finish


class Proof(NamedTuple):
    """Whether nothing larger hides, and the products that this took; each of shape (b,)."""

    proved: np.ndarray
    steps: np.ndarray


def _prove(low, second, search, finish, *, rtol, max_steps, confidence):
    """Whether nothing larger hides in the complement of the vectors found.

    Everything seen is set aside where it is weakly coupled to the rest, which shortens the proof; where that fails,
    or costs the rest too much of its ceiling, the vector alone.
    """
    b, size = second.shape
    gap = np.maximum(finish.residual**2 / (2 * rtol), LEAST_GAP)
    ceiling = 1 - ROUNDING[low.dtype] - gap  # relative to the value
    room = np.array([_room(*item) for item in zip(ceiling, search.values, search.couplings, strict=True)])
    # after N steps in low precision nothing is left to look at, and nothing is proved: rounding has led the search
    room[[len(seen) == size for seen in search.seen]] = 0
    proof = Proof(np.zeros(b, dtype=bool), np.zeros(b, dtype=np.int64))
    for aside, limit in ((search.seen, np.where(room >= ROOM, room, 0)), (search.vectors[:, None], ceiling)):
        items = np.flatnonzero(~proof.proved & (limit > 0))
        if len(items):
            index = torch.from_numpy(items).to(second.device)
            below = _prove_below(
                low.restrict(index) if len(items) < b else low,
                second[index],
                [aside[item] for item in items],
                (finish.value**2 * limit)[items],
                max_steps=max_steps,
                confidence=confidence,
            )
            proof.proved[items] = below.proved
            proof.steps[items] += below.steps
    return proof


def _prove_below(low, second, aside, limit, *, max_steps, confidence):
    """Whether the complement of what is set aside, orthonormal rows (m, N) of each item, lies below `limit`, (b,)."""
    (b, size), deepest = second.shape, max(len(rows) for rows in aside)
    against = second.new_zeros(b, deepest, size)
    for rows, place in zip(aside, against, strict=True):
        place[: len(rows)] = rows
    log_sum = np.array([-least_log_mass(size - len(rows), confidence) for rows in aside])
    noise, tiny = NOISE * torch.finfo(low.dtype).eps, 16 * torch.finfo(second.dtype).eps
    proof = Proof(np.zeros(b, dtype=bool), np.zeros(b, dtype=np.int64))
    krylov, is_open = Krylov(low.gram, second, against, keep=False), np.ones(b, dtype=bool)
    for items in open_steps(krylov, is_open, max_steps, lambda index: low.restrict(index).gram):
        proof.steps[items[is_open[items]]] += 1
        theta = krylov.ritz().values[:, -1]
        is_open[items] &= theta < limit[items]  # a Ritz value above the limit: no proof from here
        enough = noisy_log_christoffel(krylov, theta, limit[items], noise) >= log_sum[items]
        proof.proved[items] |= is_open[items] & enough
        is_open[items] &= ~(proof.proved[items] | krylov.exhausted(tiny))
    return proof


def _room(ceiling, values, couplings):
    """How large the rest may be so that, coupled to vectors of these Ritz values, it stays below the ceiling."""
    if (values >= ceiling).any():
        return 0.0
    return ceiling - (couplings**2 / (ceiling - values)).sum()
