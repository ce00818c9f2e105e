"""Calls of modules: noted, changed and stopped, and their tokens found under any name."""

import pytest
import torch

from lipscan.models.hooks import Call, capture


def test_tokens_are_found_under_whatever_name_a_layer_is_given_them():
    class Layer(torch.nn.Module):
        def forward(self, query, other=None):
            return query

    x, layer = torch.ones(1, 2, 3), Layer()
    for args, kwargs in (((x, 1), {}), ((), {"other": 1, "query": x}), ((), {"other": 1, "hidden_states": x})):
        call = Call(layer, 0, args, kwargs)
        assert call.tokens is x
        args, kwargs = call.with_tokens(2 * x)
        assert Call(layer, 0, args, kwargs).tokens.sum() == 12 and (*args[1:], *kwargs.values())[0] == 1
    for args, kwargs in (((), {"other": x}), ((3,), {})):
        with pytest.raises(ValueError, match="Layer is called without tokens"):
            _ = Call(layer, 0, args, kwargs).tokens


def test_calls_are_noted_changed_and_stopped():
    ran = []

    class Layer(torch.nn.Module):
        def forward(self, x):
            ran.append(x)
            return x + 1, "weights"

    one, two = Layer(), Layer()

    def network(x):
        for layer in (one, two, one, two):
            x, _ = layer(x)
        return x

    x = torch.zeros(1, 1, 1)
    with capture(one, two, one) as calls:
        assert network(x) == 4
    assert [(call.module, call.number) for call in calls] == [(one, 0), (two, 0), (one, 1), (two, 1)]
    assert [call.given.item() for call in calls] == [1, 2, 3, 4]
    for stop, count in (({"before": (one, 1)}, 2), ({"after": (one, 1)}, 3), ({"after": (two, 0)}, 2)):
        ran.clear()
        with capture(two, **stop) as calls:
            network(x)
        assert len(ran) == count and calls[-1].module is [*stop.values()][0][0]
        assert (calls[-1].given is None) == ("before" in stop)
    with capture(two, change=lambda call: call.with_tokens(call.tokens + 10) if call.number == 1 else None) as calls:
        assert network(x) == 14
    assert calls[1].tokens == 3  # what it would have been given
    with pytest.raises(ZeroDivisionError), capture(one):
        network(1 / 0)
    assert not one._forward_hooks and not two._forward_pre_hooks


def test_a_module_that_converts_a_part_in_each_pass_is_not_moved_and_can_be_afterwards():
    """Moved while a derivative is taken, even to the type that it has, PyTorch 2.13 ends in a segmentation fault."""
    moved = []

    class Part(torch.nn.Linear):
        def _apply(self, convert, recurse=True):
            moved.append(convert)
            return super()._apply(convert, recurse)

    class Router(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.part, self.wanted = Part(2, 2), torch.float32

        def forward(self, x):
            self.part = self.part.to(self.wanted)
            return self.part(x)

    with torch.random.fork_rng():
        router, x = Router(), torch.ones(1, 3, 2)
    call = Call(router, 0, (x,), {})
    _, along = torch.func.jvp(call.again, (x,), (x,))
    torch.testing.assert_close(along, x @ router.part.weight.T)
    assert not moved
    router.wanted = torch.float64
    with pytest.raises(ValueError, match="the network Router changes itself in a pass"):
        call.again(x)
    router.double()
    assert moved and router.part.weight.dtype == torch.float64
