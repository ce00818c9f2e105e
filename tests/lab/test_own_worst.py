"""Whole layers at their own worst: the roughest of all heads and both signs, by dense Jacobians."""

import pytest
import torch
from cases import constant

from lab import results
from lab.experiments import own_worst
from lab.experiments.two_clusters import cluster_input, head_of
from lab.statistics.head_rates import own_slopes
from lab.statistics.power_laws import power_law
from lipnb import Attention, local_lipschitz


def layer(seed=0, heads=3, d=6, k=3, masked=False):
    """A layer with biases and an output matrix, so that heads and signs differ; odd k have a real eigenvalue."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    return Attention(
        draw(heads, k, d), draw(heads, k, d), draw(heads, k, d), draw(heads, d, k),
        query_bias=draw(heads, k), key_bias=draw(heads, k), masked=masked,
    )  # fmt: skip


@pytest.mark.parametrize("masked", [False, True])
def test_all_heads_and_both_signs_count(masked):
    for seed in range(4):
        f, n, R = layer(seed, masked=masked), 5, 1.5
        found = own_worst.of_layer(f, n, R)
        at = {(h, sign): sign * cluster_input(head_of(f, h), n, R) for h in range(f.heads) for sign in (1, -1)}
        each = {place: constant(f, x).item() for place, x in at.items()}
        place = max(each, key=each.get)
        assert (found["head"], found["sign"]) == place
        assert found["clusters"] == pytest.approx(each[place], rel=1e-4)
        others = [value for (_, sign), value in each.items() if sign != place[1]]
        assert found["other"] == pytest.approx(max(others), rel=1e-4) and found["other"] < found["clusters"]
        x = own_worst.random_clusters(f.width, n, R, own_worst.DRAWS, 0)
        assert (x.norm(dim=-1) - R).abs().max() < 1e-12 and (x[:, 0] + x[:, 1]).abs().max() < 1e-12
        assert found["random"] == pytest.approx(max(constant(f, one).item() for one in x), rel=1e-4)
        assert found["fork"] > 0 and found["fork"] == own_worst.of_layer(f, n, R)["fork"]


def test_the_stored_table():
    own = results.load("adversarial-worst")
    assert (own[["clusters", "other", "fork", "random"]].max(axis=1) < own.upper).all()
    assert (own.other <= own.clusters).all() and set(own.sign) == {1, -1}
    # at least what the head that is followed has, up to what both are found within
    layers = results.load("adversarial-layers")
    place = ["model", "masked", "at", "layer", "length"]
    both = own.merge(layers.groupby(place).lipschitz.max().reset_index(), on=place)
    assert len(both) and (both.clusters > both.lipschitz * (1 - 1e-3)).all()
    assert own.text.notna().equals(own.model.eq("minilm"))


def test_slopes_of_a_table():
    own, layers = results.load("adversarial-worst"), results.load("adversarial-layers")
    slopes = own_slopes(own, layers)
    assert set(slopes.kind) == {"clusters", "fork", "random", "text", "followed"}
    row = slopes[(slopes.model == "minilm") & (slopes["at"] == "text") & ~slopes.masked & (slopes.layer == 2)]
    row = row[row.kind == "fork"].iloc[0]
    at = (own.model == "minilm") & (own["at"] == "text") & ~own.masked & (own.layer == 2)
    mine = own[at].set_index("length").fork
    for name, part in {"slope": mine, "early": mine.loc[:22], "late": mine.loc[22:]}.items():
        law = power_law(part.index, part)
        assert law.points == {"slope": 5}.get(name, 3) and row[name] == pytest.approx(law.exponent)
    assert row.constant == mine[97]


def test_a_row_measured_again():
    from lab.experiments import adversarial

    own = results.load("adversarial-worst")
    row = own[(own.model == "minilm") & (own["at"] == "layer norm") & ~own.masked & (own.length == 7)].iloc[2]
    attention, R = adversarial.layer_of("minilm", False, "layer norm", row.layer)
    x = cluster_input(head_of(attention, row["head"]), 7, R) * row.sign
    assert local_lipschitz(attention, x).value.item() == pytest.approx(row.clusters, rel=1e-3)
