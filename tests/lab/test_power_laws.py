"""Power-law fits: exact laws, coverage of the interval, bad input."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lab.statistics import power_laws


def test_an_exact_law_is_recovered():
    n = np.arange(2, 100, 2)
    fit = power_laws.power_law(n, 3.5 * n**0.25)
    assert abs(fit.exponent - 0.25) < 1e-12 and abs(fit.constant - 3.5) < 1e-10
    assert fit.low <= fit.exponent <= fit.high and fit.points == n.size
    assert np.allclose(fit(n), 3.5 * n**0.25) and "n^0.250" in str(fit)


def dependent(random, windows=10):
    """Windows that grow at rates of their own around one half, and lengths with offsets of their own."""
    n = np.arange(2, 100, 4)
    slope = 0.5 + 0.05 * random.standard_normal(windows)
    log = (
        slope[:, None] * np.log(n)
        + 0.05 * random.standard_normal(n.size)
        + 0.05 * random.standard_normal((windows, n.size))
    )
    return pd.DataFrame(
        {
            "window": np.repeat(np.arange(windows), n.size),
            "length": np.tile(n, windows),
            "lipschitz": np.exp(log).ravel(),
        }
    )


def test_the_interval_covers_where_points_of_a_window_or_a_length_depend_on_each_other():
    random = np.random.default_rng(1)
    tables = [dependent(random) for _ in range(300)]
    fits = [power_laws.rate(table, confidence=0.9) for table in tables]
    naive = [power_laws.power_law(table.length, table.lipschitz, confidence=0.9) for table in tables]
    covered, not_covered = (np.mean([fit.low <= 0.5 <= fit.high for fit in some]) for some in (fits, naive))
    assert 0.86 < covered < 0.97 and not_covered < 0.8  # of 0.9


def test_clustered_errors_are_those_of_the_formula():
    table = dependent(np.random.default_rng(2), windows=4)
    x, y = np.log(table.length), np.log(table.lipschitz)
    design = np.stack([np.ones(len(x)), x], 1)
    bread = np.linalg.inv(design.T @ design)
    residual = y - design @ bread @ design.T @ y

    def sandwich(labels):
        meat, count = np.zeros((2, 2)), labels.nunique()
        for _, rows in table.groupby(labels):
            score = design[rows.index].T @ residual[rows.index]
            meat += np.outer(score, score)
        return (bread @ meat @ bread)[1, 1] * count / (count - 1) * (len(x) - 1) / (len(x) - 2)

    by_window, by_length = sandwich(table.window), sandwich(table.length)
    both = by_window + by_length - sandwich(pd.Series(range(len(x))))
    half = max(by_window, by_length, both) ** 0.5 * stats.t.ppf(0.975, 3)
    fit = power_laws.rate(table)
    assert fit.high - fit.exponent == pytest.approx(half) and fit.exponent - fit.low == pytest.approx(half)
    assert fit.r2 == pytest.approx(np.corrcoef(x, y)[0, 1] ** 2) and by_window > 2 * by_length
    one = power_laws.power_law(table.length, table.lipschitz, clusters=[table.window])
    assert one.high - one.exponent == pytest.approx(by_window**0.5 * stats.t.ppf(0.975, 3))


def test_a_fit_refuses_a_mixture():
    table = dependent(np.random.default_rng(3)).assign(layer=0)
    assert power_laws.rate(table).points == len(table)
    with pytest.raises(power_laws.SeveralSeries, match=r"a fit needs the rows of one series.*layer 0, 3.: select one"):
        power_laws.rate(pd.concat([table, table.assign(layer=3)]))
    with pytest.raises(power_laws.SeveralSeries, match=r"head 0, 1, 2, 3, \.\.\."):
        power_laws.one_series(table.assign(head=np.arange(len(table))), also=("head",))


def test_local_slopes_show_a_bend():
    n = np.arange(2, 99, 2)
    slopes = power_laws.local_slopes(n, np.where(n <= 16, n**0.5, 4.0 * (n / 16) ** 0.1))
    assert [(slope.low, slope.high) for slope in slopes] == [(2, 4), (4, 8), (8, 16), (16, 32), (32, 64), (64, 98)]
    assert [slope.exponent for slope in slopes] == pytest.approx([0.5] * 3 + [0.1] * 3)
    sparse = power_laws.local_slopes([2, 12, 22, 32, 102], np.array([2, 12, 22, 32, 102]) ** 0.3)
    assert [(slope.low, slope.high) for slope in sparse] == [(2, 12), (12, 22), (22, 32), (32, 102)]
    assert all(slope.exponent == pytest.approx(0.3) for slope in sparse)
