"""Contractive layers and their inverses: x + c f(x) with Lip(f) <= 1 and c < 1 is inverted by a fixed point.

kim2021lipschitz, invertible attention. Every layer here knows its Lipschitz constant at its present weights, so that
training cannot lose the guarantee.
"""

from lipnb.invertible.feed_forward import ContractiveFeedForward, largest_singular_value
from lipnb.invertible.layers import ContractiveAttention, DotProductAttention
from lipnb.invertible.residual import Inverse, Residual, predicted_iterations
from lipnb.invertible.stack import InvertibleStack

__all__ = [
    "ContractiveAttention",
    "ContractiveFeedForward",
    "DotProductAttention",
    "Inverse",
    "InvertibleStack",
    "Residual",
    "largest_singular_value",
    "predicted_iterations",
]
