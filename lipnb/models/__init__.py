"""Attention layers of pretrained and random transformers: the only door to Hugging Face.

``load`` gives a `Model`: its tokenizer, what a layer's attention receives on real text, and that attention
as a `lipnb.Attention`, with the weights, biases and mask of the network.
"""

from lipnb.models.attention_only import AttentionLayer, gpt2_attention_folder, load_attention
from lipnb.models.families import ARCHITECTURES
from lipnb.models.fetching import SOURCES, fetch
from lipnb.models.files import holds_model, mini_folder
from lipnb.models.layers import OBJECTS, Block
from lipnb.models.loading import load
from lipnb.models.making import load_gpt2, new_gpt2, save_gpt2
from lipnb.models.model import Model
from lipnb.models.pictures import PICTURES, picture
from lipnb.models.positions import load_positions, position_embeddings, with_positions
from lipnb.models.tokens import first_tokens

__all__ = [
    "load",
    "fetch",
    "SOURCES",
    "picture",
    "PICTURES",
    "first_tokens",
    "load_attention",
    "gpt2_attention_folder",
    "load_gpt2",
    "new_gpt2",
    "save_gpt2",
    "mini_folder",
    "holds_model",
    "load_positions",
    "position_embeddings",
    "with_positions",
    "AttentionLayer",
    "Model",
    "Block",
    "ARCHITECTURES",
    "OBJECTS",
]
