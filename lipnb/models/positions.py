"""Learned position embeddings of a transformer, and the same transformer with others."""

import copy
import dataclasses
import os
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from lipnb.origin import extra

__all__ = ["load_positions", "position_embeddings", "with_positions"]


def position_embeddings(model: Any) -> torch.Tensor:
    """Learned position embeddings of a model.

    Parameters
    ----------
    model : Model
        From `lipnb.models.load`.

    Returns
    -------
    Tensor, shape (positions, d)
        A copy; row i is added to the embedding of the token at place i.

    Raises
    ------
    ValueError
        "... has no learned position embeddings ...".
    """
    if model.architecture.positions is None or model.architecture.reads != "input_ids":
        raise ValueError(
            f"{model.name} has no learned position embeddings of texts that are known here: they are rotary, in the "
            "logits, of images, or lie at another place."
        )
    return attrgetter(model.architecture.positions)(model.module).weight.detach().clone()


@torch.no_grad()
def with_positions(model: Any, embeddings: torch.Tensor) -> Any:
    """The same model with other position embeddings; nothing else is changed.

    Parameters
    ----------
    model : Model
        From `lipnb.models.load`; it is left alone.
    embeddings : Tensor, shape (positions, d)
        One row for each place.

    Returns
    -------
    Model

    Raises
    ------
    ValueError
        "embeddings must have shape ...".
    """
    network = copy.deepcopy(model.module)
    weight = attrgetter(model.architecture.positions)(network).weight
    if embeddings.shape != weight.shape:
        raise ValueError(f"embeddings must have shape {tuple(weight.shape)}, got {tuple(embeddings.shape)}.")
    weight.copy_(embeddings)
    return dataclasses.replace(model, module=network)


def load_positions(folder: str | os.PathLike) -> torch.Tensor:
    """Position embeddings of a GPT-2 whose other parts are not at hand.

    Parameters
    ----------
    folder : str or path
        Holds attention.safetensors with ``wpe.weight``.

    Returns
    -------
    Tensor, shape (positions, d)
        Float64.

    Raises
    ------
    FileNotFoundError
        "... holds no attention.safetensors ...".
    """
    with extra("models"):
        from safetensors import safe_open

    path = Path(folder) / "attention.safetensors"
    if not path.is_file():
        raise FileNotFoundError(f"{Path(folder).name!r} holds no attention.safetensors: name a folder that does.")
    with safe_open(path, framework="pt") as file:
        return file.get_tensor("wpe.weight").double()
