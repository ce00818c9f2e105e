"""Gradient ascent of measured over bound, for a batch of inputs of one map."""

import math

import torch

from lipnb.attention import Attention
from lipnb.jacobian import AttentionJacobian
from lipnb.worst_case import ascend
from lipnb.worst_case.ascent import unit_slope

STEPS = 40
FIRST, LAST = 0.3, 0.005  # lengths of the steps, relative to the radius


def weighted_dense(attention, x, weights=None):
    r"""Dense Jacobians, and with weights :math:`D_a^{1/2} J D_a^{-1/2}`, shape (b, n m, n d)."""
    if not isinstance(attention, Attention):
        return _by_autograd(attention, x)
    J = AttentionJacobian(attention, x, weights).dense()
    if weights is None:
        return J
    root, n = weights.sqrt(), x.shape[-2]
    J = J.unflatten(-1, (n, -1)).unflatten(-3, (n, -1))  # (b, i, m, j, d)
    return (root[:, :, None, None, None] * J / root[:, None, None, :, None]).flatten(-2).flatten(-3, -2)


@torch.enable_grad()
def _by_autograd(f, x):
    """Dense Jacobians of any map of tokens (b, n, d), shape (b, n m, n d)."""
    x = x.detach().requires_grad_()
    out = f(x)
    b, n, m = out.shape
    pick = torch.eye(n * m, dtype=x.dtype).view(n * m, 1, n, m).expand(-1, b, -1, -1)
    (rows,) = torch.autograd.grad(out, x, pick, is_grads_batched=True)
    return rows.flatten(2).movedim(0, 1)


class Norm:
    """The norm of the Jacobian as a differentiable function; keeps its singular vector from call to call.

    `x` (b, n, d): only its shape matters.
    """

    def __init__(self, attention, x):
        self.attention = attention
        g = torch.Generator().manual_seed(0)
        self.u = torch.randn(x.shape[0], x.shape[1] * x.shape[2], 1, generator=g, dtype=x.dtype)

    def __call__(self, x, weights=None):
        """A lower bound on the norms, shape (b,), whose gradient is theirs once the vector has converged."""
        with torch.no_grad():
            J = weighted_dense(self.attention, x.detach(), None if weights is None else weights.detach())
            for _ in range(3):
                self.u = torch.nn.functional.normalize(J.mT @ (J @ self.u), dim=1)
            w = torch.nn.functional.normalize(J @ self.u, dim=1)[..., 0]
        u, w = self.u.view_as(x), w.unflatten(-1, (x.shape[-2], -1))
        if weights is not None:
            root = weights.sqrt()[..., None]
            u, w = u / root, root * w
        out = self.attention(x) if weights is None else self.attention(x, weights)
        (pulled,) = torch.autograd.grad((w * out).sum(), x, create_graph=True)
        return (pulled * u).sum((-2, -1))


def worsened(problem, goal, *, keep=False):
    """The problem at inputs where `goal` is larger: steps along its gradient, tokens kept in their ball.

    `problem`: the starting point; the ball of each input is that of its longest token. `goal`: of tokens (b, n, d) and
    weights (b, n) or None; differentiable, shape (b,). `keep`: whether the longest token keeps its length. Otherwise an
    ascent may end at small tokens, where most bounds are attained. Returns `Problem`: at the best inputs visited.
    """
    radius = problem.radii[:, None, None]

    def move(step, point, slopes):
        x, *logits = point
        size = FIRST * (LAST / FIRST) ** (step / STEPS)
        slopes = [unit_slope(slope.nan_to_num(0.0, 0.0, 0.0), (*range(1, slope.ndim),)) for slope in slopes]
        x = x + size * radius * slopes[0]
        norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        if keep:
            norms = norms.amax(1, keepdim=True)
        x = x * (radius / norms.clamp_min(1e-300)).clamp_max(math.inf if keep else 1.0)
        return (x, *((one + 5 * size * slope).clamp_min(-40) for one, slope in zip(logits, slopes[1:], strict=True)))

    if problem.weights is None:
        return problem.at(ascend(lambda x: goal(x, None), (problem.x,), move, steps=STEPS)[0][0], None)
    start = problem.x, problem.weights.log()
    (x, logits), _ = ascend(lambda x, logits: goal(x, logits.softmax(-1)), start, move, steps=STEPS)
    return problem.at(x, logits.softmax(-1))
