"""Two models that no page was written with: measured as was written down, at the same windows in every table."""

import tomllib
from pathlib import Path

import needs
import numpy as np
import pandas as pd
import pytest

from lab import results
from lab.experiments import TABLES, around_attention, unseen
from lab.experiments.atlas import Condition
from lab.statistics.growth import slope

EXPECTED = tomllib.loads(Path(unseen.__file__).with_suffix(".toml").read_text())
WINDOW = ["model", "corpus", "layer", "length", "window", "text"]
STORED = {"unseen-map", "unseen-head-terms", "unseen-atlas-e5-small", "unseen-atlas-minilm-l3"} <= set(results.names())


def test_what_is_measured_is_what_was_written_down():
    claim = EXPECTED["claim"]
    assert tuple(claim["lengths"]) == unseen.LENGTHS and max(unseen.LENGTHS) == unseen.LONGEST
    assert claim["texts"] == [condition.corpus for condition in unseen.TEXTS]
    assert (claim["exponent"], claim["within"]) == (0.25, 0.1)
    assert [(one.corpus, one.order, one.weights) for one in unseen.CONTROLS] == [
        ("alice", "shuffled", "own"),
        ("alice", "text", "random"),
    ]


@needs.E5
@needs.MINILM_L3
@needs.ALICE
@needs.AG_NEWS
def test_every_layer_has_all_windows_of_both_texts():
    places = [f"{corpus}/{n}" for corpus in ("alice", "ag_news") for n in unseen.LENGTHS]
    for name, mask in (("unseen-map", ""), ("unseen-head-terms", "/False")):
        units = TABLES[name].work()[1]
        assert [unit.key for unit in units] == [f"{m}{mask}/{at}" for m in ("e5-small", "minilm-l3") for at in places]
        assert {unit.size for unit in units} == {8 * 12, 8 * 3}
    assert {unit.size for unit in TABLES["unseen-atlas-minilm-l3"].work()[1]} == {8 * 3, 4 * 3}


def test_as_many_windows_are_measured_as_were_asked_for():
    read = [({"name": "minilm", "masked": False}, Condition("python_reference"))]
    _, [unit] = around_attention.sublayers(read, lengths=[8], count=3)
    rows = pd.DataFrame(unit.measure())
    assert unit.size == len(rows) == 3 * 6 and rows.text.nunique() == 3
    two = pd.DataFrame(around_attention.sublayers(read, lengths=[8])[1][0].measure())
    assert set(two.text) < set(rows.text) and two.text.nunique() == around_attention.COUNT


@pytest.mark.skipif(not STORED, reason="the tables are not made yet")
def test_all_stored_tables_have_the_same_windows():
    atlas = pd.concat([results.load(name) for name in ("unseen-atlas-e5-small", "unseen-atlas-minilm-l3")])
    own = atlas[(atlas.order == "text") & (atlas.weights != "random")]
    windows = set(own[WINDOW].itertuples(index=False, name=None))
    assert len(windows) == len(own) == 15 * 5 * 8 * 2
    for name in ("unseen-map", "unseen-head-terms"):
        assert set(results.load(name)[WINDOW].itertuples(index=False, name=None)) == windows
    bound = own.merge(results.load("unseen-head-terms"), on=WINDOW)
    assert (bound.lipschitz <= bound.bound * (1 + 1e-3)).all()  # the proposition of page 43


@pytest.mark.skipif("unseen-head-terms" not in results.names(), reason="the table is not made yet")
def test_the_predictions_are_slopes_of_the_terms():
    stored = pd.read_csv(Path(unseen.__file__).with_name("unseen-predictions.csv"))
    terms = results.load("unseen-head-terms")
    terms = terms.assign(both=terms.value + terms.key)
    assert len(stored) == 30
    for row in stored.itertuples():
        rows = terms[(terms.model == row.model) & (terms.corpus == row.corpus) & (terms.layer == row.layer)]
        found = [slope(rows, column).slope for column in ("both", "attention_norm")]
        assert np.allclose(found, [row.both, row.attention_norm], atol=1e-4)
