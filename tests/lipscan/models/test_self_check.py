"""Masks and layers that are not the network's are found when a model is loaded or scanned."""

from types import SimpleNamespace

import pytest
import torch
from hub import tiny_gpt2

from lipscan import models
from lipscan.models.loading import assert_causality
from lipscan.scanning.measure import self_check


def test_a_mask_that_is_not_the_models_is_found(tmp_path):
    model = models.load(tiny_gpt2(tmp_path / "gpt2"), dtype=torch.float64)
    model.masked = False
    error, leak, passed = self_check(model, 1, models.readings(model, torch.tensor([[5, 6, 7, 8]]))[1])
    assert not passed and leak == 0


def test_a_small_leak_is_a_leak():
    """Outputs of earlier tokens that move with later ones by this much, relative to their size."""
    for leak, masked, sentence in [
        (0.0, True, None),
        (1e-6, True, None),
        (1e-4, True, "is not causal although masked=True"),
        (1e-2, True, "is not causal although masked=True"),
        (1e-6, False, "is causal although masked=False"),
        (1e-4, False, None),
    ]:

        class Network(torch.nn.Module):
            config = SimpleNamespace(max_position_embeddings=40, vocab_size=50)
            device, dtype = torch.device("cpu"), torch.float64

            def forward(self, input_ids, use_cache):
                own = torch.ones(*input_ids.shape, 3, dtype=torch.float64)
                later = (input_ids - input_ids[:1]).sum(-1).double()  # 0, and something where the last tokens changed
                return SimpleNamespace(last_hidden_state=own * (1 + leak * later.sign())[:, None, None])

        network = Network()
        if sentence is None:
            assert_causality(network, masked, "this one")
        else:
            with pytest.raises(RuntimeError, match=sentence):
                assert_causality(network, masked, "this one")
