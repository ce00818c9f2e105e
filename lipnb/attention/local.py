"""What becomes of projected rows before queries meet keys: normalised, and turned by their places (RoPE)."""

import torch
from torch import Tensor

__all__ = ["Local", "normalised", "rotation", "turned"]

Rotation = tuple[Tensor, Tensor]  # cosines and sines, (n, p) each


def rotation(frequencies: Tensor | None, n: int, dtype: torch.dtype) -> Rotation | None:
    r"""Cosines and sines of the angles :math:`i \omega_c` of n places, (n, p) each; None without frequencies.

    They are computed in the type of the frequencies, as networks do, and then taken to `dtype`.
    """
    if frequencies is None:
        return None
    angles = torch.arange(n, dtype=frequencies.dtype, device=frequencies.device)[:, None] * frequencies
    return angles.cos().to(dtype), angles.sin().to(dtype)


def turned(rows: Tensor, turn: Rotation | None) -> Tensor:
    """Rows (..., n, k), each turned by its place in the planes of coordinates c and c + p, c < p; others stay."""
    if turn is None:
        return rows
    cos, sin = turn
    p = cos.shape[-1]
    first, second, rest = rows.split([p, p, rows.shape[-1] - 2 * p], -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


def _lengths(rows, eps):
    """One over the root of the mean square of each row (..., n, k), with `eps` added to it: (..., n, 1)."""
    return (rows.square().mean(-1, keepdim=True) + eps).rsqrt()


def normalised(rows: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    r"""Rows y (..., h, n, k) as :math:`w \circ y / \sqrt{|y|^2 / k + \epsilon}`, `weight` w (h, k), or as they are."""
    return rows if weight is None else weight[:, None, :] * rows * _lengths(rows, eps)


class Local:
    r"""Derivative of what becomes of each projected row, at one input: one small matrix a row, never formed.

    .. math::
        R_i\, DN(y_i)\, \dot y_i, \qquad
        DN(y)\, \dot y = w r \circ \big(\dot y - \hat y\, (\hat y \cdot \dot y) / k\big),
        \quad r = (|y|^2 / k + \epsilon)^{-1/2}, \quad \hat y = r y

    with the rotation R of its place and the norm N of its head; the identity for plain heads.

    Parameters
    ----------
    turn : tuple of Tensor (n, p), optional
        Cosines and sines, from `rotation`.
    rows : Tensor, shape (..., h, n, k), optional
        The rows y, biases included, where there is a norm.
    weight : Tensor, shape (h, k), optional
        The weights w of the norm; None for no norm.
    eps : float
        The number added to the mean square.

    Examples
    --------
    >>> import torch
    >>> quarter = torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [1.0]])  # the second place turns by 90 degrees
    >>> local = Local(quarter)
    >>> local.forward(torch.tensor([[1.0, 2.0], [1.0, 2.0]]))
    tensor([[ 1.,  2.],
            [-2.,  1.]])
    >>> local.transposed(local.forward(torch.eye(2)))
    tensor([[1., 0.],
            [0., 1.]])
    """

    def __init__(
        self, turn: Rotation | None = None, rows: Tensor | None = None, weight: Tensor | None = None, eps: float = 0.0
    ) -> None:
        self._turn, self._norm = turn, None  # the norm as y^ and w r, (..., h, n, k) each
        if rows is not None and weight is not None:
            lengths = _lengths(rows, eps)
            self._norm = rows * lengths, weight[:, None, :] * lengths

    def forward(self, rows: Tensor) -> Tensor:
        """Change of the queries or keys, (..., h, n, k), for a change of the projected rows, (..., h, n, k)."""
        if self._norm is not None:
            unit, gain = self._norm
            rows = gain * (rows - unit * (unit * rows).mean(-1, keepdim=True))
        return turned(rows, self._turn)

    def transposed(self, rows: Tensor) -> Tensor:
        """Transpose of `forward`."""
        if self._turn is not None:
            cos, sin = self._turn
            rows = turned(rows, (cos, -sin))
        if self._norm is None:
            return rows
        unit, gain = self._norm
        rows = gain * rows
        return rows - unit * (unit * rows).mean(-1, keepdim=True)

    def matrices(self, matrix: Tensor) -> Tensor:
        """Derivatives of queries or keys in their tokens, (..., h, n or 1, k, d), of matrices (h, k, d)."""
        if self._turn is None and self._norm is None:
            return matrix[:, None]
        (n, _), batch = (self._norm or self._turn)[0].shape[-2:], 0 if self._norm is None else self._norm[0].ndim - 3
        columns = matrix.movedim(-1, 0)[(slice(None), *[None] * batch)][..., None, :]  # (d, 1.., h, 1, k)
        return self.forward(columns.expand(*columns.shape[:-2], n, -1)).movedim(0, -1)

    def _each(self, of_turn, of_norm):
        new = Local()
        new._turn, new._norm = (
            pair and (change(pair[0]), change(pair[1]))
            for pair, change in ((self._turn, of_turn), (self._norm, of_norm))
        )
        return new

    def to(self, dtype: torch.dtype) -> "Local":
        """The same in another floating point type."""
        return self._each(lambda part: part.to(dtype), lambda part: part.to(dtype))

    def restrict(self, index: Tensor) -> "Local":
        """The same for the sequences `index` of a batch (b, h, n, k)."""
        return self._each(lambda part: part, lambda part: part[index])
