"""Bounds on the Lipschitz constant of attention, in the Euclidean norm unless said.

Published formulas and their sharper forms, each written once, on numbers, and one module for each source:

- `castin`: sequences of n tokens, in a ball and at one input; `mean_field`: measures in a ball, in W_2;
  `mean_field_rate`: their exact exponent; `large_radius`: the limit of large tokens.
- `yudin`: one input, from its attention matrix, and the norm of the softmax. `kim`: L2 attention on all inputs.
- `heads`: the same for all heads with their biases, and the norm of the largest token; `norms` holds the numbers by
  which they know a head. `rotary`: rotary positions. `layer_norm`: the norm layer before attention.
- `catalogue`: all upper bounds in one list, for scans, the survey of bounds and the verification.

What `ball_upper` is made of, the least that is proved for a whole layer on a ball (`ball`): `multihead_norms`, norms of
the maps of all heads together, and `transformer_heads`, of heads as transformers have them.

What `lipnb.certify` and `nearby_upper` (`perturbation`) are made of: `term_bounds`, each term of the Jacobian at an
input as a norm that is computed, of a `rounded_linearization`; `columns`, some input directions exactly;
`cholesky_certificates`, computed norms as upper bounds; `rounding`, its errors and what counts them.
"""

from lipnb.bounds.ball import ball_upper
from lipnb.bounds.castin import (
    biased_upper,
    column_upper,
    general_lower,
    general_upper,
    general_upper_optimal,
    general_upper_sharp,
    multi_head_upper,
    spread_upper,
)
from lipnb.bounds.heads import heads_at_input, heads_on_ball, max_token_terms, max_token_upper
from lipnb.bounds.kim import l2_growth, l2_growth_sharp, l2_upper, l2_upper_sharp, phi_inverse, printed_l2_upper
from lipnb.bounds.large_radius import chosen_tokens, large_radius_limit
from lipnb.bounds.layer_norm import layer_norm_radius, norm_layer_upper
from lipnb.bounds.mean_field import (
    masked_mean_field_upper,
    masked_mean_field_upper_sharp,
    mean_field_lower,
    mean_field_upper,
    mean_field_upper_sharp,
)
from lipnb.bounds.mean_field_rate import (
    MeanFieldRate,
    general_lower_pair,
    masked_mean_field_upper_exact,
    mean_field_lower_exact,
    mean_field_rate,
    mean_field_upper_exact,
)
from lipnb.bounds.norms import HeadNorms, growth_rate, head_norms
from lipnb.bounds.perturbation import Nearby, nearby_upper
from lipnb.bounds.rotary import rotary_terms, rotary_upper
from lipnb.bounds.term_bounds import Terms, three_terms
from lipnb.bounds.yudin import softmax_norm, without_query_bias, yudin_upper, yudin_upper_sharp

__all__ = [
    "HeadNorms",
    "MeanFieldRate",
    "Nearby",
    "Terms",
    "ball_upper",
    "biased_upper",
    "chosen_tokens",
    "column_upper",
    "general_lower",
    "general_lower_pair",
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
    "masked_mean_field_upper_exact",
    "masked_mean_field_upper_sharp",
    "max_token_terms",
    "max_token_upper",
    "mean_field_lower",
    "mean_field_lower_exact",
    "mean_field_rate",
    "mean_field_upper",
    "mean_field_upper_exact",
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
