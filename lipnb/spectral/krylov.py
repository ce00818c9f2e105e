"""The Lanczos recurrence on many symmetric operators at once: orthonormal vectors, coefficients and Ritz values.

`lipnb.spectral.stopping` decides when to stop.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lipnb.spectral.operator import GramOperator
from lipnb.spectral.vectors import check_finite, inverse, least_norm, norms, scaled

__all__ = ["Krylov"]

CANCELLED = 0.1  # share of a product left after orthogonalisation, below which orthogonalisation is repeated
ROUNDED = 1e-3  # largest relative growth of a vector under orthogonalisation that counts as rounding
LOOP_SIZE = 1024  # from this vector length on, one matrix-vector product an item beats a batched one on the CPU
# a float32 sum of 10^6 entries in one matrix-vector product was off by 2e-5, one of 6 x 10^6 by 3e-4 (MKL), and the
# vectors lost their orthogonality. Summed in pieces of this length it is off by 2e-7, in the same time (by 1e-5 if all
# entries are equal). On the CPU only: on a GPU a solve of 3 x 10^6 entries stayed orthogonal (bench-device)
PIECE = 2**14
COMPACT = 0.25  # share of closed items at which the batch is made smaller
# errors that the certificate allows, in rounding units of the vectors' type. NOISE, of products: assumed, relative to
# the largest eigenvalue; the error of each step enters a bound directly, so the value is tight. LOST, of Lanczos
# vectors: checked, |V^T V - 1| in each entry; it adds up over the steps and may be generous, since it only turns 1 into
# 1 + (j + 1) LOST eps there (float32: 1.04 after 300 steps), and sqrt(eps) would still suffice for T
NOISE = 4
LOST = 1e3


class Ritz(NamedTuple):
    """Eigenvalues of the Lanczos matrices, largest last, and error estimates for the largest.

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
        Symmetric positive semidefinite. Its products may have a lower precision than the vectors: its `eps`, which a
        certificate counts.
    start : Tensor, shape (b, N)
        Nonzero start vectors, in the precision in which all vectors are kept.

    Attributes
    ----------
    items : ndarray of int, shape (b',)
        Item of the batch of each row, increasing; fewer rows once items are closed.
    open : ndarray of bool, shape (b',)
        Whether an item is still open.
    basis : Tensor, shape (capacity, b, N)
        The Lanczos vectors, the newest at `steps`.
    diagonal, off_diagonal : ndarray, shape (b, j)
        Lanczos coefficients after j steps, float64; the last off-diagonal one couples to the next vector.
    coupling : ndarray, shape (b, j)
        Lengths of the vectors that became the next Lanczos vectors: `off_diagonal`, except where `restart` added to it.
    random : ndarray of bool, shape (b, j)
        Whether the Lanczos vector of a step was random: the start, and the vectors of `restart`.
    lost : ndarray of bool, shape (b,)
        Whether the results of an item are meaningless: orthogonalisation lengthened a product, rounding aside (only
        possible if the basis is not orthonormal), a product underflowed, or `check_orthonormal` failed.
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
        self._seeds = (
            start[:, 0].double().view(torch.int64).clone()
        )  # of `restart`: the bits of each start, equal for equal starts

    @property
    def steps(self) -> int:
        """Number of products so far."""
        return self.diagonal.shape[1]

    def extend(self) -> None:
        """Take step j: a_j = <v_j, A v_j>, and b_j v_{j+1} = A v_j - a_j v_j - b_{j-1} v_{j-1}.

        When a quarter of the rows are closed, only the others continue, if the operator can be restricted.
        """
        rows = np.flatnonzero(self.open)
        if len(rows) <= (1 - COMPACT) * len(self.items):
            self.restrict(rows)
        product = self.operator.gram(self.current).to(self.current.dtype)
        diagonal, length = (self.current * product).sum(1, dtype=torch.float64), norms(product)
        residual = self._residual(product, diagonal)
        # all numbers for decisions are read at once: a GPU waits at each separate read
        numbers = torch.stack([diagonal, length, norms(residual)])
        diagonal, length, off_diagonal = numbers.cpu().numpy()
        self._leaving = numbers[2]  # stays on the device too, so that nothing has to be sent
        check_finite(length, self.items)
        if (off_diagonal < CANCELLED * length).any():
            # rounding is a large part of the result of one pass; two passes suffice if anything is left
            _project_out(residual, self.basis[: self.steps + 1])
            off_diagonal = norms(residual).cpu().numpy()
            self._leaving = torch.from_numpy(off_diagonal).to(self._leaving)
        # a projection shortens, and the result must be long enough to be divided by its length
        least, shorter = least_norm(residual.dtype), off_diagonal <= (1 + ROUNDED) * length
        ends = ~(shorter & (np.minimum(length, off_diagonal) >= least))
        if ends.any():
            off_diagonal = self._end(ends, shorter, residual, diagonal, length, off_diagonal)
        self._append(diagonal, off_diagonal)
        residual.mul_(inverse(self._leaving).to(residual)[:, None])
        self.previous, self.current = self.current, residual

    def _residual(self, product, diagonal):
        """The vector b_j v_{j+1} from A v_j and a_j, shape (b, N), orthogonal to all earlier vectors."""
        step = self.steps
        if step + 1 == len(self.basis):
            self.basis = self._with_room(self.basis)
        # write the next vector where it is kept; the product may be a buffer of the operator
        residual = torch.addcmul(
            product, diagonal.to(product.dtype)[:, None], self.current, value=-1, out=self.basis[step + 1]
        )
        if step:
            residual.addcmul_(self._leaving.to(residual)[:, None], self.previous, value=-1)
        # after the recurrence the components along earlier vectors are small: one pass removes them, in every step and
        # every precision, since a Ritz value may converge suddenly and orthogonality be lost with it
        return _project_out(residual, self.basis[: step + 1])

    def _end(self, ends, shorter, residual, diagonal, length, off_diagonal):
        """`off_diagonal` with 0 for each row that ends: nothing is left of its product, or it is `lost`."""
        # a rest no longer than the rounding of the product counts as zero
        rounding = torch.finfo(residual.dtype).eps * np.maximum(length, self.diagonal.max(axis=1, initial=0))
        nothing = ends & (off_diagonal <= rounding)
        lengthened = ~(shorter | nothing)
        underflowed = (length < least_norm(residual.dtype)) & ((length > 0) | (diagonal != 0))
        lost = lengthened | underflowed
        self.lost |= lost
        gone = nothing | lost
        residual[gone], off_diagonal = 0, np.where(gone, 0, off_diagonal)  # so that the other items can continue
        self._leaving = torch.from_numpy(off_diagonal).to(self._leaving)
        return off_diagonal

    def _append(self, diagonal, off_diagonal):
        """Append the coefficients of one step, each of shape (b,)."""
        self.diagonal = np.concatenate([self.diagonal, diagonal[:, None]], axis=1)
        self.off_diagonal = np.concatenate([self.off_diagonal, off_diagonal[:, None]], axis=1)
        self.coupling = np.concatenate([self.coupling, self.off_diagonal[:, -1:]], axis=1)
        self.random = np.concatenate([self.random, self._next_random[:, None]], axis=1)
        self._next_random = np.zeros(len(self.random), dtype=bool)

    def check_orthonormal(self, rows: np.ndarray) -> None:
        """Mark items of `rows`, a mask, as `lost` if their vectors are not orthonormal.

        Sums are taken in float64, piece by piece: in float32 sums of a million entries are off by hundreds of rounding
        units. Their float64 rounding, a few of its units, is not counted: `LOST` has a wide margin.
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
        """Add a random direction of these `lengths` to the next vector of each row before normalisation; NaN: none.

        If only rounding is left of a product, the next vector is this rounding, or zero. With a random part of the same
        size it is a random vector, orthogonal to all earlier ones, and the recurrence still holds up to rounding.
        `coupling` records the new length; `off_diagonal` keeps the measured one.
        """
        for row in np.flatnonzero(~np.isnan(lengths)):
            self._restart(row, lengths[row])

    def _restart(self, row, length):
        """Add a random direction of this `length` to the next vector of one row."""
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
        """`basis` with its capacity doubled, so that each vector is copied once on average."""
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
        # NumPy's threads compete with PyTorch's: eigh took twenty times as long from 26 steps on
        values, vectors = (part.numpy() for part in torch.linalg.eigh(torch.from_numpy(matrix)))
        top = np.maximum(values[:, -1], 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            # no positive Ritz value though the product is not zero: rounding only
            residual = np.where(top > 0, leaving * np.abs(vectors[:, -1, -1]) / top, leaving > 0)
            gap = 1 - values[:, -2] / top if j > 1 else np.ones(b)
            error = np.where(top > 0, np.fmin(residual, residual**2 / gap), residual) / 2
        return Ritz(values, vectors, residual, error)

    def breakdown(self, tiny: float) -> np.ndarray:
        """Whether the Krylov space is invariant up to rounding, or the whole space, shape (b,).

        Only the latter is a proof: `Estimated` stops here, and `Certified` continues with `restart`. A restart does not
        change the `off_diagonal` tested here: the answer holds for the current step only.
        """
        scale = np.maximum(self.diagonal.max(axis=1), self.off_diagonal.max(axis=1))
        return (self.steps >= self.current.shape[1]) | (self.off_diagonal[:, -1] <= tiny * scale)

    def combine(self, coordinates: np.ndarray, rows: np.ndarray) -> list[Tensor]:
        """Vectors, each of shape (N,), of these rows, from coordinates (len(rows), j) in their Lanczos bases."""
        weights = torch.from_numpy(coordinates).to(self.current, non_blocking=True)
        return [weights[i] @ self.basis[: weights.shape[1], row] for i, row in enumerate(rows)]

    def restrict(self, index: np.ndarray) -> None:
        """Continue with the rows `index` (increasing) only, if the operator can be restricted."""
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
    """`vectors` (b, N) minus their components along the orthonormal rows of `basis` (b, j, N)."""
    return _project_out(vectors.clone(), basis.transpose(0, 1))


def _project_out(vectors, basis):
    """Subtract from `vectors` (b, N), in place, their components along the orthonormal rows of `basis` (j, b, N)."""
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
