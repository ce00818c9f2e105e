"""Checks of model folders that transformers does not make: sizes, formats, code, links, adapters, quantised weights.

They come before the library builds anything; all other errors in a configuration are found by the library itself, or by
the comparison of its network with our maps. No link out of the folder is followed, no pickle opened, no code run.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch.overrides import TorchFunctionMode

from lipnb.extras import extra
from lipscan.models.changes import Changed

LONGEST = 200_000_000  # bytes of a text file, such as config.json or a tokenizer's
LONGEST_CONFIG = 8_000_000  # bytes of a config.json, which with the names of 22,000 classes has about 2,000,000
ENTRIES = 100_000  # of a config.json, those of its lists and parts included: transformers checks and copies each
STEPS = 1_000_000  # most calls of PyTorch in which a network is laid out
TEXTS = (".json", ".txt", ".model", ".jinja")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS = ("F64", "F32", "F16", "BF16")
DEQUANTIZED = "dequantized_from"  # how the GGUF file stored the weights, here read as float32
QUANTIZED = ("quantization_config", "compression_config")
ADAPTERS = ("adapter_config.json", "adapter_model.safetensors")  # of PEFT, such as LoRA
# other files of weights; those of training, which lie beside them, are none
OTHERS = re.compile(
    r"^(?!training_args|optimizer|scheduler|rng_state|scaler).*\.(?:bin|pt|pth|ckpt|h5|msgpack|onnx|safetensors)$"
)
# implementations that the library contains; it would fetch any other name from the hub and run its code
COMPUTED = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention", "grouped_mm", "batched_mm")


class Rule(NamedTuple):
    """A requirement on entries of a config.json whose names match a pattern."""

    names: str
    fits: Callable[[Any], bool]
    wanted: str  # end of the sentence that refuses another value


def _most(names: str, most: int) -> Rule:
    """A size that a machine can count through; with a larger one the library would be at work for hours."""
    return Rule(names, lambda value: type(value) is not int or value <= most, f"it must be at most {most:,}")


# the first rule whose pattern is found in the name of an entry decides; entries of parts are checked alike
RULES = (
    Rule(
        "^(?:quantization|compression)_config$",
        lambda value: not value,
        "quantized weights define another map than the one measured here; load the unquantized checkpoint",
    ),
    Rule(
        "(?:attn|experts)_implementation$",
        lambda value: value in COMPUTED,
        f"it must be one of {', '.join(COMPUTED)}; lipnb runs no code of a model",
    ),
    _most("(?:layers?|depths?|blocks?|block_sizes|stages?|attention_types)$", 1000),
    _most("(?:heads?|experts?|image_size|patch_size|channels)$", 20_000),
    _most("^(?:n_positions|seq_length|max_seq_len)$", 1_000_000),  # terms of relative positions, for each distance
    _most("(?:num_labels|type_vocab_size)$", 30_000),
    Rule("theta|base|seed|max_length", lambda value: True, ""),
    _most("", 10**9),
)


class Steps(TorchFunctionMode):
    """Context that ends, with a ValueError, what calls PyTorch more often than laying out any network does."""

    left = STEPS

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"it is not laid out in {STEPS:,} steps: one of its sizes is too large")
        return func(*args, **(kwargs or {}))


@contextmanager
def passed_on(refusal: str, mend: str, config: Any = None) -> Iterator[None]:
    """Context that turns an error of a library into a ValueError: what failed, why, and the fix.

    The message includes `odd_sizes(config)`, of a configuration or its entries.
    """
    try:
        yield
    except Changed:
        raise
    except Exception as error:  # libraries raise many kinds of errors
        raise ValueError(f"{refusal} ({reason(error)}{odd_sizes(config)}): {mend}.") from error


def reason(error: BaseException) -> str:
    """Message of an error, in one line; its kind if it says nothing, or only a key."""
    said, kind = " ".join(str(error).split()).rstrip("."), type(error).__name__
    said = said if len(said) <= 250 else f"{said[:250]} ..."
    said = "a table of embeddings is read beyond its last row" if said == "index out of range in self" else said
    return f"{kind}: {said}" if isinstance(error, KeyError) else said or kind


def odd_sizes(config: Any) -> str:
    """Description of unusual sizes in a configuration, or in its entries; "" if nothing is.

    Sizes that are zero or negative and positive by default, and numbers of heads that cannot share their keys.
    """
    from transformers import CONFIG_MAPPING

    found = []
    with suppress(Exception):  # a type without defaults
        entries = config if isinstance(config, dict) else config.to_dict()
        todo = [(entries, CONFIG_MAPPING[entries["model_type"]]().to_dict())]
        for here, usual in todo:
            heads, groups = here.get("num_attention_heads"), here.get("num_key_value_heads")
            if type(heads) is type(groups) is int and 0 < groups and heads % groups:
                found.append(f"num_key_value_heads = {groups} does not divide num_attention_heads = {heads}")
            for key in here.keys() & usual:
                value, own = here[key], usual[key]
                if isinstance(value, dict) and isinstance(own, dict):
                    todo.append((value, own))
                elif type(value) is type(own) is int and value <= 0 < own and not key.endswith("_id"):
                    found.append(f"{key} = {value}, by default {own}")
    return "".join(f"; {one}" for one in sorted(found)[:3])


def json_of(path: Path, name: str) -> dict:
    """Object read from a JSON file of a model; ValueError if it is damaged."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(entries, dict):
            return entries
        why = "it holds no JSON object"
    except RecursionError:
        why = "it is nested too deeply"
    except (OSError, ValueError) as error:
        why = reason(error)
    raise ValueError(
        f"{path.name} of {name!r} cannot be read as JSON in plain UTF-8 ({why}): save it in that form, or copy it "
        "again."
    )


def settings(name: str) -> str:
    """The file with the settings of a model, in words: a GGUF file holds its own."""
    return repr(name) if name.endswith(".gguf") else f"config.json of {name!r}"


def check_entries(entries: dict, name: str) -> None:
    """Refuse a value in a config.json, at any depth, that breaks one of `RULES`."""
    todo: list[tuple[str, str, Any]] = [("", "", entries)]
    for place, key, value in todo:
        if isinstance(value, str) and not key.endswith("implementation"):  # thousands of labels have no rule
            continue
        rule = next(rule for rule in RULES if re.search(rule.names, key))
        if value is not None and not rule.fits(value):
            raise ValueError(f"{settings(name)} has {place[1:]} = {repr(value)[:60]}: {rule.wanted}.")
        if isinstance(value, dict | list) and len(todo) + len(value) > ENTRIES:
            where = f" up to {place[1:]}" if place else ""
            raise ValueError(
                f"{settings(name)} has more than {ENTRIES:,} entries{where}, including those in lists and nested "
                "parts, more than any valid one: correct that file or copy it again."
            )
        if isinstance(value, dict):
            todo += [(f"{place}.{inner}", inner, one) for inner, one in value.items()]
        elif isinstance(value, list):
            todo += [(place, key, one) for one in value]


def check_size(count: int, size: int, name: str) -> None:
    """Refuse a network of `size` bytes, more than the memory of this machine, before any of it is allocated."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # the system does not tell its memory: skip the check
        return
    if size > memory:
        raise ValueError(
            f"{name!r} has {count:,} numbers, which take {size / 1e9:,.0f} GB; this machine has "
            f"{memory / 1e9:,.0f} GB: use a larger machine, or correct the sizes in {settings(name)}."
        )


def shards_of(index: Path, name: str) -> list[str]:
    """File names in the index of a split checkpoint; only plain names in the same folder are allowed."""
    weights = json_of(index, name).get("weight_map")
    if not (isinstance(weights, dict) and weights and all(isinstance(file, str) for file in weights.values())):
        raise ValueError(
            f"{index.name} of {name!r} is damaged (weight_map must name a file for each tensor): download or copy it "
            "again."
        )
    files = sorted(set(weights.values()))
    for file in files:
        if not re.fullmatch(r"[^./\\\0][^/\\\0]*\.safetensors", file):
            raise ValueError(
                f"{index.name} of {name!r} names {file[:80]!r}, which is not a safetensors file in the same folder, "
                "so lipnb does not open it: download or copy the model again."
            )
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
    files = [WEIGHTS]
    if not (folder / WEIGHTS).is_file():
        if not (folder / INDEX).is_file():
            raise FileNotFoundError(_without_weights(folder, name))
        files = shards_of(place_of(folder, INDEX, name), name)
    if absent := [file for file in files if not place_of(folder, file, name).is_file()]:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        raise FileNotFoundError(
            f"{absent[0]}{more}, named in {INDEX} of {name!r}, {'are' if more else 'is'} missing: download or copy the "
            "model again."
        )
    there = dict[str, Held]()
    for file in files:
        try:
            with safe_open(folder / file, framework="pt") as whole:
                found = {key: whole.get_slice(key) for key in whole.keys()}
        except (SafetensorError, OSError) as error:
            raise ValueError(
                f"{file} of {name!r} cannot be read as safetensors ({reason(error)}): download or copy it again."
            ) from None
        for key, part in found.items():
            if key in there:
                raise ValueError(
                    f"{name!r} has the tensor {key} twice, in {there[key].file.name} and {file}: download or copy it "
                    "again."
                )
            if key.endswith(".weight") and part.get_dtype() not in FLOATS:
                raise ValueError(
                    f"{file} of {name!r} holds {key} as {part.get_dtype()}: it is quantized or damaged; take the "
                    f"checkpoint with weights in {', '.join(FLOATS)}."
                )
            there[key] = Held(folder / file, tuple(part.get_shape()))
    return there


def _without_weights(folder, name):
    """Message for a folder without readable weights, depending on its other files."""
    files = sorted(path.name for path in folder.iterdir() if path.is_file())
    if others := [file for file in files if OTHERS.search(file)]:
        return (
            f"{name!r} has its weights in {others[0]}, which lipnb does not open: it reads {WEIGHTS}, or the files "
            f"named in {INDEX}. Load the model with transformers (AutoModel.from_pretrained), write it with "
            "save_pretrained('mine'), and give 'mine'."
        )
    if place := below(folder, WEIGHTS, INDEX):
        return f"{name!r} holds no weights, but its folder {place} does: give {f'{name}/{place}'!r}."
    return (
        f"{name!r} has no weights in safetensors format ({WEIGHTS}): add them, connect to the network if they are on "
        "the hub, or draw weights for its config.json with --random (random=True in Python)."
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
    if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(home):
        raise ValueError(
            f"{file} of {name!r} is a link to a place outside its folder, which lipnb does not follow: copy the file "
            "itself."
        )
    return path


def check_folder(folder: str | os.PathLike, name: str) -> None:
    """Refuse a folder whose links lead out of it, that holds an adapter, or whose text files are too large."""
    for path in sorted(Path(folder).iterdir()):
        if path.suffix in (*TEXTS, ".safetensors"):
            place_of(folder, path.name, name)
        longest = LONGEST_CONFIG if path.name == "config.json" else LONGEST
        if path.suffix in TEXTS and path.is_file() and path.stat().st_size > longest:
            raise ValueError(
                f"{path.name} of {name!r} has more than {longest:,} bytes, more than any valid one, so lipnb does "
                "not read it: copy it again."
            )
        if path.name in ADAPTERS:  # transformers would load the model that it names
            raise ValueError(
                f"the folder {name!r} holds an adapter ({path.name}), whose weights belong to another model: merge "
                "them into that one first (in PEFT merge_and_unload, then save_pretrained) and load the result."
            )
