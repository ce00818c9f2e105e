"""What a pass changes of its network: put back where it is numbers kept, refused where it is more."""

import random

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from lipscan.models.changes import unconverted
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


@torch.random.fork_rng()
def test_whatever_a_pass_changes_is_put_back_and_more_than_numbers_refused():
    refused = {
        "kind from 'sparse' to 'full'": lambda net: setattr(net, "kind", "full"),
        "switch from True to False": lambda net: setattr(net, "switch", False),
        "vocab_size of its configuration": lambda net: setattr(net.config, "vocab_size", 7),
        "inner from Linear to Identity": lambda net: setattr(net, "inner", torch.nn.Identity()),
        "the numbers of inner.weight": lambda net: torch.nn.init.ones_(net.inner.weight),
        "the numbers of inner.bias": lambda net: setattr(net.inner, "bias", torch.nn.Parameter(torch.ones(2))),
    }
    for words, change in refused.items():
        net = Changing(lambda net: None)
        run(net, "input_ids", torch.zeros(1, 3, dtype=torch.long))
        net.change, inner = change, net.inner
        with pytest.raises(ValueError, match=f"the network Changing changes itself as it reads .{words}"):
            run(net, "input_ids", torch.zeros(1, 3, dtype=torch.long))
        assert (net.kind, net.switch, net.config.vocab_size, net.inner) == ("sparse", True, 32000, inner)

    net = Changing(lambda net: net.inner.to(torch.float32))
    with pytest.raises(ValueError, match="converts its own parameters as it reads .a Linear, by .to"), unconverted(net):
        run(net, "input_ids", torch.zeros(1, 3, dtype=torch.long))

    def kept(net):
        net.length, net.table, net.more = 9, torch.ones(9), 1
        net.places += 1
        net.register_buffer("others", torch.ones(3))
        torch.rand(1), random.random(), np.random.seed(3)

    net = Changing(kept)
    states = random.getstate(), np.random.get_state()[1].copy()
    first, again = (run(net, "input_ids", torch.zeros(1, 3, dtype=torch.long)) for _ in range(2))
    assert torch.equal(first, again) and net.length is None and not hasattr(net, "more") and len(net.table) == 2
    assert torch.equal(net.places, torch.zeros(2)) and "others" not in dict(net.named_buffers())
    assert random.getstate() == states[0] and np.array_equal(np.random.get_state()[1], states[1])
