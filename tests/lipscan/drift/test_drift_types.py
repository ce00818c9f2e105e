"""Model types whose layers are built otherwise: shared, mixed, without fused attention, without forward derivatives."""

import pytest
import torch
from model_types import small
from transformers import AutoModel, AutoModelForCausalLM

from lipscan import drift, models

IDS = torch.randint(3, 40, (2, 12), generator=torch.Generator().manual_seed(0))
KINDS = ("albert", "bloom", "distilbert", "gemma2", "gpt_oss", "mixtral", "modernbert", "mpt", "opt", "qwen3_moe", "t5")


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_is_rounding_and_its_errors_add_up(kind):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        auto = AutoModelForCausalLM if kind in ("gpt_oss", "mixtral", "bloom", "opt") else AutoModel
        model = models.load(auto.from_config(small(kind)).eval())
    found = drift.compare(model, drift.states(model, IDS, torch.bfloat16, "order"), progress=False)
    assert found.verdict.kind == "rounding" and found.table.part.value_counts()["layer"] == model.layers
    assert found.closure.why == "" and abs(found.closure.length - 1) < 0.01 and found.closure.angle > 0.999
