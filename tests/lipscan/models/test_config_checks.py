"""Folders that would mislead, lead elsewhere, run code, break or exhaust: one sentence each."""

import json
import os
import shutil
import struct

import pytest
import torch
from hub import given
from safetensors.torch import load_file, save_file

from lipscan import models
from lipscan.models import config_checks
from lipscan.scanning import scan

NAN = float("nan")


KEY = "encoder.layer.1.attention.self.query.weight"


def refused(place, sentence, early=True, **options):
    """Loading is refused in one line with these words, if early before any weights are read."""

    def read(*args):
        raise AssertionError("weights were read")

    with pytest.MonkeyPatch.context() as patch:
        if early:
            patch.setattr("lipscan.models.loading._read", read)
        with pytest.raises((ValueError, OSError), match=sentence) as caught:
            models.load(place, **options)
    assert len(str(caught.value).splitlines()) == 1


def configured(folder, **entries):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))
    return folder


ENTRIES = {
    "bert": [
        ({"num_attention_heads": 0}, "num_attention_heads = 0: it must be a whole number from 1 to"),
        ({"num_attention_heads": True}, "num_attention_heads = True"),
        ({"num_attention_heads": 5}, "32.* is not a multiple of the number of attention heads .5|is not a valid BERT"),
        ({"num_hidden_layers": 100_000}, "num_hidden_layers = 100000: it must be a whole number from 1 to 1,000"),
        ({"num_hidden_layers": -1}, "num_hidden_layers = -1"),
        ({"hidden_size": "32"}, "hidden_size = '32': it must be a whole number"),
        ({"hidden_size": 32.0}, "is not a valid BERT configuration"),
        ({"hidden_size": [10**9]}, r"hidden_size = \[1000000000\]: it must be"),
        ({"hidden_size": [[32]]}, r"hidden_size = \[\[32\]\]: it must be"),
        ({"num_hidden_layers": [1] * 2000}, "num_hidden_layers = .1, 1"),
        ({"text_config": {"num_hidden_layers": 10**6}}, "has text_config.num_hidden_layers = 1000000: it must be"),
        ({"hidden_size": 10**9}, "hidden_size = 1000000000"),
        ({"vocab_size": 10**18}, "vocab_size = 1000000000000000000"),
        ({"vocab_size": 0}, "vocab_size = 0"),
        ({"type_vocab_size": -1}, "type_vocab_size = -1"),
        ({"max_position_embeddings": 0}, "max_position_embeddings = 0"),
        ({"intermediate_size": [48]}, "is not a valid BERT configuration"),
        ({"num_labels": 10**6}, "num_labels = 1000000"),
        ({"layer_norm_eps": NAN}, "layer_norm_eps = nan: it must be a positive number"),
        ({"layer_norm_eps": True}, "layer_norm_eps = True: it must be a positive number"),
        ({"layer_norm_eps": float("inf")}, "layer_norm_eps = inf"),
        ({"layer_norm_eps": -1e-12}, "layer_norm_eps = -1e-12"),
        ({"hidden_dropout_prob": 7}, "hidden_dropout_prob = 7: it must be a number from 0 to 1"),
        ({"initializer_range": NAN}, "initializer_range = nan: it must be a number from 0 on"),
        ({"chunk_size_feed_forward": "x"}, "chunk_size_feed_forward = 'x': it must be a whole number"),
        ({"hidden_act": "__import__"}, "hidden_act = '__import__': it must be an activation"),
        ({"hidden_act": ["gelu"]}, "it must be an activation"),
        ({"rope_scaling": "linear"}, "rope_scaling = 'linear': it must be an object"),
        ({"pad_token_id": "x"}, "pad_token_id = 'x': it must be the number of a token"),
        ({"pad_token_id": 10**6}, "no network can be built from config.json"),
        ({"is_decoder": "yes"}, "is not a valid BERT configuration"),
        ({"dtype": "float999"}, "is not a valid BERT configuration"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
        ({"dequantized_from": {"a": 1}}, "dequantized_from = .* it must be a list of words"),
        ({"quantization_config": [1]}, "is quantized"),
        ({"quantization_config": {"load_in_4bit": True}}, "is quantized .quantization_config."),
        ({"compression_config": {"format": "pack"}}, "is quantized"),
        ({"_attn_implementation": "someone/kernel"}, "no code of a model is run"),
        ({"attn_implementation": "someone/kernel@main:run"}, "no code of a model is run"),
        ({"experts_implementation": ["a/b"]}, "no code of a model is run"),
        ({"model_type": "evil"}, "is a evil model, which is not supported: this version of transformers has none"),
        ({"model_type": ["bert"]}, "an entry model_type, a word"),
        ({"model_type": None}, "an entry model_type, a word"),
    ],
    "llama": [
        *(({"quantization_config": {"quant_method": x}}, f"is quantized .{x}.") for x in ("bitsandbytes", "fp8", "x")),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "rope_parameters.factor = 0: it must be"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_scaling.factor = '2': it must be"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": NAN}}, "rope_theta = nan"),
        ({"rope_parameters": {"full_attention": {"rope_theta": -1}}}, "full_attention.rope_theta = -1"),
        ({"rope_parameters": {"rope_type": "evil"}}, "rope_type = 'evil', which is not supported"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8}}, "is not a valid Llama configuration"),
        ({"rope_parameters": {"partial_rotary_factor": 7}}, "partial_rotary_factor = 7"),
        ({"rope_parameters": {"rope_type": "longrope", "short_factor": [1, 0]}}, "short_factor = .1, 0.: it must be a"),
        ({"sliding_window": -1}, "sliding_window = -1: it must be a whole number from 0"),
        ({"num_key_value_heads": 3}, "num_attention_heads = 4, which num_key_value_heads = 3 does not divide"),
        ({"head_dim": 7}, "is not a valid Llama configuration.*even"),
        ({"head_dim": -8}, "head_dim = -8"),
        ({"layer_types": ["sliding_attention"]}, "is not a valid Llama configuration"),
    ],
    "gpt2": [({"n_head": 5}, "no network can be built from config.json of .* divisible"), ({"n_ctx": 0}, "n_ctx = 0")],
}


def test_an_entry_that_misleads_is_named(sound, tmp_path):
    for kind, cases in ENTRIES.items():
        folder = shutil.copytree(sound / kind, tmp_path / kind)
        written = (folder / "config.json").read_text()
        for entries, sentence in cases:
            (folder / "config.json").write_text(written)
            for options in ({}, {"random": True}):
                refused(configured(folder, **entries), sentence, **options)


def test_an_entry_that_changes_no_map_is_no_hindrance(folder):
    model = models.load(configured(folder, return_dict=False, output_attentions=True, is_encoder_decoder=True))
    x, y = given(model, torch.arange(5)[None], 1)
    torch.testing.assert_close(model.attention(1)(x), y)


def test_what_the_library_allows_is_read(sound, folder, tmp_path):
    """Nothing is quantized by an empty entry; sides of images as two numbers; a size for each layer."""
    for entries in ({"quantization_config": {}}, {"compression_config": {}, "quantization_config": None}):
        assert models.load(configured(folder, **entries)).layers == 2
    (tmp_path / "vit").mkdir()
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
    vit = tmp_path / "vit" / "config.json"
    vit.write_text(json.dumps(dict(model_type="vit", image_size=[32, 32], patch_size=[8, 8], **sizes)))
    model = models.load(tmp_path / "vit", random=True)
    assert model.longest == 17 and model.activations(torch.zeros(1, 3, 32, 32), 1).shape == (1, 17, 32)
    model = models.load(configured(tmp_path / "vit", image_size=[32, 16]), random=True)
    assert model.longest == 9 and model.activations(torch.zeros(1, 3, 32, 16), 1).shape == (1, 9, 32)
    (tmp_path / "gemma").mkdir()
    sizes |= dict(num_key_value_heads=2, head_dim=8, vocab_size=70, vocab_size_per_layer_input=70)
    sizes |= dict(intermediate_size=[48, 64], num_kv_shared_layers=0, hidden_size_per_layer_input=8, laurel_rank=4)
    sizes |= dict(activation_sparsity_pattern=[0.0, 0.0], layer_types=["sliding_attention", "full_attention"])
    (tmp_path / "gemma" / "config.json").write_text(json.dumps(dict(model_type="gemma3n_text", **sizes)))
    assert models.load(tmp_path / "gemma", random=True).layers == 2


def test_what_only_a_forward_pass_refuses_is_a_sentence(folder):
    refused(configured(folder, type_vocab_size=0), "the network of .* cannot be run", early=False, random=True)


def test_a_network_larger_than_the_machine_is_not_begun(folder):
    configured(folder, hidden_size=800_000, intermediate_size=3_000_000)
    refused(folder, "which take .* GB; this machine has", random=True)


def sparse(path, size):
    with open(path, "wb") as file:
        file.truncate(size)


def linked(path):
    path.rename(path.parent.parent / path.name)
    path.symlink_to(path.parent.parent / path.name)


MARKED = "begins with a byte order mark: save it as plain UTF-8"


CONFIGS = [  # what becomes of config.json
    (lambda path: path.write_text(path.read_text(), encoding="utf-16"), MARKED),
    (lambda path: path.write_text(path.read_text(), encoding="utf-8-sig"), MARKED),
    (lambda path: sparse(path, 10**9), "more than 200,000,000 bytes"),
    (lambda path: sparse(path, 6 * 10**7), "more than 50,000,000 bytes"),
    (lambda path: (path.unlink(), path.mkdir()), "holds no config.json"),
    (lambda path: (path.unlink(), os.mkfifo(path)), "holds no config.json"),
    (lambda path: (path.unlink(), path.symlink_to(path.name)), "is a link that leads in a circle"),
    (lambda path: (path.unlink(), path.symlink_to("/dev/zero")), "is a link to a place outside its folder"),
    (linked, "config.json of .* is a link to a place outside its folder"),
    (lambda path: path.unlink(), "holds no config.json: pass a folder in Hugging Face format"),
    (lambda path: path.write_text('{"model_type": ' * 10**5), "nested too deeply"),
    (lambda path: path.write_text('{"model_type": "bert", "model_type": "x"}'), "'model_type' is there twice"),
    (lambda path: path.write_text('{"model_type": "bert", "layer_norm_eps": 1e999}'), "layer_norm_eps = inf"),
    *((lambda path, text=text: path.write_text(text), said) for text, said in {
        "[1]": "no JSON object", "": "is damaged", '{"model_type": "bert"': "is damaged", "\0": "is damaged",
    }.items()),
]  # fmt: skip


def header(text, size):
    """Bytes of a safetensors file with this header and `size` bytes of data."""
    text = text if isinstance(text, bytes) else json.dumps(text).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


def tensor(start, end, shape=(4,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


RAW = [  # what becomes of the bytes of model.safetensors
    lambda raw: raw[: len(raw) // 2],
    lambda raw: b"",
    lambda raw: raw[:5],
    lambda raw: b"version https://git-lfs" * 9,
    lambda raw: struct.pack("<Q", 2**60) + raw[8:],
    lambda raw: struct.pack("<Q", 0) + raw[8:],
    lambda raw: raw + b"x" * 100,
    lambda raw: raw[:8] + b"[" + raw[9:],
    lambda raw: header({"a": tensor(0, 16), "b": tensor(8, 24)}, 24),  # they overlap
    lambda raw: header({"a": tensor(0, 16), "b": tensor(20, 36)}, 36),  # a gap
    lambda raw: header({"a": tensor(0, 1600, (400,))}, 16),
    lambda raw: header({"a": tensor(16, 0)}, 16),
    lambda raw: header({"a": tensor(-16, 0)}, 16),
    lambda raw: header({"a": tensor(0, 16, (2**62, 4))}, 16),
    lambda raw: header({"a": tensor(0, 16, (5,))}, 16),
    lambda raw: header({"a": tensor(0, 16, dtype="F31")}, 16),
    lambda raw: header(b"{" * 40, 0),
]


TENSORS = [  # what becomes of the tensors
    (lambda t: t.pop(KEY), "not complete: 1 tensors of its config.json are missing, such as encoder"),
    (lambda t: t.update({KEY: t[KEY][:16].contiguous()}), "shapes differ"),
    (lambda t: t.update({KEY: t[KEY].to(torch.int8)}), "holds encoder.* as I8: it is quantized or damaged"),
    (lambda t: t.update({KEY: t[KEY].to(torch.float8_e4m3fn)}), "as F8_E4M3: it is quantized"),
    (lambda t: t.update({KEY: t[KEY] * NAN}), "are NaN or infinite"),
    (lambda t: t[KEY][0, :1].fill_(NAN), "are NaN"),
    (lambda t: t.update({KEY.replace("1", "7"): t[KEY].clone()}), "they hold 8 layers, it describes 2"),
    (lambda t: t.clear(), "do not fit its config.json"),
]


def spoiled(path, change):
    """A safetensors file with other tensors."""
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


def test_a_file_that_is_damaged_or_leads_elsewhere_is_named(sound, tmp_path):
    def copied():
        return shutil.copytree(sound / "bert", tmp_path / str(len([*tmp_path.iterdir()])) / "model")

    for spoil, sentence in CONFIGS:
        spoil((folder := copied()) / "config.json")
        refused(folder, sentence)
    for change in RAW:
        path = (folder := copied()) / "model.safetensors"
        path.write_bytes(change(path.read_bytes()))
        refused(folder, "model.safetensors of .* is not a whole safetensors file .* download or copy it again")
    for change, sentence in TENSORS:
        spoiled((folder := copied()) / "model.safetensors", change)
        refused(folder, sentence, early=False)
    linked((folder := copied()) / "model.safetensors")
    refused(folder, "model.safetensors of .* is a link to a place outside its folder")
    for file in ("vocab.txt", "tokenizer_config.json", "added_tokens.json"):
        ((folder := copied()) / file).write_text("{}")
        linked(folder / file)
        refused(folder, f"{file} of .* is a link to a place outside its folder")


def split(folder, weight_map):
    """The weights under another name, named by an index."""
    if (folder / "model.safetensors").exists():
        (folder / "model.safetensors").rename(folder / "part.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def test_an_index_leads_nowhere_else_and_has_its_form(folder):
    shutil.copy(folder / "model.safetensors", folder.parent / "x.safetensors")
    elsewhere = ("../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..\\\\x.safetensors", "part.bin")
    for entry in (*elsewhere, ".hidden.safetensors", "x\0.safetensors", ""):
        refused(split(folder, {"a": "part.safetensors", "b": entry}), "is no safetensors file in the same folder")
    for weight_map in (["part.safetensors"], "part.safetensors", {}, None, {"a": 1}, {"a": ["b"]}):
        refused(split(folder, weight_map), "model.safetensors.index.json of .* is damaged .weight_map must name")
    shutil.copy(folder / "part.safetensors", folder / "other.safetensors")
    refused(split(folder, {"a": "part.safetensors", "b": "other.safetensors"}), "has the tensor .* twice")


def test_weights_and_configuration_of_two_models_are_refused(folder):
    refused(configured(folder, num_hidden_layers=1), "they hold 2 layers, it describes 1", early=False)
    refused(configured(folder, num_hidden_layers=2, hidden_size=64), "do not fit its config.json", early=False)
    configured(folder, hidden_size=32, intermediate_size=10**7)
    refused(folder, "do not fit its config.json: it describes .* numbers, they hold", early=False)


def test_code_beside_the_weights_is_not_run(folder, tmp_path):
    configured(folder, auto_map={"AutoModel": "code.Model", "AutoConfig": "code.Config"})
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert models.load(folder).layers == 2 and not (tmp_path / "ran").exists()
    settings = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="tokenizer in the folder .* could not be read"):
        models.load(folder)
    configured(folder, model_type="their own")
    refused(folder, "is a their own model, which is not supported: this version")
    assert not (tmp_path / "ran").exists()


def test_an_adapter_brings_no_other_models_weights(sound, folder):
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(sound / "gpt2")}))
    refused(folder, "holds an adapter")
    (folder / "config.json").unlink()  # as PEFT saves it
    refused(folder, "holds an adapter .* merge them into that one first")
    with pytest.raises(ValueError, match="holds an adapter .* merge them into that one first"):
        scan(folder, progress=False)
    (folder / "adapter_config.json").rename(folder / "adapter_model.safetensors")
    refused(folder, r"holds an adapter \(adapter_model.safetensors\)")


def test_pickles_are_not_opened(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, r"has its weights in pytorch_model.bin, a pickle, which is not opened: .*save_pretrained\('mine'\)")
    (folder / "pytorch_model.bin").rename(folder / "optimizer.pt")
    refused(folder, r"has no complete weights in safetensors format .* with --random \(random=True in Python\)")


SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


def test_weights_that_are_not_there_are_named(folder):
    weight_map = dict(zip("abc", SHARDS, strict=True))
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "model.safetensors").rename(folder / SHARDS[0])
    refused(
        folder, f"{SHARDS[1]} and 1 more, named in model.safetensors.index.json of '.*model', are missing: download"
    )
    shutil.copy(folder / SHARDS[0], folder / SHARDS[2])
    refused(folder, f"{SHARDS[1]}, named in model.safetensors.index.json of '.*model', is missing: download")
    index.write_text(json.dumps({"weight_map": weight_map}))
    refused(folder, 'has no entry metadata, an object: add "metadata": {} to it')
    index.unlink()
    refused(folder, f"holds {SHARDS[0]}, but not model.safetensors.index.json, which says what lies in which file")
    (folder / SHARDS[0]).unlink()
    (folder / SHARDS[2]).rename(folder / "weights.safetensors")
    refused(folder, "holds weights.safetensors, but no model.safetensors: rename it")
    (folder / "weights.safetensors").rename(folder / "tf_model.h5")
    refused(folder, "has its weights in tf_model.h5, which is not read")
    (folder / "checkpoint-9").mkdir()
    (folder / "tf_model.h5").rename(folder / "checkpoint-9" / "model.safetensors")
    refused(folder, "holds no weights, but its folder checkpoint-9 does: give '.*checkpoint-9'")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to this user")
def test_files_that_may_not_be_read_are_named(folder):
    (folder / "model.safetensors").chmod(0)
    refused(folder, "model.safetensors of .* may not be read here")


def test_a_tensor_twice_in_one_header_is_not_read_as_complete(folder):
    entry = json.dumps(tensor(0, 16))
    (folder / "model.safetensors").write_bytes(header(f'{{"a": {entry}, "a": {entry}}}'.encode(), 16))
    refused(folder, "is not a whole safetensors file|do not fit its config.json", early=False)


def test_embeddings_that_are_tied_to_nothing_are_missed(sound, tmp_path):
    folder = shutil.copytree(sound / "gpt2", tmp_path / "model")
    spoiled(folder / "model.safetensors", lambda t: [t.pop(key) for key in [*t] if key.endswith("wte.weight")])
    refused(folder, "not complete: 1 tensors.*wte.weight", early=False)


def test_a_large_tokenizer_is_not_read(folder):
    sparse(folder / "tokenizer.json", config_checks.LONGEST_READ + 1)
    refused(folder, "tokenizer.json of .* has more than 200,000,000 bytes")
