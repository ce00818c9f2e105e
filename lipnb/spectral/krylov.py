"""The Lanczos recurrence on many symmetric operators at once: orthonormal vectors, coefficients and Ritz values.

Nothing here decides when to stop: `lipnb.spectral.stopping` does.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lipnb.spectral.operator import GramOperator
from lipnb.spectral.vectors import check_finite, inverse, least_norm, norms, scaled

__all__ = ["Krylov"]

CANCELLED = 0.1  # share of a product left after orthogonalisation, below which it is done again
ROUNDED = 1e-3  # by which rounding may lengthen what orthogonalisation leaves of a product, relatively, and no more
LOOP_SIZE = 1024  # from this vector length on, one matrix-vector product an item beats a batched one on the CPU
# a float32 sum of 10^6 entries in one product of a matrix with a vector was off by 2e-5, one of 6 x 10^6 by 3e-4 (MKL):
# the vectors lost their orthogonality. Made of pieces of this length it is off by 2e-7, in the same time (by 1e-5 where
# all entries are alike). On the CPU alone: on a GPU a solve of 3 x 10^6 entries kept its vectors (bench-device)
PIECE = 2**14
COMPACT = 0.25  # share of closed items at which the batch is made smaller
# what the certificate counts on, in rounding units of the vectors' type. Products: assumed of the operator, relative to
# the largest eigenvalue; what it adds in one step goes straight into a bound, so it is tight. Lanczos vectors: checked,
# |V^T V - 1| in each entry; it adds up over the steps, and is loose, as it only turns 1 into 1 + (j + 1) LOST eps there
# (float32: 1.04 after 300 steps) and sqrt(eps) would still do for T
NOISE = 4
LOST = 1e3


class Ritz(NamedTuple):
    """Eigenvalues of the Lanczos matrices, largest last, and how far the largest can be off.

    Attributes
    ----------
    values : ndarray, shape (b, j)
        Ritz values.
    vectors : ndarray, shape (b, j, j)
        Ritz vectors in the Lanczos basis, as columns.
    residual : ndarray, shape (b,)
        Residual of the top pair, relative to its value.
    error : ndarray, shape (b,)
        Estimated relative error of the square root of the top value: ``min(r, r^2 / gap) / 2``.
    """

    values: np.ndarray
    vectors: np.ndarray
    residual: np.ndarray
    error: np.ndarray


class Krylov:
    """Lanczos from a batch of start vectors, each new vector orthogonalised against all before it.

    Parameters
    ----------
    operator : GramOperator
        Symmetric positive semidefinite. It may answer in a lower precision than that of the vectors where no
        certificate is asked for, which counts rounding in the latter.
    start : Tensor, shape (b, N)
        Start vectors of any norm but zero, in the precision of the vectors to be kept.

    Attributes
    ----------
    items : ndarray of int, shape (b',)
        Items of the batch that the rows stand for, increasing: fewer as items are closed.
    open : ndarray of bool, shape (b',)
        Which of them go on.
    basis : Tensor, shape (room, b, N)
        The Lanczos vectors, the newest at `steps`.
    diagonal, off_diagonal : ndarray, shape (b, j)
        Lanczos coefficients after j steps, float64; the last off-diagonal one couples to the next vector.
    coupling : ndarray, shape (b, j)
        Lengths of the vectors that became the next Lanczos vectors: `off_diagonal`, but where `restart` made it longer.
    random : ndarray of bool, shape (b, j)
        Whether the Lanczos vector of a step was drawn at random: the start, and what `restart` drew.
    lost : ndarray of bool, shape (b,)
        Whether orthogonalisation ever left more than the product that it began with, rounding aside, which it can only
        where the basis is not orthonormal, or a product has underflowed: nothing that follows means anything.
    """

    def __init__(self, operator: GramOperator, start: Tensor) -> None:
        self.operator = operator
        self.items: np.ndarray = np.arange(len(start))
        self.open: np.ndarray = np.ones(len(start), dtype=bool)
        self.basis: Any = self._with_room(scaled(inverse(norms(start)), start)[None])
        self.current, self.previous = self.basis[0], self.basis[0]
        self.diagonal, self.off_diagonal, self.coupling = (np.zeros((len(start), 0)) for _ in range(3))
        self.random: np.ndarray = np.zeros((len(start), 0), dtype=bool)
        self.lost: np.ndarray = np.zeros(len(start), dtype=bool)
        self._leaving = start.new_zeros(len(start), dtype=torch.float64)  # the last of `off_diagonal`, on the device
        self._next_random: np.ndarray = np.ones(len(start), dtype=bool)
        self._seeds = start[:, 0].double().view(torch.int64).clone()

    @property
    def steps(self) -> int:
        """Products taken so far."""
        return self.diagonal.shape[1]

    def extend(self) -> None:
        """One product more, j: a_j = <v_j, A v_j>, and b_j v_{j+1} = A v_j - a_j v_j - b_{j-1} v_{j-1}.

        When a quarter of the rows are closed, the others go on alone, where the operator can be taken apart.
        """
        rows = np.flatnonzero(self.open)
        if len(rows) <= (1 - COMPACT) * len(self.items):
            self.restrict(rows)
        product = self.operator.gram(self.current).to(self.current.dtype)
        diagonal, length = (self.current * product).sum(1, dtype=torch.float64), norms(product)
        residual = self._residual(product, diagonal)
        # all that is decided on is read at once: a GPU waits for each number that is read alone
        numbers = torch.stack([diagonal, length, norms(residual)])
        diagonal, length, off_diagonal = numbers.cpu().numpy()
        self._leaving = numbers[2]  # it stays there too, so that nothing is sent
        check_finite(length, self.items)
        if (off_diagonal < CANCELLED * length).any():
            # rounding is a large part of what one pass leaves; twice is enough, where anything is left at all
            _project_out(residual, self.basis[: self.steps + 1])
            off_diagonal = norms(residual).cpu().numpy()
            self._leaving = torch.from_numpy(off_diagonal).to(self._leaving)
        # a projection shortens, and what is left can be divided by its length
        least, shorter = least_norm(residual.dtype), off_diagonal <= (1 + ROUNDED) * length
        odd = ~(shorter & (np.minimum(length, off_diagonal) >= least))
        if odd.any():
            # where no more is left than products round, nothing is
            rounding = torch.finfo(residual.dtype).eps * np.maximum(length, self.diagonal.max(axis=1, initial=0))
            nothing = odd & (off_diagonal <= rounding)
            lost = ~(shorter | nothing) | (length < least) & ((length > 0) | (diagonal != 0))
            self.lost |= lost
            gone = nothing | lost
            residual[gone], off_diagonal = 0, np.where(gone, 0, off_diagonal)  # so that its neighbours can go on
            self._leaving = torch.from_numpy(off_diagonal).to(self._leaving)
        self._append(diagonal, off_diagonal)
        residual.mul_(inverse(self._leaving).to(residual)[:, None])
        self.previous, self.current = self.current, residual

    def _residual(self, product, diagonal):
        """b_j v_{j+1} of A v_j and a_j, shape (b, N), orthogonal to all vectors before."""
        step = self.steps
        if step + 1 == len(self.basis):
            self.basis = self._with_room(self.basis)
        # the next vector is made where it will be kept; the product itself may belong to whoever made it
        residual = torch.addcmul(
            product, diagonal.to(product.dtype)[:, None], self.current, value=-1, out=self.basis[step + 1]
        )
        if step:
            residual.addcmul_(self._leaving.to(residual)[:, None], self.previous, value=-1)
        # what is left along the vectors before is small after the recurrence: one pass takes it off, in every step and
        # every precision, for a Ritz value may settle at once and orthogonality go with it
        return _project_out(residual, self.basis[: step + 1])

    def _append(self, diagonal, off_diagonal):
        """Coefficients of one step more, each of shape (b,)."""
        self.diagonal = np.concatenate([self.diagonal, diagonal[:, None]], axis=1)
        self.off_diagonal = np.concatenate([self.off_diagonal, off_diagonal[:, None]], axis=1)
        self.coupling = np.concatenate([self.coupling, self.off_diagonal[:, -1:]], axis=1)
        self.random = np.concatenate([self.random, self._next_random[:, None]], axis=1)
        self._next_random = np.zeros(len(self.random), dtype=bool)

    def close(self, rows: np.ndarray) -> None:
        """Let the items of `rows`, a mask, go on no longer."""
        self.open = self.open & ~rows

    def check_orthonormal(self, rows: np.ndarray) -> None:
        """Of the items of `rows`, a mask, those whose vectors are not orthonormal are `lost`.

        Sums are made in float64, piece by piece: in float32 those of a million entries are off by hundreds of its
        rounding units. What they round in float64, some of its units, is not counted: `LOST` is loose.
        """
        for row in np.flatnonzero(rows):
            vectors = self.basis[: self.steps, row]
            gram = -torch.eye(self.steps, dtype=torch.float64, device=vectors.device)
            for piece in vectors.split(4 * PIECE, 1):
                wide = piece.double()
                gram.addmm_(wide, wide.mT)
            # |V^T V - 1| in each entry
            self.lost[row] |= not gram.abs().amax().item() <= LOST * torch.finfo(vectors.dtype).eps

    def restart(self, lengths: np.ndarray) -> None:
        """Add a fresh random direction, of these `lengths`, to what led out of each row's space; NaN: none.

        Where nothing but rounding is left of a product, the next vector is this rounding, or nothing. With a random
        part of the same size it is a random vector again, orthogonal to all before, and the recurrence still holds up
        to rounding. `coupling` tells the length; `off_diagonal` stays what was measured.
        """
        for row in np.flatnonzero(~np.isnan(lengths)):
            length = lengths[row]
            seed = (int(self._seeds[row]) + self.steps) % 2**63
            drawn = torch.randn(
                self.current.shape[1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64, device="cpu"
            )
            basis, old = self.basis[: self.steps, row][None], self.off_diagonal[row, -1]
            vector = drawn.to(self.current)[None]
            for _ in range(2):
                vector = _orthogonal(vector, basis)
            vector = scaled(length * inverse(norms(vector)), vector) + old * self.current[row : row + 1]
            vector = _orthogonal(scaled(inverse(norms(vector)), vector), basis)
            self.current[row] = scaled(inverse(norms(vector)), vector)[0]
            self.coupling[row, -1] = np.hypot(length, old)
            self._next_random[row] = True

    @staticmethod
    def _with_room(basis):
        """`basis` with room for as many vectors again, so that each is copied once on average."""
        steps, b, size = basis.shape
        grown = basis.new_empty(max(32, 2 * steps), b, size)
        grown[:steps] = basis
        return grown

    def ritz(self) -> Ritz:
        """Ritz values and vectors of the steps so far."""
        (b, j), leaving = self.diagonal.shape, self.off_diagonal[:, -1]
        matrix, index = np.zeros((b, j, j)), np.arange(j)
        matrix[:, index, index] = self.diagonal
        matrix[:, index[1:], index[:-1]] = self.off_diagonal[:, : j - 1]  # eigh reads the lower triangle
        # NumPy's threads, which stay awake beside PyTorch's, took twenty times as long from 26 steps on
        values, vectors = (part.numpy() for part in torch.linalg.eigh(torch.from_numpy(matrix)))
        top = np.maximum(values[:, -1], 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            # no positive value though not zero: rounding alone
            residual = np.where(top > 0, leaving * np.abs(vectors[:, -1, -1]) / top, leaving > 0)
            gap = 1 - values[:, -2] / top if j > 1 else np.ones(b)
            error = np.where(top > 0, np.fmin(residual, residual**2 / gap), residual) / 2
        return Ritz(values, vectors, residual, error)

    def breakdown(self, tiny: float) -> np.ndarray:
        """Whether nothing but rounding leads out of the space, or it is whole, shape (b,).

        No proof, but of a whole space: `Estimated` stops there, and `Certified` has `restart` lead out of it. That
        leaves `off_diagonal`, which is looked at here, as small as it was: it counts for this step alone.
        """
        scale = np.maximum(self.diagonal.max(axis=1), self.off_diagonal.max(axis=1))
        return (self.steps >= self.current.shape[1]) | (self.off_diagonal[:, -1] <= tiny * scale)

    def combine(self, coordinates: np.ndarray, rows: np.ndarray) -> list[Tensor]:
        """Vectors, each of shape (N,), of some rows, with coordinates (len(rows), j) in their Lanczos bases."""
        weights = torch.from_numpy(coordinates).to(self.current, non_blocking=True)
        return [weights[i] @ self.basis[: weights.shape[1], row] for i, row in enumerate(rows)]

    def restrict(self, index: np.ndarray) -> None:
        """Go on with the rows `index` (increasing) only, where the operator can be taken apart."""
        rows = torch.from_numpy(index).to(self.current.device)
        operator = self.operator.restrict(rows)
        if operator is None:
            return
        self._leaving = self._leaving[rows]
        self.operator, self.items, self.open = operator, self.items[index], self.open[index]
        for vectors in self.basis[: self.steps + 1]:
            vectors[: len(index)] = vectors[index]
        self.basis = self.basis[:, : len(index)]
        self.current, self.previous = self.basis[self.steps], self.basis[self.steps - 1]
        self.diagonal, self.off_diagonal, self.coupling = (
            part[index] for part in (self.diagonal, self.off_diagonal, self.coupling)
        )
        self.random, self.lost = self.random[index], self.lost[index]
        self._next_random, self._seeds = self._next_random[index], self._seeds[index]


def _orthogonal(vectors, basis):
    """`vectors` (b, N) less their components along the orthonormal rows of `basis` (b, j, N)."""
    return _project_out(vectors.clone(), basis.transpose(0, 1))


def _project_out(vectors, basis):
    """Take off `vectors` (b, N), in place, their components along the orthonormal rows of `basis` (j, b, N)."""
    if vectors.device.type == "cpu" and vectors.shape[1] >= LOOP_SIZE:
        for rows, vector in zip(basis.unbind(1), vectors, strict=True):
            vector.addmv_(rows.mT, _product(rows, vector), alpha=-1)
    else:
        rows = basis.transpose(0, 1)
        vectors[:, None].baddbmm_(torch.bmm(rows, vectors[..., None]).mT, rows, alpha=-1)
    return vectors


def _product(rows, vector):
    """Products of rows (j, N) with a vector (N,), summed piece by piece."""
    if len(vector) <= PIECE:
        return torch.mv(rows, vector)
    pieces = zip(rows.split(PIECE, 1), vector.split(PIECE), strict=True)
    return torch.stack([torch.mv(*piece) for piece in pieces]).sum(0)
