"""Verdicts: planted faults are named, rounding is not."""

from dataclasses import replace

import pandas as pd
import pytest
import torch
from transformers.pytorch_utils import Conv1D

from lipscan import drift, models
from lipscan.drift.passes import network_of
from lipscan.drift.runs import run_of
from lipscan.drift.verdict import FLOORS, heights, verdict

IDS = torch.tensor([[2, 7, 5, 6, 9, 3, 12, 15, 33, 21, 40, 8]])


def judged(model, faulty, dtype=torch.float32):
    """The comparison of a model with a network in which something was changed."""
    return drift.compare(model, drift.states(faulty, IDS, dtype), progress=False).verdict


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_fault_is_found_in_its_layer_and_its_half(families, dtype):
    model = models.load(families / "gpt2")
    for half, place in (("attention", "attn.c_proj"), ("mlp", "mlp.c_proj")):
        faulty = models.load(families / "gpt2")
        faulty.module.h[2].get_submodule(place).bias.data.zero_()
        found = judged(model, faulty, dtype)
        assert (found.kind, found.layer, found.part) == ("bug", 2, half)
        assert found.sentence.startswith("not rounding: layer 2, ") and f"in its {half[:3]}" in found.sentence.lower()


def test_a_fault_in_every_layer_is_counted(families):
    faulty = models.load(families / "gpt2")
    for layer in faulty.module.h:
        assert isinstance(layer.mlp.c_fc, Conv1D)
        layer.mlp.act = torch.nn.ReLU()
    found = judged(models.load(families / "gpt2"), faulty)
    assert found.kind == "bug" and "4 of 4 layers" in found.sentence


def test_faults_of_the_embedding_and_of_the_logits_are_named(families):
    model = models.load(families / "gpt2")
    own = drift.states(model, IDS, torch.float32)
    shifted = replace(own, logits=own.logits + 1.0)
    assert drift.compare(model, shifted, progress=False).verdict[:3] == ("bug", 4, "logits")
    first = [own.hidden[0] * 1.001, *own.hidden[1:]]
    found = drift.compare(model, replace(own, hidden=first, attention={}, mlp={}), progress=False).verdict
    assert found.kind == "bug" and "the embedding" in found.sentence or found.layer == 0


def test_numbers_cut_off_are_not_numbers_rounded(families):
    """Truncation stays near the floor, but leans to one side."""
    model = models.load(families / "gpt2")
    network = network_of(models.load(families / "gpt2"))

    def cut(module, args, output):
        tokens = output[0] if isinstance(output, tuple) else output
        short = (tokens.view(torch.int32) & -65536).view(torch.float32)
        return (short, *output[1:]) if isinstance(output, tuple) else short

    for layer in network.layers:
        layer.register_forward_hook(cut)
    other = run_of(network, IDS)
    found = drift.compare(model, other, dtype=torch.bfloat16, progress=False)
    assert found.table[found.table.part == "layer"].ratio.max() < 2
    assert found.verdict.kind == "bug" and "shrink" in found.verdict.sentence


def table(*changed, dtype="bfloat16"):
    """Two clean layers of a comparison, and changes of the parts of the second: of the layer, attention and MLP."""
    one = {"layer": 0, "part": "layer", "size": 100.0, "error": 1.0, "floor": 1.0, "ratio": 1.0, "token_ratio": 1.0}
    one |= {"token_tenth": 1.0, "token_worst": 1.0, "signed": 0.0, "signed_noise": 0.01, "floor_signed": 0.0}
    one |= {"switching": float("nan")}
    names = zip(("layer", "attention", "mlp"), changed, strict=False)
    rows = pd.DataFrame([one, *(one | {"layer": 1, "part": name, "made": 0.5} | change for name, change in names)])
    return rows.assign(height=heights(rows, dtype))


@pytest.mark.parametrize(
    ("changed", "kind", "said"),
    [
        ({}, "rounding", "all 2 layers within 1.0 floors of bfloat16; a fault below 1 %"),
        (
            {"switching": 3.0},
            "rounding",
            "of bfloat16, up to 3 tokens left out that rounding may send to other experts;",
        ),
        ({"token_worst": 30.0}, "bug", "layer 1, 30.0 floors in one token, 1.0 in the median one"),
        ({"token_tenth": 5.0, "token_worst": 7.5}, "bug", "layer 1, 5.0 floors in a tenth of the tokens, 1.0 in the"),
        ({"token_tenth": 2.9, "token_worst": 7.4}, "rounding", "all 2"),
        ({"token_ratio": 3.0}, "bug", "layer 1, 3.0 floors"),
        ({"token_ratio": 1.8}, "cannot tell", "layer 1 is at 1.8 floors"),
        ({"ratio": 3.0}, "rounding", "all 2"),  # a large coordinate of one token
        ({"floor": float("inf"), "ratio": 0.0}, "cannot tell", "layer 1 gives NaN or infinity in bfloat16"),
        ({"signed": -0.5}, "bug", "layer 1 leans to one side (-0.50"),
        ({"signed": -0.5, "floor_signed": -0.4}, "rounding", "all 2"),
        ({"signed": -0.5, "signed_noise": 0.1}, "rounding", "all 2"),
        ({"signed": -0.5, "ratio": 0.4}, "rounding", "all 2"),
    ],
)
def test_thresholds(changed, kind, said):
    found = verdict(table(changed), "bfloat16")
    assert found.kind == kind and said in found.sentence


@pytest.mark.parametrize("column", ["token_ratio", "token_tenth", "token_worst"])
def test_sums_in_float32_may_err_more_than_those_of_another_order(column):
    """One term after the other, as C has them: right, and at some floors of sums in blocks."""
    kinds = {}
    for floors in (1.5, 4.0, 6.0):
        for dtype in ("bfloat16", "float32"):
            rows = table({column: FLOORS[column] * floors / 2}, dtype=dtype)
            kinds[floors, dtype] = verdict(rows, dtype).kind
    assert [kinds[one, "bfloat16"] for one in (1.5, 4.0, 6.0)] == ["rounding", "bug", "bug"]
    assert [kinds[one, "float32"] for one in (1.5, 4.0, 6.0)] == ["rounding", "cannot tell", "bug"]


HIGH = {"token_ratio": 20.0}


@pytest.mark.parametrize(
    ("layer", "attention", "mlp", "place", "said"),
    [
        # a half makes what the layer has
        (HIGH | {"error": 20.0}, {"token_ratio": 9.0, "made": 19.0}, {}, "attention", "in its attention (9.0 floors)"),
        (HIGH | {"error": 20.0}, {}, {"token_ratio": 9.0, "made": 19.0}, "mlp", "layer 1, 20.0 floors, in its MLP (9"),
        # rounding of the stream hides it
        ({"error": 2.0}, {}, {"token_ratio": 9.0, "made": 1.8}, "mlp", "layer 1, 1.0 floors, in its MLP (9.0 floors)"),
        # none does
        (HIGH | {"error": 20.0}, {}, {}, "layer", "after its halves, which are right (attention 1.0, MLP 1.0)"),
        # both are known, and none of them explains it
        (HIGH | {"error": 20.0}, {"token_ratio": 1.9, "made": 2.0}, {}, "layer", "layer 1, 20.0 floors"),
        # what was written down for a half is not what the layer computed with; an MLP fed with it is wrong too
        ({}, {"token_ratio": 9.0, "made": 19.0}, {"token_ratio": 30.0, "made": 9.0}, "attention", "attention.1 is not"),
        ({}, {}, {"token_ratio": 9.0, "made": 19.0}, "mlp", "layer are right (1.0 floors): mlp.1 is not what"),
    ],
)
def test_a_fault_is_in_a_half_after_both_or_in_what_was_written(layer, attention, mlp, place, said):
    found = verdict(table(layer, attention, mlp), "bfloat16")
    assert found[:3] == ("bug", 1, place) and said in found.sentence
    assert ("after its halves" in found.sentence) == ("after its halves" in said)


def test_a_half_that_is_only_written_wrong_does_not_hide_a_fault():
    rows = table({}, {"token_ratio": 90.0, "made": 99.0}, {})
    other = rows.iloc[:1].assign(layer=2, token_ratio=3.0)
    rows = pd.concat([rows, other], ignore_index=True)
    assert verdict(rows.assign(height=heights(rows, "bfloat16")), "bfloat16")[:3] == ("bug", 2, "layer")


def test_a_fault_after_the_halves_and_a_half_written_wrong_are_found_in_a_network(families):
    model, faulty = models.load(families / "bert"), models.load(families / "bert")
    faulty.module.encoder.layer[1].output.LayerNorm.weight.data.mul_(1.01)
    found = judged(model, faulty)
    assert found[:3] == ("bug", 1, "layer") and "after its halves" in found.sentence
    own = drift.states(model, IDS, torch.float32)
    for half in ("attention", "mlp"):
        written = replace(own, **{half: {**getattr(own, half), 1: 2 * getattr(own, half)[1]}})
        found = drift.compare(model, written, progress=False).verdict
        assert found[:3] == ("bug", 1, half) and f"{half}.1 is not what" in found.sentence


def test_a_fault_in_some_tokens_is_found(families):
    """Six floors in a third of the tokens: neither the median token nor the worst one tells."""
    model = models.load(families / "gpt2")
    own = drift.states(model, IDS, torch.bfloat16)
    floor = drift.compare(model, own, progress=False).table.query("part == 'layer'").floor.iloc[-1]
    last = own.hidden[-1].double()
    push = torch.randn(last[:, ::3].shape, dtype=last.dtype, generator=torch.Generator().manual_seed(0))
    last[:, ::3] += 6 * floor / last.shape[1] ** 0.5 * push / push.norm(dim=-1, keepdim=True)
    other = replace(own, hidden=[*own.hidden[:-1], last.bfloat16()], attention={}, mlp={}, logits=None)
    found = drift.compare(model, other, dtype=torch.bfloat16, progress=False)
    row = found.table.query("part == 'layer'").iloc[-1]
    assert row.token_ratio < 2 and row.token_worst < 10
    assert found.verdict[:3] == ("bug", 3, "layer") and "in a tenth of the tokens" in found.verdict.sentence
