"""Bounds on the Lipschitz constant of attention, in the Euclidean norm unless stated otherwise.

Published formulas and tighter forms, each written once, as a function of numbers, with one module for each source:

- `castin`: sequences of n tokens, in a ball and at one input; `mean_field`: measures in a ball, in W_2;
  `mean_field_rate`: their exact exponent; `large_radius`: the limit of large tokens.
- `yudin`: one input, from its attention matrix, and the norm of the softmax. `kim`: L2 attention on all inputs.
- `heads`: these bounds for all heads with their biases, and the norm of the largest token; `norms`: the numbers of a
  head that they need. `rotary`: rotary positions. `layer_norm`: the norm layer before attention.
- `catalogue`: all upper bounds in one list, for scans, the survey of bounds and the verification.

`ball` has `ball_upper`, the least bound proved for a whole layer on a ball. It is built from `multihead_norms`, norms
of the maps of all heads together; `alignment`, the key and the query term of one head from its own matrices; `gram`,
the keys of heads that read or write in different directions; `transformer_heads`, norms of heads with features of
transformers; and `rows_on_ball`, how the rows of one head add up.

`lipnb.certify` and `nearby_upper` (`perturbation`) are built from `rounded_linearization`, attention at an input in
float64; `term_bounds`, computed norms of each term of the Jacobian; `columns`, some input directions exactly;
`cholesky_certificates`, computed norms as upper bounds; and `rounding`, bounds on all rounding errors.
"""

from lipnb.bounds.ball import ball_upper
from lipnb.bounds.castin import (
    biased_upper,
    column_upper,
    general_lower,
    general_upper,
    general_upper_exact,
    general_upper_optimal,
    general_upper_sharp,
    multi_head_upper,
    spread_upper,
)
from lipnb.bounds.heads import heads_on_ball, max_token_upper
from lipnb.bounds.kim import l2_growth, l2_growth_sharp, l2_upper, l2_upper_sharp, phi_inverse, printed_l2_upper
from lipnb.bounds.large_radius import chosen_tokens, large_radius_limit
from lipnb.bounds.layer_norm import layer_norm_radius
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
from lipnb.bounds.yudin import without_query_bias, yudin_upper

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
    "general_upper_exact",
    "general_upper_optimal",
    "general_upper_sharp",
    "growth_rate",
    "head_norms",
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
    "max_token_upper",
    "mean_field_lower",
    "mean_field_lower_exact",
    "mean_field_rate",
    "mean_field_upper",
    "mean_field_upper_exact",
    "mean_field_upper_sharp",
    "multi_head_upper",
    "nearby_upper",
    "phi_inverse",
    "printed_l2_upper",
    "rotary_terms",
    "rotary_upper",
    "spread_upper",
    "three_terms",
    "without_query_bias",
    "yudin_upper",
]
