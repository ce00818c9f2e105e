"""Slopes next to slopes that account for them: errors that were put in are found, models are what is resampled."""

import numpy as np
import pandas as pd
import pytest

from lab import results
from lab.statistics.layer_growth import stored
from lab.statistics.predicted_slopes import bends, compared, neighbours, with_terms


@pytest.fixture
def rates():
    """Three models of four layers, one of them twice, with a slope that is predicted with an error of 0.01."""
    random, rows = np.random.default_rng(0), []
    for name, level in (("a", 0.1), ("a, masked", 0.12), ("b", 0.3), ("c", 0.5)):
        for layer in range(4):
            slope = level + 0.1 * random.random()
            rows.append(
                {"map": name, "corpus": "t", "layer": layer, "slope": slope, "good": slope + 0.01 * (-1) ** layer}
            )
    return pd.DataFrame(rows).assign(bad=lambda table: 0.9 - table.slope)


def test_errors_are_those_that_were_put_in(rates):
    found = compared(rates, ["bad", "good"], draws=200).set_index("predictor")
    assert found.loc["good", ["median", "rmse", "largest"]].tolist() == pytest.approx([0.01] * 3)
    assert found.loc["good", "mean"] == pytest.approx(0, abs=1e-12)
    assert found.correlation["bad"] == pytest.approx(-1) and found.correlation["good"] > 0.99
    row = found.loc["good"]
    assert row.low <= row.correlation <= row.high and row.less_low <= row.less <= row.less_high < 0
    assert found.loc["bad", ["less", "less_low", "less_high"]].tolist() == [0, 0, 0]


def test_a_map_with_a_mask_is_resampled_with_its_model(rates):
    one = rates[rates["map"].str.startswith("a")]
    found = compared(one, ["good", "bad"], draws=20).set_index("predictor")
    assert found.less_low["bad"] == found.less_high["bad"] == pytest.approx(found.less["bad"])  # one model only


def test_rows_that_belong_together_are_resampled_as_one(rates):
    one = rates[rates["map"] == "a"].assign(good=rates.slope + 0.01 * rates.layer)
    twice = pd.concat([one, one.assign(corpus="u")])
    alone, both = (
        compared(some, ["bad", "good"], together=["map", "layer"], draws=50).iloc[1] for some in (one, twice)
    )
    assert alone[["less_low", "less_high"]].tolist() == pytest.approx(both[["less_low", "less_high"]].tolist())
    assert alone.less_low < alone.less < alone.less_high


def test_neighbours_are_of_the_same_map_and_text_whatever_the_order(rates):
    other = rates.assign(corpus="u", slope=1 - rates.slope)
    mixed = pd.concat([rates, other]).sample(frac=1, random_state=0, ignore_index=True)
    found, by_place = neighbours(mixed), mixed.set_index(["map", "corpus", "layer"]).slope
    for place, row in mixed.iterrows():
        near = [by_place[row["map"], row.corpus, layer] for layer in (row.layer - 1, row.layer + 1) if 0 <= layer < 4]
        assert found[place] == pytest.approx(np.mean(near))


def test_bends_are_octaves_without_the_level_of_their_layer():
    n = np.repeat([8, 16, 32, 64], 2)
    steps = {"lipschitz": [0.1, 0.2, 0.6], "other": [0.5, 0.5, 0.2], "straight": [0.7, 0.7, 0.7]}
    columns = {name: 2.0 ** np.repeat(np.cumsum([0, *slopes]), 2) for name, slopes in steps.items()}
    table = pd.DataFrame({"map": "a", "corpus": "t", "layer": 0, "length": n, "window": np.arange(8) % 2, **columns})
    found = bends(pd.concat([table, table.assign(layer=1, lipschitz=1 / table.lipschitz)]), ["other", "straight"])
    assert found.layer.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.slope.tolist() == pytest.approx([-0.2, -0.1, 0.3, 0.2, 0.1, -0.3])
    assert found.other[:3].tolist() == pytest.approx([0.1, 0.1, -0.2])
    assert found.straight.tolist() == pytest.approx([0] * 6, abs=1e-12)


def test_terms_stand_beside_the_constants_of_their_windows():
    key = {"model": "m", "masked": False, "corpus": "t", "layer": 0, "length": 8, "text": "abc"}
    measured = pd.DataFrame([key | {"window": i, "lipschitz": i + 1.0} for i in range(3)])
    columns = {"value": 2.0, "key": 3.0, "query": 1.0, "one_head": 4.0, "bound": 6.0}
    terms = pd.DataFrame([key | columns | {"window": i} for i in (2, 0)])
    found = with_terms(measured, terms)
    assert found.lipschitz.tolist() == [1, 3] and found.both.tolist() == [5, 5]
    with pytest.raises(ValueError, match="2 rows of the terms have no constant at the same window"):
        with_terms(measured.assign(text="abd"), terms)


@pytest.mark.skipif("head-terms" not in results.names(), reason="the table is not made yet")
def test_stored_terms_bound_the_stored_constants():
    atlas = stored()
    own = with_terms(atlas[atlas.case == "as read"], results.load("head-terms"))
    some = own.dropna(subset="bound")
    assert len(some) > 2000 and (some.lipschitz <= some.bound * (1 + 2e-3)).all()
