"""Rank correlations with clustered intervals: Spearman's own, clusters that count, chance, rows that do not fit."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lab.statistics import ranking


def planted(layers, windows, *, shared, seed=0, texts=("a", "b"), models=("m",)):
    """Noise of the layers and of single inputs in the outcome; `shared` noise is the same at all windows of a layer."""
    random, rows = np.random.default_rng(seed), []
    for model in models:
        for layer in range(layers):
            own, effect = shared * random.standard_normal(), random.standard_normal()
            for corpus in texts:
                for window in range(windows):
                    x = effect + 0.1 * random.standard_normal()
                    y = effect + own + 0.1 * random.standard_normal()
                    at = {"model": model, "layer": layer, "corpus": corpus, "window": window}
                    rows.append(at | {"x": np.exp(x), "y": np.exp(y), "noise": random.random() + 0.1})
    return pd.DataFrame(rows)


def test_it_is_spearmans_correlation():
    random = np.random.default_rng(0)
    a, b = random.integers(0, 6, (2, 5, 20))  # with ties
    assert ranking.spearman(a, b) == pytest.approx([stats.spearmanr(x, y).statistic for x, y in zip(a, b, strict=True)])
    assert np.isnan(ranking.spearman(np.ones(4), np.arange(4)))
    assert ranking.by_chance(30) == pytest.approx(0.36, abs=0.02) and ranking.by_chance(6) > 0.7


def test_intervals_know_that_layers_are_clusters():
    """Noise that a layer's windows share does not shrink with their number: an interval of points would."""
    covered, wide, narrow = 0, [], []
    truth = stats.spearmanr(*_logs(planted(4000, 1, shared=1, texts="a"))).statistic
    for seed in range(100):
        table = planted(12, 4, shared=1, seed=seed)
        found = ranking.of_inputs(table, ["x"], "y", draws=200, seed=seed).loc["x"]
        covered += found.low <= truth <= found.high
        wide.append(found.high - found.low)
        points = table.assign(layer=range(len(table)), corpus="a", window=0)  # each point a cluster of its own
        found = ranking.of_inputs(points, ["x"], "y", draws=200, seed=seed).loc["x"]
        narrow.append(found.high - found.low)
    assert covered >= 80  # of 100, with fixed seeds; twelve layers make it a little less than 95
    assert np.mean(wide) > 1.8 * np.mean(narrow)


def _logs(table):
    return np.log(table.x), np.log(table.y)


def test_within_a_layer_only_the_text_counts():
    table = planted(8, 6, shared=0, models=("m", "n"))
    everywhere, inside = (ranking.of_inputs(table, ["x", "noise"], "y", within=w) for w in (False, True))
    assert everywhere.rho["x"] > 0.9 and abs(inside.rho["x"]) < 0.35
    assert inside.low["x"] < 0 < inside.high["x"] and everywhere.low["noise"] < 0 < everywhere.high["noise"]
    assert (everywhere.low <= everywhere.rho).all() and (everywhere.rho <= everywhere.high).all()


def test_layers_are_ranked_by_their_means():
    table = planted(20, 5, shared=0, texts=("a", "b", "c"))
    found = ranking.of_layers(table, ["x", "noise"], "y")
    logs = np.log(table.groupby("layer")[["x", "y"]].agg(stats.gmean))
    assert found.rho["x"] == pytest.approx(stats.spearmanr(logs.x, logs.y).statistic)
    assert found.low["x"] > 0.8 and abs(found.rho["noise"]) < ranking.by_chance(20) + 0.2
    one = table.copy()
    one.loc[one.corpus == "c", "y"] **= -1  # a text with the opposite order widens the interval
    assert (found.high - found.low)["x"] < 0.2 < (lambda f: f.high - f.low)(ranking.of_layers(one, ["x"], "y"))["x"]


@pytest.mark.parametrize("broken", [lambda t: t.iloc[1:], lambda t: pd.concat([t, t])])
def test_rows_that_are_no_design_are_refused(broken):
    for ranks in (ranking.of_layers, ranking.of_inputs):
        with pytest.raises(ValueError, match="every layer must have each window once"):
            ranks(broken(planted(3, 2, shared=0)), ["x"], "y")


def test_holm_counts_all_orders_of_few_things_and_corrects_for_the_number_of_correlations():
    rho = pd.Series([1.0, 0.2], index=pd.MultiIndex.from_product([["few"], ["perfect", "weak"]]))
    alone = ranking.holm(rho[:1], {"few": 5})
    assert alone.iloc[0] == pytest.approx(2 / 120)  # the perfect order and its reverse
    both = ranking.holm(rho, {"few": 5})
    assert both.iloc[0] == pytest.approx(2 * alone.iloc[0]) and both.iloc[1] > 0.5
    many = pd.Series([0.6, -0.6], index=pd.MultiIndex.from_product([["many"], ["a", "b"]]))
    student = 2 * stats.t.sf(0.6 * np.sqrt(28 / 0.64), 28)
    assert ranking.holm(many, {"many": 30}).to_numpy() == pytest.approx([2 * student, 2 * student])
