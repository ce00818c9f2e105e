"""Conversion of a GGUF file to a plain folder: config.json, model.safetensors in float32, tokenizer (if supported).

The `gguf` library reads the file. Names and entries are translated here and not by transformers, which ignores entries
that it does not know, such as a scaling of rotary positions: anything that could mean another map is refused.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from lipnb.extras import extra
from lipscan.models.config_checks import DEQUANTIZED, check_entries, check_size, reason
from lipscan.origin import cache_folder
from lipscan.registry import digest, made

READS = 10_000_000  # most numbers and texts in the entries of a file; the largest vocabularies take a quarter
FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
# entry of the file, after the name of its family -> entry of config.json
SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "vocab_size": "vocab_size",
}
ROTARY, BASE = "rope.dimension_count", "rope.freq_base"
SCALING, FACTORS = "rope.scaling.", ("rope.scaling.factor", "rope.scale_linear")  # two names of one number
FREQUENCIES = "rope_freqs.weight"  # divisors of the frequencies of the rotations, as in Llama 3
BEHIND = ("cls.", "output_norm_enc.")  # heads that read the last hidden states
NEEDED = {*SIZES, "token_embd.weight"} - {"attention.head_count_kv", "attention.key_length", "vocab_size"}
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
PLAIN = {"F32", "F16", "BF16"}
SPECIAL = (3, 4)  # kinds of tokens: control, and user-defined
ENDS = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}  # names of special tokens: GGUF -> Hugging Face


def gguf_folder(path: Path) -> Path:
    """Folder in Hugging Face format of a GGUF file, created in the cache on first use."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}: give the path of a GGUF file, or a model's folder.")
    folder = cache_folder() / "models" / f"gguf-{digest(path)[:16]}"
    return made(folder, lambda inner: unpack_gguf(path, inner, path.name))


def unpack_gguf(path: Path, folder: Path, name: str) -> None:
    """Write the model of a GGUF file as a folder that `load` reads like any other.

    Quantized numbers become the float32 values that the `gguf` library decodes. The measured map has the weights of the
    file, already rounded to a few bits, not those before quantization.
    """
    with extra("weights"):
        from gguf import dequantize
        from safetensors.numpy import save_file
    entries, held = _read(path, name)
    divided = held.pop(FREQUENCIES, None)
    held = {own: tensor for own, tensor in held.items() if not own.startswith(BEHIND)}
    config = _config(entries, held, None if divided is None else dequantize(divided.data, divided.tensor_type), name)
    check_entries(config, name)
    count = sum(int(tensor.n_elements) for tensor in held.values())
    check_size(count, 4 * count, name)
    tensors = {}
    for own, tensor in held.items():
        try:
            numbers = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            raise ValueError(
                f"{name!r} holds {own} as {tensor.tensor_type.name}, which the gguf library cannot convert to "
                "numbers: take another file of the model."
            ) from None
        if config["model_type"] == "llama" and own.endswith(("attn_q.weight", "attn_k.weight")):
            heads = config["num_attention_heads" if "attn_q" in own else "num_key_value_heads"]
            numbers = _in_halves(numbers, heads, own, name)
        tensors[_named(own, name)] = np.ascontiguousarray(numbers)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    _save_tokenizer(entries, folder, name)
    kinds = sorted({tensor.tensor_type.name for tensor in held.values()} - PLAIN)
    config |= {DEQUANTIZED: kinds} if kinds else {}
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def _read(path, name):
    """Entries and tensors of a GGUF file, by name; ValueError if it is not one or is truncated."""
    with extra("weights"):
        from gguf import GGUFReader

    class Reader(GGUFReader):
        """The library's reader, with checks of the end of the file and of the number of values it states."""

        reads = 0

        def _get(self, offset, dtype, count=1, override_order=None):
            self.reads += 1
            if self.reads > READS:
                raise ValueError(f"it states more than {READS:,} values")
            if offset + int(count) * np.dtype(dtype).itemsize > len(self.data):
                raise ValueError("it ends too early")
            return super()._get(offset, dtype, count, override_order)

    try:
        reader = Reader(path)
        if reader.byte_order != "I":
            raise ValueError("its numbers have another byte order")
        entries = {key: field.contents() for key, field in reader.fields.items()}
    except Exception as error:  # the library raises many kinds of errors
        raise ValueError(
            f"{name!r} is not a complete GGUF file ({reason(error)}): download or copy it again."
        ) from None
    return entries, {tensor.name: tensor for tensor in reader.tensors}


def _config(entries, held, divisors, name) -> dict[str, Any]:
    """Entries of config.json; ValueError for any entry that could mean a map other than the family's.

    `divisors` divide the frequencies of the rotations; None if the file has none.
    """
    family = entries.get("general.architecture")
    if family not in FAMILIES:
        raise ValueError(
            f"{name!r} is a {family!r} GGUF file, which is not supported; the supported families are "
            f"{', '.join(FAMILIES)}."
        )
    found = {key.removeprefix(f"{family}."): value for key, value in entries.items() if key.startswith(f"{family}.")}
    if missing := NEEDED - found.keys() - held.keys():
        raise ValueError(f"{name!r} lacks {sorted(missing)[0]}: download or copy it again.")
    config = {entry: found.pop(key) for key, entry in SIZES.items() if key in found}
    rotary, base = found.pop(ROTARY, None), found.pop(BASE, 10000.0)
    found.pop("attention.value_length", None)  # else the shapes disagree, which reading the network reports
    found.pop("pooling_type", None)  # only concerns how the last hidden states are pooled
    factor = _stretch(found, config, family, name)
    window = found.pop("attention.sliding_window", 0)
    if not isinstance(window, int) or 0 < window < config["max_position_embeddings"]:
        raise ValueError(
            f"{name!r} has a sliding window of {window!r} tokens, which lipnb does not read from a GGUF file: load "
            "the Hugging Face folder that it was made from."
        )
    causal = found.pop("attention.causal", True)
    if not isinstance(causal, bool):
        raise ValueError(f"{name!r} has {family}.attention.causal = {causal!r:.40}: it must be true or false.")
    found = {key: value for key, value in found.items() if key not in ("expert_count", "expert_used_count") or value}
    if found:
        key, value = next(iter(found.items()))
        raise ValueError(f"{name!r} has {family}.{key} = {repr(value)[:40]}, which is not supported.")
    head = config.get("head_dim") or _head(config)
    if rotary not in (None, head):
        raise ValueError(f"{name!r} rotates only {rotary!r} numbers of each head, which is not supported.")
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    if head is not None:
        config["head_dim"] = head  # else transformers takes the default of the family
    config.setdefault("vocab_size", int(held["token_embd.weight"].shape[-1]))  # GGUF shapes list columns first
    ids = {f"{ENDS[end]}_token_id": entries.get(f"tokenizer.ggml.{end}_token_id") for end in ("bos", "eos", "padding")}
    return {
        **config,
        **{key: value for key, value in ids.items() if value is not None},
        "architectures": [FAMILIES[family]],
        "model_type": family,
        "is_causal": bool(causal),
        "rope_parameters": _rotation(base, factor, divisors, head, config["max_position_embeddings"], name),
        "tie_word_embeddings": "output.weight" not in held,
        "dtype": "float32",
    }


def _stretch(found, config, family, name):
    """Common divisor of all frequencies of rotations; removes its entries from `found`.

    As in llama.cpp, a factor without a type means "linear", and the type "none" ignores the factor.
    """
    kind = found.pop(f"{SCALING}type", "linear")
    factors = [found.pop(key) for key in FACTORS if key in found]
    for key, neutral in (("finetuned", (True, False)), ("attn_factor", (1,)), ("original_context_length", None)):
        value = found.pop(SCALING + key, None)
        if neutral is not None and value is not None and value not in neutral:
            found[SCALING + key] = value  # refused with the rest
    if kind not in ("none", "linear"):
        raise ValueError(
            f"{name!r} has {family}.{SCALING}type = {kind!r:.40}: only none and linear are supported in a GGUF file; "
            "load the Hugging Face folder that it was made from."
        )
    factor = (factors[0] if kind == "linear" and factors else 1.0) or 1.0
    if not (isinstance(factor, (int, float)) and 0 < factor < float("inf")):
        raise ValueError(f"{name!r} has {family}.{FACTORS[0]} = {factor!r:.40}: it must be a positive number.")
    return float(factor)


def _rotation(base, factor, divisors, head, longest, name):
    """Entry rope_parameters of config.json; divisors of single frequencies become a longrope with one table."""
    if divisors is None:
        scaled = {"rope_type": "linear", "factor": factor} if factor != 1 else {"rope_type": "default"}
        return scaled | {"rope_theta": base}
    if divisors.ndim != 1 or 2 * len(divisors) != head or not (np.isfinite(divisors) & (divisors > 0)).all():
        raise ValueError(
            f"{name!r} holds {FREQUENCIES} of shape {divisors.shape}: they must be {head!r} / 2 positive numbers, one "
            "for each frequency of its rotations; download or copy it again."
        )
    each = (factor * divisors.astype(np.float64)).tolist()
    lengths = {"factor": 1.0, "attention_factor": 1.0, "original_max_position_embeddings": longest}
    return {"rope_type": "longrope", "rope_theta": base, "short_factor": each, "long_factor": each} | lengths


def _head(config):
    heads, width = config["num_attention_heads"], config["hidden_size"]
    return width // heads if type(heads) is int and type(width) is int and heads > 0 else None


def _named(own, name):
    """Name of a tensor in the network of transformers."""
    stem, _, kind = own.rpartition(".")
    parts = stem.split(".")
    if kind in ("weight", "bias"):
        if stem in WHOLE:
            return f"{WHOLE[stem]}.{kind}"
        if len(parts) == 3 and parts[0] == "blk" and parts[1].isdecimal() and parts[2] in IN_LAYER:
            return f"model.layers.{int(parts[1])}.{IN_LAYER[parts[2]]}.{kind}"
    raise ValueError(f"{name!r} holds the tensor {own[:80]!r}, which is not supported.")


def _in_halves(numbers, heads, own, name):
    """Reorder the rows of each head for transformers: rotated pairs half a head apart, not next to each other."""
    rows = len(numbers)
    if type(heads) is not int or heads < 1 or rows % (2 * heads):
        raise ValueError(f"{name!r} holds {own} with {rows} rows, which do not fit {heads!r} heads.")
    return numbers.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(numbers.shape)


def _save_tokenizer(entries, folder, name):
    """Write tokenizer.json for a byte-level BPE with a supported pre-tokenizer; for other tokenizers write nothing."""
    kind = entries.get("tokenizer.ggml.pre")
    if entries.get("tokenizer.ggml.model") != "gpt2" or kind not in ("smollm", "gpt-2"):
        return
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    words, merges = entries.get("tokenizer.ggml.tokens"), entries.get("tokenizer.ggml.merges")
    kinds = entries.get("tokenizer.ggml.token_type") or []
    try:
        tokenizer = Tokenizer(
            models.BPE({word: number for number, word in enumerate(words)}, [tuple(pair.split(" ")) for pair in merges])
        )
        special = [word for word, kind in zip(words, kinds, strict=True) if kind in SPECIAL]
        tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in special])
    except Exception as error:  # the library raises many kinds of errors
        raise ValueError(f"the tokenizer of {name!r} could not be read ({reason(error)}).") from None
    digits = [pre_tokenizers.Digits(individual_digits=True)] if kind == "smollm" else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {short: entries.get(f"tokenizer.ggml.{long}_token_id") for long, short in ENDS.items()}
    ends = {f"{end}_token": words[i] for end, i in ids.items() if type(i) is int and 0 <= i < len(words)}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **ends}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
