"""The example of a port: its states are PyTorch's but for rounding, and a fault planted in it is found in its place."""

import runpy
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lipscan import drift, models

EXAMPLE = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "port_in_numpy.py"))


@pytest.mark.parametrize("tied", [True, False])
def test_a_port_is_compared_from_its_file_and_a_fault_in_one_layer_is_named(tmp_path, monkeypatch, tied):
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=40,
        initializer_range=0.2,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=tied,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(tmp_path)
    model, mine = models.load(tmp_path), tmp_path / "mine.safetensors"
    ids = torch.randint(40, (2, 24), generator=torch.Generator().manual_seed(0))
    reference = drift.dump(model, ids, tmp_path / "reference.safetensors")
    EXAMPLE["main"](tmp_path, reference, mine)
    found = drift.compare(model, drift.read(mine), progress=False)
    assert found.verdict.kind == "rounding" and found.table.part.value_counts()["mlp"] == 3

    calls, right = [], EXAMPLE["rotated"]

    def interleaved(x, base):
        calls.append(x)
        if len(calls) not in (3, 4):  # queries and keys of layer 1, in the first of two windows
            return right(x, base)
        half = x.shape[-1] // 2
        order = [*range(0, 2 * half, 2), *range(1, 2 * half, 2)]
        return right(x[..., order], base)

    monkeypatch.setitem(EXAMPLE["attention"].__globals__, "rotated", interleaved)
    EXAMPLE["main"](tmp_path, reference, mine)
    found = drift.compare(model, drift.read(mine), progress=False)
    assert found.verdict[:3] == ("bug", 1, "attention")
