"""Benchmarks: every peer finds the dense value, the wide layer is what it says, tables hold no path."""

import json

import pandas as pd
import pytest
import torch

from benchmarks import layers, ours, peers
from lipnb import Attention, local_lipschitz


@pytest.fixture(scope="module")
def small():
    """A random layer of two heads with biases, and one sequence; a gap that power iteration can live with."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    attention = Attention(normal(2, 4, 8) / 3, normal(2, 4, 8) / 3, normal(2, 4, 8), normal(2, 8, 4),
                          query_bias=normal(2, 4), key_bias=normal(2, 4), value_bias=normal(2, 4),
                          output_bias=normal(8))
    x = normal(6, 8)
    return attention, x, local_lipschitz(attention, x, method="dense").value.item()


@pytest.mark.parametrize("masked", [False, True])
def test_the_plain_forward_is_the_same_map(small, masked):
    attention, x, _ = small
    attention = Attention(**attention._tensors(), masked=masked)
    assert torch.allclose(layers.plain_forward(attention)(x), attention(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", peers.PEERS)
def test_every_peer_finds_the_dense_value(small, name):
    attention, x, dense = small
    answer = peers.PEERS[name](attention, x, seed=1)
    assert abs(answer.value / dense - 1) < 1e-4 and answer.converged
    assert answer.products > 0 or name == "dense"
