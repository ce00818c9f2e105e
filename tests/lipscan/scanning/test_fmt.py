"""Numbers in words."""

import pandas as pd
import pytest

from lipscan.scanning import comparison, fmt
from lipscan.scanning.fmt import times


@pytest.mark.parametrize(
    ("log10", "said"),
    [
        (0.0, "1"),
        (0.0001, "1.0002"),
        (0.41, "2.6"),
        (1.0, "10"),
        (2.53, "340"),
        (5.08, "1.2e5"),
        (151.2, "1e151"),
        (float("nan"), ""),
    ],
)
def test_how_many_times(log10, said):
    assert times(log10) == said


def test_a_factor_near_one_is_told_from_one():
    row = {"layer": 1, "length": 8, "before": 0.967, "after": 0.9667, "ratio": 0.99969, "differs": "lower"}
    assert str(comparison.compared(pd.DataFrame([row]))[0]).endswith("a factor of 0.9997.")
    assert [fmt.factor(one) for one in (1.0, 2.3456, 1.00012)] == ["1", "2.35", "1.0001"]
    assert [fmt.factor(one) for one in (1.000013, 0.999987, 1.000009, None)] == ["1.00001", "0.99999", "1", ""]
