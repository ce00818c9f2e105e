"""Attention layers with trainable weights: L2 heads divided by their bound, and dot products that have none."""

import math

import torch

from lipnb import bounds
from lipnb.attention import Attention

__all__ = ["ContractiveAttention", "DotProductAttention"]

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
        return self.attention(x.shape[-2] if getattr(x, "ndim", 0) > 1 else 1)(x)  # which checks x


class ContractiveAttention(_Heads):
    r"""L2 attention divided by the bound on its Lipschitz constant: no weights make it expand distances.

    .. math:: f(X) = \frac{F(X)}{L_p(n)}, \qquad \mathrm{Lip}_p(F) \le L_p(n) \text{ on } n \text{ tokens},

    with :math:`L_p` of `lipnb.bounds.l2_upper`, or `l2_upper_sharp`. All norms in it are computed anew in each forward
    pass, exactly and differentiably: the guarantee holds at every step of training, and gradients see the division.

    Parameters
    ----------
    width : int
        Width d of the tokens.
    heads : int
        Number of heads h, each of width d / h.
    p : {2, math.inf}
        Norm of all coordinates of a sequence in which the layer is a contraction.
    bound : {"theorem", "sharp"}
        The bound of kim2021lipschitz, or the sharper one of page 62, which is Euclidean.
    masked : bool
        Whether token i sees only tokens j <= i.
    seed : int
        Of the first weights, normal with variance 1 / d.
    dtype : torch.dtype, optional
        float32 or float64.

    Raises
    ------
    ValueError
        "width must be a positive multiple of heads", "p must be ...", "bound must be ...".

    Notes
    -----
    kim2021lipschitz, Thm 3.2 with the corrected exponent, and invertible attention.
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

        Parameters
        ----------
        n : int
            Number of tokens.

        Returns
        -------
        Tensor, no dimensions
            Differentiable, with a margin for its rounding.
        """
        query, value, output = self.query, self.value, self.output
        joined, k = output.movedim(0, 1).flatten(1), query.shape[1]
        margin = 1 + 16 * self.width * torch.finfo(self.dtype).eps  # of the norms, computed in this precision
        if self.p == 2:
            growth = bounds.l2_growth_sharp(n, self.masked) if self.bound == "sharp" else bounds.l2_growth(n)
            heads = _spectral(query).square() * _spectral(value)
            upper = growth / math.sqrt(k) * torch.linalg.vector_norm(heads) * _spectral(joined)
        else:
            growth = 4 * bounds.phi_inverse(n - 1) + 1 / math.sqrt(k)
            heads = (_row_sum(query) * _row_sum(query.mT)).amax()
            upper = growth * heads * _row_sum(value).amax() * _row_sum(joined)
        return (margin * upper).clamp_min(torch.finfo(self.dtype).tiny)  # all weights 0: the map is 0

    def lipschitz_upper(self, n):
        """Bound on the constant in the p-norm for n tokens: always 1."""
        return 1.0

    def attention(self, n):
        """This layer on n tokens as an `Attention`, the division folded into its values; gradients reach the weights.

        Parameters
        ----------
        n : int
            Number of tokens.

        Returns
        -------
        Attention
            What `lipnb.local_lipschitz` measures.
        """
        return Attention.l2(self.query, self.value / self.divisor(n), self.output, masked=self.masked)

    def extra_repr(self):
        """What stands between the brackets."""
        return f"width {self.width}, {self.heads} heads, p={self.p}, bound={self.bound!r}, masked={self.masked}"


class DotProductAttention(_Heads):
    """Dot-product attention with weights drawn in the same way: for comparison, it has no Lipschitz constant.

    Parameters
    ----------
    width, heads, masked, seed, dtype
        As for `ContractiveAttention`.

    Raises
    ------
    ValueError
        "width must be a positive multiple of heads".

    Notes
    -----
    kim2021lipschitz, Thm 3.1.
    """

    p = 2

    def __init__(self, width, heads=1, *, masked=False, seed=0, dtype=None):
        super().__init__(width, heads, masked, seed, dtype, ("query", "value", "output", "key"))

    def lipschitz_upper(self, n):
        """Infinite: there is no such bound."""
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
