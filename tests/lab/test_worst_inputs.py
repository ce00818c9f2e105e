"""The tables of worst inputs: what stands in a row, how tables come out, stored rows in order."""

import math

import pytest
import torch

from lab import figures, results
from lab.experiments import worst_inputs
from lab.experiments.two_clusters import cluster_input, head_of
from lipnb import Attention, bounds, local_lipschitz


def layer(seed, *, masked=False, h=2):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    biases = {"query_bias": normal(h, 3), "key_bias": normal(h, 3), "value_bias": normal(h, 3)}
    return Attention(normal(h, 3, 8), normal(h, 3, 8), normal(h, 3, 8), normal(h, 5, 3), masked=masked, **biases)


def test_one_head_alone_is_that_head_of_the_layer():
    f = layer(0)
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    heads = [worst_inputs.one_head(f, h) for h in range(2)]
    shift = torch.einsum("hmv,hv->m", f.output, f.value_bias)
    together = sum(one(x) @ W.mT for one, W in zip(heads, f.output, strict=True)) + shift
    assert torch.allclose(together, f(x))


@pytest.mark.parametrize("masked", [False, True])
def test_a_row_is_in_order_and_below_its_bound(masked):
    f = layer(2, masked=masked)
    x = torch.randn(3, 7, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole = worst_inputs.Place(f, x.norm(dim=-1).max().item(), x, None)
    for place, heads in ((whole, (0, 1)), (whole.of_head(1), (0,))):
        row = worst_inputs.measure(place, worst_inputs.two_clusters_of(place, heads, 7), 7)
        assert row["text"] == pytest.approx(local_lipschitz(place.attention, x).value.max().item())
        top = place.upper(7)
        assert top == bounds.ball_upper(place.attention, 7, row["R"])
        assert max(row["heuristic"], row["fork"]) <= row["ascended"] * (1 + 1e-3) and row["ascended"] <= top
        assert row["text"] <= top


def test_two_clusters_on_a_ball_are_those_of_the_paper():
    f, R = layer(3), 1.7
    clusters = worst_inputs.two_clusters_of(worst_inputs.Place(f, R, None, None), (0, 1), 6)
    for x, expected in zip(clusters, [cluster_input(head_of(f, h), 6, R) for h in (0, 1)], strict=False):
        assert torch.allclose(x, expected, atol=1e-12) and x.shape == (6, 8)
    assert torch.equal(clusters[2:], -clusters[:2])


def test_a_row_on_the_ellipsoid_of_a_layer_norm():
    """No text; the tokens of every column are such that the LayerNorm makes them, so that the bound holds."""
    f, (gain, shift) = layer(4, masked=True), torch.randn(2, 8, generator=torch.Generator().manual_seed(2)).double()
    place = worst_inputs.Place(f, bounds.layer_norm_radius(gain, shift), None, (gain, shift))
    clusters = worst_inputs.two_clusters_of(place, (0, 1), 7)
    u = (clusters - shift) / (8**0.5 * gain)
    assert (u - u.mean(-1, keepdim=True)).norm(dim=-1).max() <= 1 + 1e-9 and u.mean(-1).abs().max() < 1e-9
    row = worst_inputs.measure(place, clusters, 7, effort=0)
    top = bounds.ball_upper(f, 7, float("inf"), ellipsoid=(gain, shift))
    assert row["text"] != row["text"] and max(row["heuristic"], row["fork"], row["ascended"]) <= top == place.upper(7)
    assert row["fork"] <= row["ascended"] * (1 + 1e-3)


ROWS = {"worst-inputs": 96, "worst-layers": 12, "worst-gpt2": 144}
SLACK = {"worst-gpt2": 1e-2}  # without an ascent: the two columns take forks from different starts


@pytest.mark.parametrize("name", ROWS)
def test_stored_rows_are_in_order(name):
    table = results.load(name)
    assert (table.ascended <= table.upper).all() and (table.fork <= table.ascended * (1 + SLACK.get(name, 2e-4))).all()
    assert (table.heuristic < table.fork).all() and table.text.isna().all() == (name == "worst-gpt2")
    assert table.text.isna().all() or (table.text < table.heuristic).mean() > 0.5
    assert not table.duplicated(["model", "layer", *(["head"] if "head" in table else [])]).any()
    assert len(table) == ROWS[name]
    panels = dict(list(table.groupby("model")))
    figure = figures.worst_inputs.between(panels, thing="rows")
    for ax, rows in zip(figure.axes, panels.values(), strict=True):
        forks = (rows.ascended > figures.worst_inputs.APART * rows.fork).any()  # drawn only where they differ
        assert len(ax.lines) == 3 + rows.text.notna().any() + forks  # no text, no marks of it
        assert ax.get_yscale() == "log"


def test_the_own_terms_of_a_head_are_shares_of_products_of_norms(monkeypatch):
    """A = V = 1: the key term is (1/4 + log(n) / t)^(1/2) of the product of norms, the query term all of it."""
    eye = torch.eye(4).double()[None]
    monkeypatch.setattr(worst_inputs, "_attention_of", lambda *place: Attention(eye, eye, eye, scale=1.0))
    n, R = 30, 5.0
    own = worst_inputs.own_terms({"model": "minilm", "masked": False, "layer": 0, "head": 0, "R": R, "length": n})
    assert own["key"] == pytest.approx((0.25 + math.log(n) / R**2) ** 0.5, rel=1e-4)
    assert own["query"] == pytest.approx(1, rel=1e-6)
