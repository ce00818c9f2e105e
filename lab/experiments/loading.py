"""Shared loader for the models that tables measure; only the last two models are kept."""

import gc
import os
from functools import lru_cache
from pathlib import Path

import torch

from lipscan import corpora, models


@lru_cache(maxsize=2)
def _load(name, dtype, options):
    gc.collect()  # dropped networks contain reference cycles and would stay in memory
    return models.load(name, dtype=getattr(torch, dtype), **dict(options))


def load(name, *, dtype="float32", **options):
    """A model from `lipnb.models.load`, kept in memory while few other models are loaded in between.

    `dtype`: name of a floating point type. `**options`: as for `lipnb.models.load`. Returns lipnb.models.Model; it is
    shared and must not be changed.
    """
    return _load(name, dtype, tuple(sorted(options.items())))


@lru_cache(maxsize=1)
def _gpt2_attention(folder):
    return models.load_attention(folder)


def gpt2_attention():
    """Attention layers of GPT-2 from `lipnb.models.load_attention`, read once."""
    return _gpt2_attention(models.gpt2_attention_folder())


def edition(ids):
    """Fingerprint of a window of token ids, so that a row is only compared with a measurement of the same tokens."""
    return corpora.fingerprint(" ".join(map(str, ids.flatten().tolist())))


def place(name):
    """Path of a model: in the folder models of LIPNB_DATA if it exists there, else its name."""
    folder = Path(os.environ.get("LIPNB_DATA", ""), "models", name)
    return str(folder) if "LIPNB_DATA" in os.environ and folder.is_dir() else name
