"""Reader for a GPT-2 of which only attention weights and positions are available: weights in, maps out, no text."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch

from lipnb.attention import Attention
from lipnb.extras import extra
from lipscan.models.families import ARCHITECTURES
from lipscan.models.split_heads import arguments

__all__ = ["AttentionLayer", "gpt2_attention_folder", "load_attention", "load_positions"]

WEIGHTS = "attention.safetensors"


class AttentionLayer(NamedTuple):
    """The attention of one layer, and the gain and shift of the LayerNorm before it.

    Attributes
    ----------
    attention : Attention
        Masked, with output projection and biases.
    gain, shift : Tensor, shape (d,)
        What attention receives is ``gain * z + shift`` with z of mean 0 and variance 1 over the features.
    """

    attention: Attention
    gain: torch.Tensor
    shift: torch.Tensor

    def noise(self, n: int, *, seed: int) -> torch.Tensor:
        """Tokens, shape (n, d), that LayerNorm could return, from Gaussian noise; they carry no text."""
        generator = torch.Generator().manual_seed(seed)
        z = torch.randn(n, len(self.gain), generator=generator, dtype=torch.float64)
        z = z - z.mean(-1, keepdim=True)
        z = z / z.square().mean(-1, keepdim=True).sqrt()
        return (self.gain.double() * z + self.shift.double()).to(self.gain.dtype)


def gpt2_attention_folder() -> Path:
    """Folder with the attention weights of GPT-2 small, under ``LIPNB_DATA``; else FileNotFoundError with the fix."""
    data, place = os.environ.get("LIPNB_DATA"), "models/gpt2-124m-attention"
    if not data or not Path(data, place).is_dir():
        raise FileNotFoundError(
            f"the attention weights of GPT-2 are not here: set LIPNB_DATA to a folder that holds {place}."
        )
    return Path(data, place)


def load_attention(folder: str | os.PathLike, *, dtype: torch.dtype = torch.float64) -> list[AttentionLayer]:
    """Attention layers read from a folder with config.json and attention.safetensors, in GPT-2's names.

    Parameters
    ----------
    folder : str or path
        The file holds ``h.<layer>.attn.c_attn``, ``attn.c_proj`` and ``ln_1``; other tensors are ignored.
    dtype : torch.dtype
        Type of the returned maps; the tensors of the file are converted.

    Returns
    -------
    list of AttentionLayer
        One for each layer.

    Raises
    ------
    FileNotFoundError
        The folder lacks config.json or attention.safetensors.
    ValueError
        The model is not a GPT-2 with plain logits, or a tensor is missing.

    Notes
    -----
    castin2024smooth, Def. 2.5. Biases of GPT-2: radford2019gpt2.
    """
    folder = Path(folder)
    if not ((folder / "config.json").is_file() and (folder / WEIGHTS).is_file()):
        raise FileNotFoundError(f"{folder.name!r} holds no config.json and {WEIGHTS}: name a folder that does.")
    config = json.loads((folder / "config.json").read_text())
    if config.get("model_type") != "gpt2" or config.get("scale_attn_by_inverse_layer_idx"):
        raise ValueError(
            f"{folder.name!r} is not a GPT-2 with plain logits: only such a model can be read from "
            "attention weights alone."
        )
    with extra("models"):
        from safetensors.torch import load_file

    tensors = {name: tensor.to(dtype) for name, tensor in load_file(folder / WEIGHTS).items()}
    heads, width = config["n_head"], config["n_embd"]

    def module(name):
        try:
            return {"weight": tensors[f"{name}.weight"], "bias": tensors[f"{name}.bias"]}
        except KeyError as missing:
            raise ValueError(f"the weights of {folder.name!r} are not complete: {missing} is missing.") from None

    layers = []
    for i in range(config["n_layer"]):
        inner = SimpleNamespace(
            c_attn=SimpleNamespace(**module(f"h.{i}.attn.c_attn")),
            num_heads=heads,
            c_proj=SimpleNamespace(**module(f"h.{i}.attn.c_proj")),
            scaling=(width // heads) ** -0.5,
        )
        norm = module(f"h.{i}.ln_1")
        attention = Attention(**arguments(ARCHITECTURES["gpt2"].matrices(SimpleNamespace(attn=inner))), masked=True)
        layers.append(AttentionLayer(attention, norm["weight"], norm["bias"]))
    return layers


def load_positions(folder: str | os.PathLike) -> torch.Tensor:
    """Position embeddings of a GPT-2 stored without its other parts: ``wpe.weight``, (positions, d), in float64."""
    with extra("models"):
        from safetensors import safe_open
    path = Path(folder) / WEIGHTS
    if not path.is_file():
        raise FileNotFoundError(f"{path.parent.name!r} holds no {WEIGHTS}: name a folder that does.")
    with safe_open(path, framework="pt") as file:
        return file.get_tensor("wpe.weight").double()
