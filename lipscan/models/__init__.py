"""Attention layers of pretrained and random transformers; the only part of lipscan that imports transformers.

``load`` returns a `Model`: its tokenizer, the activations that a layer's attention receives on real text, and that
attention as a `lipnb.Attention`, with the weights, biases and mask of the network.
"""

from lipscan.models.demo.attention_only import AttentionLayer, gpt2_attention_folder, load_attention, load_positions
from lipscan.models.demo.fetching import SOURCES, fetch
from lipscan.models.demo.pictures import PICTURES, picture
from lipscan.models.families import ARCHITECTURES
from lipscan.models.files import holds_model, mini_folder, save_gpt2
from lipscan.models.layers import Block
from lipscan.models.loading import load
from lipscan.models.model import Model
from lipscan.models.module_attention import OwnAttention
from lipscan.models.network import Reading, answer, position_embeddings, random_twin, readings, with_positions
from lipscan.windows import first_tokens, random_windows, special_tokens

__all__ = [
    "load",
    "fetch",
    "SOURCES",
    "picture",
    "PICTURES",
    "first_tokens",
    "random_windows",
    "special_tokens",
    "readings",
    "random_twin",
    "answer",
    "Reading",
    "load_attention",
    "gpt2_attention_folder",
    "save_gpt2",
    "mini_folder",
    "holds_model",
    "load_positions",
    "position_embeddings",
    "with_positions",
    "AttentionLayer",
    "Model",
    "Block",
    "OwnAttention",
    "ARCHITECTURES",
]
