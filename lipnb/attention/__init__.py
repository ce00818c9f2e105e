"""Attention maps: `Attention`, and what becomes of queries and keys before they meet."""

from lipnb.attention.features import Feature
from lipnb.attention.heads import Attention, check_attention
from lipnb.attention.rope_norm import Local

__all__ = ["Attention", "Feature", "Local", "check_attention"]
