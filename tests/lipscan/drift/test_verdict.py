"""Verdicts: planted faults are named, rounding is not."""

from dataclasses import replace

import pandas as pd
import pytest
import torch
from transformers.pytorch_utils import Conv1D

from lipscan import drift, models
from lipscan.drift.passes import network_of
from lipscan.drift.runs import run_of
from lipscan.drift.verdict import verdict

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


def table(**changed):
    one = {"layer": 0, "part": "layer", "size": 100.0, "error": 1.0, "floor": 1.0, "ratio": 1.0, "token_ratio": 1.0}
    one |= {"token_worst": 1.0}
    one |= {"signed": 0.0, "signed_noise": 0.01, "floor_signed": 0.0}
    return pd.DataFrame([one, one | {"layer": 1} | changed])


@pytest.mark.parametrize(
    ("changed", "kind", "said"),
    [
        ({}, "rounding", "all 2 layers within 1.0 floors of bfloat16; a fault below 1 %"),
        ({"token_worst": 30.0}, "bug", "layer 1, 30.0 floors in one token, 1.0 in the median one"),
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
    found = verdict(table(**changed), "bfloat16")
    assert found.kind == kind and said in found.sentence
