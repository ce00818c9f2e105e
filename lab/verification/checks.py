"""The upper bounds that are checked: the quantity measured against each, and the goal of an ascent against it."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from lab.bounds_survey.catalogue import reached_limit
from lab.bounds_survey.truth import jacobian, largest_token
from lab.verification import goals
from lab.verification.ascent import weighted_dense
from lipnb import bounds
from lipnb.bounds.catalogue import CATALOGUE
from lipnb.certified import certify
from lipnb.jacobian import AttentionJacobian

# of `lipnb.bounds`, under the name of an upper bound, but without a row here
NOT_CHECKED = {
    "printed_l2_upper": "the exponent that is refuted: false where query norms exceed one",
    "softmax_norm": "the norm itself, of one row of probabilities: its own test",
    "norm_layer_upper": "of one token and no attention: its own test",
}


ROUNDING = 1e-13  # of the measured number if the bound says "up to rounding", in units of `_sizes`


class Check(NamedTuple):
    """One upper bound, compared with the quantity it bounds.

    `name`: name of the bound in the package; different if it shares its function with another, or for a limit.
    `function`: the function of the package under test.
    `family`: problems to draw for it, see `lab.verification.draw`.
    `bound`: function of a `Problem`: the bound at each input, shape (b,).
    `measured`: function of a `Problem`: the value to bound, shape (b,); NaN for inputs that the statement excludes.
    `goal`: function of a `Problem`: a function of tokens (b, n, d) and weights that an ascent maximises, shape (b,).
    `slow`: whether it is so slow that only a quarter of the inputs is used.
    """

    name: str
    function: str
    family: str
    bound: Callable
    measured: Callable
    goal: Callable
    masked: tuple
    slow: bool


def jacobian_norm(problem):
    """Largest singular value of the dense Jacobian, in the norm of the weights if there are any: exact, float64."""
    return torch.linalg.svdvals(weighted_dense(problem.attention, problem.x, problem.weights))[..., 0]


def _each(of_case):
    """Values of a function of a case at each input of a problem."""
    return lambda problem: torch.tensor([float(of_case(case)) for case in problem.cases()], dtype=torch.float64)


def _up_to_rounding(of_case):
    """A bound that holds up to rounding, with the rounding added."""
    return lambda problem: _each(of_case)(problem) + ROUNDING * _sizes(problem)


def _certified(problem):
    n, d = problem.x.shape[-2:]
    columns = (d, None)[n % 2]  # a few directions exactly, or, for these sizes, all
    return certify(problem.attention, problem.x, weights=problem.weights, columns=columns).upper


def _closed_form(problem):
    return certify(problem.attention, problem.x, weights=problem.weights, columns=0).upper


def _sizes(problem):
    """Sizes of the terms of the Jacobian, without any cancellation: the unit of its rounding, shape (b,)."""
    A, V = (torch.linalg.matrix_norm(matrices, 2) for matrices in (problem.A, problem.V))
    bias = problem.attention.query_bias
    reach = (
        0
        if bias is None
        else torch.linalg.vector_norm(
            problem.attention.scale * torch.einsum("hkd,hk->hd", problem.attention.key, bias), dim=-1
        )
    )
    R = problem.radii[:, None]
    return (V * (1 + A * R**2 + reach * R)).sum(-1) * problem.x.shape[-2]


def _maximum_norm(problem):
    return AttentionJacobian(problem.attention, problem.x).infinity_norm()


def _step(problem):
    """Distances to move the tokens of each input: from a thousandth of their size to all of it, shape (b,)."""
    share = torch.linspace(-3, 0, len(problem.x), dtype=torch.float64)
    return problem.radii.clamp_min(1e-3) * 10**share


def _change(problem):
    """Change of the output along the singular vector, over the length of the move."""
    vectors = torch.linalg.svd(weighted_dense(problem.attention, problem.x)).Vh[:, 0].view_as(problem.x)
    moves = _step(problem)[:, None, None] * vectors
    apart = problem.attention(problem.x + moves) - problem.attention(problem.x)
    return torch.linalg.vector_norm(apart.flatten(1), dim=-1) / _step(problem)


def _nearby(problem):
    return torch.stack(
        [
            bounds.nearby_upper(problem.attention, x, radius[None]).best[0] / radius
            for x, radius in zip(problem.x, _step(problem), strict=True)
        ]
    ) + ROUNDING * _sizes(problem) / _step(problem) * problem.radii.clamp_min(1e-3)


def _multi_head(problem):
    measured = torch.stack([jacobian_norm(head) for head in goals.heads(problem)], dim=-1)
    return torch.tensor(
        [bounds.multi_head_upper(problem.attention.output, each) for each in measured], dtype=torch.float64
    )


BOUNDS = {bound.key: bound for bound in CATALOGUE}


def _check(key, family, goal, *, name="", bound=None, measured=jacobian_norm, slow=False):
    """The check of a bound in the catalogue: evaluated directly, or by a function of problems if it needs more."""
    if key not in BOUNDS:
        raise ValueError(f"no Bound in CATALOGUE of lipnb/bounds/catalogue.py has the key {key!r}.")
    of = BOUNDS[key]
    return Check(name or of.name, of.name, family, bound or _each(of.evaluate), measured, goal, of.masks, slow)


at_input, largest = goals.over(goals.yudin_form), _each(lambda case: largest_token(jacobian(case)))
CHECKS = (
    *(_check(key, "head", goals.norm) for key in ("general", "general_sharp", "general_optimal", "general_exact")),
    _check("column", "head", goals.over(goals.column_form)),
    _check("spread", "head", goals.over(goals.spread_form)),
    *(_check(key, "head", at_input) for key in ("yudin", "yudin_sharp")),
    _check("biased", "bias", goals.norm),
    _check("multi_head", "heads", goals.over(goals.heads_form), bound=_multi_head),
    *(_check(key, "measure", goals.norm) for key in ("mean_field", "mean_field_sharp", "mean_field_exact")),
    *(_check(key, "measure", goals.norm) for key in ("masked_mean_field", "masked_mean_field_sharp")),
    _check("masked_mean_field_exact", "measure", goals.norm),
    _check("large_radius", "choice", goals.followers, name="large_radius_upper", measured=_each(reached_limit)),
    _check("certify", "full", at_input, bound=_certified, slow=True),
    _check("certify", "full", at_input, name="certify_no_column", bound=_closed_form, slow=True),
    _check("three_terms", "full", at_input, bound=_up_to_rounding(BOUNDS["three_terms"].evaluate), slow=True),
    _check("nearby", "heads", goals.over(goals.small_form), bound=_nearby, measured=_change, slow=True),
    *(_check(key, "layer", goals.norm, slow=True) for key in ("heads_on_ball", "ball_upper")),
    _check("max_token", "layer", goals.norm, measured=largest, slow=True),
    _check("max_token_terms", "layer", goals.over(goals.small_form), measured=largest, slow=True,
           bound=_up_to_rounding(BOUNDS["max_token_terms"].evaluate)),
    _check("heads_at_input", "layer", at_input, slow=True),
    _check("rotary", "rotary", goals.norm, slow=True),
    _check("rotary_terms", "rotary", goals.over(goals.small_form), slow=True),
    _check("l2", "l2", goals.norm, slow=True),
    _check("l2_maximum", "l2", goals.norm, name="l2_upper_maximum", measured=_maximum_norm, slow=True),
    _check("l2_sharp", "l2", goals.norm, slow=True),
)  # fmt: skip
