"""Parameters that do not fit together, each with its sentence."""

import pytest
import torch
from cases import normal, windowed

from lipnb import Attention


def test_bad_parameters_are_said_in_one_sentence():
    for change, sentence in [
        ({"key": normal(2, 4, 4)}, "key must have shape"),
        ({"value": normal(3, 3, 4)}, "value must have shape"),
        ({"query": normal(3, 4)}, "query must have shape"),
        ({"output": normal(2, 5, 4)}, "output must have shape"),
        ({"query_bias": normal(2, 4)}, "query_bias must have shape"),
        ({"output_bias": normal(5)}, "output_bias must have shape"),
        ({"query": normal(2, 3, 4) * torch.nan}, "query holds NaN"),
        ({"value": normal(2, 3, 4).float()}, "must share one dtype"),
        ({"query": torch.ones(2, 3, 4, dtype=torch.int64)}, "floating point"),
        ({"score": "cosine"}, "score must be one of"),
        ({"query": normal(0, 3, 4), "key": normal(0, 3, 4), "value": normal(0, 3, 4)}, "at least one head"),
    ]:
        good = {"query": normal(2, 3, 4), "key": normal(2, 3, 4, seed=1), "value": normal(2, 3, 4, seed=2)}
        with pytest.raises(ValueError, match=sentence):
            Attention(**{**good, **change})


def test_what_is_no_window():
    for window, masked in [(0, True), (-1, True), (2.0, True), ("4", True), (True, False)]:
        with pytest.raises(ValueError, match="window must be None or how many tokens each one sees on a side"):
            windowed(2).replace(window=window, masked=masked)
