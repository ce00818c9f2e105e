"""The models that tables measure: all come through here, and only the last two are kept."""

import gc
import os
from functools import lru_cache
from pathlib import Path

import torch

from lipscan import corpora, models


@lru_cache(maxsize=2)
def _load(name, dtype, options):
    gc.collect()  # networks that are no longer kept refer to themselves, and would stay
    return models.load(name, dtype=getattr(torch, dtype), **dict(options))


def load(name, *, dtype="float32", **options):
    """A model, as `lipnb.models.load` gives it, read once as long as few others are asked for between.

    `dtype`: floating point type, by its name. `**options`: as for `lipnb.models.load`. Returns lipnb.models.Model:
    shared: not to be changed.
    """
    return _load(name, dtype, tuple(sorted(options.items())))


@lru_cache(maxsize=1)
def _gpt2_attention(folder):
    return models.load_attention(folder)


def gpt2_attention():
    """The attention layers of GPT-2, as `lipnb.models.load_attention` gives them, read once."""
    return _gpt2_attention(models.gpt2_attention_folder())


def edition(ids):
    """Fingerprint of a window of token ids, so that a row is only compared with a measurement of the same tokens."""
    return corpora.fingerprint(" ".join(map(str, ids.flatten().tolist())))


def place(name):
    """Where a model is: in the folder models of LIPNB_DATA, where it is there."""
    folder = Path(os.environ.get("LIPNB_DATA", ""), "models", name)
    return str(folder) if "LIPNB_DATA" in os.environ and folder.is_dir() else name
