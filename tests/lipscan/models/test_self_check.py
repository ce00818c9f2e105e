"""Masks and layers that are not the network's are found when a model is loaded or scanned."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from lipscan import models
from lipscan.models import self_check as self_checks
from lipscan.models.loading import assert_causality
from lipscan.scanning.measure import self_check


def test_a_mask_that_is_not_the_models_is_found(families):
    model = models.load(families / "gpt2", dtype=torch.float64)
    model.masked = False
    error, leak, passed = self_check(model, 1, models.readings(model, torch.tensor([[5, 6, 7, 8]]))[1])
    assert not passed and leak == 0


def test_a_small_leak_is_a_leak():
    """Outputs of earlier tokens that move with later ones by this much, relative to their size."""
    of = "is {}causal although masked="
    cases = [(0.0, True, ""), (1e-6, True, ""), (1e-4, True, of.format("not ")), (1e-2, True, of.format("not "))]
    for leak, masked, sentence in [*cases, (1e-6, False, of.format("")), (1e-4, False, "")]:

        class Network(torch.nn.Module):
            config = SimpleNamespace(max_position_embeddings=40, vocab_size=50)
            device, dtype = torch.device("cpu"), torch.float64

            def forward(self, input_ids, use_cache):
                own = torch.ones(*input_ids.shape, 3, dtype=torch.float64)
                later = (input_ids - input_ids[:1]).sum(-1).double()  # 0, and something where the last tokens changed
                return SimpleNamespace(last_hidden_state=own * (1 + leak * later.sign())[:, None, None])

        with pytest.raises(RuntimeError, match=sentence) if sentence else nullcontext():
            assert_causality(Network(), masked, "this one")


def mute(network, times, bias=0.0, layers=(0, 1)):
    """The network with the output of its attention this many times as large, and a bias."""
    for number in layers:
        output = network.encoder.layer[number].attention.output.dense
        output.weight.data.mul_(times)
        output.bias.data.fill_(bias)
    return network


MUTE = {"zero": (0.0,), "constant": (0.0, 1.0), "one": (0.0, 0.0, (0,)), "tiny": (1e-25,)}


@pytest.mark.parametrize("kind", ["Bert", "Esm"])  # the second is of a family without an entry
@pytest.mark.parametrize("how", MUTE)
def test_attention_that_gives_nothing_shows_no_mask_and_one_that_gives_little_shows_it(kind, how):
    import transformers

    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, pad_token_id=0)
    config = getattr(transformers, f"{kind}Config")(vocab_size=60, max_position_embeddings=40, **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = mute(getattr(transformers, f"{kind}Model")(config), *MUTE[how])
    model = models.load(network)
    read = models.readings(model, torch.arange(5, 14)[None])
    assert all(self_check(model, number, read[number])[2] for number in (0, 1))
    if kind == "Bert" or how in ("one", "tiny"):  # else nothing tells
        assert not model.masked
    if how == "tiny":
        assert all(self_check(model, number, read[number])[1] > 0.01 for number in (0, 1))
        model.masked = True
        assert not self_check(model, 1, read[1])[2]


def test_a_causal_network_said_to_be_unmasked_is_found_though_its_attention_is_tiny(families):
    model = models.load(families / "gpt2", dtype=torch.float64)
    for layer in model.module.h:
        layer.attn.c_proj.weight.mul_(1e-25)
        layer.attn.c_proj.bias.zero_()
    with pytest.raises(RuntimeError, match="is causal although masked=False"):
        assert_causality(model.module, False, "this one", architecture=model.architecture)
    assert_causality(model.module, True, "this one", architecture=model.architecture)


def test_each_length_of_a_layer_is_compared_once(families, monkeypatch):
    model, lengths, run = models.load(families / "gpt2"), [], self_checks.run
    monkeypatch.setattr(self_checks, "run", lambda *given: lengths.append(given[2].shape[1]) or run(*given))
    for n in (4, 4, 7, 4):
        self_checks.check_length(model, torch.arange(n)[None], 0)
    assert lengths == [4, 7]
