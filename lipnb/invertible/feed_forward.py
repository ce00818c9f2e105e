"""A feed-forward layer that never expands distances, normalised by torch and then by what that leaves."""

import torch
from torch.nn.utils.parametrizations import spectral_norm

__all__ = ["ContractiveFeedForward"]

SLOPES = {"relu": 1.0, "tanh": 1.0, "elu": 1.0}  # Lipschitz constants of the activations


class ContractiveFeedForward(torch.nn.Module):
    r"""Two spectrally normalised layers on each token, each matrix divided by what is left of its norm.

    .. math:: f(x) = \frac{W_2}{\|W_2\|_2}\, \sigma\Big(\frac{W_1}{\|W_1\|_2}\, x + b_1\Big) + b_2

    `torch.nn.utils.parametrizations.spectral_norm` divides a matrix by an estimate from power iteration. This never
    exceeds the norm, so that what it leaves has a norm of 1 or *more*: no guarantee. Here the exact norms of what it
    leaves are computed in every forward pass and divided out, differentiably. So the map does not depend on how far
    the power iteration has come.

    Parameters
    ----------
    width, hidden : int
        Width d of the tokens, and of the layer between.
    activation : {"relu", "tanh", "elu"}
        All of Lipschitz constant 1.
    seed : int
        Of the first weights.
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
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.first = spectral_norm(torch.nn.Linear(width, hidden, dtype=dtype))
            self.second = spectral_norm(torch.nn.Linear(hidden, width, dtype=dtype))

    @property
    def dtype(self):
        """Floating point type of the weights."""
        return self.first.bias.dtype

    def _normalised(self):
        """Both matrices as spectral_norm leaves them (in training mode each reading moves its estimate), and norms."""
        first, second = self.first.weight, self.second.weight
        norms = torch.stack([torch.linalg.matrix_norm(matrix, 2) for matrix in (first, second)])
        return first, second, norms * (1 + 16 * max(first.shape) * torch.finfo(self.dtype).eps)

    def left_by_power_iteration(self):
        """Product of the exact norms of what spectral_norm leaves, no dimensions: its guarantee would need 1."""
        return self._normalised()[2].prod()

    def lipschitz_upper(self, n=None):
        """Bound on the constant in the Euclidean norm, whatever the number of tokens: always 1."""
        return 1.0

    def forward(self, x):
        """Output tokens, shape (..., d), of tokens `x`, shape (..., d)."""
        if x.shape[-1] != self.width or x.dtype != self.dtype:
            raise ValueError(f"x must have shape (..., n, d) with d = {self.width} and be {self.dtype}, got "
                             f"{tuple(x.shape)}, {x.dtype}.")
        first, second, norms = self._normalised()
        hidden = getattr(torch.nn.functional, self.activation)(x @ (first / norms[0]).mT + self.first.bias)
        return hidden @ (second / norms[1]).mT + self.second.bias

    def extra_repr(self):
        """What stands between the brackets."""
        return f"width {self.width}, activation={self.activation!r}"
