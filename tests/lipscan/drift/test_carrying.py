"""Errors carried to the end, against dense Jacobians."""

import pytest
import torch
from scans import small
from torch.func import jacrev

from lipscan.drift.carrying import carried
from lipscan.drift.passes import network_of, passed

IDS = torch.tensor([[2, 7, 5, 6, 9, 3]])


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_each_error_goes_through_the_jacobian_of_the_layers_after_it(families, name):
    network = network_of(small(families / name))
    own = passed(network, IDS)
    generator = torch.Generator().manual_seed(0)
    errors = [torch.randn(one.shape, dtype=one.dtype, generator=generator) for one in own.hidden]
    difference = torch.randn(errors[0].shape, dtype=errors[0].dtype, generator=generator)
    steps = []
    found = carried(network, IDS, own.hidden, errors, difference, tick=lambda: steps.append(1))
    n, d = errors[0].shape[1:]
    for place, error in enumerate(errors):

        def tail(x, place=place):
            for call in own.calls[place:]:
                x = call.again(x)
            return x

        whole = jacrev(tail)(own.hidden[place]).view(n * d, n * d)
        for one, wanted in ((found.errors, whole @ error.flatten()), (found.back, whole.T @ difference.flatten())):
            assert (one[place].flatten() - wanted).norm() < 1e-5 * wanted.norm()
        root_mean_square = (whole.square().sum() / (n * d)).sqrt().item()
        assert found.random[place] == pytest.approx(root_mean_square, rel=0.4)
    assert len(steps) == 2 * len(own.calls)
