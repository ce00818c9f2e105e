"""Residual maps one after the other, and the inverse of the whole."""

import math

import torch

from lipnb.invertible.residual import Inverse, distance

__all__ = ["InvertibleStack"]


class InvertibleStack(torch.nn.Sequential):
    """Residual maps one after the other, inverted from the last to the first."""

    def inverse(self, y, **options):
        """As `Residual.inverse`; the bounds of the layers add up, each stretched by those before it.

        Parameters
        ----------
        y : Tensor, shape (..., n, d)
            Tokens.
        **options
            `rtol` and `max_steps`, for each layer.

        Returns
        -------
        Inverse
            `error_bound` in the norm p that all layers share; `iterations` of all layers together.

        Raises
        ------
        ValueError
            As `Residual.inverse`; "all layers must share one norm p".
        """
        if len({layer.p for layer in self}) > 1:
            raise ValueError("all layers must share one norm p: a bound in one says nothing about another's.")
        x, count, bound, converged = y, 0, 0, True
        for layer in reversed(self):
            found = layer.inverse(x, **options)
            rate = layer.rate(y.shape[-2])
            stretched = bound / (1 - rate) if rate < 1 else math.inf
            x, count, converged = found.x, count + found.iterations, converged & found.converged
            bound = found.error_bound + stretched
        with torch.no_grad():
            residual = distance(self(x), y, self[0].p)
        return Inverse(x, count, bound, converged, residual)
