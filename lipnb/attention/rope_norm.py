"""Rotary positions and norms of queries and keys, and their Jacobian."""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["RowJacobian"]

Rotation = tuple[Tensor, Tensor]  # cosines and sines, (n, p) each


def rotation(frequencies: Tensor | None, n: int, dtype: torch.dtype) -> Rotation | None:
    r"""Cosines and sines of the angles :math:`i \omega_c` at n positions, (n, p) each; None without frequencies.

    They are computed in the type of the frequencies, as in networks, and then converted to `dtype`.
    """
    if frequencies is None:
        return None
    angles = torch.arange(n, dtype=frequencies.dtype, device=frequencies.device)[:, None] * frequencies
    return angles.cos().to(dtype), angles.sin().to(dtype)


def turned(rows: Tensor, turn: Rotation | None) -> Tensor:
    """Rows (..., n, k), rotated by position in the planes of coordinates c and c + p, c < p; the rest unchanged."""
    if turn is None:
        return rows
    cos, sin = turn
    p = cos.shape[-1]
    first, second, rest = rows.split([p, p, rows.shape[-1] - 2 * p], -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


class Norm(NamedTuple):
    r"""RMSNorm of projected rows y, :math:`N(y) = w \circ y / \sqrt{|y|^2 / k + \epsilon}`.

    Attributes
    ----------
    weight : Tensor, shape (h, k)
        w.
    eps : float
        :math:`\epsilon`.
    joint : bool
        Whether the mean square is taken over the rows of all heads together instead of each head.
    """

    weight: Tensor
    eps: float
    joint: bool = False

    def mean(self, rows: Tensor) -> Tensor:
        """Means of rows (..., h, n, k), shape (..., h or 1, n, 1)."""
        return rows.mean((-3, -1) if self.joint else -1, keepdim=True)

    def gain(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The rows y r and the factors w r, with r = 1 / sqrt(mean square + eps); (..., h, n, k) each."""
        lengths = (self.mean(rows.square()) + self.eps).rsqrt()
        return rows * lengths, self.weight[:, None, :] * lengths


def normalised(rows: Tensor, norm: Norm | None) -> Tensor:
    """Rows (..., h, n, k) after the `norm`; unchanged if it is None."""
    return rows if norm is None else norm.gain(rows)[1] * rows


class RowJacobian:
    r"""Jacobian of normalisation followed by rotation, applied row by row; its (k, k) matrices are never formed.

    .. math::
        R_i\, DN(y_i)\, \dot y_i, \qquad
        DN(y)\, \dot y = w r \circ \big(\dot y - \hat y\, (\hat y \cdot \dot y) / k\big),
        \quad r = (|y|^2 / k + \epsilon)^{-1/2}, \quad \hat y = r y

    with the rotation R of the position and the norm N of the head. Plain heads have None instead.

    Parameters
    ----------
    turn : tuple of Tensor (n, p), optional
        Cosines and sines, from `rotation`.
    norm : Norm, optional
        Norm of the rows.
    rows : Tensor, shape (..., h, n, k), optional
        The rows y, biases included; needed with a norm.

    Examples
    --------
    >>> import torch
    >>> quarter = torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [1.0]])  # position 1 rotates by 90 degrees
    >>> local = RowJacobian(quarter)
    >>> local.forward(torch.tensor([[1.0, 2.0], [1.0, 2.0]]))
    tensor([[ 1.,  2.],
            [-2.,  1.]])
    >>> local.transposed(local.forward(torch.eye(2)))
    tensor([[1., 0.],
            [0., 1.]])
    """

    def __init__(self, turn: Rotation | None = None, norm: Norm | None = None, rows: Tensor | None = None) -> None:
        self._turn, self._norm, self._at = turn, norm, None
        if norm is not None and rows is not None:
            self._at = norm.gain(rows)  # y^ and w r

    def _tangential(self, rows):
        """Rows minus their component along y^."""
        unit, _ = self._at
        return rows - unit * self._norm.mean(unit * rows)

    def value(self, rows: Tensor) -> Tensor:
        """The queries or keys, from the `rows` at which this Jacobian is taken."""
        return turned(rows if self._at is None else self._at[1] * rows, self._turn)

    def forward(self, rows: Tensor) -> Tensor:
        """Change of the queries or keys, (..., h, n, k), for a change of the projected rows, (..., h, n, k)."""
        return turned(rows if self._at is None else self._at[1] * self._tangential(rows), self._turn)

    def transposed(self, rows: Tensor) -> Tensor:
        """Transpose of `forward`."""
        if self._turn is not None:
            cos, sin = self._turn
            rows = turned(rows, (cos, -sin))
        return rows if self._at is None else self._tangential(self._at[1] * rows)

    def matrices(self, matrix: Tensor) -> Tensor:
        """Jacobians of queries or keys in their tokens, (..., h, n or 1, k, d), from projections (h, k, d)."""
        some = self._at or self._turn
        if some is None:
            return matrix[:, None]
        batch = 0 if self._at is None else self._at[0].ndim - 3
        columns = matrix.movedim(-1, 0)[(slice(None), *[None] * batch)][..., None, :]  # (d, 1.., h, 1, k)
        return self.forward(columns.expand(*columns.shape[:-2], some[0].shape[-2], -1)).movedim(0, -1)

    def _with(self, turn, at):
        new = RowJacobian(turn, self._norm)
        new._at = at
        return new

    def at(self, rows: slice | Tensor) -> "RowJacobian":
        """The Jacobian restricted to the tokens at these positions; positions may repeat."""
        turn, at = (pair and (pair[0][..., rows, :], pair[1][..., rows, :]) for pair in (self._turn, self._at))
        return self._with(turn, at)

    def to(self, dtype: torch.dtype) -> "RowJacobian":
        """The Jacobian with all its numbers rounded to `dtype`."""
        turn, at = (pair and (pair[0].to(dtype), pair[1].to(dtype)) for pair in (self._turn, self._at))
        return self._with(turn, at)

    @property
    def gain(self) -> Tensor | float:
        """The largest factor w r of each row, (..., h, n), which bounds the norm of the Jacobian; 1 without a norm."""
        return 1.0 if self._at is None else self._at[1].abs().amax(-1)

    def restrict(self, index: Tensor) -> "RowJacobian":
        """The Jacobian restricted to the sequences `index` of a batch (b, h, n, k)."""
        return self._with(self._turn, self._at and (self._at[0][index], self._at[1][index]))
