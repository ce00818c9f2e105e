"""Learned positions: read, replaced, moved; what only the real GPT-2 has is read from its folder."""

import json

import pytest
import torch
from cases import constant
from safetensors.torch import save_file

from lab import experiments, results
from lab.experiments import positions
from lipscan import models


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    place = tmp_path_factory.mktemp("small")
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 64, "vocab_size": 40}
    (place / "config.json").write_text(json.dumps(config))
    return models.load(place, random=True, seed=1)


def test_positions_are_those_that_the_network_adds(model):
    places = models.position_embeddings(model)
    assert places.shape == (64, 16) and torch.equal(places, model.module.wpe.weight)
    ids = torch.tensor([[7, 7, 7]])
    stream = model.activations(ids, 0, object="block")[0]
    assert torch.allclose(stream[1] - stream[0], places[1] - places[0], atol=1e-6)


def test_other_positions_change_nothing_else(model):
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    before = model.activations(ids, 0, object="block")
    removed = positions.variant(model, "removed").activations(ids, 0, object="block")
    assert torch.allclose(removed[0], model.module.wte.weight[ids[0]], atol=1e-7)
    assert torch.equal(removed[0, 1], removed[0, 3])  # one token, two places
    places = models.position_embeddings(model)
    constant = positions.variant(model, "constant").activations(ids, 0, object="block")
    assert torch.allclose(constant - removed, places.mean(0).expand(5, -1), atol=1e-6)
    late = positions.variant(model, 20).activations(ids, 0, object="block")
    assert torch.allclose(late - removed, places[20:25], atol=1e-6)
    assert positions.variant(model, "trained") is model
    assert torch.equal(model.activations(ids, 0, object="block"), before)  # the model itself is left alone
    again = positions.variant(model, "removed")
    assert torch.equal(again.attention(1).query, model.attention(1).query)


def test_rows_of_each_variant(model):
    tokens = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])
    rows = positions._rows(model, "removed", tokens[:, :3], 1e-4, 0)
    assert len(rows) == model.layers * 2 and all(row["converged"] for row in rows)
    x = positions.variant(model, "removed").activations(tokens[:, :3], 1)
    row = next(row for row in rows if (row["layer"], row["window"]) == (1, 1))
    assert row["mean_radius"] == pytest.approx(x[1].square().sum(-1).mean().sqrt().item(), rel=1e-5)
    late = positions._rows(model, "late", tokens, 1e-4, 0)[0]
    stream = positions.variant(model, 60).activations(tokens, 0, object="block")[0]
    assert late["stream_radius"] == pytest.approx(stream.norm(dim=-1).square().mean().sqrt().item(), rel=1e-5)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A tiny GPT-2 without token embeddings, in the place of the real one."""
    generator = torch.Generator().manual_seed(0)
    place = tmp_path / "models" / "gpt2-124m-attention"
    place.mkdir(parents=True)
    tensors = {"wpe.weight": torch.randn(16, 8, generator=generator)}
    for name, shape in (("attn.c_attn", (8, 24)), ("attn.c_proj", (8, 8))):
        tensors[f"h.0.{name}.weight"] = torch.randn(shape, generator=generator)
        tensors[f"h.0.{name}.bias"] = torch.randn(shape[1], generator=generator)
    tensors |= {"h.0.ln_1.weight": torch.ones(8), "h.0.ln_1.bias": torch.zeros(8)}
    save_file(tensors, place / "attention.safetensors")
    config = {"model_type": "gpt2", "n_head": 2, "n_embd": 8, "n_layer": 1}
    (place / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("LIPNB_DATA", str(tmp_path))
    return place


def test_positions_alone(folder, results_folder):
    table = experiments.make([experiments.TABLES["positions-alone"]], lengths=(2, 5), progress=False)["positions-alone"]
    places = models.load_positions(folder)
    assert places.dtype == torch.float64 and list(table.length) == [2, 5] and table.converged.all()
    x = places[:5] - places[:5].mean(1, keepdim=True)
    x = x / (x.square().mean(1, keepdim=True) + 1e-5).sqrt()
    exact = constant(models.load_attention(folder)[0].attention, x).item()
    assert table.lipschitz[1] == pytest.approx(exact, rel=1e-4)
    assert table.mean_radius[1] == pytest.approx(8**0.5, rel=1e-4)
    assert results.provenance("positions-alone")["settings"]["lengths"] == [2, 5]
