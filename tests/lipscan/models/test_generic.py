"""A scan of one small model of each type that transformers loads: right, or refused in a sentence.

`make test` tries a few of them, `make nightly` all (LIPNB_NIGHTLY=1).
"""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import model_types
import pandas as pd
import pytest

# kinds of maps and of sentences: experts, rotations of its own, relative positions, a window, images, sound ...
SAMPLE = {
    "gpt_oss": "right",
    "deberta-v2": "right",
    "t5gemma": "right",  # a mask made of padding tokens
    "granite_docling": "right",  # the language model of one that reads images too
    "mra": "autograd finds no path",  # measured nowhere, and its report says why
    "mamba": "no list of layers",
    "fsmt": "does not map a sequence of tokens",
    "pegasus_x": "receive 512 tokens where it reads 9",
    "mobilebert": "called alone gives another output",
    "canine": "holds no vocab_size",
    "bigbird_pegasus": "changes itself in a pass",
    "speecht5": "reads input_values, not tokens",
}


@pytest.mark.skipif("LIPNB_NIGHTLY" in os.environ, reason="all of them are tried")
@pytest.mark.parametrize("model_type", SAMPLE)
def test_a_few_types_are_scanned_to_their_report_or_refused(model_type):
    found, expected = model_types.measure(model_type), SAMPLE[model_type]
    if expected == "right":
        assert found["outcome"] == "right" and found["error"] < 1e-4 and found["layers"] >= 2, found
    else:
        assert found["outcome"] == "refused" and expected in found["sentence"], found


def test_a_wrong_map_is_seen(monkeypatch):
    own = model_types.constant
    monkeypatch.setattr(model_types, "constant", lambda *given: 1.01 * own(*given))
    assert model_types.measure("starcoder2")["outcome"] == "wrong"


@pytest.mark.skipif("LIPNB_NIGHTLY" not in os.environ, reason="a quarter of an hour: make nightly")
def test_no_type_is_wrong_or_a_traceback():
    context, names, rows = multiprocessing.get_context("spawn"), model_types.types(), []
    for first in range(0, len(names), 50):  # what a type imports and keeps goes with its process
        with ProcessPoolExecutor(mp_context=context) as pool:
            rows += pool.map(model_types.measure, names[first : first + 50])
    found = pd.DataFrame(rows)
    counts = found.outcome.value_counts()
    print(counts.to_string(), found[found.outcome != "right"].to_string(), sep="\n\n")
    bad = found[~found.outcome.isin(["right", "refused", "none"])]
    assert bad.empty, bad.to_string()
    assert counts["right"] >= 200 and counts["none"] <= 80
