"""Contractive layers and their inverses: x + c f(x) with Lip(f) <= 1 and c < 1 is inverted by a fixed point.

kim2021lipschitz, invertible attention. Every layer here computes a bound on its Lipschitz constant from its present
weights, so that training cannot break the guarantee.
"""

import math
from contextlib import nullcontext
from typing import NamedTuple

import torch

from lipnb import bounds
from lipnb.attention import Attention

BOUNDS = ("theorem", "sharp")


class _Heads(torch.nn.Module):
    """Query, value and output matrices of heads that keep the width, drawn from a seed."""

    def __init__(self, width, heads, masked, seed, dtype, names):
        super().__init__()
        if min(width, heads) < 1 or width % heads:
            raise ValueError(f"width must be a positive multiple of heads, got width {width} and {heads} heads.")
        self.width, self.heads, self.masked = width, heads, bool(masked)
        generator, k = torch.Generator().manual_seed(seed), width // heads
        for name in names:
            shape = (heads, width, k) if name == "output" else (heads, k, width)
            matrix = torch.randn(*shape, generator=generator, dtype=torch.float64) / math.sqrt(width)
            setattr(self, name, torch.nn.Parameter(matrix.to(dtype or torch.get_default_dtype())))

    @property
    def dtype(self):
        """Floating point type of the weights."""
        return self.query.dtype

    def forward(self, x):
        """Output tokens, shape (..., n, d), of tokens `x`, shape (..., n, d)."""
        return self.attention(x.shape[-2] if getattr(x, "ndim", 0) > 1 else 1)(x)  # `attention` checks x


class ContractiveAttention(_Heads):
    r"""L2 attention divided by the bound on its Lipschitz constant: for all weights it does not expand distances.

    .. math:: f(X) = \frac{F(X)}{L_p(n)}, \qquad \mathrm{Lip}_p(F) \le L_p(n) \text{ on } n \text{ tokens},

    with :math:`L_p` of `lipnb.bounds.l2_upper`, or `l2_upper_sharp`. All norms in it are recomputed in each forward
    pass, exactly and differentiably: the guarantee holds at every step of training, and gradients include the division.

    kim2021lipschitz, Thm 3.2 with the corrected exponent, and invertible attention.

    `width`: width d of the tokens.
    `heads`: number of heads h, each of width d / h.
    `p` (2, math.inf): norm of all coordinates of a sequence in which the layer is a contraction.
    `bound` ("theorem", "sharp"): the bound of kim2021lipschitz, or the tighter one of page 52, which is Euclidean.
    `masked`: whether token i sees only tokens j <= i.
    `seed`: of the initial weights, normal with variance 1 / d.
    `dtype`: float32 or float64.
    """

    def __init__(self, width, heads=1, *, p=2, bound="theorem", masked=False, seed=0, dtype=None):
        if p not in (2, math.inf):
            raise ValueError(f"p must be 2 or math.inf, got {p!r}.")
        if bound not in BOUNDS or (bound == "sharp" and p != 2):
            raise ValueError(f"bound must be one of {BOUNDS}, and 'sharp' goes with p = 2 only, got {bound!r}.")
        super().__init__(width, heads, masked, seed, dtype, ("query", "value", "output"))
        self.p, self.bound = p, bound

    def divisor(self, n):
        r"""The bound :math:`L_p(n)` at the present weights.

        Differentiable, with a margin for its rounding.
        """
        query, value, output = self.query, self.value, self.output
        joined, k = output.movedim(0, 1).flatten(1), query.shape[1]
        margin = 1 + 16 * self.width * torch.finfo(self.dtype).eps  # for the rounding of the norms in this precision
        if self.p == 2:
            growth = bounds.l2_growth_sharp(n, self.masked) if self.bound == "sharp" else bounds.l2_growth(n)
            heads = _spectral(query).square() * _spectral(value)
            upper = growth / math.sqrt(k) * torch.linalg.vector_norm(heads) * _spectral(joined)
        else:
            growth = 4 * bounds.phi_inverse(n - 1) + 1 / math.sqrt(k)
            heads = (_row_sum(query) * _row_sum(query.mT)).amax()
            upper = growth * heads * _row_sum(value).amax() * _row_sum(joined)
        return (margin * upper).clamp_min(torch.finfo(self.dtype).tiny)  # if all weights are 0, the map is 0

    def lipschitz_upper(self, n):
        """Bound on the constant in the p-norm for n tokens: always 1."""
        return 1.0

    def attention(self, n):
        """This layer on n tokens as an `Attention`, the division folded into its values; gradients reach the weights.

        Returns `Attention`, for `lipnb.local_lipschitz`.
        """
        return Attention.l2(self.query, self.value / self.divisor(n), self.output, masked=self.masked)

    def extra_repr(self):
        """Text between the brackets of repr."""
        return f"width {self.width}, {self.heads} heads, p={self.p}, bound={self.bound!r}, masked={self.masked}"


class DotProductAttention(_Heads):
    """Dot-product attention with weights drawn in the same way, for comparison: it has no Lipschitz constant.

    kim2021lipschitz, Thm 3.1.

    `width`, `heads`, `masked`, `seed`, `dtype`: as for `ContractiveAttention`.
    """

    p = 2

    def __init__(self, width, heads=1, *, masked=False, seed=0, dtype=None):
        super().__init__(width, heads, masked, seed, dtype, ("query", "value", "output", "key"))

    def lipschitz_upper(self, n):
        """Infinite, because no bound exists."""
        return math.inf

    def attention(self, n):
        """This layer as an `Attention`, the same for any number of tokens."""
        return Attention(self.query, self.key, self.value, self.output, masked=self.masked)


def _spectral(matrix):
    """Largest singular value of each matrix."""
    return torch.linalg.matrix_norm(matrix, 2)


def _row_sum(matrix):
    """Largest absolute row sum of each matrix."""
    return matrix.abs().sum(-1).amax(-1)


SLOPES = {"relu": 1.0, "tanh": 1.0, "elu": 1.0}  # Lipschitz constants of the activations


def largest_singular_value(matrix: torch.Tensor) -> torch.Tensor:
    r"""Largest singular value, exact up to rounding, with its gradient :math:`u v^\top`.

    Computed from the eigenvectors of the Gram matrix of the short side: less than half the time of a singular value
    decomposition and its gradient at 256 x 64.

    `matrix` (..., r, c): matrices. Returns (...): at most the exact value up to the rounding of the last product,
    because it is the norm of the image of a unit vector.
    """
    if matrix.shape[-2] > matrix.shape[-1]:
        matrix = matrix.mT
    with torch.no_grad():
        gram = matrix @ matrix.mT
        left = _squared(gram) if gram.device.type == "cuda" else torch.linalg.eigh(gram).eigenvectors[..., -1:]
    return torch.linalg.vector_norm(matrix.mT @ left, dim=(-2, -1))


SQUARINGS = 16  # relative error after these is at most 2^-18, a fiftieth of the margin that callers take


def _squared(gram):
    """Top eigenvectors (..., r, 1) of Gram matrices (..., r, r), or vectors with the same gain up to 2^-18.

    The matrix is squared until its columns are multiples of the vector. A GPU decomposes small matrices one by one, and
    the host waits for each.
    """
    for i in range(SQUARINGS):
        if i % 3 == 0:  # before a power of 8, which float32 can represent
            size = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
            gram = gram / size.clamp_min(torch.finfo(gram.dtype).tiny)
        gram = gram @ gram
    longest = gram.diagonal(dim1=-2, dim2=-1).argmax(-1)[..., None, None]
    column = gram.take_along_dim(longest, -1)
    return column / torch.linalg.vector_norm(column, dim=-2, keepdim=True).clamp_min(torch.finfo(gram.dtype).tiny)


class ContractiveFeedForward(torch.nn.Module):
    r"""Two linear maps on each token, each matrix divided by its norm.

    .. math:: f(x) = \frac{W_2}{\|W_2\|_2}\, \sigma\Big(\frac{W_1}{\|W_1\|_2}\, x + b_1\Big) + b_2

    `torch.nn.utils.parametrizations.spectral_norm` divides a matrix by an estimate from power iteration. This never
    exceeds the norm, so the quotient has a norm of 1 or *more*: no guarantee. Here the exact norms are computed in
    every forward pass and divided out, differentiably, with a margin for their rounding.

    `width`, `hidden`: width d of the tokens, and of the layer between. `activation` ("relu", "tanh", "elu"): each has
    Lipschitz constant 1. `seed`: of the initial weights, drawn without touching the global random state; None draws
    from that state. `dtype`: float32 or float64.
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

        Returns `first` (hidden, d); `second` (d, hidden): differentiable; of norm at most 1, and within a margin for
        rounding of 1, unless they are 0.
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
        """Text between the brackets of repr."""
        return f"width {self.width}, activation={self.activation!r}"


ROUNDING = 4  # epsilons of the norm of z: the assumed error of one evaluation of the iteration


class Inverse(NamedTuple):
    """Result of inverting a map, for each sequence of a batch.

    `x` (..., n, d): tokens that the map takes to the given ones, up to the error. Gradients flow through the exact
      inverse.
    `iterations` of the batch: evaluations of f.
    `error_bound` of the batch: upper bound on the distance from the exact inverse in the p-norm of the layer, with 4
    epsilons for the rounding of one evaluation; infinite if the layer guarantees nothing.
    `converged` of the batch: whether `error_bound` met the tolerance. Never true if the layer guarantees nothing.
    `residual` of the batch: distance of the image of `x` from the given tokens, over their norm: measured, without a
    guarantee about `x`.
    """

    x: torch.Tensor
    iterations: torch.Tensor
    error_bound: torch.Tensor
    converged: torch.Tensor
    residual: torch.Tensor


def predicted_iterations(rate: float, rtol: float) -> int:
    r"""Iterations after which a contraction has reduced its first error by a factor: :math:`\log(tol) / \log(rate)`.

    `rate`: Lipschitz constant of the iteration, c for a contractive layer, 0 < rate < 1. `rtol`: the factor, 0 < rtol <
    1. Returns the smallest k with rate^k <= rtol. The first error is that of z_0 = y, c times the norm of f(x).
    """
    if not (0 < rate < 1 and 0 < rtol < 1):
        raise ValueError(f"rate and rtol must lie strictly between 0 and 1, got {rate!r} and {rtol!r}.")
    return math.ceil(math.log(rtol) / math.log(rate) - 1e-9)


class Residual(torch.nn.Module):
    r"""The map :math:`g(X) = X + c f(X)`, invertible if :math:`c\, \mathrm{Lip}(f) < 1`.

    `layer`: f: from tokens (..., n, d) to the same shape, with `lipschitz_upper(n)` and the norm `p` of that bound.
    `c`: factor, 0 < c < 1.
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

        kim2021lipschitz, invertible attention. A layer without guarantee (`DotProductAttention`) is iterated as well,
        but never reported as converged.

        `y` (..., n, d): tokens; leading dimensions are a batch. `rtol`: tolerance on the second bound, relative to the
        norm of z_k; default 1e-10, or what the precision allows. `max_steps`: default: as many as the bounds need, at
        the rate :math:`\rho` or, without a guarantee, at c. `start`: z_0, as `y`. `trace`: called with each z_k, for
        figures.
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
        """Rate to iterate with, c if the layer guarantees nothing; ValueError for inputs that cannot be inverted."""
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
        """Iterate until the bound meets the tolerance: z, iterations and bounds, as if `rate` were guaranteed."""
        count = torch.zeros(y.shape[:-2], dtype=torch.int64, device=y.device)
        bound = torch.full_like(_norm(y, self.p), math.inf)
        going = torch.ones_like(count, dtype=torch.bool)
        rounding = ROUNDING * torch.finfo(y.dtype).eps
        for _ in range(max_steps):
            new = y - self.c * self.layer(z)
            step = _norm(new - z, self.p)
            going = going & torch.isfinite(step)  # without a guarantee z may diverge
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

        x = y - self.c * self.layer(z.detach())  # graph to y and to the weights
        x = x + (z - x).detach()  # the certified value
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
    """The tolerance, by default 1e-10 if that can be met; raises ValueError for one that cannot."""
    least = 2 * ROUNDING * torch.finfo(y.dtype).eps / (1 - rate)
    if rtol is None:
        return max(1e-10, 2 * least)
    if not least <= rtol < 1:
        raise ValueError(
            f"rtol must lie between {least:.1e} (what {y.dtype} resolves at the rate {rate:.3g}) and 1, got {rtol}."
        )
    return rtol


class InvertibleStack(torch.nn.Sequential):
    """Residual maps one after the other, inverted from the last to the first."""

    def inverse(self, y, **options):
        """As `Residual.inverse`; the bounds of the layers add up, each stretched by those before it.

        `y` (..., n, d): tokens. `**options`: `rtol` and `max_steps`, for each layer. Returns `Inverse`: `error_bound`
        in the norm p that all layers share; `iterations` of all layers together.
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
