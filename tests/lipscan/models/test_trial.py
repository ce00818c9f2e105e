"""Closed forms found by trial: what is read is what the network's own modules compute, or it is not read."""

import re

import model_types
import pytest
import torch
from cases import relative
from hub import given, small_model
from transformers.models.starcoder2 import modeling_starcoder2

from lipnb import Attention, certify, local_lipschitz, scan
from lipnb.jacobian import AttentionJacobian
from lipscan import models
from lipscan.models.module_attention import OwnAttention
from lipscan.models.network import some_inputs
from lipscan.scanning.findings import left_out

LOCAL = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}


# model_type -> what is changed of its small configuration, and words of what must have been read
READ = {
    "qwen3_moe": ({}, "shared keys, rotary positions, normalised"),
    "ministral": ({"sliding_window": 4}, "separate projections, shared keys, rotary positions;"),
    "olmo3": (LOCAL, "normalised"),
    "glm4": ({}, "rotary"),
    "exaone4": (LOCAL, "normalised"),
    "cohere2": (LOCAL, "rotary"),
    "vaultgemma": ({"attn_logit_softcapping": 1.0, "sliding_window": 4}, "capped logits"),
    "gpt_oss": ({"sliding_window": 4}, "sinks"),
    "minimax_m2": ({}, "normalised"),
    "falcon": ({"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False}, "one projection .* shared keys"),
    "esm": ({}, "rotary"),  # past a norm inside its module
}


def load(folder, model_type, changes, **options):
    """A small random network of a family in float64, with all its weights, biases, norms and sinks drawn."""
    settings = model_types.small(model_type).to_dict() | changes
    small_model(folder, model_type, settings)
    return models.load(folder, **{"dtype": torch.float64, **options})


def assert_the_networks_own(model, n, tolerance=1e-10):
    """Outputs, Jacobians and certified brackets of a model's layers against its own modules, by dense autograd."""
    for layer in model.attending:
        with model_types.exactly():
            x, y, J = model_types.truth(model, some_inputs(model.module, "input_ids", n, seed=3), layer)
        f, constant = model.attention(layer, n=n), torch.linalg.matrix_norm(J, 2).item()
        assert isinstance(f, Attention) and relative(f(x), y) < tolerance
        assert relative(AttentionJacobian(f, x).dense()[0], J) < 10 * tolerance
        assert local_lipschitz(f, x, rtol=1e-7).value.item() == pytest.approx(constant, rel=1e-6)
        found = certify(f, x[0])
        assert found.lower.item() <= constant * (1 + tolerance) and constant <= found.upper.item() * (1 + tolerance)


@pytest.mark.parametrize("model_type", READ)
def test_a_family_without_an_entry_is_read_as_its_own_modules_compute(model_type, tmp_path):
    changes, words = READ[model_type]
    assert model_type not in models.ARCHITECTURES
    model = load(tmp_path, model_type, changes)
    said = model.describe()["attention"]
    assert said.startswith("closed form found by trial: read as") and f"attention={said!r}" in repr(model)
    assert re.search(words, said), said
    # the library multiplies cosines by the gain of yarn, in float32
    assert_the_networks_own(model, 6, 1e-6 if model_type == "gpt_oss" else 1e-10)


def relative_at(model, layer, n):
    """How far the map of a layer at n tokens is from what the network's own module gives, and the map."""
    x, y = given(model, some_inputs(model.module, "input_ids", n, seed=3), layer)
    f = model.attention(layer, n=n)
    return relative(f(x), y), f


def test_a_window_larger_than_the_texts_of_the_trial_is_read(tmp_path):
    model = load(tmp_path, "cohere2", LOCAL | {"sliding_window": 80, "max_position_embeddings": 200})
    assert [model.attention(layer).window for layer in range(2)] == [80, None]
    for layer in range(2):
        error, f = relative_at(model, layer, 90)
        assert error < 1e-6 and isinstance(f, Attention)


def test_beyond_a_length_from_which_the_map_is_another_its_own_module_goes_on(tmp_path):
    llama4 = {"attention_chunk_size": 30, "max_position_embeddings": 64, "layer_types": ["chunked_attention"] * 2}
    rope = {"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 30}
    scaled = {"rope_parameters": rope | {"llama_4_scaling_beta": 0.5}, "max_position_embeddings": 64}
    for model_type, changes in (("llama4_text", llama4), ("ministral3", scaled)):
        model = load(tmp_path / model_type, model_type, changes)
        assert model.architecture.found and model.architecture.reach == 29
        for n, kind in ((29, Attention), (40, OwnAttention)):
            error, f = relative_at(model, 1, n)
            assert error < 1e-6 and type(f) is kind
        with pytest.raises(ValueError, match="up to 29 tokens"):
            model.attention(0)
        with pytest.raises(ValueError, match="beyond 29 tokens"):
            model.attention(0, "heads", 40)


def clipped(value):
    return value.clamp(-50, 50)


def capped(logits):
    return 60 * torch.tanh(logits / 60)


@pytest.mark.parametrize("secret", [clipped, capped])
def test_what_small_tokens_do_not_show_is_not_passed_over(secret, tmp_path, monkeypatch):
    def attend(module, query, key, value, mask, scaling, **kwargs):
        key, value = (one.repeat_interleave(module.num_key_value_groups, 1) for one in (key, value))
        logits = query @ key.mT * scaling
        logits, value = (secret(logits), value) if secret is capped else (logits, secret(value))
        return ((logits + mask).softmax(-1) @ value).transpose(1, 2), None

    monkeypatch.setattr(modeling_starcoder2, "eager_attention_forward", attend)
    model = load(tmp_path, "starcoder2", {"num_hidden_layers": 1})
    assert model.describe()["attention"] == "automatic differentiation of the network's own modules"
    error, f = relative_at(model, 0, 9)
    assert error < 1e-12 and isinstance(f, OwnAttention)
    secret.__code__ = (lambda same: same).__code__
    assert load(tmp_path, "starcoder2", {"num_hidden_layers": 1}).architecture.found


def test_what_no_layout_has_goes_by_its_own_modules(tmp_path):
    # gains of norms that come after the rotation, gates, rotations of a part of low rank
    for model_type in ("hunyuan_v1_dense", "afmoe", "deepseek_v3"):
        model = load(tmp_path / model_type, model_type, {})
        error, f = relative_at(model, 1, 9)
        assert error < 1e-12 and isinstance(f, OwnAttention)


def test_what_stands_around_the_attention_of_a_trial_is_not_known(tmp_path):
    model = load(tmp_path, "qwen3_moe", {})
    with pytest.raises(ValueError, match="does not cover the rest of its layers"):
        model.attention(0, "block")
    assert model.attention(0, "heads").output_width == 32
    twin = models.random_twin(model)
    assert relative_at(twin, 1, 9)[0] < 1e-6


def test_a_scan_says_that_the_closed_form_was_found_by_trial(tmp_path):
    model_types.written(tmp_path / "it", "qwen3_moe")
    options = {"tokenizer": tmp_path / "it" / "tokenizer", "lengths": [5], "windows": 1, "progress": False}
    found = scan(tmp_path / "it", " ".join(model_types.WORDS * 4) + "\n", output=tmp_path / "out", **options)
    assert found.table.passed.all() and found.table.certified.notna().all()
    assert len(found.heads) == 2 * 4 and len(found.tokens) == 2 * 5
    said = " ".join(map(str, left_out(found.about, found.summary)))
    assert "The attention of qwen3_moe: closed form found by trial: read as separate projections" in said


def test_of_a_model_that_reads_pictures_too_the_layers_of_its_texts_are_read(tmp_path):
    model_types.written(tmp_path, "qwen3_vl")
    model = models.load(tmp_path, dtype=torch.float64)
    assert (model.architecture.part, model.architecture.layers) == ("language_model", "layers")
    assert model.architecture.found and relative_at(model, 1, 9)[0] < 1e-6
