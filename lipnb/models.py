"""Attention layers of pretrained and random transformers: a door to `lipscan.models`, opened when asked.

``load`` gives a `Model`: its tokenizer, what a layer's attention receives on real text, and that attention
as a `lipnb.Attention`, with the weights, biases and mask of the network.
"""

from lipscan.models import *  # noqa: F403
from lipscan.models import __all__ as __all__
