"""Attention maps: `Attention`, its features beyond plain heads, and the Jacobian of rotary positions and norms."""

from lipnb.attention.features import Feature
from lipnb.attention.heads import Attention
from lipnb.attention.rope_norm import RowJacobian

__all__ = ["Attention", "Feature", "RowJacobian"]
