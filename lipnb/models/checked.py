"""What a model's files may say: each entry that would break, mislead or exhaust is answered in one sentence.

They can come from anybody, so they are read as plain values and checked before a library builds anything from them.
"""

import codecs
import json
import math
import os
from contextlib import suppress
from pathlib import Path

from lipnb.origin import extra

__all__ = [
    "DEQUANTIZED",
    "check_entries",
    "check_folder",
    "check_size",
    "json_of",
    "place_of",
    "refuse_adapter",
    "refuse_mark",
    "shards_of",
]

LONGEST = 50_000_000  # bytes of config.json or of an index; thousands of shards take fewer
LONGEST_READ = 200_000_000  # bytes of another file of text, such as a tokenizer's
TEXTS = (".json", ".txt", ".model", ".jinja")
WHOLE = {  # entries that count something -> the most that a model has
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers"), 1000),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_key_value_heads"), 10_000),
    **dict.fromkeys(("hidden_size", "n_embd", "dim", "head_dim", "intermediate_size", "n_inner", "hidden_dim"), 10**7),
    **dict.fromkeys(("vocab_size", "max_position_embeddings", "n_positions", "n_ctx", "sliding_window"), 10**9),
    **dict.fromkeys(("image_size", "patch_size", "num_channels"), 100_000),
    **dict.fromkeys(("type_vocab_size", "num_labels", "chunk_size_feed_forward"), 30_000),
}
# without windows a configuration may say 0 as well as null
LEAST = {"sliding_window": 0, "type_vocab_size": 0, "num_labels": 0, "chunk_size_feed_forward": 0}
POSITIVE = ("layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps", "rope_theta")
NOT_NEGATIVE = ("initializer_range",)
SHARES = (
    "attention_probs_dropout_prob",
    "hidden_dropout_prob",
    "attn_pdrop",
    "resid_pdrop",
    "embd_pdrop",
    "dropout",
    "attention_dropout",
    "classifier_dropout",
)
DEQUANTIZED = "dequantized_from"  # how the GGUF file stored the weights that are read here as float32
# ways of computing that the library has itself; any other is a name on the hub, whose code it would fetch and run
COMPUTED = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention", "grouped_mm", "batched_mm")
ROTARY = ("rope_scaling", "rope_parameters")
QUANTIZED = ("quantization_config", "compression_config")
HEADS = (
    ("hidden_size", "num_attention_heads"),
    ("n_embd", "n_head"),
    ("dim", "n_heads"),
    ("num_attention_heads", "num_key_value_heads"),
)


def refuse_mark(path, what):
    """Refuse a file of text that begins with a byte order mark, which the library of models does not read."""
    try:
        with path.open("rb") as file:
            marked = file.read(3).startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    except OSError:  # who reads it says why
        return
    if marked:
        raise ValueError(f"{what} begins with a byte order mark: save it as plain UTF-8, without one.")


def json_of(path, what):
    """The object of a JSON file, or a ValueError that names `what`: not JSON, no object, an entry twice, too large."""

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


def check_entries(entries, name):
    """Refuse entries of a config.json that no model has, in a sentence.

    Parameters
    ----------
    entries : dict
        Of config.json.
    name : str
        Of the model.

    Raises
    ------
    ValueError
        "... is quantized ...", "config.json of ... has ... = ...: ..."
    """
    for key in QUANTIZED:
        if entries.get(key) is not None:
            method = entries[key].get("quant_method") if isinstance(entries[key], dict) else None
            raise ValueError(
                f"{name!r} is quantized ({method or key}), and its weights are not those of the map that "
                "is measured: load the checkpoint that was not quantized."
            )
    for key, value in entries.items():
        if value is None:
            continue
        wanted = None
        if key in WHOLE and not (type(value) is int and LEAST.get(key, 1) <= value <= WHOLE[key]):
            wanted = f"a whole number from {LEAST.get(key, 1)} to {WHOLE[key]:,}"
        elif key in POSITIVE and not (_number(value) and 0 < value < math.inf):
            wanted = "a positive number"
        elif key in NOT_NEGATIVE and not (_number(value) and value >= 0):
            wanted = "a number from 0 on"
        elif key in SHARES and not (_number(value) and 0 <= value <= 1):
            wanted = "a number from 0 to 1"
        elif key.endswith("_token_id") and not (
            type(value) is int and 0 <= value <= 10**9 or isinstance(value, list) or value == -1
        ):
            wanted = "the number of a token"
        elif key in ROTARY and not isinstance(value, dict):
            wanted = "an object"
        elif key == DEQUANTIZED and not (isinstance(value, list) and all(isinstance(kind, str) for kind in value)):
            wanted = "a list of words"
        elif key.endswith(("attn_implementation", "experts_implementation")) and value not in COMPUTED:
            wanted = f"one of {', '.join(COMPUTED)}; no code of a model is run"
        elif key in ("hidden_act", "activation_function", "activation") and not _known_activation(value):
            wanted = "an activation that transformers knows"
        if wanted is not None:
            raise ValueError(f"config.json of {name!r} has {key} = {repr(value)[:40]}: it must be {wanted}.")
    for key in ROTARY:
        _check_rotary(entries.get(key) or {}, key, name)
    for whole, part in HEADS:
        if (
            all(type(entries.get(key)) is int for key in (whole, part))
            and entries[whole] % entries[part]
            and (whole == "num_attention_heads" or not entries.get("head_dim"))
        ):
            raise ValueError(
                f"config.json of {name!r} has {whole} = {entries[whole]}, which {part} = {entries[part]} "
                "does not divide."
            )


def _check_rotary(settings, path, name):
    """Refuse numbers of rotary positions that no rotation has; layers of several kinds have settings of their own."""
    for key, value in settings.items():
        place, wanted = f"{path}.{key}", None
        numbers = value if isinstance(value, list) else [value]
        if isinstance(value, dict):
            _check_rotary(value, place, name)
        elif key in ("rope_type", "type") and not isinstance(value, str):
            wanted = "a word"
        elif key == "partial_rotary_factor" and not (_number(value) and 0 < value <= 1):
            wanted = "a number up to 1, above 0"
        elif key.endswith(("factor", "theta", "embeddings", "fast", "slow")) and value is not None:
            if not all(_number(number) and number > 0 for number in numbers):
                wanted = "a positive number"
        if wanted is not None:
            raise ValueError(f"config.json of {name!r} has {place} = {repr(value)[:40]}: it must be {wanted}.")


def _number(value):
    return type(value) in (int, float) and math.isfinite(value)


def _known_activation(value):
    with extra("models"):
        from transformers.activations import ACT2FN

    return isinstance(value, str) and value in ACT2FN


def check_size(count, itemsize, name):
    """Refuse a network that cannot lie in the memory of this machine, before any of it is made."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # this system does not say: nothing is checked
        return
    if count * itemsize > memory:
        raise ValueError(
            f"{name!r} has {count:,} numbers, which take {count * itemsize / 1e9:,.0f} GB; this machine "
            f"has {memory / 1e9:,.0f} GB."
        )


def shards_of(index, name):
    """Files named by the index of a split checkpoint: plain names in its own folder, and nothing else."""
    weights = json_of(index, f"{index.name} of {name!r}").get("weight_map")
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
    return files


def place_of(folder, file, name):
    """Path of a file of a model, which a link in a plain folder may not lead out of.

    The cache of the Hugging Face hub keeps ``snapshots/COMMIT/FILE`` as links into ``blobs`` beside them.
    """
    folder = Path(folder)
    path, home = folder / file, folder.resolve()
    if home.parent.name == "snapshots":
        home = home.parents[1]
    try:
        if path.is_symlink():
            with suppress(FileNotFoundError):
                path.stat()  # from Python 3.13 on a circle resolves without a word
        inside = not path.is_symlink() or path.resolve().is_relative_to(home)
    except (OSError, RuntimeError):
        raise ValueError(f"{file} of {name!r} is a link that leads in a circle: copy the file itself.") from None
    if not inside:
        raise ValueError(
            f"{file} of {name!r} is a link to a place outside its folder: it is not followed; copy the file itself."
        )
    return path


def check_folder(folder, name):
    """Refuse a folder of which a library would follow a link, take the weights of another model, or read without end.

    Raises
    ------
    ValueError
        "... is a link to a place outside its folder ...", "... holds an adapter ...", "... has more than ... bytes ..."
    """
    folder = Path(folder)
    for path in sorted(folder.iterdir()):
        if path.suffix not in (*TEXTS, ".safetensors"):
            continue
        place_of(folder, path.name, name)
        if path.suffix in TEXTS and path.is_file() and path.stat().st_size > LONGEST_READ:
            raise ValueError(
                f"{path.name} of {name!r} has more than {LONGEST_READ:,} bytes, more than any sound one: not read."
            )
    refuse_adapter(folder, name)


def refuse_adapter(folder, name):
    """Refuse the weights of PEFT, such as LoRA: the library would load the model that they name."""
    if (Path(folder) / "adapter_config.json").exists():
        raise ValueError(
            f"the folder {name!r} holds an adapter (adapter_config.json), whose weights belong to another model: "
            "merge them into that one first (in PEFT merge_and_unload, then save_pretrained) and load the result."
        )
