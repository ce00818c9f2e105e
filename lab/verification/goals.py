"""Goals of an ascent against a bound: the norm, over a differentiable stand-in for the bound."""

import torch

from lab.bounds_survey.catalogue import heads_of
from lab.verification.ascent import Norm
from lab.verification.draws import Problem


def heads(problem):
    """Each head without its output matrix, and its problem."""
    return [Problem(head, problem.x) for head in heads_of(problem.attention)]


def norm(problem):
    """Goal on a fixed ball, where the bound is one number: the norm itself."""
    norm = Norm(problem.attention, problem.x)
    return lambda x, weights: norm(x, weights).log()


def over(denominator):
    """Goal: the norm over a differentiable stand-in for the bound."""

    def goal(problem):
        norm, below = Norm(problem.attention, problem.x), denominator(problem)
        return lambda x, weights: norm(x, weights).log() - below(x, weights).log()

    return goal


def column_form(problem):
    A = torch.linalg.matrix_norm(problem.A[0], 2)

    def below(x, weights):
        t = A * x.square().sum(-1).amax(-1)
        return t + problem.attention.probabilities(x)[:, 0].sum(-2).amax(-1).sqrt() * (1 + t)

    return below


def spread_form(problem):
    A, n = torch.linalg.matrix_norm(problem.A[0], 2), problem.x.shape[-2]

    def below(x, weights):
        r = (x - x.mean(-2, keepdim=True)).square().sum(-1).amax(-1)
        reach = (x @ problem.A[0].mT).square().sum(-1).amax(-1)
        return (A**2 * r**2 + n * (4 * reach * r + 1)).sqrt()

    return below


def yudin_form(problem):
    A, V = (torch.linalg.matrix_norm(matrices, 2) for matrices in (problem.A, problem.V))

    def below(x, weights):
        P = problem.attention.probabilities(x, weights)
        top = torch.nn.functional.pad(P, (0, 1)).topk(2, dim=-1).values
        g = (top[..., 0] * (1 - top[..., 0] + top[..., 1])).amax(-1)
        size = x.square().sum((-2, -1))[..., None]
        return (V * (torch.linalg.matrix_norm(P) + 2 * size * A * g)).sum(-1)

    return below


def heads_form(problem):
    norms = [Norm(head.attention, head.x) for head in heads(problem)]
    sizes = torch.linalg.matrix_norm(problem.attention.output, 2)
    return lambda x, weights: sum(size * norm(x) for size, norm in zip(sizes, norms, strict=True))


def followers(problem):
    """Goal: the attention that goes to one token, at logits where it still varies."""

    def goal(x, weights):
        size = torch.linalg.matrix_norm(problem.A[0], 2) * problem.radii.square()
        unit = x * (5 / size.clamp_min(1e-300)).sqrt()[:, None, None]
        return problem.attention.probabilities(unit)[:, 0].sum(-2).amax(-1)

    return goal


def small_form(problem):
    """Goal for small moves, where the bound grows with the Jacobian and the spread: as `column_form`, heads summed."""
    A, V = (torch.linalg.matrix_norm(matrices, 2) for matrices in (problem.A, problem.V))

    def below(x, weights):
        t = A * x.square().sum(-1).amax(-1, keepdim=True)
        return (V * (1 + t)).sum(-1)

    return below
