"""GGUF files: the network that a file holds, and files that lie."""

import json
import struct

import numpy as np
import pytest
import torch
from hub import given

from lipscan import models
from lipscan.origin import cache_folder

gguf = pytest.importorskip("gguf")


SIZES = dict(vocab_size=72, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
SIZES |= dict(num_key_value_heads=2, max_position_embeddings=64)
WORDS = ["<end>", "<start>", *map(chr, range(33, 100)), "Ġ", "ab", "12"]
NAMES = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm"}
NAMES |= {f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"} | {"self_attn.o_proj": "attn_output"}
NAMES |= {f"self_attn.{part}_norm": f"attn_{part}_norm" for part in "qk"} | {"post_attention_layernorm": "ffn_norm"}
NAMES |= {f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}
pytestmark = pytest.mark.usefixtures("cache")


def network(family, **settings):
    """A small network whose weights GGUF's F32 keeps, none of them zero or one."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, **SIZES, rms_norm_eps=1e-5, tie_word_embeddings=True, **settings)
        made = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        for parameter in made.parameters():
            torch.nn.init.normal_(parameter, 0.1, 0.3)
    return made.eval()


def side_by_side(weight, heads):
    """Rows as a file of the type llama has them: those that turn together are neighbours."""
    first, second = weight.reshape(heads, 2, -1, weight.shape[1]).unbind(1)
    return torch.stack([first, second], 2).reshape(weight.shape)


def own_name(key):
    stem, kind = key.removeprefix("model.").rsplit(".", 1)
    if not stem.startswith("layers."):
        return f"{NAMES[stem]}.{kind}"
    _, number, part = stem.split(".", 2)
    return f"blk.{number}.{NAMES[part]}.{kind}"


def write(path, network, *, kind="F32", entries=(), leave=(), more=()):
    """The network as a GGUF file, by the library's own writer."""
    family = network.config.model_type
    writer = gguf.GGUFWriter(path, family)
    stated = {
        "block_count": SIZES["num_hidden_layers"],
        "context_length": SIZES["max_position_embeddings"],
        "embedding_length": SIZES["hidden_size"],
        "feed_forward_length": SIZES["intermediate_size"],
        "attention.head_count": SIZES["num_attention_heads"],
        "attention.head_count_kv": SIZES["num_key_value_heads"],
        **dict(entries),
    }
    for key, value in stated.items():
        if key not in leave:
            add = {bool: writer.add_bool, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
            add.get(type(value), writer.add_uint32)(f"{family}.{key}", value)
    writer.add_float32(f"{family}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32(f"{family}.rope.freq_base", 1e4)
    if hasattr(network.config, "head_dim") and "attention.key_length" not in leave:
        writer.add_uint32(f"{family}.attention.key_length", network.config.head_dim)
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_string("tokenizer.ggml.pre", "smollm")
    writer.add_array("tokenizer.ggml.tokens", WORDS)
    writer.add_array("tokenizer.ggml.token_type", [3, 3, *[1] * (len(WORDS) - 2)])
    writer.add_array("tokenizer.ggml.merges", ["a b", "1 2"])
    writer.add_uint32("tokenizer.ggml.eos_token_id", 0)
    stored = getattr(gguf.GGMLQuantizationType, kind)
    for key, value in network.state_dict().items():
        own = own_name(key) if key not in leave else None
        if own is None or own == "output.weight":
            continue
        if family == "llama" and own.endswith(("attn_q.weight", "attn_k.weight")):
            value = side_by_side(value, SIZES["num_attention_heads" if "attn_q" in own else "num_key_value_heads"])
        numbers = value.numpy()
        if numbers.ndim == 2 and kind != "F32":
            writer.add_tensor(own, gguf.quants.quantize(numbers, stored), raw_dtype=stored)
        else:
            writer.add_tensor(own, numbers)
    for key, numbers in dict(more).items():
        writer.add_tensor(key, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def assert_same(model, made):
    """The model gives what the network gives that its file was made of, and its map what its attention gives."""
    ids = torch.arange(50)[None]
    with torch.no_grad():
        expected = made.model(ids).last_hidden_state
    assert (model.module(ids).last_hidden_state - expected).norm() < 1e-5 * expected.norm()
    x, y = given(model, ids, 1)
    torch.testing.assert_close(model.attention(1)(x), y, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return write(tmp_path_factory.mktemp("sound") / "tiny.gguf", network("llama"))


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_file_holds_the_network_it_was_made_of(family, tmp_path):
    made = network(family)
    model = models.load(write(tmp_path / "tiny.gguf", made))
    assert model.name == "tiny.gguf" and model.weights == "pretrained" and model.layers == 2
    held = model.module.state_dict()
    assert held.keys() == made.model.state_dict().keys()
    assert all(torch.equal(held[key], value) for key, value in made.model.state_dict().items())
    assert_same(model, made)


LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


LLAMA3 |= {"original_max_position_embeddings": 32}


def divisors(head):
    """What llama.cpp writes of a Llama 3 for each of its frequencies, by its own formula."""
    lengths = 2 * np.pi * 1e4 ** (np.arange(0, head, 2) / head)
    smooth = np.clip((32 / lengths - 1) / (4 - 1), 0, 1)
    return (1 / ((1 - smooth) / 8 + smooth)).astype(np.float32)


LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}


TYPE, FACTOR = "rope.scaling.type", "rope.scaling.factor"


ROTATIONS = {  # entries, tensors more, what the network they were made of has
    "none": ("llama", {TYPE: "none", FACTOR: 4.0}, {}, {}),
    "linear": ("qwen2", {TYPE: "linear", FACTOR: 4.0}, {}, {"rope_parameters": LINEAR}),
    "a factor alone": ("llama", {FACTOR: 4.0, "rope.scaling.finetuned": True}, {}, {"rope_parameters": LINEAR}),
    "Llama 3": ("llama", {}, {"rope_freqs.weight": divisors(16)}, {"rope_parameters": LLAMA3}),
    "ones": ("llama", {"expert_count": 0}, {"rope_freqs.weight": np.ones(8, np.float32)}, {}),
    "pooling": ("qwen3", {"pooling_type": 3}, {"cls.weight": np.ones((2, 64), np.float32)}, {"head_dim": 16}),
    "no window": ("qwen3", {"attention.sliding_window": 0}, {}, {"head_dim": 16}),
    "a window of all": ("qwen2", {"attention.sliding_window": 64, "attention.causal": True}, {}, {}),
}


@pytest.mark.parametrize("kind", ROTATIONS)
def test_rotations_are_those_of_the_network_a_file_was_made_of(kind, tmp_path):
    family, entries, more, settings = ROTATIONS[kind]
    made = network(family, **settings)
    assert_same(models.load(write(tmp_path / "tiny.gguf", made, entries=entries, more=more)), made)


def test_without_a_width_of_heads_the_width_is_shared_among_them(tmp_path):
    made = network("qwen3", head_dim=SIZES["hidden_size"] // SIZES["num_attention_heads"])
    assert_same(models.load(write(tmp_path / "tiny.gguf", made, leave=("attention.key_length",))), made)


def test_quantized_numbers_are_those_of_the_library_and_said(tmp_path):
    made = network("llama")
    model = models.load(write(tmp_path / "tiny.gguf", made, kind="Q8_0"))
    assert model.weights == "pretrained (Q8_0)"
    kind = gguf.GGMLQuantizationType.Q8_0
    stored = gguf.quants.quantize(made.model.layers[1].mlp.up_proj.weight.detach().numpy(), kind)
    numbers = gguf.quants.dequantize(stored, kind)
    np.testing.assert_array_equal(model.module.layers[1].mlp.up_proj.weight.numpy(), numbers)


def test_a_text_is_read_with_the_files_own_words_digits_apart(sound):
    model = models.load(sound)
    assert [WORDS[number] for number in model.token_ids("Aab 12")] == ["A", "ab", "Ġ", "1", "2"]
    assert model.tokenizer("<end>A").input_ids == [0, WORDS.index("A")]


def test_a_folder_is_made_once(sound, monkeypatch):
    models.load(sound)
    [folder] = (cache_folder() / "models").iterdir()
    before = (folder / "model.safetensors").stat().st_mtime_ns
    monkeypatch.setattr("lipscan.models.gguf_files.unpack_gguf", None)
    models.load(sound)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "llama" and config["vocab_size"] == 72 and config["tie_word_embeddings"]


def refused(path, sentence, kept=False):
    with pytest.raises((ValueError, OSError), match=sentence) as caught:
        models.load(path)
    assert len(str(caught.value).splitlines()) == 1
    made = cache_folder() / "models"
    assert kept or not made.exists() or not any(made.iterdir())


OTHERS = {
    "an entry more": (dict(entries={"expert_count": 8}), "llama.expert_count = 8, which is not supported"),
    "part of a head turns": (dict(entries={"rope.dimension_count": 8}), "rotates only 8 numbers of each head"),
    "yarn": (dict(entries={TYPE: "yarn"}), "rope.scaling.type = 'yarn': only none and linear are supported"),
    "a factor below": (dict(entries={FACTOR: -1.0}), "rope.scaling.factor = -1.0: it must be a positive number"),
    "a gain": (dict(entries={"rope.scaling.attn_factor": 1.2}), "rope.scaling.attn_factor = 1.2"),
    "a window": (
        dict(entries={"attention.sliding_window": 8}),
        "has a sliding window of 8 tokens, which lipnb does not read",
    ),
    "no frequency": (dict(more={"rope_freqs.weight": np.zeros(8, np.float32)}), "must be 16 / 2 positive numbers"),
    "100,000 layers": (dict(entries={"block_count": 100_000}), "num_hidden_layers = 100000"),
    "no width": (dict(leave=("embedding_length",)), "lacks embedding_length"),
}


def test_a_file_of_another_map_is_refused(tmp_path):
    for options, sentence in OTHERS.values():
        refused(write(tmp_path / "tiny.gguf", network("llama"), **options), sentence)


def test_what_the_library_refuses_is_said_of_the_file(tmp_path):
    made = network("llama")
    made.model.norm.weight.data[3] = float("nan")
    refused(write(tmp_path / "nan.gguf", made), "NaN", kept=True)
    path = write(tmp_path / "list.gguf", network("qwen2"), entries={"attention.head_count": [4, 4]})
    refused(path, "expected int, got list", kept=True)


def test_another_family_is_named(sound, tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(sound.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0gemma", 1))
    refused(path, "is a 'gemma' GGUF file, which is not supported; the supported families are llama, qwen2, qwen3")


def text(words):
    return struct.pack("<Q", len(words)) + words


def stated(name, *dims, kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def file(*, entries=(), tensors=(), counts=None, version=3, data=64):
    """Bytes of a file with these entries and statements, true or not."""
    head = struct.pack("<4sI2Q", b"GGUF", version, *(counts or (len(tensors), len(entries))))
    body = head + b"".join(entries) + b"".join(tensors)
    return body + bytes(-len(body) % 32 + data)


U32 = struct.pack("<II", 4, 1)


LIES = {
    "nothing": (b"", "empty file"),
    "the other order of bytes": (struct.pack(">4sI2Q", b"GGUF", 3, 0, 0), "another byte order"),
    "2**60 tensors": (file(counts=(2**60, 0)), "ends too early"),
    "a long list": (file(entries=[text(b"a") + struct.pack("<IIQ", 9, 0, 2**61)]), "ends too early"),
    "an unknown kind": (file(entries=[text(b"a") + struct.pack("<I", 77)]), r"77\) is not a valid"),
    "an entry twice": (file(entries=[text(b"a") + U32, text(b"a") + U32]), "Duplicate a"),
    "no alignment": (file(entries=[text(b"general.alignment") + struct.pack("<II", 4, 0)]), "alignment"),
    "a tensor twice": (file(tensors=[stated(b"a", 4), stated(b"a", 4, offset=32)]), "duplicated tensor with name a"),
    "beyond the end": (file(tensors=[stated(b"a", 2**40)]), "ends too early"),
    "a huge shape": (file(tensors=[stated(b"a", 2**63, 2**63, 2**63, 2**63)]), "."),
    "half a block": (file(tensors=[stated(b"a", 16, kind=8)]), "not a multiple of .* block size"),
}


def test_a_header_that_lies_is_named(tmp_path):
    path = tmp_path / "model.gguf"
    for raw, sentence in LIES.values():
        path.write_bytes(raw)
        refused(path, f"is not a complete GGUF file .*({sentence})")


def test_a_list_without_end_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("lipscan.models.gguf_files.READS", 1000)
    (tmp_path / "model.gguf").write_bytes(file(entries=[text(b"a") + struct.pack("<IIQ", 9, 0, 2000)], data=4000))
    refused(tmp_path / "model.gguf", "states more than 1,000 values")


def test_a_file_that_was_cut_is_named(sound, tmp_path):
    raw = sound.read_bytes()
    for share in (0.1, 0.5, 0.9, 0.999):
        (tmp_path / "tiny.gguf").write_bytes(raw[: int(share * len(raw))])
        refused(tmp_path / "tiny.gguf", "is not a complete GGUF file")


def test_a_path_without_a_file_is_answered(tmp_path):
    (tmp_path / "folder.gguf").mkdir()
    for name in ("none.gguf", "folder.gguf"):
        refused(tmp_path / name, "there is no file")
    (tmp_path / "some.gguf").touch()
    refused(tmp_path, "holds no config.json: pass its file folder.gguf")
