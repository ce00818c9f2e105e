"""Folders that would mislead, lead elsewhere, run code, break or exhaust: the gate that ends each, its sentence."""

import json
import os
import re
import shutil
import traceback

import model_types
import pytest
import torch
from hub import given
from safetensors.torch import load_file, save_file

from lipscan import models
from lipscan.models import config_checks

NAN, INF = float("nan"), float("inf")
KEY = "encoder.layer.1.attention.self.query.weight"
# the gates: our table of rules, the library as it reads the entries and builds the network on the meta device, the
# memory, the tensors in the files, the library as it fills the network, and the first passes of it
RULES, CONFIG, META, SIZE, TENSORS = "check_entries", "_configuration", "_on_meta", "check_size", "check_weights"
FILL, RUN, CAUSAL, MAPS, PLACES = "_read", "leak", "assert_causality", "check_maps", "_check_positions"


def refused(place, sentence, gate=None, **options):
    """Loading is refused in one line with these words, by this function; of early gates, before weights are read."""
    with pytest.raises((ValueError, OSError, RuntimeError), match=sentence) as caught:
        models.load(place, **options)
    assert len(str(caught.value).splitlines()) == 1
    passed = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert gate is None or gate in passed, passed
    assert gate not in (RULES, CONFIG, META, TENSORS) or FILL not in passed


def configured(folder, **entries):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))
    return folder


def rotary(**entries):
    return {"rope_parameters": {"rope_theta": 1e4, **entries}}


MOST, QUANTIZED = r"it must be at most 1,000\.", "quantized weights define another map .*; load the"
KERNEL = "it must be one of eager, .*; lipnb runs no code of a model"
TYPE, BUILT = "builds no network from config.json of 'model' .*expected .*got .*: correct", "builds no network"
FIT, DAMAGED = "the weights of 'model' do not fit its config.json", "ts weights or its config.json are damaged"
ENTRIES = {
    "bert": [
        ({"parts": [{"depths": [2, 10**6]}]}, RULES, f"parts.depths = 1000000: {MOST}"),
        ({"experts_implementation": ["a/b"]}, RULES, KERNEL),
        ({"num_hidden_layers": 100_000}, RULES, f"num_hidden_layers = 100000: {MOST}"),
        ({"text_config": {"num_hidden_layers": 10**6}}, RULES, f"text_config.num_hidden_layers = 1000000: {MOST}"),
        ({"num_attention_heads": 10**5}, RULES, "num_attention_heads = 100000: it must be at most 20,000"),
        ({"vocab_size": 10**18}, RULES, "vocab_size = 1000000000000000000: it must be at most 1,000,000,000"),
        ({"num_labels": 10**6}, RULES, "num_labels = 1000000: it must be at most 30,000"),
        ({"quantization_config": [1]}, RULES, QUANTIZED),
        ({"eos_token_id": [1] * 100_000}, RULES, "has more than 100,000 entries up to eos_token_id, .*: correct that"),
        ({"quantization_config": {"load_in_4bit": True}}, RULES, f"load_in_4bit.*{QUANTIZED}"),
        ({"_attn_implementation": "someone/kernel"}, RULES, KERNEL),
        ({"model_type": "evil"}, "unknown_family", "is a evil model, which is not supported: this version of transf"),
        ({"model_type": ["bert"]}, "read_config", "an entry model_type, a string"),
        ({"position_embedding_type": "relative_key"}, "_architecture", "position_embedding_type = 'relative_key'"),
        ({"num_attention_heads": True}, CONFIG, TYPE),
        ({"rope_scaling": "linear"}, CONFIG, BUILT),
        ({"num_attention_heads": 0}, META, f"{BUILT} .*; num_attention_heads = 0, by default 12.: correct"),
        ({"num_attention_heads": 5}, META, "32. is not a multiple of the number of attention heads .5"),
        ({"vocab_size": 0}, META, BUILT),
        ({"hidden_act": "__import__"}, META, f"{BUILT} .*__import__"),
        ({"pad_token_id": 10**6}, META, BUILT),
        ({"num_hidden_layers": -1}, "load", "has no layer that holds attention"),
        ({"hidden_size": 800_000, "intermediate_size": 3_000_000}, SIZE, "which take .* GB; this machine has"),
        ({"num_hidden_layers": 1}, FILL, "they hold 2 layers, it describes 1"),
        ({"hidden_size": 64}, FILL, f"{FIT}: it describes .* numbers, they hold"),
        ({"max_position_embeddings": 0}, PLACES, "no positions for tokens .max_position_embeddings = 0"),
        ({"layer_norm_eps": NAN}, RUN, DAMAGED),
        ({"layer_norm_eps": INF}, CAUSAL, DAMAGED),
    ],
    "wordless": [
        ({"quantization_config": {"quant_method": "fp8"}}, RULES, f"fp8.*{QUANTIZED}"),
        (rotary(rope_type="evil"), "_architecture", "rope_type = 'evil', which is not supported"),
        (rotary(rope_type="longrope", factor=2.0), CONFIG, f"{BUILT} .*short_factor"),
        ({"head_dim": 7}, CONFIG, BUILT),
        ({"num_key_value_heads": 3}, FILL, f"{FIT}.*shapes differ"),
        (rotary(rope_type="default", rope_theta=NAN), RUN, DAMAGED),
    ],
    **{
        kind: [
            ({entry: 2_000_000}, RULES, f"{entry} = 2000000: it must be at most 1,000,000"),
            *(({entry: size}, PLACES, f"no positions for tokens .{entry} = {said}") for size, said in sizes),
            *(({entry: size}, PLACES, f"no positions for tokens .{entry} = {size}") for size in (0, -3)),
        ]
        for kind, entry, sizes in (
            ("bloom", "seq_length", [(None, "null"), (9.5, "9.5")]),
            ("mpt", "max_seq_len", []),
        )
    },
    "roberta": [({"pad_token_id": None}, PLACES, "no positions for tokens .pad_token_id = null.: give a whole")],
    "t5": [
        ({"n_positions": None}, PLACES, "no positions for tokens .n_positions = null.: give a whole"),
        ({"relative_attention_max_distance": 4}, MAPS, "relative_attention_max_distance = 4 .* larger than a quarter"),
    ],
    "gpt2": [({"n_head": 5}, META, f"{BUILT} .*divisible"), ({"n_layer": 10**9}, RULES, MOST)],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "entries", "gate", "sentence"),
    [pytest.param(kind, *case, id=f"{kind}-{case[0]!s:.60}") for kind, cases in ENTRIES.items() for case in cases],
)
def test_each_entry_that_misleads_ends_at_its_gate(kind, entries, gate, sentence, families, tmp_path):
    refused(configured(shutil.copytree(families / kind, tmp_path / "model"), **entries), sentence, gate)


def test_what_transformers_sets_itself_and_real_lists_pass_the_rules():
    for entries in ({"num_experts": 16384}, {"head_out_channels": 18714}, {"n_positions": 65536}):  # of its defaults
        config_checks.check_entries(entries, "this one")
    labels = {str(number): f"n{number}" for number in range(22_000)}
    config_checks.check_entries({"id2label": labels, "label2id": {name: 1 for name in labels.values()}}, "this one")


def test_every_rule_of_the_table_refuses_an_entry():
    seen = {
        next(rule for rule in config_checks.RULES if re.search(rule.names, key))
        for cases in ENTRIES.values()
        for entries, gate, _ in cases
        if gate == RULES
        for key in re.findall(r"'(\w+)'", str(entries))
    }
    assert all(rule in seen for rule in config_checks.RULES if rule.wanted)


RANDOM = [
    ("bert", {"initializer_range": NAN}, BUILT),
    ("bert", {"layer_norm_eps": INF}, "all zero"),
    ("bert", {"type_vocab_size": 0}, "cannot be run"),
    ("wordless", {"num_key_value_heads": 3}, "num_key_value_heads = 3 does not divide num_attention_heads = 4"),
]


@pytest.mark.parametrize(("kind", "entries", "sentence"), RANDOM, ids=str)
def test_an_entry_that_only_drawn_weights_meet_is_refused(kind, entries, sentence, families, tmp_path):
    refused(configured(shutil.copytree(families / kind, tmp_path / "model"), **entries), sentence, random=True)


SIZES = [  # of a mask of all pairs of positions, which is no weight; and sizes that are none
    *((kind, {entry: 10**6}, "numbers, which take .* GB; this machine has .* GB: use a larger machine, or correct")
      for kind, entry in (("gpt_neo", "max_position_embeddings"), ("gpt_bigcode", "n_positions"))),
    *((kind, {entry: size}, f"{entry} = {size}") for kind, entry, size in (
        ("albert", "num_hidden_groups", 0), ("albert", "num_hidden_groups", -1), ("gpt2", "vocab_size", 0),
        ("llama", "hidden_size", 0), ("gemma2", "sliding_window", 0), ("gpt_neo", "window_size", 0),
        ("mpt", "n_layers", 0), ("distilbert", "max_position_embeddings", 0),
    )),
    ("vit", {"image_size": 0}, "is not read: its image_size must be one whole number, or two .* got 0"),
    *(("vit", {"image_size": sides}, f"{BUILT}|or two .height") for sides in ([16, 0], [16, 24, 16], [[16, 16]], "16")),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "entries", "sentence"), SIZES, ids=str)
def test_a_size_that_is_none_or_fills_the_memory_is_named(kind, entries, sentence, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(model_types.small(kind).to_dict() | entries))
    refused(tmp_path, sentence, random=True)


def test_a_network_of_more_parts_than_any_is_not_laid_out(folder, monkeypatch):
    monkeypatch.setattr(config_checks.Steps, "left", 50)
    refused(folder, f"{BUILT} .*is not laid out in .* steps: one of its sizes is too large", META)


HARMLESS = [
    {"chunk_size_feed_forward": "x"},
    {"return_dict": False, "output_attentions": True, "is_encoder_decoder": True},
    {"quantization_config": {}, "compression_config": None},
    {"layer_norm_eps": -1e-12, "initializer_range": NAN, "num_labels": -1, "dequantized_from": {"a": 1}},
]


@pytest.mark.parametrize("entries", HARMLESS, ids=str)
def test_an_entry_that_changes_no_map_is_no_hindrance(entries, folder):
    model = models.load(configured(folder, **entries))
    x, y = given(model, torch.arange(5)[None], 1)
    torch.testing.assert_close(model.attention(1)(x), y)


def test_what_the_library_allows_is_read(tmp_path):
    """Sides of images as two numbers; a size for each layer."""
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
    gemma = sizes | dict(num_key_value_heads=2, head_dim=8, vocab_size=70, vocab_size_per_layer_input=70)
    gemma |= dict(intermediate_size=[48, 64], num_kv_shared_layers=0, hidden_size_per_layer_input=8, laurel_rank=4)
    gemma |= dict(activation_sparsity_pattern=[0.0, 0.0], layer_types=["sliding_attention", "full_attention"])
    (tmp_path / "config.json").write_text(json.dumps(dict(model_type="gemma3n_text", **gemma)))
    assert models.load(tmp_path, random=True).layers == 2
    for sides, n in (([32, 32], 17), ([32, 16], 9)):
        vit = dict(model_type="vit", image_size=sides, patch_size=[8, 8], **sizes)
        (tmp_path / "config.json").write_text(json.dumps(vit))
        model = models.load(tmp_path, random=True)
        assert model.longest == n and model.activations(torch.zeros(1, 3, *sides), 1).shape == (1, n, 32)


def sparse(path, size):
    with open(path, "wb") as file:
        file.truncate(size)


def linked(path):
    path.touch()
    path.rename(path.parent.parent / path.name)
    path.symlink_to(path.parent.parent / path.name)


def written(text, encoding="utf-8"):
    return lambda path: path.write_text(text, encoding=encoding)


def spoiled(change):
    """The file of safetensors with other tensors."""

    def spoil(path):
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, {"format": "pt"})

    return spoil


def raw(change):
    return lambda path: path.write_bytes(change(path.read_bytes()))


OUTSIDE, JSON = "{} of .* is a link to a place outside its folder", "config.json of .* cannot be read as JSON in plain"
WHOLE = "model.safetensors of .* cannot be read as safetensors .*: download or copy it again"
FILES = {
    "config.json": [
        (written('{"model_type": "bert"}', "utf-16"), JSON),
        (written("[1]"), f"{JSON} .*no JSON object"),
        (written('{"model_type": ' * 10**5), f"{JSON} .*nested too deeply"),
        (written('{"model_type": "bert", "hidden_size": 1' + 10**4 * "0" + "}"), JSON),
        (written('{"model_type": "bert", "layer_norm_eps": 1e999, "hidden_size": 1e999}'), "hidden_size.* got float"),
        (lambda path: sparse(path, 8_000_001), "more than 8,000,000 bytes"),
        (lambda path: (path.unlink(), path.mkdir()), "holds no config.json"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "holds no config.json"),
        (lambda path: path.unlink(), "holds no config.json: pass a folder in Hugging Face format"),
        (linked, OUTSIDE.format("config.json")),
    ],
    "model.safetensors": [
        (raw(lambda raw: raw[: len(raw) // 2]), WHOLE),
        (spoiled(lambda t: t.pop(KEY)), "not complete: 1 tensors of its config.json are missing, such as encoder"),
        (spoiled(lambda t: t.update({KEY: t[KEY][:16].contiguous()})), "shapes differ"),
        (spoiled(lambda t: t.update({KEY: t[KEY].to(torch.int8)})), "holds encoder.* as I8: it is quantized or damag"),
        (spoiled(lambda t: t.update({KEY: t[KEY] * NAN})), DAMAGED),
        (spoiled(lambda t: t.update({KEY.replace("1", "7"): t[KEY].clone()})), "they hold 8 layers, it describes 2"),
        (spoiled(lambda t: t.clear()), "do not fit its config.json"),
        (linked, OUTSIDE.format("model.safetensors")),
        (lambda path: path.rename(path.with_name("pytorch_model.bin")),
         r"has its weights in pytorch_model.bin, which lipnb does not open: .*with save_pretrained\('mine'\)"),
        (lambda path: path.rename(path.with_name("mine.safetensors")), "weights in mine.safetensors, which lipnb does"),
        (lambda path: path.rename(path.with_name("optimizer.pt")), r"has no weights in safetensors .*\(random=True"),
        (lambda path: (path.with_name("checkpoint-9").mkdir(), path.rename(path.parent / "checkpoint-9" / path.name)),
         "holds no weights, but its folder checkpoint-9 does: give '.*checkpoint-9'"),
    ],
    **{file: [(linked, OUTSIDE.format(file))] for file in ("vocab.txt", "tokenizer_config.json", "added_tokens.json")},
    "tokenizer.json": [(lambda path: sparse(path, config_checks.LONGEST + 1), "more than 200,000,000 bytes")],
    "adapter_config.json": [(written("{}"), r"holds an adapter \(adapter_config.json\).* merge them into that one")],
    "adapter_model.safetensors": [(written(""), r"holds an adapter \(adapter_model.safetensors\)")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("file", "number"), [(file, number) for file, cases in FILES.items() for number in range(len(cases))]
)
def test_a_file_that_is_damaged_or_leads_elsewhere_is_named(file, number, folder):
    spoil, sentence = FILES[file][number]
    spoil(folder / file)
    refused(folder, sentence)


def split(folder, weight_map):
    """The weights under another name, named by an index."""
    if (folder / "model.safetensors").exists():
        (folder / "model.safetensors").rename(folder / "part.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def test_an_index_leads_nowhere_else_and_has_its_form(folder):
    shutil.copy(folder / "model.safetensors", folder.parent / "x.safetensors")
    elsewhere = ("../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "part.bin", ".hidden.safetensors", "")
    for entry in elsewhere:
        refused(split(folder, {"a": "part.safetensors", "b": entry}), "is not a safetensors file in the same folder")
    for weight_map in (["part.safetensors"], "part.safetensors", {}, None, {"a": 1}, {"a": ["b"]}):
        refused(split(folder, weight_map), "model.safetensors.index.json of .* is damaged .weight_map must name")
    shutil.copy(folder / "part.safetensors", folder / "other.safetensors")
    refused(split(folder, {"a": "part.safetensors", "b": "other.safetensors"}), "has the tensor .* twice")


def test_a_part_that_is_not_there_is_named(folder):
    shards = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    index = split(folder, dict(zip("abc", shards, strict=True))) / "model.safetensors.index.json"
    (folder / "part.safetensors").rename(folder / shards[0])
    refused(folder, f"{shards[1]} and 1 more, named in {index.name} of '.*model', are missing")
    index.unlink()
    refused(folder, f"has its weights in {shards[0]}, which lipnb does not open: .* or the files named in {index.name}")
    index.write_text(json.dumps({"weight_map": {"a": shards[0]}}))
    refused(folder, f"{FIT}, or are damaged .KeyError: 'metadata'")


def test_code_beside_the_weights_is_not_run(folder, tmp_path):
    configured(folder, auto_map={"AutoModel": "code.Model", "AutoConfig": "code.Config"})
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert models.load(folder).layers == 2 and not (tmp_path / "ran").exists()
    settings = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer.json").write_text("{}")
    refused(folder, "tokenizer in the folder .* could not be read")
    refused(configured(folder, model_type="their own"), "is a their own model, which is not supported: this version")
    assert not (tmp_path / "ran").exists()


def test_embeddings_that_are_tied_to_nothing_are_missed(families, tmp_path):
    folder = shutil.copytree(families / "gpt2", tmp_path / "model")
    spoiled(lambda t: [t.pop(key) for key in [*t] if key.endswith("wte.weight")])(folder / "model.safetensors")
    refused(folder, "not complete: 1 tensors.*wte.weight")
