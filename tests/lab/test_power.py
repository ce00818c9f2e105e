"""Power of comparisons: who found what where, thresholds from clean runs, intervals over kinds of faults."""

import numpy as np
import pandas as pd
import pytest

from lab.statistics import power

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
    found = power.judged(faults, CLEAN)
    assert found["found drift"].tolist() == [True, True, True, False, True]
    assert found["layer drift"].tolist() == [True, True, False, False, False]
    assert found["right half"].tolist() == [True, False, False, False, False]
    assert found["found cosine"].tolist() == [True, True, False, False, False]
    assert found["layer cosine"].tolist() == [True, False, False, False, False]
    assert found["found output"].tolist() == [False, False, True, False, True]  # the largest clean run has 0.3


def test_clean_runs_alone_give_false_alarms():
    found = power.alarms(CLEAN)
    assert found.loc["close", ["count", "runs"]].tolist() == [1, 2]
    assert found.loc["drift", "share"] == 0
    assert found.loc["drift", "high"] == pytest.approx(1 - 0.025**0.5)  # no alarm in n: 1 - 0.025^(1/n)


def test_an_interval_draws_whole_kinds():
    rows = pd.DataFrame({"kind": np.repeat([*"abcd"], 50), "hit": np.repeat([True, True, True, False], 50)})
    same = rows.assign(kind=range(200))  # every fault of its own kind
    wide, narrow = (power.share(one, "hit") for one in (rows, same))
    assert wide["share"] == narrow["share"] == 0.75
    assert wide["high"] == 1 and wide["low"] <= 0.25
    assert 0.68 < narrow["low"] < 0.72 and 0.78 < narrow["high"] < 0.82
