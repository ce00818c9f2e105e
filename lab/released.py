"""The quantity that the released experiments report, to compare with the local constant; it is not a bound."""

from operator import index
from typing import NamedTuple

import torch

from lipnb.attention import Attention
from lipnb.jacobian import AttentionJacobian
from lipnb.jacobian.autodiff import plain_kernels

__all__ = [
    "DropoutAttention",
    "Estimate",
    "estimate",
    "head_matrix",
    "pulled_back",
    "reported",
    "row_matrix",
    "with_keys_and_values",
]


class _Differentiated:
    """Products of a callable as in the released code, also for maps that draw new dropout at each run."""

    def __init__(self, f, x):
        self.f, self.x = f, x
        with plain_kernels():
            self._pullback = torch.func.vjp(f, x)[1]

    def jvp(self, u):
        with plain_kernels():
            return torch.func.jvp(self.f, (self.x,), (u,))[1]

    def vjp(self, w):
        return self._pullback(w)[0]


def _jacobian(f, x):
    return (AttentionJacobian if isinstance(f, Attention) else _Differentiated)(f, x)


def reported(f, x):
    r"""Number returned by the released estimator: :math:`\sqrt{\|J^\top f(x)\|_F}`, with J the Jacobian at x.

    One step of power iteration needs :math:`J^\top (J u)`. The released code uses the output :math:`f(x)` instead of
    the tangent :math:`J u`, so the direction u has no effect, and two steps agree. Since
    :math:`J^\top f = \nabla \tfrac12 \|f\|_F^2`, the number tells how fast the size of the output changes.

    Parameters
    ----------
    f : Attention or callable
        Map from shape (n, d) to shape (n, m); a callable is differentiated by autograd.
    x : Tensor, shape (..., n, d)
        Tokens.

    Returns
    -------
    Tensor, shape of the batch
        Neither a lower nor an upper bound on the local Lipschitz constant.

    Notes
    -----
    castin2024smooth, the released code at commit 60da456, in our words.
    """
    return torch.linalg.vector_norm(pulled_back(f, x), dim=(-2, -1)).sqrt()


def pulled_back(f, x):
    r"""The vector whose norm is reported, :math:`J^\top f(x)`, shape (..., n, d); arguments as for `reported`."""
    return _jacobian(f, x).vjp(f(x))


class Estimate(NamedTuple):
    """Result of the released loop.

    Attributes
    ----------
    value : float
        The square root of the last mu; nan if mu is negative, which can happen at the first step.
    steps : int
        Products with the transposed Jacobian.
    settled : bool
        Whether two mu in a row were within the threshold.
    """

    value: float
    steps: int
    settled: bool


@torch.no_grad()
def estimate(f, x, *, threshold=1e-4, most=100, seed=0, fed_back=False):
    r"""The released loop, step by step; or a variant that continues from the tangent, with the same stopping rule.

    From a random unit vector u: :math:`v = J^\top w`, :math:`\mu = \langle u, v \rangle`, :math:`u = v / \|v\|`, with
    :math:`w = f(x)` as released and :math:`w = J u` when fed back; until :math:`\mu` differs from the one before (0 at
    first) by at most `threshold`. The rule is absolute, and :math:`\mu` estimates a square.

    Parameters
    ----------
    f : Attention or callable
        Map from shape (n, d) to shape (n, m). A map that is random at each call, such as `DropoutAttention`, is
        linearised once for :math:`J^\top` and called again for w.
    x : Tensor, shape (n, d)
        One sequence of tokens.
    threshold : float
        1e-4 (adversarial tokens, BERT), 5e-4 (GPT-2) or 1e-3 (random GPT-2) as released.
    most : int
        Most steps after the first: 100, 500 or 1000 as released.
    seed : int
        Seed of the start vector.
    fed_back : bool
        Whether the tangent is fed back, as in power iteration.

    Returns
    -------
    Estimate
        As released: `reported`, unless the loop stops at its first step, when the value depends only on the start.
        Fed back: an approximate lower bound on the local constant.

    Raises
    ------
    ValueError
        `x` is not one sequence, or `threshold` is out of range.

    Notes
    -----
    castin2024smooth, the released code at commit 60da456, in our words; the fed-back loop is appendix E.1 with that
    rule.
    """
    if x.ndim != 2:
        raise ValueError(f"x must be one sequence, shape (n, d), got {tuple(x.shape)}.")
    if not threshold >= 0 or most < 0:
        raise ValueError(f"threshold must be at least 0 and most too, got {threshold!r} and {most!r}.")
    jacobian = _jacobian(f, x)
    u = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype).to(x.device)
    u, before, steps = u / u.norm(), 0.0, 0
    while True:
        v = jacobian.vjp(jacobian.jvp(u) if fed_back else f(x))
        mu = torch.sum(u * v).item()
        u, steps = v / v.norm(), steps + 1
        settled = abs(mu - before) <= threshold
        if not abs(mu - before) > threshold or steps > most:  # a nan ends the loop too
            return Estimate(mu**0.5 if mu >= 0 else float("nan"), steps, settled)
        before = mu


def head_matrix(attention, head):
    r"""The matrix :math:`A = s K^\top Q` of one head, with the scale s of its logits; biases are ignored.

    Parameters
    ----------
    attention : Attention
        Any attention.
    head : int
        Index of the head, from 0.

    Returns
    -------
    Tensor, shape (d, d)

    Raises
    ------
    ValueError
        The head does not exist.

    Notes
    -----
    castin2024smooth, Def. 2.1.
    """
    head = _head(attention, head)
    return attention.scale * attention.key[head].T @ attention.query[head]


def row_matrix(attention, head):
    r"""Matrix that the released code uses as A of a head of GPT-2: rows of the fused weights, where heads are columns.

    GPT-2 computes :math:`x W + b` with W of shape (in, out), and its heads are blocks of k columns. Blocks of k rows
    mix all heads: with :math:`W_Q, W_K` of shape (d, d) and S the k rows, :math:`A = s (W_K)_S^\top (W_Q)_S`, a matrix
    on outputs, not on tokens.

    Parameters
    ----------
    attention : Attention
        Its heads together are as wide as its tokens, h k = d.
    head : int
        Index of the block.

    Returns
    -------
    Tensor, shape (d, d)
        It does not belong to any head.

    Raises
    ------
    ValueError
        The head does not exist, or the heads together are not as wide as the tokens.
    """
    head = _head(attention, head)
    k = attention.key_width
    if attention.heads * k != attention.width:
        raise ValueError(
            f"rows and columns can only be mistaken for one another when h k = d, got "
            f"{attention.heads} heads of width {k} and tokens of width {attention.width}."
        )
    rows = slice(head * k, (head + 1) * k)
    query, key = (heads.flatten(0, 1)[:, rows] for heads in (attention.query, attention.key))  # (h k, k)
    return attention.scale * key @ query.T


def _head(attention, head):
    attention.check_plain("the matrix A of a head")
    if not 0 <= index(head) < attention.heads:
        raise ValueError(f"there is no head {head}: this attention has heads 0 to {attention.heads - 1}.")
    return head


def with_keys_and_values(attention):
    """Outputs of heads concatenated with their keys and values, as a BERT decoder's inner module returns them.

    Parameters
    ----------
    attention : Attention
        Usually without an output projection.

    Returns
    -------
    callable
        A map from tokens (..., n, d) to outputs, keys and values side by side, (..., n, m + h k + h v). Its transposed
        Jacobian at its own output is the result for the tuple of the three.
    """

    def f(x):
        _, key, value = attention.project(x)
        return torch.cat([attention(x), *(heads.movedim(-3, -2).flatten(-2) for heads in (key, value))], dim=-1)

    return f


class DropoutAttention:
    r"""Attention with active dropout: probabilities and outputs are set to 0 at random, the others scaled up.

    Parameters
    ----------
    attention : Attention
        The map without dropout.
    rate : float
        Share of entries that is dropped; 0.1 in GPT-2.
    seed : int
        Seed of the masks.
    fresh : bool
        Whether each call draws new masks, as a network in training mode does; otherwise all calls use the same.
    """

    def __init__(self, attention, *, rate=0.1, seed=0, fresh=False):
        if not 0 <= rate < 1:
            raise ValueError(f"rate must be at least 0 and below 1, got {rate!r}.")
        self.attention, self.rate, self.seed, self.fresh = attention, rate, seed, fresh

    def __call__(self, x):
        """Output tokens, shape (..., n, m), of tokens `x`, shape (..., n, d)."""
        generator = torch.Generator().manual_seed(self.seed)
        self.seed += self.fresh

        def kept(shape):
            mask = torch.rand(shape, generator=generator) >= self.rate
            return (mask / (1 - self.rate)).to(self.attention.dtype).to(self.attention.device)

        f = self.attention
        query, key, value = f.project(x)
        P = f.probabilities_of(query, key)
        out = f.combine((P * kept(P.shape)) @ value)
        out = out if f.output_bias is None else out + f.output_bias
        return out * kept(out.shape)
