"""Tables of brackets, and the attention layers of a GPT-2 without the rest of it."""

import math

import needs
import pytest
import torch
from cases import random_case
from hub import tiny_gpt2
from safetensors.torch import load_file, save_file

from lab import results
from lab.experiments import brackets, make, remeasure
from lipnb import bounds, local_lipschitz
from lipscan import models


@pytest.fixture
def folder(tmp_path):
    """A tiny GPT-2, and beside it its attention alone."""
    tiny_gpt2(tmp_path / "whole")
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "config.json").write_text((tmp_path / "whole" / "config.json").read_text())
    weights = {
        name.removeprefix("transformer."): tensor
        for name, tensor in load_file(tmp_path / "whole" / "model.safetensors").items()
    }
    kept = {name: tensor for name, tensor in weights.items() if ".attn.c_" in name or ".ln_1." in name}
    save_file(kept, alone / "attention.safetensors")
    return tmp_path


def test_attention_alone_is_the_attention_of_the_whole(folder):
    layers = models.load_attention(folder / "alone")
    whole = models.load(folder / "whole", dtype=torch.float64)
    assert len(layers) == whole.layers
    for i, layer in enumerate(layers):
        x = layer.noise(5, seed=i)
        assert torch.allclose(layer.attention(x), whole.attention(i)(x), atol=1e-12)
        assert layer.attention.masked
    z = (layer.noise(50, seed=1) - layer.shift) / layer.gain
    assert z.mean(-1).abs().max() < 1e-6 and (z.square().mean(-1) - 1).abs().max() < 1e-6
    assert not torch.equal(layer.noise(5, seed=1), layer.noise(5, seed=2))


def test_a_table_holds_brackets_and_published_bounds(results_folder, monkeypatch):
    case = random_case(4, n=5)
    exact = local_lipschitz(case.attention, case.x, method="dense").value
    monkeypatch.setattr(brackets, "at", lambda model, masked, layer, length, *, seed=0: (case.attention, case.x[layer]))
    monkeypatch.setattr(brackets, "layers_of", lambda model, masked: 2)
    monkeypatch.setattr(brackets, "MODELS", {"bracket-minilm": (("minilm", False),)})
    table = make(["bracket-minilm"], lengths=(5,))["bracket-minilm"]
    assert list(table.layer) == [0, 1] and "bracket-minilm" in results.names()
    for row, value in zip(table.itertuples(), exact.tolist(), strict=True):
        assert row.lower <= value * (1 + 1e-12) and value <= row.upper <= row.closed_form * (1 + 1e-9)
        assert value <= row.yudin and value <= row.general
    again = remeasure(table, brackets.again, rows=2)
    assert again["closed_form difference"].max() < 1e-9 and again["lower difference"].max() < 1e-3


@needs.GPT2
def test_the_stored_gpt2_rows_hold():
    table = results.load("bracket-gpt2")
    again = remeasure(table[table.layer == 0], brackets.again, rows=1)
    assert again["closed_form difference"].max() < 1e-3 and again["lower difference"].max() < 1e-3


def test_the_ball_of_a_published_bound_holds_the_coordinate_that_absorbs_the_bias():
    f, (x, _), _ = random_case(4, n=5)
    radius = torch.linalg.vector_norm(x, dim=-1).max().item()

    def general(share):
        g, _ = bounds.without_query_bias(f, x, share * radius)
        A, V = g.scale * g.key.mT @ g.query, g.output @ g.value
        return sum(bounds.general_upper(A[h], V[h], 5, radius * math.hypot(1, share)) for h in range(g.heads))

    assert brackets.published(f, x)["general"] == pytest.approx(min(general(0.1), general(0.3)), rel=1e-12)
