"""The table of gpt2-mini beside n-grams: bins, few tokens before, rows on a small text."""

import json

import numpy as np
import pytest
import torch

from lab import results, training
from lab.experiments import mini_baselines
from lipscan import models


@pytest.fixture(scope="module")
def network():
    return training.new_gpt2(40, positions=16, width=16, layers=1, heads=2, seed=2).eval()


def test_octaves_cover_each_place_once():
    bins = mini_baselines.octaves(512)
    assert [place for first, last in bins for place in range(first, last + 1)] == [*range(512)]
    assert bins[:4] == [(0, 0), (1, 1), (2, 3), (4, 7)] and bins[-4:-2] == [(32, 63), (64, 127)]
    assert mini_baselines.octaves(6)[-1] == (4, 5)


def test_few_tokens_before_are_the_last_ones(network):
    ids = torch.randint(40, (33,), generator=torch.Generator().manual_seed(0))
    losses = mini_baselines.short_sighted(network, ids, 16, short=8)
    assert losses.shape == (2, 16)
    for window, place in ((0, 0), (0, 7), (0, 8), (0, 11), (1, 12), (1, 15)):
        first = 16 * window + (0 if place < 8 else place // 4 * 4 - 4)  # pieces of 8 begin at every fourth place
        now = 16 * window + place
        with torch.no_grad():
            logits = network(ids[None, first : now + 1])[0, -1]
        expected = torch.nn.functional.cross_entropy(logits, ids[now + 1]).item()
        assert losses[window, place].item() == pytest.approx(expected, rel=1e-4)
    whole = training.token_losses(network, ids, 16)
    assert torch.allclose(losses[:, :8], whole[:, :8]) and not torch.allclose(losses[:, 8:], whole[:, 8:])


def test_rows_compare_all_models_on_the_same_tokens(network, monkeypatch):
    generator = np.random.default_rng(0)
    ids, other = (torch.from_numpy(generator.geometric(0.1, size).clip(max=39)) for size in (3000, 300))
    monkeypatch.setattr(mini_baselines, "_texts", lambda: (ids, {"toy": other}, 40))
    monkeypatch.setattr(mini_baselines, "load_gpt2", lambda folder: network)
    monkeypatch.setattr(mini_baselines.short_sighted, "__defaults__", (8,))
    rows = mini_baselines._rows("toy", 16)
    assert len(rows) == len(mini_baselines.MODELS) * (1 + len(mini_baselines.octaves(16)))
    whole = {row["model"]: row for row in rows if row["part"] == "all"}
    read = other[: 18 * 16 + 1]
    assert {row["windows"] for row in rows} == {18}
    assert whole["network"]["loss"] == pytest.approx(training.validation_loss(network, other, 16))
    assert whole["unigram"]["loss"] == pytest.approx(training.unigram_loss(ids, read[1:], 40))
    assert whole["bigram"]["loss"] == pytest.approx(training.bigram_loss(ids, read, 40))
    found = training.KneserNey(ids, 40, 4).losses(other, 16)
    assert whole["kneser-ney 4"]["loss"] == pytest.approx(found.mean())
    assert whole["kneser-ney 4"]["error"] == pytest.approx(found.mean(1).std(ddof=1) / np.sqrt(18))
    lead = found - training.token_losses(network, other, 16).numpy()
    (row,) = (row for row in rows if row["model"] == "kneser-ney 4" and row["first"] == 4)
    assert (row["last"], row["lead"]) == (7, pytest.approx(lead[:, 4:8].mean()))
    assert row["gained"] == pytest.approx(lead[:, 4:8].mean() - lead[:, 1].mean())
    assert row["gained_error"] == pytest.approx((lead[:, 4:8].mean(1) - lead[:, 1]).std(ddof=1) / np.sqrt(18))


def test_the_stored_table_is_of_the_network_that_is_here():
    table = results.load("gpt2-mini-baselines")
    facts = json.loads((models.mini_folder() / "training.json").read_text())
    row = table[table.part == "all"].set_index(["corpus", "model"]).loss
    assert row["held out", "network"] == pytest.approx(facts["loss"], rel=1e-3)
    for order in (3, 4):
        assert row["held out", f"kneser-ney {order}"] == pytest.approx(facts[f"kneser_ney_{order}"], rel=1e-4)
