"""Jacobians at an input: attention in closed form, and any differentiable map by automatic differentiation.

Both give the two products that a solver needs, and a dense matrix for tests and small cases.
"""

from lipnb.jacobian.autodiff import AutodiffJacobian
from lipnb.jacobian.closed_form import AttentionJacobian
from lipnb.jacobian.linearization import Linearization, infinity_norm
from lipnb.jacobian.token_norms import SingularPair, block_norms, singular_pair

__all__ = [
    "AttentionJacobian",
    "AutodiffJacobian",
    "Linearization",
    "SingularPair",
    "block_norms",
    "infinity_norm",
    "singular_pair",
]
