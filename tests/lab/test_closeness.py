"""Counts near a claimed exponent, on tables whose slopes and errors are known."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lab.statistics import closeness


def made(slopes, noise=0.0, windows=8, seed=0, model="m"):
    """A table of layers with power laws; the windows of a length share their noise over layers."""
    draw, rows = np.random.default_rng(seed), []
    for n in (8, 16, 32, 64, 128):
        shared = np.exp(noise * draw.standard_normal(windows))
        for layer, slope in enumerate(slopes):
            for window, factor in enumerate(shared):
                at = {"model": model, "map": model, "corpus": "c", "layer": layer, "length": n, "window": window}
                rows.append(at | {"lipschitz": factor * n**slope, "released": n**0.25})
    return pd.DataFrame(rows)


def test_without_noise_counts_are_those_of_the_slopes():
    found = closeness.counted(made([0.1, 0.16, 0.25, 0.34, 0.4]), draws=20)
    assert (found["layers"], found["near"], found["inside"], found["outside"], found["undecided"]) == (5, 3, 3, 2, 0)
    assert (found["near_low"], found["near_high"], found["released"]) == (3, 3, 5)
    assert found["mean"] == pytest.approx(0.25) and found["error_quarter"] == pytest.approx(0.096)
    assert found["error_none"] == pytest.approx(0.25) and found["error_half"] == pytest.approx(0.25)


def test_noise_makes_slopes_at_the_edge_undecided_and_widens_the_count():
    edge = closeness.counted(made([0.34] * 6 + [0.25], noise=0.2, seed=1), draws=200)
    assert edge["near"] == 7 and edge["undecided"] == 6 and edge["inside"] == 1 and edge["outside"] == 0
    assert edge["near_low"] == 1 and edge["near_high"] == 7  # layers that share their windows move together


def test_windows_of_a_model_are_drawn_together_and_those_of_two_models_apart():
    one = made([0.35 - 1e-9] * 2, noise=0.3, seed=1)
    apart = pd.concat([one, made([0.35 - 1e-9] * 2, noise=0.3, seed=1, model="other")])
    counts = {name: closeness._resampled(table, "lipschitz", 0.25, 400, 0) for name, table in
              (("one", one), ("two", apart))}  # fmt: skip
    assert set(counts["one"]) == {0, 2} and set(counts["two"]) == {0, 2, 4}


def test_weights_count_once_under_a_mask_and_over_the_depths_of_albert():
    maps = [made([0.2, 0.3]).assign(map=name, model=model)
            for name, model in (("MiniLM", "minilm"), ("MiniLM, masked", "minilm"), ("ALBERT", "albert"))]  # fmt: skip
    maps[1] = maps[1].assign(layer=maps[1].layer)
    found = closeness.counted(pd.concat(maps), draws=5)
    assert (found["layers"], found["weights"]) == (6, 3)


def test_the_readme_has_the_exponents_of_the_stored_tables():
    """Page 41 glues them; README.md cannot."""
    said = " ".join((Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").split())
    key, *_, main = next(closeness._groups())
    slopes = closeness._slopes(main)
    means = slopes.groupby("map").mean()
    assert key == "all-main" and len(means) == 7 and "Over the seven maps that we measured" in said
    assert f"the mean exponent is {means.mean():.2f}" in said
    assert f"exponents from {slopes.min():.2f} to {slopes.max():.2f}" in said
