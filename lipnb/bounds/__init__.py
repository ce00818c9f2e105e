"""Bounds on the Lipschitz constant of attention, one module for each source; all in the Euclidean norm.

`castin`: all inputs in a ball. `yudin`: one input, from its attention matrix. `terms`: one input, each term of
the Jacobian kept as a norm that can be computed; `lipnb.certify` is made of it. `rounding` holds what makes a computed
number an upper bound; `biases` takes query biases away for the bounds that know none.
"""

from lipnb.bounds.biases import without_query_bias
from lipnb.bounds.castin import general_upper
from lipnb.bounds.terms import Terms, three_terms
from lipnb.bounds.yudin import yudin_upper

__all__ = ["Terms", "general_upper", "three_terms", "without_query_bias", "yudin_upper"]
