"""Attention layers of pretrained and random transformers: `lipscan.models`, imported on first access.

``load`` returns a `Model`: its tokenizer, the tokens that enter the attention of a layer on real text, and that
attention as a `lipnb.Attention`, with the weights, biases and mask of the network.
"""

from lipscan.models import *  # noqa: F403
from lipscan.models import __all__ as __all__
