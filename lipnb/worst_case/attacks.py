"""Attacks on the input of a layer: small changes of the tokens with a large effect on the output."""

from typing import Any, NamedTuple

import torch

from lipnb.jacobian import singular_pair
from lipnb.spectral.answer import table_of
from lipnb.worst_case.ascent import ascend, unit_slope

__all__ = ["Singular", "change", "length", "parting", "push", "random_directions", "singular"]


class Singular(NamedTuple):
    """Local constant, and the direction of the tokens that attains it to first order.

    Attributes
    ----------
    value : float
        Local constant, a lower bound within the tolerance of the solver.
    upper : float
        Upper bound on it, with probability 1 - 1e-6.
    direction : Tensor, shape (n, d)
        Top right singular vector of the Jacobian, of length 1.
    """

    value: float
    upper: float
    direction: torch.Tensor

    @property
    def table(self) -> Any:
        """The numbers as a pandas table with one row."""
        return table_of(self)


def length(moves, weights=None):
    r"""Length :math:`(\sum_i a_i |\delta_i|^2)^{1/2}` of moves of tokens; Euclidean without weights.

    Parameters
    ----------
    moves : Tensor, shape (..., n, d)
        Move of each token.
    weights : Tensor, shape (n,), optional
        Weights a of the tokens.

    Returns
    -------
    Tensor, shape of the batch
    """
    return torch.linalg.vector_norm(moves if weights is None else weights.sqrt()[:, None] * moves, dim=(-2, -1))


@torch.no_grad()
def change(f, x, moves, weights=None):
    r"""Change of the output, :math:`\|f(X + \Delta) - f(X)\|_F`, or its `length` with weights.

    Parameters
    ----------
    f : Attention or callable
        Map of tokens; with weights, an Attention.
    x : Tensor, shape (n, d)
        Tokens.
    moves : Tensor, shape (..., n, d)
        Changes of the tokens.
    weights : Tensor, shape (n,), optional
        Token weights, in the map and in the norm.

    Returns
    -------
    Tensor, shape of the batch
    """
    apply = _mapped(f, weights)
    return length(apply(x + moves) - apply(x), weights)


def singular(attention, x, *, rtol=1e-4, seed=0):
    """Local constant of attention and first-order worst direction: `lipnb.singular_pair` of one input, as floats.

    Parameters
    ----------
    attention : Attention
        Any heads, biases and mask.
    x : Tensor, shape (n, d)
        Tokens of one sequence.
    rtol : float
        Relative tolerance on the value.
    seed : int
        Seed of the start vector.

    Returns
    -------
    Singular
    """
    pair = singular_pair(attention, x, rtol=rtol, seed=seed)
    return Singular(pair.value.item(), pair.upper.item(), pair.input)


def random_directions(x, count, *, seed=0):
    """Random moves of length 1, uniform on the sphere, shape (count, n, d)."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(count, *x.shape, generator=generator, dtype=torch.float64, device="cpu")
    vectors = (vectors / vectors.norm()).to(x)
    return vectors / length(vectors)[:, None, None]


@torch.no_grad()
def parting(x, blocks):
    r"""Split one token into two copies of half its weight: the token and direction of largest first-order effect.

    The weights are 1 for whole tokens and 1/2 for the copies, so that a common move of the two copies is a move of the
    token, and copies that move by :math:`\pm u`, u of length 1, give moves of `length` 1.

    Parameters
    ----------
    x : Tensor, shape (n, d)
        Tokens of one sequence.
    blocks : Tensor, shape (n, m, d)
        Derivatives in the queries, from `lipnb.measures.splitting.query_blocks`.

    Returns
    -------
    copied : Tensor, shape (n + 1, d)
        The tokens, with the second copy at the end.
    weights : Tensor, shape (n + 1,)
        Token weights, of total n.
    moves : Tensor, shape (n + 1, d)
        Moves of `length` 1; zero except for the two copies.
    """
    _, values, vectors = torch.linalg.svd(blocks, full_matrices=False)
    token = int(values[:, 0].argmax())
    weights, moves = x.new_ones(len(x) + 1), x.new_zeros(len(x) + 1, x.shape[1])
    weights[[token, -1]] = 0.5
    moves[token], moves[-1] = vectors[token, 0], -vectors[token, 0]
    return torch.cat([x, x[token : token + 1]]), weights, moves


def push(f, x, starts, radii, *, steps=20, size=None, weights=None, movable=None):
    r"""Gradient ascent on the change of the output over a ball of moves; returns the best move seen.

    .. math:: \Delta \leftarrow \mathrm{proj}_\epsilon\Big(\Delta + \eta\, \epsilon\, \frac{g}{\|g\|}\Big), \qquad
        g = \nabla \|f(X + \Delta) - f(X)\|^2 ,

    with :math:`\eta` decreasing linearly from `size`; or :math:`\Delta \leftarrow \epsilon\, g / \|g\|`, fully aligned
    with the gradient, which at the smallest radii is a step of power iteration.

    Parameters
    ----------
    f : Attention or callable
        As for `change`.
    x : Tensor, shape (n, d)
        Tokens.
    starts : Tensor, shape (..., n, d)
        First moves, nonzero; rescaled to the radius.
    radii : Tensor, broadcastable to the batch
        Radii of the balls, positive.
    steps : int
        Number of gradient steps.
    size : float, optional
        First step, in radii. Default: fully aligned steps.
    weights : Tensor, shape (n,), optional
        As for `change`; gradient and projection are those of the weighted `length`.
    movable : Tensor of bool, shape (n,), optional
        Tokens that may move; default all.

    Returns
    -------
    moves : Tensor, shape (..., n, d)
        Never longer than the radius, up to rounding.
    changes : Tensor, shape (...)
        Changes of the output for these moves, never less than at the starts: lower bounds on the largest change in
        the ball.

    Raises
    ------
    ValueError
        If a start moves no movable token, or a radius is not positive.
    """
    radii = torch.as_tensor(radii, dtype=x.dtype, device=x.device).expand(starts.shape[:-2])[..., None, None]
    if not (radii > 0).all():
        raise ValueError("radii must be positive.")
    apply = _mapped(f, weights)
    root = 1 if weights is None else weights.sqrt()[:, None]  # below, coordinates in which lengths are Euclidean
    free = 1 if movable is None else movable[:, None].to(x)
    now = (root * free * starts).detach()
    if not (length(now) > 0).all():
        raise ValueError("starts must move at least one movable token.")
    there = apply(x)

    def squares(now):
        return (root * (apply(x + now / root) - there)).square().sum((-2, -1))

    def move(step, point, slopes):
        uphill = radii * unit_slope(free * slopes[0], (-2, -1))
        if size is None:
            return (torch.where(length(uphill)[..., None, None] > 0, uphill, point[0]),)
        now = point[0] + size * (1 - step / steps) * uphill
        return (now / (length(now)[..., None, None] / radii).clamp_min(1),)

    (best,), most = ascend(squares, (radii * unit_slope(now, (-2, -1)),), move, steps=steps)
    return best / root, most.sqrt()


def _mapped(f, weights):
    return f if weights is None else lambda x: f(x, weights)
