"""Checks of model folders from any source, before they are read: refuse what would break, mislead or exhaust memory.

Entries are read as plain values before a library builds anything from them. No link out of the folder is followed,
no pickle opened, no code run, no URL in a file fetched.
"""

import codecs
import json
import math
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lipnb.extras import extra

LONGEST = 50_000_000  # bytes of config.json or of an index; even thousands of shards need fewer
LONGEST_READ = 200_000_000  # bytes of any other text file, such as a tokenizer's
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
TRAINING = ("training_args", "optimizer", "scheduler", "rng_state", "scaler")  # pickles next to the weights
TEXTS = (".json", ".txt", ".model", ".jinja")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS = ("F64", "F32", "F16", "BF16")
DEQUANTIZED = "dequantized_from"  # how the GGUF file stored the weights, here read as float32
QUANTIZED = ("quantization_config", "compression_config")
ROTARY = ("rope_scaling", "rope_parameters")
# implementations that the library contains; it would fetch any other name from the hub and run its code
COMPUTED = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention", "grouped_mm", "batched_mm")
SEVERAL = 1000  # longest list with one number for each layer or side


def _number(value):
    return type(value) in (int, float) and math.isfinite(value)


def _known_activation(value):
    with extra("models"):
        from transformers.activations import ACT2FN

    return isinstance(value, str) and value in ACT2FN


def _whole(names, least, most):
    """Rules for sizes: at most what a machine can count through; the library checks what else fits the family."""

    def fits(value):
        if isinstance(value, (list, dict)):
            each = value.values() if isinstance(value, dict) else value
            return (
                0 < len(value) <= SEVERAL
                and not any(isinstance(one, (list, dict)) for one in each)
                and all(map(fits, each))
            )
        return _number(value) and least <= value <= most

    return dict.fromkeys(names.split(), (f"a whole number from {least} to {most:,}", fits))


# entry of config.json -> the requirement, in words and as a test; 0 or null both mean no sliding window
RULES = {
    **_whole("num_hidden_layers n_layer n_layers", 1, 1000),
    **_whole("num_attention_heads n_head n_heads num_key_value_heads", 1, 10_000),
    **_whole("hidden_size n_embd dim intermediate_size n_inner hidden_dim", 1, 10**7),
    **_whole("head_dim", 0, 10**7),
    **_whole("vocab_size max_position_embeddings n_positions n_ctx", 1, 10**9),
    **_whole("sliding_window", 0, 10**9),
    **_whole("image_size patch_size num_channels", 1, 100_000),
    **_whole("type_vocab_size num_labels chunk_size_feed_forward", 0, 30_000),
    **dict.fromkeys(
        ("layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps", "rope_theta"),
        ("a positive number", lambda value: _number(value) and value > 0),
    ),
    "initializer_range": ("a number from 0 on", lambda value: _number(value) and value >= 0),
    **dict.fromkeys(
        "attention_probs_dropout_prob hidden_dropout_prob attn_pdrop resid_pdrop embd_pdrop dropout attention_dropout "
        "classifier_dropout".split(),
        ("a number from 0 to 1", lambda value: _number(value) and 0 <= value <= 1),
    ),
    **dict.fromkeys(ROTARY, ("an object", lambda value: isinstance(value, dict))),
    DEQUANTIZED: (
        "a list of words",
        lambda value: isinstance(value, list) and all(isinstance(kind, str) for kind in value),
    ),
    **dict.fromkeys(
        ("hidden_act", "activation_function", "activation"),
        ("an activation that transformers knows", _known_activation),
    ),
}
ENDINGS = {  # rules for entries with these endings
    "_token_id": (
        "the number of a token",
        lambda value: isinstance(value, list) or type(value) is int and -1 <= value <= 10**9,
    ),
    **dict.fromkeys(
        ("attn_implementation", "experts_implementation"),
        (f"one of {', '.join(COMPUTED)}; no code of a model is run", lambda value: value in COMPUTED),
    ),
}


def json_of(path: Path, what: str) -> dict:
    """Object read from a JSON file; ValueError naming `what` if it is damaged, too large or has a key twice."""

    def once(pairs):
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            raise ValueError(f"the entry {next(n for n in names if names.count(n) > 1)!r} is there twice")
        return found

    refuse_mark(path, what)
    try:
        if path.stat().st_size > LONGEST:
            raise ValueError(f"it has more than {LONGEST:,} bytes")
        entries = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=once)
    except OSError as error:
        raise ValueError(f"{what} cannot be read ({error.strerror or error}).") from None
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error).split("\n")[0]
        raise ValueError(f"{what} is damaged ({why}): download or copy it again.") from None
    if not isinstance(entries, dict):
        raise ValueError(f"{what} is damaged (no JSON object): download or copy it again.")
    return entries


def refuse_mark(path: Path, what: str) -> None:
    """Refuse a text file that begins with a byte order mark, which transformers does not read."""
    try:
        with path.open("rb") as file:
            marked = file.read(3).startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    except OSError:  # the reader of the file reports it
        return
    if marked:
        raise ValueError(f"{what} begins with a byte order mark: save it as plain UTF-8, without one.")


def check_entries(entries: dict, name: str, path: str = "") -> None:
    """Refuse quantized models, and entries of a config.json with values that no model has.

    `path` is the prefix of entries of a part, such as "text_config.".
    """
    for key in QUANTIZED:
        if entries.get(key):
            method = entries[key].get("quant_method") if isinstance(entries[key], dict) else None
            raise ValueError(
                f"{name!r} is quantized ({method or key}), and its weights are not those of the map that "
                "is measured: load the checkpoint that was not quantized."
            )
    for key, value in entries.items():
        rule = RULES.get(key) or next((ENDINGS[end] for end in ENDINGS if key.endswith(end)), None)
        if value is not None and rule is not None and not rule[1](value):
            raise _must_be(name, path + key, value, rule[0])
        if isinstance(value, dict) and key.endswith("_config") and key not in QUANTIZED:
            check_entries(value, name, f"{path}{key}.")
    for key in ROTARY:
        _check_rotary(entries.get(key) or {}, path + key, name)
    heads, groups = (entries.get(key) for key in ("num_attention_heads", "num_key_value_heads"))
    if type(heads) is int and type(groups) is int and heads % groups:
        raise ValueError(
            f"config.json of {name!r} has {path}num_attention_heads = {heads}, which {path}num_key_value_heads = "
            f"{groups} does not divide."
        )


def _must_be(name, place, value, wanted):
    return ValueError(f"config.json of {name!r} has {place} = {repr(value)[:40]}: it must be {wanted}.")


def _check_rotary(settings, path, name):
    """Refuse settings of rotary positions that define no rotation; layers of several kinds have nested settings."""
    for key, value in settings.items():
        place = f"{path}.{key}"
        if isinstance(value, dict):
            _check_rotary(value, place, name)
        elif key in ("rope_type", "type") and not isinstance(value, str):
            raise _must_be(name, place, value, "a word")
        elif key == "partial_rotary_factor" and not (_number(value) and 0 < value <= 1):
            raise _must_be(name, place, value, "a number up to 1, above 0")
        elif key.endswith(("factor", "theta", "embeddings", "fast", "slow")) and value is not None:
            if not all(_number(one) and one > 0 for one in (value if isinstance(value, list) else [value])):
                raise _must_be(name, place, value, "a positive number")


def check_size(count: int, itemsize: int, name: str) -> None:
    """Refuse a network larger than the memory of this machine, before any of it is allocated."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # the system does not tell its memory: skip the check
        return
    if count * itemsize > memory:
        raise ValueError(
            f"{name!r} has {count:,} numbers, which take {count * itemsize / 1e9:,.0f} GB; this machine "
            f"has {memory / 1e9:,.0f} GB."
        )


def shards_of(index: Path, name: str) -> list[str]:
    """File names in the index of a split checkpoint; only plain names in the same folder are allowed."""
    entries = json_of(index, f"{index.name} of {name!r}")
    weights = entries.get("weight_map")
    if not (isinstance(weights, dict) and weights and all(isinstance(file, str) for file in weights.values())):
        raise ValueError(
            f"{index.name} of {name!r} is damaged (weight_map must name a file for each tensor): download "
            "or copy it again."
        )
    files = sorted(set(weights.values()))
    for file in files:
        if not file.endswith(".safetensors") or "/" in file or "\\" in file or "\0" in file or file.startswith("."):
            raise ValueError(
                f"{index.name} of {name!r} names {file[:80]!r}, which is no safetensors file in the same "
                "folder: it is not opened."
            )
    if not isinstance(entries.get("metadata"), dict):
        raise ValueError(f'{index.name} of {name!r} has no entry metadata, an object: add "metadata": {{}} to it.')
    return files


class Held(NamedTuple):
    """A tensor of a checkpoint, known from the header of its file."""

    file: Path
    shape: tuple[int, ...]


def check_weights(folder: str | os.PathLike, name: str) -> dict[str, Held]:
    """Tensors of a checkpoint by name; refuses missing, damaged and duplicate ones, and formats but safetensors."""
    with extra("models"):
        from safetensors import SafetensorError, safe_open

    folder = Path(folder)
    if (folder / WEIGHTS).is_file():
        files = [WEIGHTS]
    else:
        files = shards_of(place_of(folder, INDEX, name), name) if (folder / INDEX).is_file() else []
    if not files:
        raise FileNotFoundError(_without_weights(folder, name))
    if absent := [file for file in files if not place_of(folder, file, name).is_file()]:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        raise FileNotFoundError(
            f"{absent[0]}{more}, named in {INDEX} of {name!r}, {'are' if more else 'is'} missing: download or copy "
            "the model again."
        )
    there = dict[str, Held]()
    for file in files:
        try:
            with safe_open(folder / file, framework="pt") as whole:
                for key in whole.keys():
                    part = whole.get_slice(key)
                    if key in there:
                        raise ValueError(
                            f"{name!r} has the tensor {key} twice, in {there[key].file.name} and {file}: download "
                            "or copy it again."
                        )
                    there[key] = Held(folder / file, tuple(part.get_shape()))
                    if key.endswith(".weight") and part.get_dtype() not in FLOATS:
                        raise ValueError(
                            f"{file} of {name!r} holds {key} as {part.get_dtype()}: it is quantized or "
                            f"damaged; weights are read as {', '.join(FLOATS)}."
                        )
        except PermissionError:
            raise PermissionError(f"{file} of {name!r} may not be read here: change its permissions.") from None
        except (SafetensorError, OSError) as error:
            raise ValueError(
                f"{file} of {name!r} is not a whole safetensors file ({error}): delete it and "
                "download or copy it again."
            ) from None
    return there


def _without_weights(folder, name):
    """Message for a folder without readable weights, according to what it holds instead."""
    files = sorted(path.name for path in folder.iterdir() if path.is_file())
    pickles = [
        file for file in files if file.endswith((".bin", ".pt", ".pth", ".ckpt")) and not file.startswith(TRAINING)
    ]
    if pickles:
        return (
            f"{name!r} has its weights in {pickles[0]}, a pickle, which is not opened: load the folder with "
            "transformers (AutoModel.from_pretrained), write it with save_pretrained('mine'), and give 'mine'."
        )
    if others := [file for file in files if file.endswith((".h5", ".msgpack", ".onnx", ".gguf"))]:
        way = "give that file" if others[0].endswith(".gguf") else "convert them to safetensors with transformers"
        return f"{name!r} has its weights in {others[0]}, which is not read as a part of a folder: {way}."
    if parts := [file for file in files if re.search(r"-\d+-of-\d+\.safetensors$", file)]:
        return f"{name!r} holds {parts[0]}, but not {INDEX}, which says what lies in which file: download it too."
    if others := [file for file in files if file.endswith(".safetensors")]:
        return f"{name!r} holds {others[0]}, but no {WEIGHTS}: rename it, if it holds the weights of this config.json."
    if place := below(folder, WEIGHTS, INDEX):
        return f"{name!r} holds no weights, but its folder {place} does: give {f'{name}/{place}'!r}."
    return (
        f"{name!r} has no complete weights in safetensors format (model.safetensors; "
        "other formats are not read): add them, connect to the network if they are "
        "on the hub, or draw weights for its config.json with --random (random=True in Python)."
    )


def below(folder: str | os.PathLike, *files: str) -> str | None:
    """Name of a subfolder that holds one of these files; of training checkpoints, the last."""
    found = [path.name for path in Path(folder).iterdir() if any((path / file).is_file() for file in files)]
    return max(found, key=lambda name: ([int(number) for number in re.findall(r"\d+", name)], name), default=None)


def place_of(folder: str | os.PathLike, file: str, name: str) -> Path:
    """Path of a file of a model; in a plain folder a link must not lead out of it.

    The cache of the Hugging Face hub keeps ``snapshots/COMMIT/FILE`` as links into the neighbouring ``blobs``.
    """
    path, home = Path(folder) / file, Path(folder).resolve()
    if home.parent.name == "snapshots":
        home = home.parents[1]
    try:
        if path.is_symlink():
            with suppress(FileNotFoundError):
                path.stat()  # from Python 3.13 on, resolve() does not report a circle
        inside = not path.is_symlink() or path.resolve().is_relative_to(home)
    except (OSError, RuntimeError):
        raise ValueError(f"{file} of {name!r} is a link that leads in a circle: copy the file itself.") from None
    if not inside:
        raise ValueError(
            f"{file} of {name!r} is a link to a place outside its folder: it is not followed; copy the file itself."
        )
    return path


def check_folder(folder: str | os.PathLike, name: str) -> None:
    """Refuse a folder whose links lead out of it, that holds an adapter, or whose text files are too large."""
    for path in sorted(Path(folder).iterdir()):
        if path.suffix not in (*TEXTS, ".safetensors"):
            continue
        place_of(folder, path.name, name)
        if path.suffix in TEXTS and path.is_file() and path.stat().st_size > LONGEST_READ:
            raise ValueError(
                f"{path.name} of {name!r} has more than {LONGEST_READ:,} bytes, more than any sound one: not read."
            )
    refuse_adapter(folder, name)


def refuse_adapter(folder: str | os.PathLike, name: str) -> None:
    """Refuse adapter weights of PEFT, such as LoRA: transformers would load the model that they name."""
    names = ("adapter_config.json", "adapter_model.safetensors")
    if found := [one for one in names if (Path(folder) / one).exists()]:
        raise ValueError(
            f"the folder {name!r} holds an adapter ({found[0]}), whose weights belong to another model: "
            "merge them into that one first (in PEFT merge_and_unload, then save_pretrained) and load the result."
        )
