"""Bounds on the Lipschitz constant of attention, one module for each source; in the Euclidean norm unless said.

`castin`: all inputs in a ball. `one_input`: one input, from its spread and its attention. `nearby`: all inputs close to
one. `mean_field`: all measures in a ball, in W_2. `large_radius`: the limit of large tokens. `yudin`: one input, from
its attention matrix. `kim`: L2 attention on all inputs, in the maximum norm too. `terms`: one input, each term of the
Jacobian kept as a norm that can be computed; `lipnb.certify` is made of it, of a `rounded_linearization`. `rounding`
holds its errors and what makes a computed norm an upper bound; `norms` the numbers by which bounds know a head;
`ellipsoid` the radius that a LayerNorm imposes; `heads` these bounds for all heads at once, of the same
formulas on numbers; `ball` the least that is proved for a whole layer on a ball, with what its heads share, from
`joint`, and what attention of today has, from `in_use` and `turns`; `rotary` what holds of rotary positions;
`max_token` bounds in the norm of the largest token; `softmax` and `normalisation` the parts of a layer by themselves.
`catalogue` lists all upper bounds, for scans, the survey of bounds and the verification.
"""

from lipnb.bounds.ball import ball_upper, general_upper_optimal
from lipnb.bounds.castin import biased_upper, general_lower, general_upper, general_upper_sharp, multi_head_upper
from lipnb.bounds.ellipsoid import layer_norm_radius
from lipnb.bounds.heads import heads_at_input, heads_on_ball
from lipnb.bounds.kim import l2_growth, l2_growth_sharp, l2_upper, l2_upper_sharp, phi_inverse, printed_l2_upper
from lipnb.bounds.large_radius import chosen_tokens, large_radius_limit
from lipnb.bounds.max_token import max_token_terms, max_token_upper
from lipnb.bounds.mean_field import (
    masked_mean_field_upper,
    masked_mean_field_upper_sharp,
    mean_field_lower,
    mean_field_upper,
    mean_field_upper_sharp,
)
from lipnb.bounds.normalisation import norm_layer_upper
from lipnb.bounds.norms import HeadNorms, growth_rate, head_norms
from lipnb.bounds.one_input import column_upper, spread_upper
from lipnb.bounds.perturbation import Nearby, nearby_upper
from lipnb.bounds.rotary import rotary_terms, rotary_upper
from lipnb.bounds.softmax import softmax_norm
from lipnb.bounds.term_bounds import Terms, three_terms
from lipnb.bounds.yudin import without_query_bias, yudin_upper, yudin_upper_sharp

__all__ = [
    "HeadNorms",
    "Nearby",
    "Terms",
    "ball_upper",
    "biased_upper",
    "chosen_tokens",
    "column_upper",
    "general_lower",
    "general_upper",
    "general_upper_optimal",
    "general_upper_sharp",
    "growth_rate",
    "head_norms",
    "heads_at_input",
    "heads_on_ball",
    "l2_growth",
    "l2_growth_sharp",
    "l2_upper",
    "l2_upper_sharp",
    "large_radius_limit",
    "layer_norm_radius",
    "masked_mean_field_upper",
    "masked_mean_field_upper_sharp",
    "max_token_terms",
    "max_token_upper",
    "mean_field_lower",
    "mean_field_upper",
    "mean_field_upper_sharp",
    "multi_head_upper",
    "nearby_upper",
    "norm_layer_upper",
    "phi_inverse",
    "printed_l2_upper",
    "rotary_terms",
    "rotary_upper",
    "softmax_norm",
    "spread_upper",
    "three_terms",
    "without_query_bias",
    "yudin_upper",
    "yudin_upper_sharp",
]
