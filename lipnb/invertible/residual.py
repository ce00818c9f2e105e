"""Residual maps x + c f(x), and their inverses by fixed-point iteration, with a bound on what is left."""

import math
from typing import NamedTuple

import torch

__all__ = ["Inverse", "Residual", "distance", "predicted_iterations"]

ROUNDING = 4  # epsilons of the norm of z: what one evaluation of the iteration is taken to err by


class Inverse(NamedTuple):
    """What came of inverting a map, for each sequence of a batch.

    Attributes
    ----------
    x : Tensor, shape (..., n, d)
        Tokens that the map takes to the given ones, up to the error. Gradients flow through the exact inverse.
    iterations : Tensor of int, shape of the batch
        Evaluations of f.
    error_bound : Tensor, shape of the batch
        Upper bound on the distance from the exact inverse in the p-norm of the layer, with 4 epsilons for the rounding
        of one evaluation; infinite where the layer guarantees nothing.
    converged : Tensor of bool, shape of the batch
        Whether `error_bound` met the tolerance. Never where the layer guarantees nothing.
    residual : Tensor, shape of the batch
        How far the map takes `x` from the given tokens, over their norm: measured, no guarantee about `x`.
    """

    x: torch.Tensor
    iterations: torch.Tensor
    error_bound: torch.Tensor
    converged: torch.Tensor
    residual: torch.Tensor


def predicted_iterations(rate: float, rtol: float) -> int:
    r"""Iterations after which a contraction has shrunk its first error by a factor: :math:`\log(tol) / \log(rate)`.

    Parameters
    ----------
    rate : float
        Lipschitz constant of the iteration, c for a contractive layer, 0 < rate < 1.
    rtol : float
        The factor, 0 < rtol < 1.

    Returns
    -------
    int
        The smallest k with rate^k <= rtol. The first error is that of z_0 = y, c times the norm of f(x).

    Raises
    ------
    ValueError
        "rate and rtol must lie strictly between 0 and 1".

    Examples
    --------
    >>> predicted_iterations(0.9, 1e-10)
    219
    """
    if not (0 < rate < 1 and 0 < rtol < 1):
        raise ValueError(f"rate and rtol must lie strictly between 0 and 1, got {rate!r} and {rtol!r}.")
    return math.ceil(math.log(rtol) / math.log(rate) - 1e-9)


class Residual(torch.nn.Module):
    r"""The map :math:`g(X) = X + c f(X)`, invertible if :math:`c\, \mathrm{Lip}(f) < 1`.

    Parameters
    ----------
    layer : torch.nn.Module
        f: from tokens (..., n, d) to the same shape, with `lipschitz_upper(n)` and the norm `p` of that bound.
    c : float
        Factor, 0 < c < 1.

    Raises
    ------
    ValueError
        "c must lie strictly between 0 and 1".

    Examples
    --------
    >>> from lipnb.invertible import ContractiveAttention
    >>> layer = Residual(ContractiveAttention(4, heads=2, dtype=torch.float64), c=0.5)
    >>> x = torch.eye(4, dtype=torch.float64)
    >>> back = layer.inverse(layer(x).detach())
    >>> bool(back.converged), torch.allclose(back.x, x, atol=1e-8)
    (True, True)
    """

    def __init__(self, layer, c=0.9):
        super().__init__()
        if not 0 < c < 1:
            raise ValueError(
                f"c must lie strictly between 0 and 1, got {c!r}: x + c f(x) need not be invertible otherwise."
            )
        self.layer, self.c, self.p = layer, float(c), layer.p

    def forward(self, x):
        """Tokens x + c f(x), shape (..., n, d)."""
        return x + self.c * self.layer(x)

    def rate(self, n):
        """Bound on the constant of c f on n tokens; infinite for a layer without guarantee."""
        return self.c * self.layer.lipschitz_upper(n)

    def inverse(self, y, *, rtol=None, max_steps=None, start=None, trace=None):
        r"""Invert by :math:`z_{k+1} = y - c f(z_k)`, from :math:`z_0 = y`.

        With the rate :math:`\rho = c\,\mathrm{Lip}(f) < 1`, in the norm p of the layer,

        .. math:: \|z_k - g^{-1}(y)\| \le \rho^k\, \|y - g^{-1}(y)\|, \qquad
                  \|z_k - g^{-1}(y)\| \le \tfrac{\rho}{1 - \rho}\, \|z_k - z_{k-1}\| .

        Parameters
        ----------
        y : Tensor, shape (..., n, d)
            Tokens; leading dimensions are a batch.
        rtol : float, optional
            Tolerance on the second bound, relative to the norm of z_k; default 1e-10, or what the precision allows.
        max_steps : int, optional
            Default: as many as the bounds need, at the rate :math:`\rho` or, without a guarantee, at c.
        start : Tensor, shape of `y`, optional
            z_0.
        trace : callable, optional
            Called with each z_k, for figures.

        Returns
        -------
        Inverse

        Raises
        ------
        ValueError
            "y must have shape ...", "y holds NaN ...", "rtol must lie ...", "the rate is ...".

        Notes
        -----
        kim2021lipschitz, invertible attention. A layer without guarantee (`DotProductAttention`) is iterated all the
        same, and never reported as converged.
        """
        rate = self._usable_rate(y)
        rtol = _tolerance(y, rtol, rate)
        if max_steps is None:
            max_steps = predicted_iterations(rate, rtol * (1 - rate) / 4) + 10
        with torch.no_grad():
            z, count, bound = self._iterate(y, y if start is None else start.to(y), rate, rtol, max_steps, trace)
            if not self.rate(y.shape[-2]) < 1:
                bound = torch.full_like(bound, math.inf)
            converged = bound <= rtol * _norm(z, self.p)
            residual = distance(self(z), y, self.p)
        if torch.is_grad_enabled() and (y.requires_grad or any(p.requires_grad for p in self.parameters())):
            z = self._attached(y, z, max_steps)
        return Inverse(z, count, bound, converged, residual)

    def _usable_rate(self, y):
        """The rate to iterate with, c where the layer guarantees nothing; one sentence for what cannot be inverted."""
        if not isinstance(y, torch.Tensor) or not y.is_floating_point() or y.ndim < 2 or not y.numel():
            raise ValueError("y must be a floating point tensor of shape (..., n, d) with at least one token.")
        if y.shape[-1] != self.layer.width or y.dtype != self.layer.dtype:
            raise ValueError(
                f"y must have shape (..., n, d) with d = {self.layer.width} and be {self.layer.dtype}, "
                f"got {tuple(y.shape)}, {y.dtype}."
            )
        if not torch.isfinite(y).all():
            raise ValueError("y holds NaN or infinite values: remove them first.")
        rate = self.rate(y.shape[-2])
        if 1 <= rate < math.inf:
            raise ValueError(
                f"the rate is {rate:.3g}, not below 1: the layer allows a constant of "
                f"{rate / self.c:.3g}; take a smaller c."
            )
        return rate if rate < 1 else self.c

    def _iterate(self, y, z, rate, rtol, max_steps, trace):
        """Iterate until the bound meets the tolerance: z, iterations and bounds, as if `rate` were sure."""
        count = torch.zeros(y.shape[:-2], dtype=torch.int64, device=y.device)
        bound = torch.full_like(_norm(y, self.p), math.inf)
        going = torch.ones_like(count, dtype=torch.bool)
        rounding = ROUNDING * torch.finfo(y.dtype).eps
        for _ in range(max_steps):
            new = y - self.c * self.layer(z)
            step = _norm(new - z, self.p)
            going = going & torch.isfinite(step)  # without a guarantee z may run away
            z = torch.where(going[..., None, None], new, z)
            count += going
            now = (rate * step + rounding * _norm(z, self.p)) / (1 - rate)
            bound = torch.where(going, now, bound)
            going = going & (bound > rtol * _norm(z, self.p))
            if trace is not None:
                trace(z)
            if not going.any():
                break
        return z, count, bound

    def _attached(self, y, z, steps):
        r"""`z` with the gradient of the exact inverse: :math:`(I + c J^\top)^{-1}`, by a fixed point as well."""
        point = z.detach().requires_grad_()
        image = self.layer(point)

        def solve(gradient):
            w = gradient
            for _ in range(steps):
                (pulled,) = torch.autograd.grad(image, point, w, retain_graph=True)
                new, w = gradient - self.c * pulled, w
                done = (new - w).abs().max() <= torch.finfo(w.dtype).eps * w.abs().max()
                w = new
                if done:
                    break
            return w

        x = y - self.c * self.layer(z.detach())  # the graph to y and to the weights
        x = x + (z - x).detach()  # the value that was certified
        if x.requires_grad:
            x.register_hook(solve)
        return x


def _norm(x, p):
    """Norm of all coordinates of each sequence."""
    return torch.linalg.vector_norm(x, p, dim=(-2, -1))


def distance(a, b, p):
    """Distance of two batches of sequences over the norm of the second."""
    return _norm(a - b, p) / _norm(b, p).clamp_min(torch.finfo(b.dtype).tiny)


def _tolerance(y, rtol, rate):
    """The tolerance, by default 1e-10 where that can be met; one sentence for one that cannot."""
    least = 2 * ROUNDING * torch.finfo(y.dtype).eps / (1 - rate)
    if rtol is None:
        return max(1e-10, 2 * least)
    if not least <= rtol < 1:
        raise ValueError(
            f"rtol must lie between {least:.1e} (what {y.dtype} resolves at the rate {rate:.3g}) and 1, got {rtol}."
        )
    return rtol
