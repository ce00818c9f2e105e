"""States of a run here."""

import pytest
import torch
from scans import small

from lipscan import drift, models
from lipscan.drift.passes import network_of, passed

IDS = torch.tensor([[2, 7, 5, 6, 9, 3], [2, 8, 5, 11, 9, 3]])


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_states_are_those_of_transformers(families, name):
    model = models.load(families / name)
    for dtype in (torch.float32, torch.bfloat16):
        found = drift.states(model, IDS, dtype)
        network = models.load(families / name, dtype=dtype).module
        with torch.no_grad():
            wanted = [network(one[None], output_hidden_states=True).hidden_states for one in IDS]
        for place, one in enumerate(found.hidden[:-1]):
            assert torch.equal(one, torch.cat([states[place] for states in wanted]))
        assert found.hidden[0].dtype == dtype and sorted(found.mlp) == [*range(model.layers)]


def test_of_a_bare_network_the_states_are_those_of_its_model(families):
    model = models.load(families / "gpt2")
    for network in (model.module, model.language_model):
        found, wanted = drift.states(network, IDS, torch.float32), drift.states(model, IDS, torch.float32)
        assert all(map(torch.equal, found.hidden, wanted.hidden)) and len(found.attention) == 4
    assert torch.equal(found.logits, wanted.logits)


def test_a_window_is_one_sequence(families):
    model = small(families / "gpt2")
    one = drift.states(model, IDS).window(1)
    assert one.ids.tolist() == IDS[1:].tolist() and {len(state) for state in (*one.hidden, *one.mlp.values())} == {1}
    with torch.no_grad():
        alone = passed(network_of(model), IDS[1:])
    assert torch.allclose(one.hidden[-1], alone.hidden[-1]) and torch.allclose(one.logits, alone.logits)
