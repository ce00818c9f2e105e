"""Effects of a factorial design: known ones are found, seed by seed."""

import numpy as np
import pandas as pd
import pytest

from lab.statistics.factorial import contrasts, effects

STARTS = {"dot": (1 / 16, 1), "l2-untied": (1 / 16, 1), "l2-tied": (1, 16), "l2-divided": (1,), "none": (1,)}


def table(seeds=4, noise=0.0):
    """Losses made of known parts."""
    draw, rows = np.random.default_rng(0), []
    kind_of = {"dot": 0, "l2-untied": -0.04, "l2-tied": 0.1, "l2-divided": 0.13, "none": 0.11}
    for seed in range(seeds):
        for kind, starts in STARTS.items():
            for start in starts:
                for norm in ("after", "before"):
                    nats = 2 + 0.05 * seed + kind_of[kind] + noise * draw.normal()
                    nats += 0.02 * (kind == "dot" and start == 1) - 0.03 * (kind == "l2-tied" and start == 16)
                    nats += 0.01 * (norm == "before") * (kind == "l2-untied")
                    rows.append((kind, start, norm, seed, nats))
    return pd.DataFrame(rows, columns=["attention", "start", "norm", "seed", "nats"])


def test_known_effects_are_found():
    found = contrasts(table())
    means = found.mean(axis=1)
    assert np.ptp(found.to_numpy(), axis=1).max() < 1e-12  # what seeds share falls out
    with pytest.raises(ValueError, match="1 runs are missing"):
        contrasts(table().drop(index=3))
    assert means["distances in place of dot products"] == pytest.approx(-0.04 + 0.005 - 0.01)
    assert means["tied: keys are queries, values pass through A"] == pytest.approx(0.1 - 0.015 + 0.04 - 0.005)
    assert means["a start that adds much: dot products"] == pytest.approx(0.02)
    assert means["a start that adds much: tied L2"] == pytest.approx(-0.03)
    assert means["LayerNorm before: untied L2"] == pytest.approx(0.01)
    assert means["LayerNorm before: dot products"] == pytest.approx(0)
    assert means["tied L2 divided by its bound"] == pytest.approx(0.03)
    assert means["tied L2 that adds little, for no attention"] == pytest.approx(-0.01)


def test_intervals_are_students_over_seeds_and_hold_together():
    from scipy import stats

    losses = table(5, noise=0.01)
    one, each = effects(losses), contrasts(losses)
    for name, row in one.iterrows():
        fair = stats.ttest_1samp(each.loc[name], 0).confidence_interval(1 - 0.05 / len(each))
        assert (row.low, row.high) == pytest.approx((fair.low, fair.high))
    assert (one.seeds == 5).all() and one.up.between(0, 5).all()
