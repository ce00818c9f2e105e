"""Random starts, and gradient ascent: one loop, with a goal and a move, behind every search for rough inputs."""

from collections.abc import Callable

import torch

from lipnb.attention import Attention
from lipnb.attention.heads import check_attention
from lipnb.checks import radius

__all__ = ["adam", "ascend", "climb", "gaussian"]


def gaussian(seed: int | torch.Generator) -> Callable[..., torch.Tensor]:
    """A function that draws tensors of independent standard normal numbers, float64, successively from one seed.

    Parameters
    ----------
    seed : int or torch.Generator
        Seed, or a generator, which continues from its state and may be used for other draws in between.

    Returns
    -------
    callable
        Function of the sizes of a tensor. The global random state is not used.

    Examples
    --------
    >>> normal = gaussian(0)
    >>> normal(2, 3).shape, normal(4).shape
    (torch.Size([2, 3]), torch.Size([4]))
    """
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")

    return normal


@torch.enable_grad()
def ascend(
    goal: Callable[..., torch.Tensor], start: tuple[torch.Tensor, ...], move: Callable, *, steps: int, log: bool = False
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Gradient ascent from `start`: the best points visited, for each item of the batch separately.

    Parameters
    ----------
    goal : callable
        Differentiable function of the tensors of a point, with values of shape (b,), to be maximised.
    start : tuple of Tensor, shapes (b, ...)
        First point; b may be any batch shape.
    move : callable
        ``move(step, point, slopes)`` returns the next point, a tuple, from the gradients at this one; `step` counts
        from 0. Constraints (a ball, a sphere) are left to it.
    steps : int
        Number of moves; the goal is evaluated once more.
    log : bool
        Whether to use gradients of the logarithm of the goal.

    Returns
    -------
    tuple of Tensor, shapes (b, ...)
        The best point seen; better ones may exist.
    Tensor, shape (b,)
        The goal at this point, never less than at the start. An item whose goal is NaN at the start stays there.

    Examples
    --------
    >>> import torch
    >>> (x,), value = ascend(lambda x: x.cos(), (torch.ones(1),), lambda step, x, slopes: (x[0] + slopes[0],), steps=9)
    >>> round(value.item(), 6)
    1.0
    """
    now = best = tuple(part.detach() for part in start)
    most = None
    for step in range(steps + 1):
        now = tuple(part.detach().requires_grad_() for part in now)
        value = goal(*now)
        seen = value.detach()
        most = seen if most is None else most
        better = seen > most
        best = tuple(
            torch.where(better[(..., *[None] * (new.ndim - better.ndim))], new.detach(), old)
            for old, new in zip(best, now, strict=True)
        )
        most = torch.where(better, seen, most)
        if step < steps:
            slopes = torch.autograd.grad((value.log() if log else value).sum(), now)
            with torch.no_grad():
                now = move(step, tuple(part.detach() for part in now), slopes)
    return best, most


def adam(rate: float, *, falling: int | None = None, inside: Callable | None = None) -> Callable:
    """A move for `ascend`: steps of Adam on points of one tensor.

    Parameters
    ----------
    rate : float
        Size of a step.
    falling : int, optional
        Number of steps over which the rate decays to zero, like a cosine; default: a constant rate.
    inside : callable, optional
        Projection of a point onto the feasible set.

    Examples
    --------
    >>> x, value = ascend(lambda x: -x.square(), (torch.ones(1),), adam(0.1), steps=10)
    >>> round(value.item(), 3)
    -0.006
    """
    held = optimizer = schedule = None

    def move(step, point, slopes):
        nonlocal held, optimizer, schedule
        if optimizer is None:
            held = point[0].clone().requires_grad_()
            optimizer = torch.optim.Adam([held], lr=rate, maximize=True)
            schedule = falling and torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, falling)
        held.data, held.grad = point[0].clone(), slopes[0]
        optimizer.step()
        if schedule:
            schedule.step()
        return (held.detach() if inside is None else inside(held.detach()),)

    return move


def unit_slope(slope: torch.Tensor, dim: int | tuple[int, ...]) -> torch.Tensor:
    """A gradient divided by its length over the dimensions `dim`; a zero gradient stays zero.

    Examples
    --------
    >>> unit_slope(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), 1)
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    size = torch.linalg.vector_norm(slope, dim=dim, keepdim=True)
    return slope / torch.where(size > 0, size, 1)


def climb(
    attention: Attention, x: torch.Tensor, R: float, *, steps: int = 150, rate: float = 0.1
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Tokens in a ball with larger local constants, by gradient ascent from given tokens.

    Adam on :math:`\log \|D_X f\|_2` of the dense Jacobian; after each step, tokens outside the ball are projected to
    its sphere.

    Parameters
    ----------
    attention : Attention
        A small map, since the dense Jacobian is differentiated.
    x : Tensor, shape (..., n, d)
        Starting points, float64; leading dimensions are a batch.
    R : float
        Radius of the ball, positive.
    steps : int
        Steps of Adam.
    rate : float
        Size of a step, in units of R.

    Returns
    -------
    Tensor, shape (..., n, d), and Tensor, shape of the batch
        The best tokens seen, and their local Lipschitz constants: lower bounds on the constant of the ball, each at
        least the constant of its start. Rougher inputs may exist.

    Raises
    ------
    ValueError
        As `Attention.check_input`, and if R is not positive.

    Examples
    --------
    >>> eye = torch.eye(2).double()
    >>> start = climb(Attention.from_matrices(eye, eye), eye, 1.0, steps=0)[1]
    >>> best = climb(Attention.from_matrices(eye, eye), eye, 1.0, steps=20)[1]
    >>> bool(best > start)
    True
    """
    check_attention(attention, "climb")
    attention.check_input(x)
    if not radius(R) > 0:
        raise ValueError(f"R must be positive, got {R!r}.")
    jacobian = torch.func.vmap(torch.func.jacrev(attention))

    def projected(tokens):
        return tokens / (tokens.norm(dim=-1, keepdim=True) / R).clamp_min(1)

    def norm(tokens):
        return torch.linalg.matrix_norm(jacobian(tokens).flatten(3).flatten(1, 2), 2)

    start = projected(x.detach().reshape(-1, *x.shape[-2:]))
    (best,), largest = ascend(norm, (start,), adam(rate * R, inside=projected), steps=steps, log=True)
    return best.reshape(x.shape), largest.reshape(x.shape[:-2])
