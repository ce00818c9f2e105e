"""Who found which faults where, thresholds from clean runs, false alarms, intervals over kinds of faults, windows."""

import numpy as np
import pandas as pd
import pytest

from lab.statistics import detection

NONE = dict.fromkeys(("cosine_layer", "close_layer", "twice_layer"), np.nan)


def run(final, verdict="rounding", **columns):
    return {"model": "m", "dtype": "float32", "part": "run", "final": final, "verdict": verdict} | NONE | columns


def fault(kind, layer, half, verdict, named, part, final=0.0, **columns):
    said = {"kind": kind, "layer": layer, "half": half, "named_layer": named, "named_part": part}
    return run(final, verdict, **said) | columns


CLEAN = pd.DataFrame([run(0.1), run(0.3, close_layer=2.0), {**run(9.0), "part": "layer"}])


def test_a_method_finds_a_fault_and_names_its_layer_and_half():
    faults = pd.DataFrame(
        [
            fault("a", 1.0, "mlp", "bug", 1.0, "mlp", cosine_layer=1.0),
            fault("a", 1.0, "mlp", "bug", 1.0, "layer", cosine_layer=0.0),
            fault("b", 1.0, "mlp", "bug", 2.0, "mlp", final=0.31),
            fault("b", 1.0, "mlp", "rounding", 1.0, "mlp", final=0.29),  # the highest part, and not called wrong
            fault("b", np.nan, "both", "bug", 1.0, "mlp", final=np.nan),  # an overflow
        ]
    )
    found = detection.judged(faults, CLEAN)
    assert found["found drift"].tolist() == [True, True, True, False, True]
    assert found["layer drift"].tolist() == [True, True, False, False, False]
    assert found["right half"].tolist() == [True, False, False, False, False]
    assert found["found cosine"].tolist() == [True, True, False, False, False]
    assert found["layer cosine"].tolist() == [True, False, False, False, False]
    assert found["found output"].tolist() == [False, False, True, False, True]  # the largest clean run has 0.3


def test_clean_runs_alone_give_false_alarms():
    found = detection.alarms(CLEAN)
    assert found.loc["close", ["count", "n"]].tolist() == [1, 2]
    assert found.loc["drift", "share"] == 0
    assert found.loc["drift", "high"] == pytest.approx(1 - 0.025**0.5)  # no alarm in n: 1 - 0.025^(1/n)


def test_an_interval_draws_whole_kinds():
    rows = pd.DataFrame({"kind": np.repeat([*"abcd"], 50), "hit": np.repeat([True, True, True, False], 50)})
    same = rows.assign(kind=range(200))  # every fault of its own kind
    wide, narrow = (detection.share(one, "hit") for one in (rows, same))
    assert wide["share"] == narrow["share"] == 0.75
    assert wide["high"] == 1 and wide["low"] <= 0.25
    assert 0.68 < narrow["low"] < 0.72 and 0.78 < narrow["high"] < 0.82


def test_a_clean_layer_is_called_a_fault_by_any_of_its_parts():
    part = {"model": "m", "dtype": "float32", "run": "sdpa", "window": 0, "layer": 0, "part": "layer", "height": 0.5}
    part |= {"signed": 0.0, "floor_signed": 0.0, "signed_noise": 0.01}
    rows = [
        part,
        part | {"part": "mlp", "height": 1.2},
        part | {"layer": 1, "signed": 0.5},
        part | {"layer": 2, "signed": 0.5, "signed_noise": 0.2},
        part | {"layer": 3, "part": "logits", "height": 9.0},
    ]
    layers = detection.clean_layers(pd.DataFrame(rows))
    assert layers.layer.tolist() == [0, 1, 2]
    assert layers.above.tolist() == [True, False, False] and layers.leaning.tolist() == [False, True, False]


def test_the_weakest_strength_seen_is_that_from_which_on_all_groups_are_above_the_clean_runs():
    def rows(strength, run, ratios):
        one = {"model": "m", "dtype": "float32", "windows": 1, "strength": strength, "run": run}
        return [one | {"token_ratio": ratio} for ratio in ratios]

    faults = [(0.5, [3, 4]), (0.25, [1.2, 1.3]), (0.125, [1.0, 1.9]), (0.0625, [1.3, 1.3])]
    table = pd.DataFrame(
        rows(0.0, "sdpa", [1.0, 1.1])
        + rows(0.0, "sums in two parts", [1.5])
        + [row for strength, ratios in faults for row in rows(strength, "planted", ratios)]
    )
    line = detection.over_windows(table).iloc[0]
    assert line[["clean", "clean_other", "seen", "seen_other"]].tolist() == [1.5, 1.1, 0.5, 0.25]
