"""Files of a model that would mislead, break or exhaust: one sentence each, and nothing is loaded."""

import json
import shutil
import struct

import pytest
import torch
from hub import tiny_bert, tiny_gpt2
from safetensors.torch import load_file, save_file

from lipnb import models
from lipnb.models import files


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    root = tmp_path_factory.mktemp("sound")
    tiny_bert(root / "bert")
    tiny_gpt2(root / "gpt2")
    return root


@pytest.fixture
def folder(sound, tmp_path):
    return shutil.copytree(sound / "bert", tmp_path / "model")


def refused(folder, sentence, **options):
    """Refused by a ValueError of one line with this in it."""
    with pytest.raises(ValueError, match=sentence) as caught:
        models.load(folder, **options)
    assert len(str(caught.value).splitlines()) == 1


def configured(folder, **entries):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))
    return folder


@pytest.mark.parametrize("options", [{}, {"random": True}], ids=["read", "drawn"])
@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads = 0: it must be a whole number from 1 to"),
        ({"num_attention_heads": -4}, "num_attention_heads = -4"),
        ({"num_attention_heads": True}, "num_attention_heads = True"),
        ({"num_attention_heads": 5}, "hidden_size = 32, which num_attention_heads = 5 does not divide"),
        ({"num_hidden_layers": 100_000}, "num_hidden_layers = 100000: it must be a whole number from 1 to 1,000"),
        ({"num_hidden_layers": -1}, "num_hidden_layers = -1"),
        ({"hidden_size": "32"}, "hidden_size = '32'"),
        ({"hidden_size": 32.0}, "hidden_size = 32.0"),
        ({"hidden_size": 10**9}, "hidden_size = 1000000000"),
        ({"vocab_size": 10**18}, "vocab_size = 1000000000000000000"),
        ({"max_position_embeddings": 0}, "max_position_embeddings = 0"),
        ({"intermediate_size": [48]}, r"intermediate_size = \[48\]"),
        ({"num_labels": 10**9}, "num_labels = 1000000000"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps = nan: it must be a positive number"),
        ({"layer_norm_eps": -1e-12}, "layer_norm_eps = -1e-12"),
        ({"hidden_dropout_prob": 7}, "hidden_dropout_prob = 7: it must be a number from 0 to 1"),
        ({"hidden_act": "__import__"}, "hidden_act = '__import__': it must be an activation"),
        ({"hidden_act": ["gelu"]}, "it must be an activation"),
        ({"rope_scaling": "linear"}, "rope_scaling = 'linear': it must be an object"),
        ({"pad_token_id": "x"}, "pad_token_id = 'x': it must be the number of a token"),
        ({"pad_token_id": 10**6}, "no network can be built from config.json"),
        ({"is_decoder": "yes"}, "is not a valid BERT configuration"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "is quantized .gptq."),
        ({"quantization_config": {"load_in_4bit": True}}, "is quantized .quantization_config."),
        ({"quantization_config": [1]}, "is quantized"),
        ({"compression_config": {"format": "pack"}}, "is quantized"),
        ({"model_type": ["bert"]}, "an entry model_type, a word"),
        ({"model_type": {"bert": 1}}, "an entry model_type, a word"),
        ({"model_type": None}, "an entry model_type, a word"),
    ],
)
def test_an_entry_that_no_model_has_is_named(folder, entries, sentence, options):
    refused(configured(folder, **entries), sentence, **options)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"model_type": "bert", "model_type": "x"}', "'model_type' is there twice"),
        ("[1]", "no JSON object"),
        ("", "is damaged"),
        ('{"model_type": "bert"', "is damaged"),
        ("\0", "is damaged"),
    ],
)
def test_a_damaged_configuration_is_named(folder, text, sentence):
    (folder / "config.json").write_text(text)
    refused(folder, f"not a Hugging Face configuration.*{sentence}")


def test_a_network_larger_than_the_machine_is_not_begun(folder):
    refused(
        configured(folder, hidden_size=800_000, intermediate_size=3_000_000),
        "which take .* GB; this machine has",
        random=True,
    )


def split(folder, weight_map):
    """The weights under another name, named by an index."""
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize(
    "entry",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "sub/x.safetensors",
        "..\\\\x.safetensors",
        "part.bin",
        ".hidden.safetensors",
        "x\0.safetensors",
        "",
    ],
)
def test_an_index_leads_nowhere_else(folder, entry):
    shutil.copy(folder / "model.safetensors", folder.parent / "x.safetensors")
    refused(split(folder, {"a": "part.safetensors", "b": entry}), "is no safetensors file in the same folder")


@pytest.mark.parametrize("weight_map", [["part.safetensors"], "part.safetensors", {}, None, {"a": 1}, {"a": ["b"]}])
def test_an_index_of_another_form_is_named(folder, weight_map):
    refused(split(folder, weight_map), "model.safetensors.index.json of .* is damaged .weight_map must name")


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_link_out_of_a_plain_folder_is_not_followed(folder, file):
    (folder / file).rename(folder.parent / "elsewhere")
    (folder / file).symlink_to(folder.parent / "elsewhere")
    refused(folder, f"{file} of .* is a link to a place outside its folder")


def test_the_links_of_the_hubs_cache_are_followed(folder, tmp_path):
    home = tmp_path / "models--a--b"
    (home / "blobs").mkdir(parents=True)
    snapshot = home / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    for file in folder.iterdir():
        shutil.copy(file, home / "blobs" / file.name)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    assert models.load(snapshot).layers == 2


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: raw[: len(raw) // 2],
        lambda raw: b"",
        lambda raw: raw[:5],
        lambda raw: struct.pack("<Q", 2**60) + raw[8:],
        lambda raw: struct.pack("<Q", 0) + raw[8:],
        lambda raw: raw + b"x" * 100,
        lambda raw: raw[:8] + b"[" + raw[9:],
    ],
    ids=["half", "empty", "five bytes", "huge header", "no header", "more", "another header"],
)
def test_damaged_weights_are_named(folder, spoil):
    path = folder / "model.safetensors"
    path.write_bytes(spoil(path.read_bytes()))
    refused(folder, "is not a whole safetensors file")


def changed(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


KEY = "encoder.layer.1.attention.self.query.weight"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: t.pop(KEY), "not complete: 1 tensors"),
        (lambda t: t.update({KEY: t[KEY][:16].contiguous()}), "shapes differ"),
        (lambda t: t.update({KEY: t[KEY].to(torch.int8)}), "holds encoder.* as I8: it is quantized or damaged"),
        (lambda t: t.update({KEY: t[KEY].to(torch.float8_e4m3fn)}), "as F8_E4M3: it is quantized"),
        (lambda t: t.update({KEY: t[KEY] * float("nan")}), "are NaN or infinite"),
        (lambda t: t.update({KEY.replace("1", "7"): t[KEY].clone()}), "they hold 8 layers, it describes 2"),
        (lambda t: t.clear(), "do not fit its config.json"),
    ],
)
def test_weights_that_are_not_those_of_the_configuration_are_refused(folder, change, sentence):
    refused(changed(folder, change), sentence)


def test_fewer_layers_than_the_weights_hold_are_not_measured_without_a_word(folder):
    refused(configured(folder, num_hidden_layers=1), "they hold 2 layers, it describes 1")


def test_a_tensor_in_two_files_is_refused(folder):
    shutil.copy(folder / "model.safetensors", folder / "other.safetensors")
    refused(split(folder, {"a": "part.safetensors", "b": "other.safetensors"}), "has the tensor .* twice")


def test_sound_models_pass(sound):
    assert models.load(sound / "bert").layers == 2 and models.load(sound / "gpt2").layers == 4
    assert files.holds_model(sound / "bert")
