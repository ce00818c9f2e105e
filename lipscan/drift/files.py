"""Files of states, for other programs to read and write: one safetensors file with token ids and hidden states.

======================  =========================  ==========================================================
key                     shape                      what it holds
======================  =========================  ==========================================================
``input_ids``           (b, n), integers           token ids, special tokens included
``hidden_states.0``     (b, n, d)                  what the first layer receives: embeddings, positions included
``hidden_states.l``     (b, n, d)                  output of layer l - 1, for l = 1 ... L
``hidden_states.L``     (b, n, d)                  output of the last layer, *before* the final norm
``attention.l``         (b, n, d), optional        what attention of layer l adds to the stream
``mlp.l``               (b, n, d), optional        what the MLP of layer l adds to the stream
``logits``              (b, n, vocabulary), opt.   logits
======================  =========================  ==========================================================

The states have one type, the one in which they were computed: float64, float32, bfloat16 or float16. Logits may have
another of these.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lipnb.extras import extra
from lipscan.drift.runs import States, states
from lipscan.models.network import inputs_of
from lipscan.recording.files import replacing

with extra("models"):
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save_file

__all__ = ["dump", "read"]

KEYS = "input_ids, hidden_states.0 to hidden_states.L, and as you like attention.l, mlp.l, logits"
FLOATS = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
WHOLE = ("I64", "I32", "I16", "U8", "U16", "U32")
STATE = re.compile(r"(hidden_states|attention|mlp)\.(0|[1-9]\d*)")
NORM = "hidden_states.L is before the final norm"


def dump(model: Any, ids: Tensor, path: str | os.PathLike, *, dtype: torch.dtype | None = None) -> Path:
    """Write the states of a network on some token ids, for another program to read.

    Parameters
    ----------
    model : Model
        From `lipnb.models.load`.
    ids : LongTensor, shape (b, n)
        Token ids.
    path : str or path
        The file, in safetensors format; see `lipscan.drift.files` for its keys.
    dtype : torch.dtype, optional
        Type of the computation; by default float64, stored in float32.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    FileExistsError
        The file exists and is not a dump of this model, these token ids and this type.
    OSError
        It is a folder, or cannot be written.
    """
    path, kept = Path(path), torch.float32 if dtype is None else dtype
    run = sha256_of([inputs_of(model, ids).cpu(), *weights_of(model)], str(dtype))
    _check_target(path, run)
    found = states(model, ids, dtype)
    tensors = {"input_ids": found.ids}
    tensors |= {f"hidden_states.{place}": one for place, one in enumerate(found.hidden)}
    for half in ("attention", "mlp"):
        tensors |= {f"{half}.{layer}": one for layer, one in getattr(found, half).items()}
    if found.logits is not None:
        tensors["logits"] = found.logits
    tensors = {name: one.contiguous() if name == "input_ids" else one.to(kept) for name, one in tensors.items()}
    about = {"model": model.name, "computed in": found.about["dtype"], "norm": NORM, "run": run}
    try:
        with replacing(path) as (new,):
            new.touch()
            rights = new.stat().st_mode  # of any new file: those that safetensors gives shut others out
            save_file({name: one.contiguous().clone() for name, one in tensors.items()}, new, about)
            new.chmod(rights)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or "there is no such folder"
        raise OSError(f"{path} cannot be written ({reason}): name another file.") from None
    return path


def _check_target(path, run):
    """Refuse a folder, a place in none, and a file that holds anything but the same dump; before anything is run."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a file in it, such as {path / 'reference.safetensors'}.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}. Make it first.")
    if not path.exists():
        return
    try:
        with safe_open(path, framework="pt") as file:
            same = (file.metadata() or {}).get("run") == run
    except (SafetensorError, OSError):
        same = False
    if not same:
        raise FileExistsError(f"{path} exists and holds something else than this: name another file, or delete it.")


def weights_of(model: Any) -> list[Tensor]:
    """Weights of a model, in the order of their names."""
    return [one.detach() for _, one in sorted(model.module.state_dict().items())]


def sha256_of(tensors: Iterable[Tensor], *more: str) -> str:
    """SHA-256 of tensors, with their types and shapes, and of words."""
    found = hashlib.sha256(" ".join(more).encode())
    for one in tensors:
        found.update(f"{one.dtype}{tuple(one.shape)}".encode())
        found.update(
            one.cpu().contiguous().view(torch.uint8).numpy().tobytes() if one.ndim else str(one.item()).encode()
        )
    return found.hexdigest()


def read(path: str | os.PathLike) -> States:
    """Read a file of states that another program wrote.

    Parameters
    ----------
    path : str or path
        A safetensors file with the keys of `lipscan.drift.files`; for one sequence the first dimension may be left out.

    Returns
    -------
    States
        In the file's type.

    Raises
    ------
    FileNotFoundError, ValueError
        The file does not exist or is of another format; a key is missing, unknown or of another shape or type; or a
        state is NaN or infinite.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}: `lipnb drift MODEL --dump FILE` shows what one looks like.")
    try:
        with safe_open(path, framework="pt") as file:
            _check_header(path, {key: file.get_slice(key) for key in file.keys()})
            tensors = {key: file.get_tensor(key) for key in file.keys()}
            about = dict(file.metadata() or {})
    except SafetensorError as error:
        raise ValueError(f"{path.name} is not a whole safetensors file ({error}): write it again.") from None
    ids = tensors["input_ids"].long()
    if ids.ndim == 1:
        tensors = {key: one[None] for key, one in tensors.items()}
        ids = ids[None]
    count = sum(key.startswith("hidden_states.") for key in tensors)
    hidden = [tensors[f"hidden_states.{place}"] for place in range(count)]
    halves = {
        half: {layer: tensors[f"{half}.{layer}"] for layer in range(count - 1) if f"{half}.{layer}" in tensors}
        for half in ("attention", "mlp")
    }
    found = States(ids, hidden, halves["attention"], halves["mlp"], tensors.get("logits"), {"file": path.name, **about})
    _check_numbers(path.name, tensors)
    return found


def _check_header(path, slices):
    """Refuse keys, shapes and types that do not belong together, before a tensor is read."""
    name = path.name
    unknown = [key for key in slices if key not in ("input_ids", "logits") and not STATE.fullmatch(key)]
    if unknown:
        raise ValueError(f"{name} holds {unknown[0]!r}, which is none of the keys {KEYS}: rename it or leave it out.")
    if "input_ids" not in slices:
        raise ValueError(f"{name} holds no input_ids: add the token ids of its states, of shape (b, n).")
    shape = slices["input_ids"].get_shape()
    if slices["input_ids"].get_dtype() not in WHOLE or len(shape) not in (1, 2) or 0 in shape:
        raise ValueError(
            f"input_ids of {name} are {slices['input_ids'].get_dtype()} of shape {_shape(shape)}: give integers of "
            "shape (b, n)."
        )
    numbers = {half: {int(at) for key in slices for kind, at in [_parts(key)] if kind == half} for half in _HALVES}
    count = max(numbers["hidden_states"], default=0) + 1
    if missing := sorted({*range(max(count, 2))} - numbers["hidden_states"]):
        raise ValueError(
            f"{name} holds no hidden_states.{missing[0]}: give all, from 0 (what the first layer receives) to L (the "
            "output of the last layer before the final norm)."
        )
    for half in ("attention", "mlp"):
        if beyond := [at for at in numbers[half] if at >= count - 1]:
            raise ValueError(
                f"{name} holds {half}.{beyond[0]}, but its states end at hidden_states.{count - 1}, the output of "
                f"layer {count - 2}: add hidden_states.{beyond[-1] + 1}, or number the halves by their layer, from 0."
            )
    for half, twin in (("attention", "mlp"), ("mlp", "attention")):
        if alone := sorted(numbers[half] - numbers[twin]):
            raise ValueError(
                f"{name} holds {half}.{alone[0]} without {twin}.{alone[0]}: give both halves of a layer, or neither."
            )
    wanted = slices["hidden_states.0"].get_shape()
    floats = slices["hidden_states.0"].get_dtype()
    for key, one in slices.items():
        if key == "input_ids":
            continue
        here, kind = one.get_shape(), one.get_dtype()
        fits = here[:-1] == shape and len(here) == len(shape) + 1 and (key == "logits" or here == wanted)
        if not fits:
            raise ValueError(
                f"{key} of {name} has shape {_shape(here)}, which does not fit input_ids of shape {_shape(shape)} and "
                f"hidden_states.0 of shape {_shape(wanted)}: give (b, n, width), with the tokens of input_ids."
            )
        if kind not in FLOATS or (kind != floats and key != "logits"):
            raise ValueError(
                f"{key} of {name} is of type {kind}, hidden_states.0 of type {floats}: give all in one of "
                f"{', '.join(FLOATS)}."
            )


_HALVES = ("hidden_states", "attention", "mlp")


def _parts(key):
    kind, _, at = key.partition(".")
    return kind, at


def _shape(shape: Iterable[int]) -> str:
    return f"({', '.join(map(str, shape))})"


def _check_numbers(name, tensors):
    """Refuse NaN and infinity, with their first place in the network and in the text."""
    for key, one in tensors.items():
        if not one.is_floating_point() or torch.isfinite(one).all():
            continue
        window, token = (~torch.isfinite(one)).any(-1).nonzero()[0].tolist()
        where = (
            f"{key} of {name} holds {'NaN' if one.isnan().any() else 'infinity'} at token {token} of window {window}"
        )
        if not one.isnan().any() and one.dtype == torch.float16:
            raise ValueError(f"{where}: float16 ends at 65,504; compute in bfloat16 or float32.")
        raise ValueError(f"{where}: nothing can be compared from there on; look there first.")
