"""What a pass changes of its network: put back where it is numbers kept, refused where it is more."""

import random

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from lipscan.models.network import run


class Changing(torch.nn.Module):
    """A network of one module that changes what `change` says."""

    def __init__(self, change):
        super().__init__()
        self.config, self.inner, self.change = LlamaConfig(), torch.nn.Linear(2, 2), change
        self.kind, self.switch, self.length, self.table = "sparse", True, None, torch.zeros(2)
        self.register_buffer("places", torch.zeros(2))

    def forward(self, input_ids, use_cache=False):
        self.change(self)
        return self.inner(self.places)


def read(net):
    return run(net, "input_ids", torch.zeros(1, 3, dtype=torch.long))


SWITCHES = {
    "a word": lambda net: setattr(net, "kind", "full"),
    "a switch": lambda net: setattr(net, "switch", False),
    "a word where nothing was": lambda net: setattr(net, "length", "short"),
    "an entry": lambda net: setattr(net.config, "vocab_size", 7),
    "an entry more": lambda net: setattr(net.config, "more", 7),
    "an entry of an entry": lambda net: net.config.rope_parameters.update(rope_theta=7.0),
    "a module": lambda net: setattr(net, "inner", torch.nn.Identity()),
    "numbers of a parameter": lambda net: torch.nn.init.ones_(net.inner.weight),
    "a parameter": lambda net: setattr(net.inner, "bias", torch.nn.Parameter(torch.ones(2))),
    "the type of its parameters": lambda net: net.inner.double(),
    "the type of a module": lambda net: net.to(torch.float16),
}


@pytest.mark.parametrize("kind", SWITCHES)
@torch.random.fork_rng()
def test_more_than_numbers_is_put_back_and_refused(kind):
    net = Changing(lambda net: None)
    expected, inner, bias = read(net), net.inner, net.inner.bias
    net.change = SWITCHES[kind]
    with pytest.raises(ValueError, match="the network Changing changes itself in a pass, .*: set in its config.json"):
        read(net)
    assert (net.kind, net.switch, net.length, net.config.vocab_size) == ("sparse", True, None, 32000)
    assert net.inner is inner and inner.bias is bias and bias.dtype == torch.float32
    assert not hasattr(net.config, "more") and net.config.rope_parameters["rope_theta"] != 7
    if kind != "numbers of a parameter":  # of which no copy is kept
        net.change = lambda net: None
        assert torch.equal(read(net), expected)


@torch.random.fork_rng()
def test_numbers_that_a_module_keeps_are_put_back():
    def kept(net):
        net.length, net.table, net.more = 9, torch.ones(9), 1
        net.places += 1
        net.register_buffer("others", torch.ones(3))
        net.inner.to(net.inner.weight.device, torch.float32)  # moves nothing
        torch.rand(1), random.random(), np.random.seed(3)

    net = Changing(kept)
    attributes, states = {*vars(net.inner)}, (random.getstate(), np.random.get_state()[1].copy())
    first, again = read(net), read(net)
    assert torch.equal(first, again) and net.length is None and not hasattr(net, "more") and len(net.table) == 2
    assert torch.equal(net.places, torch.zeros(2)) and "others" not in dict(net.named_buffers())
    assert random.getstate() == states[0] and np.array_equal(np.random.get_state()[1], states[1])
    assert {*vars(net.inner)} == attributes and net.inner.to(torch.float64).weight.dtype == torch.float64
