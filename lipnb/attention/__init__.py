"""Attention maps: `Attention`, and what becomes of queries and keys before they meet."""

from lipnb.attention.features import Feature
from lipnb.attention.heads import Attention
from lipnb.attention.rope_norm import RowJacobian

__all__ = ["Attention", "Feature", "RowJacobian"]
