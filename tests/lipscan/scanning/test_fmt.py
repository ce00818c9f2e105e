"""Numbers in words."""

import pandas as pd

from lipscan.scanning import comparison, fmt


def test_how_many_times():
    said = {0.0: "1", 0.0001: "1.0002", 0.41: "2.6", 1.0: "10", 2.53: "340", 5.08: "1.2e5", 151.2: "1e151"}
    assert {log10: fmt.times(log10) for log10 in said} == said and fmt.times(float("nan")) == ""


def test_a_factor_near_one_is_told_from_one():
    row = {"layer": 1, "length": 8, "before": 0.967, "after": 0.9667, "ratio": 0.99969, "differs": "lower"}
    assert str(comparison.compared(pd.DataFrame([row]))[0]).endswith("a factor of 0.9997.")
    said = {1.0: "1", 2.3456: "2.35", 1.00012: "1.0001", 1.000013: "1.00001", 0.999987: "0.99999", 1.000009: "1"}
    assert {one: fmt.factor(one) for one in said} == said and fmt.factor(None) == ""
