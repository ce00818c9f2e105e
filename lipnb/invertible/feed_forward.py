"""A feed-forward layer that never expands distances: both matrices divided by their exact norms."""

from contextlib import nullcontext

import torch

__all__ = ["ContractiveFeedForward", "largest_singular_value"]

SLOPES = {"relu": 1.0, "tanh": 1.0, "elu": 1.0}  # Lipschitz constants of the activations


def largest_singular_value(matrix: torch.Tensor) -> torch.Tensor:
    r"""Largest singular value, exact up to rounding, with its gradient :math:`u v^\top`.

    From the eigenvectors of the Gram matrix of the short side: less than half the time of a singular value
    decomposition and its gradient at 256 x 64.

    Parameters
    ----------
    matrix : Tensor, shape (..., r, c)
        Matrices.

    Returns
    -------
    Tensor, shape (...)
        At most the exact value up to the rounding of the last product: it is the size of what a unit vector becomes.

    Examples
    --------
    >>> round(largest_singular_value(torch.diag(torch.tensor([3.0, 4.0]))).item(), 5)
    4.0
    """
    if matrix.shape[-2] > matrix.shape[-1]:
        matrix = matrix.mT
    with torch.no_grad():
        left = torch.linalg.eigh(matrix @ matrix.mT).eigenvectors[..., -1:]
    return torch.linalg.vector_norm(matrix.mT @ left, dim=(-2, -1))


class ContractiveFeedForward(torch.nn.Module):
    r"""Two linear maps on each token, each matrix divided by its norm.

    .. math:: f(x) = \frac{W_2}{\|W_2\|_2}\, \sigma\Big(\frac{W_1}{\|W_1\|_2}\, x + b_1\Big) + b_2

    `torch.nn.utils.parametrizations.spectral_norm` divides a matrix by an estimate from power iteration. This never
    exceeds the norm, so that what it leaves has a norm of 1 or *more*: no guarantee. Here the exact norms are computed
    in every forward pass and divided out, differentiably, with a margin for their rounding.

    Parameters
    ----------
    width, hidden : int
        Width d of the tokens, and of the layer between.
    activation : {"relu", "tanh", "elu"}
        All of Lipschitz constant 1.
    seed : int, optional
        Of the first weights, drawn without touching the global random state; None draws from that state.
    dtype : torch.dtype, optional
        float32 or float64.

    Raises
    ------
    ValueError
        "activation must be one of ...".
    """

    p = 2

    def __init__(self, width, hidden, *, activation="relu", seed=0, dtype=None):
        if activation not in SLOPES:
            raise ValueError(f"activation must be one of {tuple(SLOPES)}, got {activation!r}.")
        super().__init__()
        self.width, self.activation = width, activation
        with nullcontext() if seed is None else torch.random.fork_rng(devices=[]):
            if seed is not None:
                torch.default_generator.manual_seed(seed)
            self.first = torch.nn.Linear(width, hidden, dtype=dtype)
            self.second = torch.nn.Linear(hidden, width, dtype=dtype)

    @property
    def dtype(self):
        """Floating point type of the weights."""
        return self.first.bias.dtype

    def matrices(self):
        r"""Both matrices divided by their norms.

        Returns
        -------
        first : Tensor, shape (hidden, d)
        second : Tensor, shape (d, hidden)
            Differentiable; of norm at most 1, and within a margin for rounding of it, unless they are 0.
        """
        weights = self.first.weight, self.second.weight
        norms = largest_singular_value(torch.stack([weights[0], weights[1].mT]))
        margin = 1 + 16 * max(weights[0].shape) * torch.finfo(self.dtype).eps
        first, second = (norms * margin).clamp_min(torch.finfo(self.dtype).tiny)
        return weights[0] / first, weights[1] / second

    def lipschitz_upper(self, n=None):
        """Bound on the constant in the Euclidean norm, whatever the number of tokens: always 1."""
        return 1.0

    def forward(self, x):
        """Output tokens, shape (..., d), of tokens `x`, shape (..., d)."""
        if x.shape[-1] != self.width or x.dtype != self.dtype:
            raise ValueError(
                f"x must have shape (..., n, d) with d = {self.width} and be {self.dtype}, got "
                f"{tuple(x.shape)}, {x.dtype}."
            )
        first, second = self.matrices()
        hidden = getattr(torch.nn.functional, self.activation)(x @ first.mT + self.first.bias)
        return hidden @ second.mT + self.second.bias

    def extra_repr(self):
        """What stands between the brackets."""
        return f"width {self.width}, activation={self.activation!r}"
