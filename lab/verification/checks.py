"""The upper bounds that are checked: what is measured against each, and what an ascent against it maximises."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from lab.verification import goals
from lab.verification.ascent import weighted_dense
from lab.zoo.truth import blocks, largest_token
from lipnb import bounds
from lipnb.bounds.terms import Pieces
from lipnb.certified import certify
from lipnb.jacobian import AttentionJacobian

__all__ = ["CHECKS", "NOT_CHECKED", "Check", "jacobian_norm"]

# exported by `lipnb.bounds` under the name of an upper bound, and no row here
NOT_CHECKED = {
    "printed_l2_upper": "the exponent that is refuted: false where query norms exceed one",
    "norm_layer_upper": "of one token and no attention: its own test",
}


ROUNDING = 1e-13  # of the measured number where the bound says "up to rounding", in units of `_sizes`


class Check(NamedTuple):
    """One upper bound, held against what it bounds.

    Attributes
    ----------
    name : str
        The bound, as the package calls it.
    family : str
        Which problems it is for, see `lab.verification.draw`.
    bound : callable
        Of a `Problem`: the bound at each input, shape (b,).
    measured : callable
        Of a `Problem`: what must not exceed it, shape (b,); NaN where the statement says nothing of an input.
    goal : callable
        Of a `Problem`: a function of tokens (b, n, d) and weights that an ascent maximises, shape (b,).
    masked : tuple of bool
        For which masks.
    of : str
        The function of the package that is held, where it is not `name`.
    slow : bool
        Whether it takes so long that a quarter of the inputs must do.
    """

    name: str
    family: str
    bound: Callable
    measured: Callable
    goal: Callable
    masked: tuple = (False, True)
    of: str = ""
    slow: bool = False

    @property
    def function(self):
        """The function of the package that is held."""
        return self.of or self.name


def jacobian_norm(problem):
    """Largest singular value of the dense Jacobian, in the norm of the weights where there are any: exact, float64."""
    return torch.linalg.svdvals(weighted_dense(problem.attention, problem.x, problem.weights))[..., 0]


def _on_its_ball(of_one):
    """A bound on a ball, for each input on the smallest ball around 0 that holds it."""

    def bound(problem):
        return torch.tensor([of_one(problem, R) for R in problem.radii.tolist()], dtype=torch.float64)

    return bound


def _one_map(problem):
    return problem.A[0], problem.V[0]


def _general(problem, R):
    return bounds.general_upper(*_one_map(problem), problem.x.shape[-2], R)


def _general_sharp(problem, R):
    return bounds.general_upper_sharp(*_one_map(problem), problem.x.shape[-2], R)


def _general_optimal(problem, R):
    return bounds.general_upper_optimal(*_one_map(problem), problem.x.shape[-2], R)


def _ball(problem, R):
    return math.exp(min(bounds.ball_upper(problem.attention, problem.x.shape[-2], R, log=True), 700))


def _biased(problem, R):
    f = problem.attention
    return bounds.biased_upper(*_one_map(problem), problem.x.shape[-2], R, f.scale * f.query_bias[0] @ f.key[0])


def _mean_field(problem, R):
    return bounds.mean_field_upper(*_one_map(problem), R)


def _mean_field_sharp(problem, R):
    return bounds.mean_field_upper_sharp(*_one_map(problem), R)


def _masked_mean_field(problem, R):
    return bounds.masked_mean_field_upper(*_one_map(problem), R, p=2)


def _masked_mean_field_sharp(problem, R):
    return bounds.masked_mean_field_upper_sharp(*_one_map(problem), R)


def _column(problem):
    return bounds.column_upper(*_one_map(problem), problem.x, masked=problem.attention.masked)


def _spread(problem):
    return bounds.spread_upper(*_one_map(problem), problem.x)


def _yudin(problem):
    return bounds.yudin_upper(problem.attention, problem.x)


def _yudin_sharp(problem):
    return bounds.yudin_upper_sharp(problem.attention, problem.x)


def _max_token(problem, R):
    return bounds.max_token_upper(problem.attention, R)


def _max_token_terms(problem):
    sizes = ROUNDING * _sizes(problem)
    return torch.stack([bounds.max_token_terms(problem.attention, x) for x in problem.x]) + sizes


def largest_token_norm(problem):
    """Norm of the Jacobian for the largest token, a lower bound that is nearly it."""
    return torch.tensor([largest_token(blocks(problem.attention, x)) for x in problem.x], dtype=torch.float64)


def _certified(problem):
    n, d = problem.x.shape[-2:]
    columns = (d, None)[n % 2]  # a few directions exactly, or for these sizes all
    return certify(problem.attention, problem.x, weights=problem.weights, columns=columns).upper


def _closed_form(problem):
    return certify(problem.attention, problem.x, weights=problem.weights, columns=0).upper


def _three_terms(problem):
    weights = [None] * len(problem.x) if problem.weights is None else problem.weights
    return torch.stack(
        [sum(bounds.three_terms(Pieces(problem.attention, x, a))) for x, a in zip(problem.x, weights, strict=True)]
    ) + ROUNDING * _sizes(problem)


def _sizes(problem):
    """What the Jacobian is made of, without any cancellation: the unit of its rounding, shape (b,)."""
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


def _layer_on_ball(problem):
    """The smallest of the bounds that it gives, so that all are held."""
    norms, f = bounds.head_norms(problem.attention), problem.attention
    return torch.tensor(
        [
            math.exp(min(min(bounds.heads_on_ball(norms, problem.x.shape[-2], R, f.masked).values()), 700))
            for R in problem.radii.tolist()
        ],
        dtype=torch.float64,
    )


def _layer_at_input(problem):
    norms = bounds.head_norms(problem.attention)
    return torch.tensor(
        [math.exp(min(min(bounds.heads_at_input(problem.attention, norms, x).values()), 700)) for x in problem.x],
        dtype=torch.float64,
    )


def _rotary(problem, R):
    return bounds.rotary_upper(problem.attention, problem.x.shape[-2], R)


def _rotary_terms(problem):
    return torch.tensor([bounds.rotary_terms(problem.attention, x) for x in problem.x], dtype=torch.float64)


def _l2(problem, p=2):
    f = problem.attention
    bound = bounds.l2_upper(f.query, problem.unfolded, f.output, problem.x.shape[-2], p)
    return torch.full_like(problem.radii, bound)


def _l2_maximum(problem):
    return _l2(problem, math.inf)


def _l2_sharp(problem):
    f = problem.attention
    bound = bounds.l2_upper_sharp(f.query, problem.unfolded, f.output, problem.x.shape[-2], f.masked)
    return torch.full_like(problem.radii, bound)


def _maximum_norm(problem):
    return AttentionJacobian(problem.attention, problem.x).infinity_norm()


def _step(problem):
    """How far the tokens of each input are moved: from a thousandth of their size to all of it, shape (b,)."""
    share = torch.linspace(-3, 0, len(problem.x), dtype=torch.float64)
    return problem.radii.clamp_min(1e-3) * 10**share


def _change(problem):
    """The change of the output along the singular vector over the length of the move."""
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


def _limit(problem):
    """The limit where there is one, NaN where a token's largest score is attained twice."""
    limits = []
    for x in problem.x:
        try:
            limits.append(bounds.large_radius_limit(problem.attention, x).item())
        except ValueError:
            limits.append(float("nan"))
    return torch.tensor(limits, dtype=torch.float64)


def _limit_bound(problem):
    return (torch.linalg.matrix_norm(problem.V[0], 2) * problem.x.shape[-2] ** 0.5).expand(len(problem.x))


CHECKS = (
    Check("general_upper", "head", _on_its_ball(_general), jacobian_norm, goals.norm),
    Check("general_upper_sharp", "head", _on_its_ball(_general_sharp), jacobian_norm, goals.norm),
    Check("general_upper_optimal", "head", _on_its_ball(_general_optimal), jacobian_norm, goals.norm),
    Check("column_upper", "head", _column, jacobian_norm, goals.over(goals.column_form)),
    Check("spread_upper", "head", _spread, jacobian_norm, goals.over(goals.spread_form)),
    Check("yudin_upper", "head", _yudin, jacobian_norm, goals.over(goals.yudin_form)),
    Check("yudin_upper_sharp", "head", _yudin_sharp, jacobian_norm, goals.over(goals.yudin_form)),
    Check("biased_upper", "bias", _on_its_ball(_biased), jacobian_norm, goals.norm),
    Check("multi_head_upper", "heads", _multi_head, jacobian_norm, goals.over(goals.heads_form)),
    Check("mean_field_upper", "measure", _on_its_ball(_mean_field), jacobian_norm, goals.norm, (False,)),
    Check("mean_field_upper_sharp", "measure", _on_its_ball(_mean_field_sharp), jacobian_norm, goals.norm, (False,)),
    Check("masked_mean_field_upper", "measure", _on_its_ball(_masked_mean_field), jacobian_norm, goals.norm, (True,)),
    Check(
        "masked_mean_field_upper_sharp",
        "measure",
        _on_its_ball(_masked_mean_field_sharp),
        jacobian_norm,
        goals.norm,
        (True,),
    ),
    Check("large_radius_upper", "choice", _limit_bound, _limit, goals.followers, of="large_radius_limit"),
    Check("certify", "full", _certified, jacobian_norm, goals.over(goals.yudin_form), slow=True),
    Check(
        "certify_no_column", "full", _closed_form, jacobian_norm, goals.over(goals.yudin_form), of="certify", slow=True
    ),
    Check("three_terms", "full", _three_terms, jacobian_norm, goals.over(goals.yudin_form), slow=True),
    Check("nearby_upper", "heads", _nearby, _change, goals.over(goals.small_form), slow=True),
    Check("heads_on_ball", "layer", _layer_on_ball, jacobian_norm, goals.norm, slow=True),
    Check("ball_upper", "layer", _on_its_ball(_ball), jacobian_norm, goals.norm, slow=True),
    Check("max_token_upper", "layer", _on_its_ball(_max_token), largest_token_norm, goals.norm, slow=True),
    Check("max_token_terms", "layer", _max_token_terms, largest_token_norm, goals.over(goals.small_form), slow=True),
    Check("heads_at_input", "layer", _layer_at_input, jacobian_norm, goals.over(goals.yudin_form), slow=True),
    Check("rotary_upper", "rotary", _on_its_ball(_rotary), jacobian_norm, goals.norm, slow=True),
    Check("rotary_terms", "rotary", _rotary_terms, jacobian_norm, goals.over(goals.small_form), slow=True),
    Check("l2_upper", "l2", _l2, jacobian_norm, goals.norm, slow=True),
    Check("l2_upper_maximum", "l2", _l2_maximum, _maximum_norm, goals.norm, of="l2_upper", slow=True),
    Check("l2_upper_sharp", "l2", _l2_sharp, jacobian_norm, goals.norm, slow=True),
)
