"""Comparisons: what adds up, and how windows are put together."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hub import small_model

from lipscan import drift, models
from lipscan.drift.comparison import joined
from lipscan.drift.passes import network_of, passed

IDS = torch.tensor([[2, 7, 5, 6, 9, 3, 12, 15], [2, 8, 5, 11, 9, 3, 14, 21]])
QUIET = {"progress": False}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_the_carried_errors_of_rounding_are_the_difference(families, name, dtype):
    model = models.load(families / name)
    found = drift.compare(model, drift.states(model, IDS, dtype), **QUIET)
    tolerance = 0.1 if dtype == torch.bfloat16 else 0.01
    assert found.closure.length == pytest.approx(1, abs=tolerance) and found.closure.angle > 1 - tolerance
    assert found.closure.why == "" and found.about["dtype"] == str(dtype)[6:]
    layers = found.table[found.table.part.isin(("layer", "embedding"))]
    assert layers.share.sum() == pytest.approx(1, abs=2 * tolerance)
    halves = found.table[found.table.part.isin(("attention", "mlp"))].groupby("layer").share.sum()
    whole = layers[layers.part == "layer"].set_index("layer").share
    assert np.allclose(halves, whole, atol=1e-5)
    assert layers.gain.iloc[-1] == pytest.approx(1, rel=1e-4)


def test_a_difference_too_large_for_first_order_is_said(families):
    model = models.load(families / "gpt2")
    own = drift.states(model, IDS)
    rest = torch.Generator().manual_seed(0)
    strange = [one + 3 * torch.randn(one.shape, dtype=one.dtype, generator=rest) for one in own.hidden[1:]]
    found = drift.compare(model, replace(own, hidden=[own.hidden[0], *strange], attention={}, mlp={}), **QUIET)
    assert "first order" in found.closure.why and found.verdict.kind == "bug"


def test_another_expert_is_the_reason_if_one_was_chosen(tmp_path):
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=63)
    more = dict(intermediate_size=48, num_local_experts=4, num_experts_per_tok=1, bos_token_id=0, eos_token_id=0)
    model = models.load(small_model(tmp_path / "moe", "mixtral", sizes | more))
    own = drift.states(model, IDS)
    away = torch.randn(own.hidden[0][0, 5].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    hidden = [one.clone() for one in own.hidden]
    hidden[1][0, 5] += 20 * away  # the layer after it reads this token as another one
    hidden[2] = passed(network_of(model).to(torch.float64), IDS, hidden).hidden[2]
    found = drift.compare(model, replace(own, hidden=hidden, attention={}, mlp={}), **QUIET)
    assert found.closure.why == "a mixture of experts chose another expert, first in layer 1, token 5 of window 0"
    assert drift.compare(model, own, **QUIET).closure.why == ""


def test_a_float64_run_has_no_local_error(families):
    model = models.load(families / "llama")
    found = drift.compare(model, drift.states(model, IDS), **QUIET)
    assert found.table.ratio.max() < 1e-3 and found.verdict.kind == "rounding"


def test_the_worst_gain_is_at_least_every_other(families):
    model = models.load(families / "bert")
    table = drift.compare(model, drift.states(model, IDS[:1], torch.bfloat16), worst=True, **QUIET).table
    rows = table[table.part == "layer"]
    assert (rows.gain_worst >= 0.99 * rows.gain).all() and (rows.gain_worst >= 0.8 * rows.gain_random).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_carried_errors_explain_the_logits_too(families, dtype):
    model = models.load(families / "gpt2")
    other = drift.states(model, IDS, dtype)
    found = drift.compare(model, other, **QUIET).logits
    assert found.length == pytest.approx(1, abs=0.05) and found.angle > 0.99 and found.why == ""
    truth = drift.states(model, IDS).logits
    assert found.difference == pytest.approx(((other.logits - truth).norm() / truth.norm()).item())
    shifted = drift.compare(model, replace(other, logits=other.logits + 1.0), **QUIET).logits
    assert shifted.length == pytest.approx(1, abs=0.01) and shifted.difference > 10 * found.difference
    assert drift.compare(model, replace(other, logits=None), **QUIET).logits is None


def row(window, **given):
    one = {"window": window, "layer": 0, "part": "layer", "size": 10.0, "error": 3.0, "floor_eager": 3.0}
    one |= {"floor_sdpa": 12.0, "floor_order": 6.0, "leaning": 1.0, "absolute": 4.0, "leaning_noise": 6.0}
    one |= {"floor_leaning": 0.5, "floor_absolute": 2.0, "floor_leaning_noise": 3.0}
    one |= {"token_ratio": 1.0, "token_tenth": 2.0, "token_worst": 3.0, "made": 3.0}
    return one | {"carried": 6.0, "toward": 2.0, "difference": 8.0, "gain_random": 2.0} | given


def test_windows_add_up_as_lengths_do():
    sums = {"layer": 9, "part": "sum", "carried": 3.0, "difference": 4.0, "toward": 5.0, "size": 10.0, "switched": ""}
    second = row(1, error=4.0, size=20.0, floor_eager=4.0, floor_sdpa=12.0, floor_order=np.nan)
    second |= {
        "token_ratio": 1.5,
        "token_tenth": 3.0,
        "token_worst": 4.0,
        "leaning_noise": 8.0,
        "floor_leaning_noise": 4.0,
    }
    second |= {"made": 4.0}
    found = joined(pd.DataFrame([row(0), second, sums | {"window": 0}, sums | {"window": 1}]), torch.float32, {})
    (one,) = found.table.to_dict("records")
    assert one["error"] == 5 and one["size"] == pytest.approx(500**0.5)
    # floors: eager 5; sdpa 12 times 2^(1/2); order 6, and twice eager's 4 in the window where it was not run: 10
    assert one["floor"] == pytest.approx(10) and one["ratio"] == pytest.approx(0.5)
    assert one["floor_low"] == pytest.approx(0.2 * 500**0.5) and one["floor_high"] == pytest.approx(1.2 * 500**0.5)
    assert (one["signed"], one["floor_signed"]) == (0.25, 0.25)
    # by tokens 10 of 8, more than by entries (5 of 8), and 5 of 4 of the floor
    assert one["signed_noise"] == pytest.approx(1.25 * 2**0.5)
    assert (one["token_ratio"], one["token_tenth"], one["token_worst"], one["made"]) == (1.5, 3.0, 4.0, 5.0)
    assert one["height"] == pytest.approx(0.3) and found.logits is None  # 1.5 of 5 floors, 3 of 10, 4 of 25
    assert one["gain"] == pytest.approx(72**0.5 / 5) and one["share"] == 4 / 16
    assert found.closure.length == pytest.approx((18 / 8) ** 0.5)
    assert found.closure.angle == pytest.approx(10 / (18 * 8) ** 0.5)


def test_of_the_rounding_of_float64_itself_nothing_is_said_to_be_too_large(families):
    model = models.load(families / "gpt2")
    ids = torch.randint(3, 40, (2, 12), generator=torch.Generator().manual_seed(0))
    found = drift.compare(model, drift.states(model, ids, torch.float64, "sdpa"), progress=False).closure
    assert 0 < found.difference < 1e-14 and (not found.why or "rounding of float64" in found.why)
