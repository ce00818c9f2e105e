"""What a map has beyond plain heads: how it says so, and biases and sinks that change derivatives or do not."""

import itertools

import pytest
import torch
from cases import drawn, truth_of

from lipnb import Attention, certify, local_lipschitz


def test_it_says_what_it_is_and_what_it_has_not():
    draw = drawn(0)
    query, key, value = draw(4, 6, 5), draw(2, 6, 5), draw(2, 6, 5)
    said = repr(Attention(query, key, value, frequencies=torch.ones(3), cap=50.0, masked=True, window=3))
    for part in ("4 heads on 2 of keys", "width 5", "window 3", "shared keys", "rotary", "capped", "float64"):
        assert part in said
    assert Attention(query[:2], key, value).more == ()


ONE = torch.ones(1, 1, 1)


POINTS = torch.tensor([[0.1], [0.5], [-0.7], [1.2]])


ROUTES = [{"method": method, "memory": memory} for method in ("dense", "lanczos") for memory in (2**30, 1)]


@pytest.mark.parametrize("route", ROUTES)
def test_what_changes_no_derivative_costs_no_digits(route):
    """A sink that nobody sees beside equal tokens, whose mean has constant 1; biases of a million."""
    for size in (1e2, 1e6, 1e10):
        f, x = Attention(ONE, ONE, ONE, sinks=torch.zeros(1)), torch.full((5, 1), size**0.5)
        answer = local_lipschitz(f, x, **route)
        assert answer.value.item() == pytest.approx(1, rel=1e-5) and answer.upper.item() >= 1
    f = Attention(ONE, ONE, ONE, ONE)
    for bias, shape in (("value_bias", (1, 1)), ("key_bias", (1, 1)), ("output_bias", (1,))):
        answer = local_lipschitz(f.replace(**{bias: torch.full(shape, 1e6)}), POINTS, **route)
        assert answer.value.item() == pytest.approx(truth_of(f, POINTS), rel=1e-5)


def test_a_key_bias_that_changes_derivatives_is_kept():
    for added in [{"score": "l2"}, {"cap": 2.0}, {"sinks": torch.zeros(1)}]:
        f = Attention(ONE, ONE, ONE, key_bias=torch.ones(1, 1), **added)
        answer = local_lipschitz(f, POINTS, memory=1)
        assert answer.value.item() == pytest.approx(truth_of(f, POINTS), rel=1e-5)
        assert answer.value.item() != pytest.approx(truth_of(f.replace(key_bias=None), POINTS), rel=1e-2)


def test_sinks_that_take_nearly_all_leave_a_constant_that_is_found():
    """Squares of it underflow in float32, and it is found in float64; at 50 they are just above zero."""
    for memory in [2**30, 1]:
        for sink in [40.0, 50.0, 60.0, 100.0]:
            generator = torch.Generator().manual_seed(0)
            query, key, value = (torch.randn(1, 4, 4, generator=generator) for _ in range(3))
            f, x = Attention(query / 4, key, value, sinks=torch.tensor([sink])), torch.randn(40, 4, generator=generator)
            answer, truth = local_lipschitz(f, x, memory=memory), truth_of(f, x)
            assert answer.value.item() == pytest.approx(truth, rel=1e-4) and answer.upper.item() >= truth * (1 - 1e-6)
            assert truth < 1e-12 and (sink < 50 or answer.precision == "float64")


def test_a_value_bias_beside_sinks_costs_no_digits():
    """It counts with the share of the sinks alone, which 1 less a sum of probabilities would not resolve."""
    x = torch.tensor([[1.0], [-0.5], [0.3]])
    cases = [(1e8, -16.0, 1.0, torch.float32, 1e-4), (1e14, -30.0, 1.0, torch.float64, 1e-8)]
    for bias, sink, value, dtype, rtol in [*cases, (1.0, -30.0, 0.0, torch.float64, 1e-8)]:
        for factor, method, memory in itertools.product([0.3, 300.0], ["dense", "lanczos"], [2**30, 1]):
            f = Attention(*(torch.full((1, 1, 1), w, dtype=dtype) for w in (factor, factor, value)))
            f = f.replace(value_bias=torch.tensor([[bias]], dtype=dtype), sinks=torch.tensor([sink], dtype=dtype))
            answer = local_lipschitz(f, x.to(dtype), method=method, memory=memory, rtol=rtol)
            bracket = certify(f, x.to(dtype))
            assert bracket.lower * (1 - 1e-3 if factor > 1 else 1 - 4 * rtol) <= answer.value <= bracket.upper
            assert answer.upper >= bracket.lower * (1 - (2e-3 if factor > 1 else 1e-6))


def test_products_with_a_value_bias_beside_sinks_are_those_of_autograd():
    generator, eye = torch.Generator().manual_seed(3), torch.eye(3).double()[None]
    A, b = torch.randn(2, 3, 3, generator=generator).double(), torch.randn(2, 3, generator=generator).double()
    x, sinks = torch.randn(40, 3, generator=generator).double(), torch.tensor([0.5, 3.0]).double()
    for scale in (1.0, 1e12):  # nearly hard attention: its sums of rows are taken off otherwise
        f = Attention(A / scale, eye.repeat(2, 1, 1) * scale, A, value_bias=b, sinks=sinks)
        if scale > 1:
            f = f.replace(query_bias=1e-3 * b / scale, key_bias=1e9 * torch.ones(2, 3).double())
        truth = truth_of(f, x)
        for memory in (2**30, 1):
            answer = local_lipschitz(f, x, memory=memory, rtol=1e-6)
            assert answer.value.item() == pytest.approx(truth, rel=2e-6 if scale == 1 else 1e-3)
