"""Power-law fits: exact laws, coverage of the interval, bad input."""

import numpy as np
import pytest

from lipnb import scaling


def test_an_exact_law_is_recovered():
    n = np.arange(2, 100, 2)
    fit = scaling.power_law(n, 3.5 * n**0.25)
    assert abs(fit.exponent - 0.25) < 1e-12 and abs(fit.constant - 3.5) < 1e-10
    assert fit.low <= fit.exponent <= fit.high and fit.points == n.size
    assert np.allclose(fit(n), 3.5 * n**0.25) and "n^0.250" in str(fit)


def test_the_interval_covers_as_often_as_it_says():
    random = np.random.default_rng(0)
    n = np.repeat(np.arange(2, 100, 8), 3)
    fits = [scaling.power_law(n, n**0.5 * np.exp(0.2 * random.standard_normal(n.size)), confidence=0.9)
            for _ in range(1000)]
    covered = np.mean([fit.low <= 0.5 <= fit.high for fit in fits])
    assert 0.87 < covered < 0.93


@pytest.mark.parametrize(("x", "y", "sentence"), [
    ([1, 2], [1, 2], "at least three points"),
    ([2, 2, 2], [1, 2, 3], "two different x"),
    ([1, 2, 3], [1, 0, 2], "positive finite"),
    ([1, 2, 3], [1, np.nan, 2], "positive finite"),
    ([1, 2, 3], [1, 2], "as many entries"),
])
def test_bad_input(x, y, sentence):
    with pytest.raises(ValueError, match=sentence):
        scaling.power_law(x, y)
    with pytest.raises(ValueError, match="confidence"):
        scaling.power_law([1, 2, 3], [1, 2, 3], confidence=1.5)
