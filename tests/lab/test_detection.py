"""Rates of what is found: intervals, thresholds from clean runs, names of layers and halves, windows."""

import pandas as pd
import pytest
from scipy.stats import norm

from lab.statistics import detection

SAME = {"model": "a", "dtype": "bfloat16"}
NONE = float("nan")
USUAL = {"final": 0.01, "needed": 0.1, "cosine": 0.9999} | {f"{name}_layer": NONE for name in detection.BY_LAYER}


def _clean(**more):
    return {**SAME, "run": "eager", "window": 0, "layer": NONE, "part": "run", **USUAL, "verdict": "rounding", **more}


def _case(**more):
    named = {"verdict": "bug", "named_layer": 2.0, "named_part": "mlp", "layer": 2.0, "half": "mlp", "effect": 3.0}
    return {**SAME, "kind": "one", **USUAL, **named, **more}


CLEAN = pd.DataFrame([_clean(), _clean(run="sdpa", final=0.02, needed=0.05, cosine=0.9990, cosine_layer=1.0)])


def test_an_interval_is_wilsons():
    found = detection.rate(pd.Series([True] * 3 + [False] * 17))
    z, n, p = norm.ppf(0.975), 20, 3 / 20
    middle, half = (p + z**2 / 2 / n) / (1 + z**2 / n), z * (p * (1 - p) / n + (z / 2 / n) ** 2) ** 0.5 / (1 + z**2 / n)
    assert found["rate"] == p and found["n"] == n
    assert [found["low"], found["high"]] == pytest.approx([middle - half, middle + half])
    assert detection.rate(pd.Series([], dtype=bool))["n"] == 0


def test_thresholds_are_those_of_the_clean_runs_of_the_same_network():
    cases = pd.DataFrame([_case(), _case(final=0.03), _case(needed=0.2, cosine=0.99), _case(final=0.03, model="b")])
    other = CLEAN.assign(model="b", final=0.5)
    found = detection.judged(cases, pd.concat([CLEAN, other]))
    assert found.final_found.tolist() == [False, True, False, False]
    assert found.needed_found.tolist() == found.least_cosine_found.tolist() == [False, False, True, False]
    runs = detection.clean_runs(CLEAN)
    assert not runs[["drift_found", "final_found", "needed_found", "least_cosine_found"]].any(axis=None)
    assert runs.cosine_found.tolist() == [False, True]


def test_layers_and_halves_are_named_among_the_faults_that_are_found():
    cases = pd.DataFrame(
        [
            _case(),
            _case(named_part="layer"),
            _case(named_layer=1.0),
            _case(verdict="cannot tell"),
            _case(half="both", named_part="layer"),
            _case(layer=NONE),  # a fault in every layer: there is none to name
            _case(cosine_layer=2.0),
            _case(cosine_layer=4.0),
        ]
    )
    found = detection.found_by(detection.judged(cases, CLEAN), [], ("drift", "cosine", "final")).set_index("method")
    assert found.loc["drift", ["found", "found_n", "layer_n", "half_n"]].tolist() == [7 / 8, 8, 6, 5]
    assert found.layer["drift"] == pytest.approx(5 / 6) and found.half["drift"] == pytest.approx(3 / 5)
    assert found.found["cosine"] == 2 / 8 and found.layer["cosine"] == 1 / 2
    assert found.layer_low["drift"] < 5 / 6 < found.layer_high["drift"] and found.layer.isna()["final"]


def test_every_method_is_compared_on_faults_and_clean_runs():
    cases = detection.judged(pd.DataFrame([_case(cosine_layer=2.0), _case(verdict="rounding")]), CLEAN)
    table = detection.compared(cases, detection.clean_runs(CLEAN))
    assert table.index.tolist() == [*detection.METHODS.values()]
    assert table.found["lipnb drift"] == 0.5 and table.false["lipnb drift"] == 0
    assert table.false[detection.METHODS["cosine"]] == 0.5 and (table.false_n == 2).all()


def test_rates_by_effect_are_in_the_order_of_effects():
    effects = [0.1, 0.7, 0.8, 3.0, 9.0]
    cases = pd.DataFrame([_case(effect=one, verdict="bug" if one > 0.75 else "rounding") for one in effects])
    cases.index = [0] * len(cases)  # as of tables put together
    found = detection.by_effect(detection.judged(cases, CLEAN))
    assert found[found.found_n > 0].found.tolist() == [0, 0.5, 1, 1]


def test_a_clean_layer_is_called_a_fault_by_any_of_its_parts():
    part = {**SAME, "run": "sdpa", "window": 0, "signed": 0.0, "floor_signed": 0.0, "signed_noise": 0.01}
    rows = [
        {**part, "layer": 0, "part": "layer", "token_ratio": 1.0, "token_worst": 3.0},
        {**part, "layer": 0, "part": "mlp", "token_ratio": 2.5, "token_worst": 3.0},
        {**part, "layer": 1, "part": "layer", "token_ratio": 1.0, "token_worst": 3.0, "signed": 0.5},
        {
            **part,
            "layer": 2,
            "part": "layer",
            "token_ratio": 1.0,
            "token_worst": 3.0,
            "signed": 0.5,
            "signed_noise": 0.2,
        },
        {**part, "layer": 3, "part": "logits", "token_ratio": 9.0, "token_worst": 9.0},
    ]
    layers = detection.clean_layers(pd.DataFrame(rows), leans=0.4, sure=6.0)
    assert layers.layer.tolist() == [0, 1, 2]
    assert layers.above.tolist() == [True, False, False] and layers.leaning.tolist() == [False, True, False]


def test_the_weakest_strength_seen_is_that_from_which_on_all_groups_are_above_the_clean_runs():
    def rows(strength, run, ratios):
        return [{**SAME, "windows": 1, "strength": strength, "run": run, "token_ratio": one} for one in ratios]

    faults = [(0.5, [3, 4]), (0.25, [1.2, 1.3]), (0.125, [1.0, 1.9]), (0.0625, [1.3, 1.3])]
    table = pd.DataFrame(
        rows(0.0, "sdpa", [1.0, 1.1])
        + rows(0.0, "sums in two parts", [1.5])
        + [row for strength, ratios in faults for row in rows(strength, "planted", ratios)]
    )
    line = detection.over_windows(table).iloc[0]
    assert line[["clean", "clean_other", "seen", "seen_other"]].tolist() == [1.5, 1.1, 0.5, 0.25]
