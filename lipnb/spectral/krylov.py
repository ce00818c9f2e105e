"""Lanczos on many symmetric operators at once: orthonormal vectors, coefficients and Ritz values."""

import numpy as np
import torch

from lipnb.spectral.products import check_finite, inverse, norms, scaled

__all__ = ["Krylov", "Ritz"]

CANCELLED = 0.1  # share of a product left after orthogonalisation, below which float32 does it twice
SMALL = 1e-2  # a coupling below this share of the diagonal is made of cancellation: orthogonality goes at once
LOOP_SIZE = 2048  # from this vector length on, one matrix-vector product an item beats a batched one on the CPU


class Ritz:
    """Eigenvalues of the Lanczos matrices, largest last, and the last entries of their eigenvectors.

    Attributes
    ----------
    values, last : ndarray, shape (b, j)
        Ritz values, and how much of each Ritz vector lies in the newest Lanczos vector.
    vectors : ndarray, shape (b, j, j)
        Ritz vectors in the Lanczos basis, as columns.
    residual : ndarray, shape (b,)
        Residual of the top pair, relative to its value.
    error : ndarray, shape (b,)
        Estimated relative error of the square root of the top value: ``min(r, r^2 / gap) / 2``.
    """

    def __init__(self, diagonal, off_diagonal):
        j = diagonal.shape[1]
        matrix = np.zeros((len(diagonal), j, j))
        index = np.arange(j)
        matrix[:, index, index] = diagonal
        matrix[:, index[1:], index[:-1]] = off_diagonal[:, : j - 1]  # eigh reads the lower triangle
        self.values, self.vectors = np.linalg.eigh(matrix)
        self.last = self.vectors[:, -1, :]
        top = np.maximum(self.values[:, -1], 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            self.residual = np.where(
                top > 0, off_diagonal[:, -1] * np.abs(self.last[:, -1]) / top, off_diagonal[:, -1] > 0
            )  # no positive value though not zero: rounding alone
            gap = 1 - self.values[:, -2] / top if j > 1 else np.ones(len(top))
            self.error = np.where(top > 0, np.fmin(self.residual, self.residual**2 / gap), self.residual) / 2


class Krylov:
    """Lanczos from a batch of start vectors.

    Parameters
    ----------
    gram : callable
        Symmetric positive semidefinite operators, (b, N) -> (b, N); may answer in a lower precision, and may
        overwrite its answer at the next call.
    start : Tensor, shape (b, N)
        Start vectors of any norm but zero, in the precision of the vectors to be kept.
    against : Tensor, shape (b, m, N), optional
        Orthonormal rows (or zeros): the operators are restricted to their orthogonal complement.
    keep : bool
        Whether all vectors are kept, for Ritz vectors and reorthogonalisation, or the last two only.

    Attributes
    ----------
    diagonal, off_diagonal : ndarray, shape (b, j)
        Lanczos coefficients after j steps, float64; the last off-diagonal one couples to the next vector.
    coupling : ndarray, shape (b, j)
        Lengths of the vectors that became the next Lanczos vectors: `off_diagonal`, but where `renew` made it longer.
    fresh : ndarray of bool, shape (b, j)
        Whether the Lanczos vector of a step was drawn at random: the start, and what `renew` drew.
    full : bool
        Whether new vectors are made orthogonal to all before them, or to the last two only, which is cheaper and
        enough until a Ritz value has settled. Always true at first for float64 vectors that are kept.
    """

    def __init__(self, gram, start, against=None, keep=True):
        self.gram, self.against = gram, against
        if against is not None:
            start = _orthogonal(_orthogonal(start, against), against)
        self.current, self.previous = scaled(inverse(norms(start)), start), None
        self.full = keep and start.dtype == torch.float64
        self.basis = self._with_room(self.current[:, None]) if keep else None
        self.diagonal, self.off_diagonal, self.coupling = (np.zeros((len(start), 0)) for _ in range(3))
        self.fresh, self._next_fresh = np.zeros((len(start), 0), dtype=bool), np.ones(len(start), dtype=bool)
        self._seeds = start[:, 0].double().view(torch.int64).clone()

    @property
    def steps(self):
        """Products taken so far."""
        return self.diagonal.shape[1]

    def advance(self):
        """One product more: a new Lanczos vector and two coefficients."""
        step = self.steps
        residual = self.gram(self.current).to(self.current.dtype)
        diagonal = (self.current * residual).sum(1, dtype=torch.float64)
        if self.against is not None:
            residual = _orthogonal(residual, self.against)
        if self.full:
            for _ in range(2 if residual.dtype == torch.float64 else 1):
                residual = _orthogonal(residual, self.basis[:, : step + 1])
        else:
            residual = residual.addcmul(diagonal.to(residual.dtype)[:, None], self.current, value=-1)
            if step:
                residual.addcmul_(torch.from_numpy(self.off_diagonal[:, -1:]).to(residual), self.previous, value=-1)
        off_diagonal = norms(residual)
        kept, share = self.basis is not None, CANCELLED if self.full else SMALL
        if kept and residual.dtype != torch.float64 and (off_diagonal < share * diagonal.abs()).any():
            if not self.full:
                residual = _orthogonal(residual, self.basis[:, : step + 1])
            residual = _orthogonal(residual, self.basis[:, : step + 1])  # rounding is a large part of what is left
            off_diagonal = norms(residual)
        check_finite(diagonal + off_diagonal)
        self.diagonal = np.concatenate([self.diagonal, diagonal.cpu().numpy()[:, None]], axis=1)
        self.off_diagonal = np.concatenate([self.off_diagonal, off_diagonal.cpu().numpy()[:, None]], axis=1)
        self.coupling = np.concatenate([self.coupling, self.off_diagonal[:, -1:]], axis=1)
        self.fresh = np.concatenate([self.fresh, self._next_fresh[:, None]], axis=1)
        self._next_fresh = np.zeros(len(self.fresh), dtype=bool)
        self.previous, self.current = self.current, scaled(inverse(off_diagonal), residual)
        if self.basis is not None:
            if step + 1 == self.basis.shape[1]:
                self.basis = self._with_room(self.basis)
            self.basis[:, step + 1] = self.current

    def renew(self, items, lengths):
        """Add a fresh random direction, of these `lengths`, to what led out of the space of some items.

        Where nothing but rounding is left of a product, the next vector is this rounding, or nothing. With a random
        part of the same size it is a random vector again, orthogonal to all before, and the recurrence still holds up
        to rounding. `coupling` tells the length; `off_diagonal` stays what was measured.
        """
        for item, length in zip(items, lengths, strict=True):
            seed = (int(self._seeds[item]) + self.steps) % 2**63
            drawn = torch.randn(
                self.current.shape[1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64
            )
            rows, old = self.basis[item : item + 1, : self.steps], self.off_diagonal[item, -1]
            vector = drawn.to(self.current)[None]
            for _ in range(2):
                vector = _orthogonal(vector, rows)
            vector = scaled(length * inverse(norms(vector)), vector) + old * self.current[item : item + 1]
            vector = _orthogonal(scaled(inverse(norms(vector)), vector), rows)
            self.current[item] = scaled(inverse(norms(vector)), vector)[0]
            self.basis[item, self.steps] = self.current[item]
            self.coupling[item, -1] = np.hypot(length, old)
            self._next_fresh[item] = True

    @staticmethod
    def _with_room(basis):
        """`basis` with room for as many vectors again, so that each is copied once on average."""
        b, steps, size = basis.shape
        grown = basis.new_empty(b, max(32, 2 * steps), size)
        grown[:, :steps] = basis
        return grown

    def ritz(self):
        """Ritz values and vectors of the steps so far."""
        return Ritz(self.diagonal, self.off_diagonal)

    def exhausted(self, tiny):
        """Whether nothing but rounding leads out of the space, shape (b,): a reason to stop, and no proof."""
        scale = np.maximum(self.diagonal.max(axis=1), self.off_diagonal.max(axis=1))
        return (self.steps >= self.current.shape[1]) | (self.off_diagonal[:, -1] <= tiny * scale)

    def combine(self, coordinates, items):
        """Vectors, each of shape (N,), of some items, with coordinates (len(items), j) in their Lanczos bases."""
        weights = torch.from_numpy(coordinates).to(self.current)
        return [weights[i] @ self.basis[item, : weights.shape[1]] for i, item in enumerate(items)]

    def restrict(self, index, gram):
        """Go on with the items `index` (increasing) only, by the operator `gram` for these items."""
        self.gram = gram
        if self.basis is not None:
            for new, old in enumerate(index):
                if new != old:
                    self.basis[new, : self.steps + 1] = self.basis[old, : self.steps + 1]
            self.basis = self.basis[: len(index)]
        self.current, self.previous = self.current[index], self.previous[index]
        self.against = None if self.against is None else self.against[index]
        self.diagonal, self.off_diagonal, self.coupling = (
            part[index] for part in (self.diagonal, self.off_diagonal, self.coupling)
        )
        self.fresh, self._next_fresh, self._seeds = self.fresh[index], self._next_fresh[index], self._seeds[index]


def _orthogonal(vectors, basis):
    """`vectors` (b, N) less their components along the orthonormal rows of `basis` (b, j, N)."""
    if vectors.device.type == "cpu" and vectors.shape[1] >= LOOP_SIZE:
        along = torch.stack([torch.mv(rows, vector) for rows, vector in zip(basis, vectors, strict=True)])[:, None]
    else:
        along = torch.bmm(basis, vectors[..., None]).mT
    return torch.baddbmm(vectors[:, None], along, basis, alpha=-1)[:, 0]
