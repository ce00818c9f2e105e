"""Passes that put given states in the place of a network's own, and the halves of its layers."""

from dataclasses import replace

import pytest
import torch
from scans import small

from lipscan.drift.passes import network_of, passed, with_halves
from lipscan.models import readings

IDS = torch.tensor([[2, 7, 5, 6, 9, 3], [2, 8, 5, 11, 9, 3]])


def other(state, seed=0):
    """A random state of the same shape."""
    return torch.randn(state.shape, dtype=state.dtype, generator=torch.Generator().manual_seed(seed))


def found(families, name):
    network = network_of(small(families / name))
    return with_halves(network, IDS)


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_of_a_network_with_norms_before_its_halves_the_parts_add_up(families, name):
    network = found(families, name)
    own = passed(network, IDS)
    assert [*own.attention] == [*own.mlp] == [*range(len(network.layers))]
    for layer, attention in own.attention.items():
        assert torch.allclose(own.hidden[layer] + attention + own.mlp[layer], own.hidden[layer + 1], atol=1e-9)


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert"])
def test_of_a_network_with_norms_after_them_the_norm_of_the_sum_is_the_layer(families, name):
    network = found(families, name)
    own = passed(network, IDS)
    norms = {"distilbert": ("sa_layer_norm", "output_layer_norm")}
    first, second = norms.get(name, ("attention.output.LayerNorm", "output.LayerNorm"))
    for layer, attention in own.attention.items():
        norm, last = (network.layers[layer].get_submodule(one) for one in (first, second))
        assert torch.allclose(last(norm(own.hidden[layer] + attention) + own.mlp[layer]), own.hidden[layer + 1])
    assert [*own.attention] == [0, 1]


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_each_layer_receives_the_state_that_is_given(families, name):
    model = small(families / name)
    network = network_of(model)
    layers = readings(model, IDS)
    given = [other(layers[0].stream, seed) for seed in range(len(layers) + 1)]
    fed = passed(network, IDS, given)
    for layer, one in enumerate(layers):
        assert torch.allclose(fed.hidden[layer + 1], one.whole(given[layer]))
    assert torch.equal(fed.hidden[0], layers[0].stream)  # what the network itself gave
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.module.modules())


def test_shared_layers_are_told_apart(tmp_path):
    from hub import small_model

    from lipscan import models

    sizes = dict(hidden_size=32, embedding_size=16, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48)
    folder = small_model(tmp_path / "albert", "albert", dict(vocab_size=63, max_position_embeddings=40, **sizes))
    model = models.load(folder, dtype=torch.float64)
    network = with_halves(network_of(model), IDS)
    own = passed(network, IDS)
    assert len(own.hidden) == 4 and [*own.mlp] == [0, 1, 2]
    assert torch.allclose(own.hidden[2], readings(model, IDS)[2].stream)


def test_with_attention_given_too_a_layer_is_its_other_half(families):
    network = found(families, "gpt2")
    own = passed(network, IDS)
    attention = {0: other(own.attention[0])}
    fed = passed(network, IDS, own.hidden, attention)
    middle = own.hidden[0] + attention[0]
    block = network.layers[0]
    assert torch.allclose(fed.hidden[1], middle + block.mlp(block.ln_2(middle)))
    assert torch.allclose(fed.attention[0], own.attention[0]) and torch.allclose(fed.hidden[2], own.hidden[2])


def test_the_output_layer_receives_the_last_state(families):
    network = found(families, "gpt2")
    own = passed(network, IDS)
    twice = passed(network, IDS, [*own.hidden[:-1], 2 * own.hidden[-1]])
    final = network.inner.ln_f(2 * own.hidden[-1])
    assert torch.allclose(twice.final, final) and torch.allclose(twice.logits, network.whole.lm_head(final))
    assert not torch.allclose(twice.logits, own.logits)
    assert passed(replace(network, whole=network.inner), IDS).logits is None
