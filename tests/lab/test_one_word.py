"""One word: its first-order promise, the search, windows that are read back, stored rows."""

import needs
import pytest
import torch

from lab import figures, results
from lab.experiments import one_word, worst_words
from lab.experiments.loading import load
from lipscan.recording import remeasure

SENTENCE = "The rabbit looked at its watch, and Alice ran after it."


@pytest.fixture(scope="module")
def mini():
    model = load("gpt2-mini")
    return model, model.token_ids(SENTENCE)


@pytest.mark.parametrize("layer", [0, 3])
def test_the_route_below_a_layer_is_the_network_for_gpt2_too(mini, layer):
    model, ids = mini
    e = model.module.get_input_embeddings().weight[ids][None]
    assert torch.allclose(worst_words.below(model, layer, e), model.activations(ids[None], layer), atol=1e-5)


def test_gains_are_squared_changes_to_first_order(mini):
    """Against differences of the layer's own output along the way from one word to another."""
    model, ids = mini
    layer, words = 2, model.module.get_input_embeddings().weight
    gains = one_word.gains(model, layer, ids, probes=512)
    assert gains.shape == (len(ids), len(words)) and gains.gather(1, ids[:, None]).abs().max() < 1e-6
    f, e = model.attention(layer), words[ids]
    for place, token in [(1, 300), (4, 2000), divmod(gains.argmax().item(), len(words))]:
        step = torch.zeros_like(e)
        step[place] = words[token] - e[place]
        ends = [f(worst_words.below(model, layer, (e + t * step)[None])) for t in (5e-3, -5e-3)]
        slope = ((ends[0] - ends[1]) / 1e-2).square().sum().item()
        assert gains[place, token].item() == pytest.approx(slope, rel=0.35)  # the spread of 512 probes, five times


def test_the_word_found_is_read_back_and_does_what_is_said(mini):
    model, ids = mini
    words = worst_words.read_back(model)
    found = one_word.worst_word(model, 3, ids, words, each=2, places=2, more=8)
    changed = ids.clone()
    changed[found.place] = found.token
    assert words[found.token] and found.token != ids[found.place] and one_word.reads_back(model, changed)
    f, x = model.attention(3), model.activations(torch.stack([ids, changed]), 3)
    assert found.change == pytest.approx((f(x[1]) - f(x[0])).norm().item(), rel=1e-4)
    assert found.moved == pytest.approx((x[1] - x[0]).norm().item(), rel=1e-4)
    assert found.random <= found.random_best and found.random < found.change


def test_windows_are_read_back():
    for name in one_word.MODELS:
        ids = one_word._windows(name, "python_reference")
        model = load(name, **one_word.MODELS[name])
        assert ids.shape == (one_word.WINDOWS, one_word.LENGTH) and all(one_word.reads_back(model, row) for row in ids)


@needs.REFERENCE
def test_stored_rows_are_measured_again():
    table = results.load("one-word")
    rows = table[(table.model == "gpt2-mini") & (table.corpus == "python_reference") & (table.layer == 2)]
    again = remeasure(rows.iloc[[1, -1]], one_word.again, rows=2)
    assert max(again[f"{name} difference"].max() for name in one_word.COMPARED) < 0.01


def test_stored_rows():
    table = results.load("one-word")
    design = table.groupby(["model", "layer", "corpus", "window"]).attack.nunique()
    assert (design == len(one_word.RADII) + 1).all() and len(table) == design.sum()
    vectors, words = table[table.attack != "word"], table[table.attack == "word"]
    assert (vectors.change <= vectors.bound).all() and (words.change >= words["random"] * 0.9).all()
    assert (table.lipschitz <= table.closed_form * (1 + 1e-6)).all()
    rows = table[(table.model == "gpt2-mini") & (table.corpus == "python_reference") & (table.layer == 2)]
    assert one_word.again(rows.iloc[0].to_dict() | {"text": "other"}) is None
    worst = figures.robustness.worst(table)
    assert (worst.worst >= worst.change).all() and figures.points(figures.robustness.ranks(table)) == 2 * len(words)
