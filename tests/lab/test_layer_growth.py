"""What the atlas says of every layer: slopes, controls and differences, on tables whose answers are known."""

import numpy as np
import pandas as pd
import pytest

from lab.statistics import layer_growth

SLOPES = {  # map -> slopes of its layers
    "MiniLM": [0.1, 0.5],
    "MiniLM, masked": [0.1, 0.3],
}


def made(noise=0.0, seed=0):
    """An atlas of two maps whose constants are power laws, steeper by 0.05 on news, with flat random twins."""
    draw, rows = np.random.default_rng(seed), []
    for name, slopes in SLOPES.items():
        for layer, slope in enumerate(slopes):
            for corpus, order, weights, exponent in (
                ("alice", "text", "pretrained", slope),
                ("news", "text", "pretrained", slope + 0.05),
                ("alice", "shuffled", "pretrained", slope - 0.02),
                ("alice", "text", "random", 0.0),
            ):
                for n in (8, 16, 32, 64):
                    for window in range(4):
                        value = n**exponent * np.exp(noise * draw.standard_normal())
                        key = {"corpus": corpus, "order": order, "model": "minilm", "weights": weights}
                        key |= {"masked": name.endswith("masked"), "layer": layer, "object": "heads+output"}
                        rows.append(key | {"length": n, "window": window, "lipschitz": value, "attention_norm": n**0.5})
    return layer_growth.named(pd.DataFrame(rows))


def test_slopes_are_those_that_were_put_in():
    rates = layer_growth.rates(made(), along=("attention_norm",))
    assert len(rates) == 2 * 2 * 4 and (rates.attention_norm - 0.5).abs().max() < 1e-9
    own = rates[(rates.case == "as read") & (rates.corpus == "alice")]
    assert own.slope.to_numpy() == pytest.approx([0.1, 0.5, 0.1, 0.3])
    assert (rates.shortest == 8).all() and (rates.longest == 64).all() and (rates.windows == 4).all()


def test_every_layer_is_counted_once_and_on_its_first_text():
    rates = layer_growth.rates(made(), along=())
    summary = layer_growth.summary(rates, 0.25).set_index("map")
    assert summary.layers.tolist() == [2, 2]
    assert (summary[["below", "contains", "above"]].sum(axis=1) == summary.layers).all()
    assert summary.loc["MiniLM", ["below", "above", "close"]].tolist() == [1, 1, 0]
    assert summary.loc["MiniLM, masked", "close"] == 1
    assert summary["median"].tolist() == pytest.approx([0.3, 0.2])
    assert summary.shuffled.tolist() == pytest.approx([0.28, 0.18]) and summary.random.tolist() == pytest.approx([0, 0])
    wide = layer_growth.rates(made(noise=0.5), along=())
    assert (layer_growth.against(wide, 0.25) == "contains").any()


def test_differences_are_those_that_were_put_in():
    table = made()
    on_pictures = table[table["map"] == "MiniLM, masked"].replace({"alice": "china", "news": "flower"})
    pictures = layer_growth.differences(layer_growth.rates(on_pictures, along=()), 0.15).set_index("changed")
    assert "text" not in pictures.index and pictures.loc["picture", "pairs"] == 2
    moved = layer_growth.differences(layer_growth.rates(table, along=()), 0.15).set_index("changed")
    assert moved["median"].to_dict() == pytest.approx(
        {"order of the tokens": 0.02, "text": 0.05, "mask": 0.1, "depth": 0.3, "weights": 0.2}
    )
    assert moved.pairs.to_dict() == {"order of the tokens": 4, "text": 4, "mask": 4, "depth": 2, "weights": 4}
    assert moved.largest.to_dict() == pytest.approx(
        {"order of the tokens": 0.02, "text": 0.05, "mask": 0.2, "depth": 0.4, "weights": 0.5}
    )
    assert moved.beyond.to_dict() == {"order of the tokens": 0, "text": 0, "mask": 2, "depth": 2, "weights": 2}
    assert moved.loc["depth", "place"] == "MiniLM" and moved.loc["mask", "place"] == "MiniLM, layer 1"


def test_layers_are_compared_at_lengths_that_all_have_and_that_a_model_was_trained_on():
    table = layer_growth.main_range(layer_growth.stored())
    longest = table.groupby(["map", "case"]).length.max().unstack()
    assert (longest.loc[["MiniLM", "MiniLM, masked"]] == 128).all(axis=None) and longest.loc["SmolLM2"].eq(512).all()
    ends = table.groupby(["map", "case"]).length.agg(["min", "max"]).groupby("map").nunique()
    assert (ends == 1).all(axis=None)  # as read, shuffled and with random weights: the same lengths


def test_every_stored_row_has_a_case():
    table = layer_growth.stored()
    assert set(table.case) == set(layer_growth.CASES.values()) and len(set(table["map"])) >= 5


def test_tables_of_other_models_stand_by_themselves(results_folder):
    """What --model has made is shown beside the book's tables and never counted among them; one length has no slope."""
    assert layer_growth.of_other_models().empty
    table = made().query("~masked").drop(columns=["map", "case"])
    table["released"] = table.length ** (0.3 + 0.3 * table.layer)
    for name, rows in {"atlas-minilm": table, "atlas-own": table, "atlas-short": table[table.length == 8]}.items():
        rows.to_csv(results_folder / f"{name}.csv", index=False)
    (line,) = layer_growth.of_other_models().to_dict("records")
    assert line["map"] == "own" and line["layers"] == 2 and line["close"] == 0 and line["sub-layer"] == "–"
    assert line["median"] == pytest.approx(0.3) and line["released"] == "1 of 2"
    own = table[(table.corpus == "alice") & (table.order == "text") & (table.weights != "random")]
    own.assign(released=own.length**0.25).to_csv(results_folder / "released-map-own.csv", index=False)
    assert layer_growth.of_other_models()["sub-layer"].tolist() == ["2 of 2"]
    assert set(layer_growth.stored()["map"]) == {"MiniLM"} and len(layer_growth.stored()) == len(table)
