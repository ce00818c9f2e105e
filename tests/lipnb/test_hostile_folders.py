"""Folders that would lead elsewhere, run code, break or exhaust: one sentence each, and nothing is loaded."""

import json
import os
import shutil
import struct

import pytest
import torch
from hub import given, tiny_bert, tiny_gpt2, write_tokenizer
from safetensors.torch import load_file, save_file

from lipnb import models
from lipnb.models import config_checks
from lipnb.scanning import scan


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    from transformers import LlamaConfig, LlamaModel

    root = tmp_path_factory.mktemp("sound")
    tiny_bert(root / "bert")
    tiny_gpt2(root / "gpt2")
    sizes = dict(vocab_size=70, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
    with torch.random.fork_rng():
        LlamaModel(LlamaConfig(**sizes, **heads, bos_token_id=0, eos_token_id=0)).save_pretrained(root / "llama")
    return root


def folder_of(sound, tmp_path, kind="bert"):
    return shutil.copytree(sound / kind, tmp_path / "model")


@pytest.fixture
def refused(monkeypatch):
    """A check that loading is refused in one line with these words, before any weights are read."""

    def read(*args):
        raise AssertionError("weights were read")

    def check(place, sentence, kinds=(ValueError, OSError), early=True, **options):
        with monkeypatch.context() as patch:
            if early:
                patch.setattr("lipnb.models.loading._read", read)
            with pytest.raises(kinds, match=sentence) as caught:
                models.load(place, **options)
        assert len(str(caught.value).splitlines()) == 1
        return str(caught.value)

    return check


def configured(folder, **entries):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))
    return folder


METHODS = ("bitsandbytes", "gptq", "awq", "fp8", "mxfp4", "compressed-tensors", "hqq", "quanto", "torchao", "aqlm", "x")


@pytest.mark.parametrize(
    ("kind", "entries", "sentence"),
    [
        *(
            ("llama", {"quantization_config": {"quant_method": method}}, f"is quantized .{method}.")
            for method in METHODS
        ),
        ("bert", {"quantization_config": {}}, "is quantized"),
        ("bert", {"_attn_implementation": "someone/kernel"}, "no code of a model is run"),
        ("bert", {"attn_implementation": "someone/kernel@main:run"}, "no code of a model is run"),
        ("bert", {"experts_implementation": ["a/b"]}, "no code of a model is run"),
        ("bert", {"chunk_size_feed_forward": "x"}, "chunk_size_feed_forward = 'x': it must be a whole number"),
        ("bert", {"initializer_range": float("nan")}, "initializer_range = nan: it must be a number from 0 on"),
        ("bert", {"initializer_range": -1}, "initializer_range = -1"),
        ("bert", {"num_labels": 10**6}, "num_labels = 1000000"),
        ("bert", {"layer_norm_eps": True}, "layer_norm_eps = True: it must be a positive number"),
        ("bert", {"layer_norm_eps": float("inf")}, "layer_norm_eps = inf"),
        ("bert", {"vocab_size": 0}, "vocab_size = 0"),
        ("bert", {"type_vocab_size": -1}, "type_vocab_size = -1"),
        ("bert", {"dtype": "float999"}, "is not a valid BERT configuration"),
        ("bert", {"dequantized_from": {"a": 1}}, "dequantized_from = .* it must be a list of words"),
        ("bert", {"model_type": "evil"}, "is a evil model, which is not supported"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 0}}, "rope_parameters.factor = 0: it must be"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_scaling.factor = '2': it must be"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": -4.0}}, "rope_parameters.factor = -4.0"),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": float("nan")}}, "rope_theta = nan"),
        ("llama", {"rope_parameters": {"full_attention": {"rope_theta": -1}}}, "full_attention.rope_theta = -1"),
        ("llama", {"rope_parameters": {"rope_type": "evil"}}, "rope_type = 'evil', which is not supported"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 8}}, "is not a valid Llama configuration"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 7}}, "partial_rotary_factor = 7"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1, 0]}},
            "short_factor = .1, 0.: it must be a",
        ),
        ("llama", {"sliding_window": -1}, "sliding_window = -1: it must be a whole number from 0"),
        ("llama", {"num_key_value_heads": 3}, "num_attention_heads = 4, which num_key_value_heads = 3 does not divide"),
        ("llama", {"head_dim": 7}, "is not a valid Llama configuration.*even"),
        ("llama", {"head_dim": -8}, "head_dim = -8"),
        ("llama", {"layer_types": ["sliding_attention"]}, "is not a valid Llama configuration"),
        ("gpt2", {"n_head": 5}, "n_embd = 24, which n_head = 5 does not divide"),
        ("gpt2", {"n_ctx": 0}, "n_ctx = 0"),
    ],
)
def test_an_entry_that_misleads_is_named(sound, tmp_path, refused, kind, entries, sentence):
    refused(configured(folder_of(sound, tmp_path, kind), **entries), sentence)


@pytest.mark.parametrize("entries", [{"return_dict": False}, {"output_attentions": True}, {"is_encoder_decoder": True}])
def test_an_entry_that_changes_no_map_is_no_hindrance(sound, tmp_path, entries):
    model = models.load(configured(folder_of(sound, tmp_path), **entries))
    x, y = given(model, torch.arange(5)[None], 1)
    torch.testing.assert_close(model.attention(1)(x), y)


def test_what_only_a_forward_pass_refuses_is_a_sentence(sound, tmp_path, refused):
    folder = configured(folder_of(sound, tmp_path), type_vocab_size=0)
    refused(folder, "the network of .* cannot be run", early=False, random=True)


def test_code_beside_the_weights_is_not_run(sound, tmp_path):
    folder = configured(folder_of(sound, tmp_path), auto_map={"AutoModel": "code.Model", "AutoConfig": "code.Config"})
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert models.load(folder).layers == 2 and not (tmp_path / "ran").exists()
    settings = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="tokenizer in the folder .* could not be read"):
        models.load(folder)
    assert not (tmp_path / "ran").exists()


def sparse(path, size):
    with open(path, "wb") as file:
        file.truncate(size)


CONFIGS = {
    "UTF-16": (
        lambda path: path.write_text(path.read_text(), encoding="utf-16"),
        "begins with a byte order mark: save it as plain UTF-8",
    ),
    "UTF-8 of an editor": (
        lambda path: path.write_text(path.read_text(), encoding="utf-8-sig"),
        "begins with a byte order mark: save it as plain UTF-8",
    ),
    "a gigabyte": (lambda path: sparse(path, 10**9), "more than 200,000,000 bytes"),
    "sixty megabytes": (lambda path: sparse(path, 6 * 10**7), "more than 50,000,000 bytes"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "holds no config.json"),
    "a pipe": (lambda path: (path.unlink(), os.mkfifo(path)), "holds no config.json"),
    "a circle": (lambda path: (path.unlink(), path.symlink_to(path.name)), "is a link that leads in a circle"),
    "a device": (lambda path: (path.unlink(), path.symlink_to("/dev/zero")), "is a link to a place outside its folder"),
    "nothing": (lambda path: path.unlink(), "holds no config.json"),
    "1e999": (lambda path: path.write_text('{"model_type": "bert", "layer_norm_eps": 1e999}'), "layer_norm_eps = inf"),
    "deep": (lambda path: path.write_text('{"model_type": ' * 10**5), "nested too deeply"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_config_json_of_another_kind_is_named(sound, tmp_path, refused, case):
    spoil, sentence = CONFIGS[case]
    folder = folder_of(sound, tmp_path)
    spoil(folder / "config.json")
    refused(folder, sentence)


@pytest.mark.parametrize("file", ["vocab.txt", "tokenizer_config.json", "added_tokens.json"])
def test_a_link_of_the_tokenizer_leads_nowhere_else(sound, tmp_path, refused, file):
    folder = folder_of(sound, tmp_path)
    (tmp_path / "elsewhere").write_text("{}")
    (folder / file).unlink(missing_ok=True)
    (folder / file).symlink_to(tmp_path / "elsewhere")
    refused(folder, f"{file} of .* is a link to a place outside its folder")


def test_an_adapter_brings_no_other_models_weights(sound, tmp_path, refused):
    folder = folder_of(sound, tmp_path)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(sound / "gpt2")}))
    refused(folder, "holds an adapter")
    (folder / "config.json").unlink()  # as PEFT saves it
    refused(folder, "holds an adapter .* merge them into that one first")
    with pytest.raises(ValueError, match="holds an adapter .* merge them into that one first"):
        scan(folder, progress=False)


def test_pickles_are_not_opened(sound, tmp_path, refused):
    folder = folder_of(sound, tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, "has no complete weights in safetensors format")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to this user")
def test_files_that_may_not_be_read_are_named(sound, tmp_path, refused):
    folder = folder_of(sound, tmp_path)
    (folder / "model.safetensors").chmod(0)
    refused(folder, "model.safetensors of .* may not be read here")


def written(path, header, size):
    """A safetensors file with this header and `size` bytes of data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))


def tensor(start, end, shape=(4,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


HEADERS = {
    "overlapping": ({"a": tensor(0, 16), "b": tensor(8, 24)}, 24),
    "a gap": ({"a": tensor(0, 16), "b": tensor(20, 36)}, 36),
    "beyond the end": ({"a": tensor(0, 1600, (400,))}, 16),
    "backwards": ({"a": tensor(16, 0)}, 16),
    "a negative offset": ({"a": tensor(-16, 0)}, 16),
    "a huge shape": ({"a": tensor(0, 16, (2**62, 4))}, 16),
    "another size": ({"a": tensor(0, 16, (5,))}, 16),
    "an unknown dtype": ({"a": tensor(0, 16, dtype="F31")}, 16),
    "no JSON": (b"{" * 40, 0),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_lies_is_named(sound, tmp_path, refused, case):
    folder = folder_of(sound, tmp_path)
    written(folder / "model.safetensors", *HEADERS[case])
    refused(folder, "is not a whole safetensors file")


def test_a_tensor_twice_in_one_header_is_not_read_as_complete(sound, tmp_path, refused):
    folder = folder_of(sound, tmp_path)
    entry = json.dumps(tensor(0, 16))
    written(folder / "model.safetensors", f'{{"a": {entry}, "a": {entry}}}'.encode(), 16)
    refused(folder, "is not a whole safetensors file|do not fit its config.json", early=False)


def test_embeddings_that_are_tied_to_nothing_are_missed(sound, tmp_path, refused):
    folder = folder_of(sound, tmp_path, "gpt2")
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({key: value for key, value in tensors.items() if not key.endswith("wte.weight")}, path, {"format": "pt"})
    refused(folder, "not complete: 1 tensors.*wte.weight", early=False)


def test_a_tokenizer_of_another_vocabulary_gives_no_ids_that_the_model_lacks(sound, tmp_path):
    write_tokenizer(folder := folder_of(sound, tmp_path, "llama"))
    words = folder / "vocab.txt"
    words.write_text("".join(f"[unused{number}]\n" for number in range(100)) + words.read_text())
    model = models.load(folder)
    with pytest.raises(ValueError, match="token_ids must lie between 0 and 69"):
        model.activations(model.token_ids("alice")[None], 0)


def test_without_a_tokenizer_a_text_is_answered(sound, tmp_path):
    model = models.load(folder_of(sound, tmp_path, "gpt2"))
    with pytest.raises(ValueError, match="has no tokenizer"):
        model.token_ids("alice")


def test_a_large_tokenizer_is_not_read(sound, tmp_path, refused):
    folder = folder_of(sound, tmp_path)
    sparse(folder / "tokenizer.json", config_checks.LONGEST_READ + 1)
    refused(folder, "tokenizer.json of .* has more than 200,000,000 bytes")
