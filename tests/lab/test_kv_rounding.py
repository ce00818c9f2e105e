"""Rounded caches: the rounding itself, the network around it, what is carried to the end, stored rows."""

import needs
import pytest
import torch

from lab import figures, results
from lab.experiments import kv_rounding
from lab.experiments.loading import load
from lipscan import models
from lipscan.recording import remeasure

SENTENCE = "Alice was beginning to get very tired of sitting by her sister on the bank"


@pytest.fixture(scope="module")
def start():
    model = load("gpt2-mini")
    return kv_rounding.begin(model, model.token_ids(SENTENCE)[None])


def test_numbers_are_rounded_to_their_own_steps():
    x = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(0))
    for bits in (2, 3):
        new = kv_rounding.rounded(x, bits)
        step = (x.amax(-1) - x.amin(-1)) / (2**bits - 1)
        assert ((new - x).abs().amax(-1) <= step / 2 + 1e-6).all() and (new - x).abs().max() > step.max() / 4
        assert all(len(vector.unique()) <= 2**bits for vector in new.flatten(0, -2).round(decimals=4))
        assert torch.equal(new.amin(-1), x.amin(-1))


def test_loss_is_the_divergence():
    a, b = torch.randn(2, 1, 4, 9, generator=torch.Generator().manual_seed(0)).double().log_softmax(-1)
    plain = torch.nn.functional.kl_div(b, a, reduction="none", log_target=True).sum(-1).mean(-1)
    assert torch.allclose(kv_rounding.loss(a, b), plain) and kv_rounding.loss(a, a) == 0


def test_through_all_layers_is_the_network(start):
    network = models.network.whole_network(start.model, start.ids)
    with torch.no_grad():
        assert torch.allclose(network(start.read[0].stream), start.hidden, atol=1e-5)
        logits = models.network.whole_network(start.model, start.ids, "logits")(start.read[0].stream)
    assert torch.allclose(logits.log_softmax(-1), start.logs, atol=1e-4)


@pytest.mark.parametrize("kind", kv_rounding.KINDS)
def test_a_rounded_layer_is_the_attention_of_rounded_keys_or_values(start, kind):
    """By formula: queries, keys and values of the layer, one of them rounded, head by head."""
    f, x = start.model.attention(2), start.read[2].received[0]
    q, k, v = (
        torch.einsum("hkd,nd->hnk", getattr(f, name), x) + getattr(f, f"{name}_bias")[:, None]
        for name in ("query", "key", "value")
    )
    k, v = (kv_rounding.rounded(k, 3), v) if kind == "keys" else (k, kv_rounding.rounded(v, 3))
    logits = (q @ k.mT * f.scale).masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -torch.inf)
    out = torch.einsum("hmv,hnv->nm", f.output, logits.softmax(-1) @ v) + f.output_bias
    found = kv_rounding.round_layer(start, 2, kind, 3)
    assert found["given_change"].item() == pytest.approx((out - start.read[2].given[0]).norm().item(), rel=1e-3)
    assert 0.05 < found["relative_error"].item() < 0.4 and found["kl"].item() > 0


def test_more_bits_lose_less_and_small_changes_are_carried(start):
    few, many = (kv_rounding.round_layer(start, 1, "values", bits) for bits in (3, 8))
    assert all(many[name] < few[name] / 10 for name in ("error", "stream_change", "hidden", "kl"))
    assert many["carried"].item() == pytest.approx(many["hidden"].item(), rel=0.05)
    last = kv_rounding.round_layer(start, start.model.layers - 1, "values", 3)
    assert last["hidden"].item() > 0  # after the last layer the norm alone


@needs.REFERENCE
def test_a_stored_row_is_measured_again():
    table = results.load("kv-rounding")
    rows = table[(table.model == "gpt2-mini") & (table.corpus == "python_reference")]
    again = remeasure(rows, kv_rounding.again, rows=1, by=kv_rounding.PLACE)
    assert max(again[f"{name} difference"].max() for name in kv_rounding.COMPARED) < 0.02


def test_stored_rows():
    table = results.load("kv-rounding")
    assert set(table.model) == {"gpt2-mini", "smollm2"} and (table.kl > 0).all()
    design = table.groupby(["model", "layer", "corpus", "window", "kind", "bits"]).size()
    assert (design == 1).all() and len(table) == table.groupby("model").layer.nunique().sum() * len(table) / 36
    rows = table[(table.model == "gpt2-mini") & (table.corpus == "python_reference")]
    predicted = figures.kv_rounding.predicted(table)
    assert set(figures.kv_rounding.PREDICTORS) <= set(predicted) and (predicted.over_residual > 0).all()
    assert (predicted.by_residual * predicted.residual).between(1 - 1e-9, 1 + 1e-9).all() and predicted.depth.min() == 1
    layers = rows.layer.nunique()
    assert figures.points(figures.kv_rounding.ranks(table, model="gpt2-mini")) == 4 * layers
    assert figures.points(figures.kv_rounding.depth(table, model="gpt2-mini")) == 5 * layers
    assert kv_rounding.again(rows.iloc[0].to_dict() | {"text": "other"}) is None


def test_the_error_that_the_constant_multiplies_is_in_the_units_of_the_tokens():
    table = results.load("kv-rounding").head(20)
    once, twice = (figures.kv_rounding.predicted(table.assign(received=k * table.received)) for k in (1, 2))
    assert (twice.error_constant / once.error_constant).between(2 - 1e-9, 2 + 1e-9).all()
