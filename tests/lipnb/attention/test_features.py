"""What a map has beyond plain heads: how it says so, and biases and sinks that change derivatives or do not."""

import itertools

import pytest
import torch
from cases import constant, drawn

from lipnb import Attention, bounds, certify, local_lipschitz


def test_it_says_what_it_is_and_what_it_has_not():
    draw = drawn(0)
    given = {"query": draw(4, 6, 5), "key": draw(2, 6, 5), "value": draw(2, 6, 5)}
    plain = {**given, "query": given["query"][:2]}
    f = Attention(**given, frequencies=torch.ones(3), cap=50.0, masked=True)
    assert repr(f) == (
        "Attention(4 heads on 2 of keys, width 5, key width 6, output width 24, masked, shared keys, rotary positions, "
        "capped logits, float64)"
    )
    assert Attention(**plain).more == ()
    x = draw(9, 5)
    with pytest.raises(ValueError, match="yudin_upper knows plain heads only, not rotary positions, capped logits"):
        bounds.yudin_upper(f, x)
    for bad, sentence in (
        ({"key": draw(3, 6, 5)}, "or fewer heads, a divisor of 4, got"),
        ({"value": draw(4, 6, 5)}, "value must have shape"),
        ({"frequencies": torch.ones(4)}, "frequencies must have shape .* 1 <= p <= 3"),
        ({"frequencies": torch.ones(2).half()}, "in float32 or float64"),
        ({"query_norm": draw(6)}, "query_norm must have shape"),
        ({"key_norm": draw(4, 6)}, "key_norm must have shape"),
        ({"norm_eps": -1.0}, "norm_eps must be"),
        ({"cap": 0.0}, "cap must be None or a positive number"),
        ({"relative": draw(4, 4)}, "relative must have shape"),
        ({"sinks": draw(2)}, "sinks must have shape"),
        ({"sinks": draw(4), "score": "l2"}, "cap and sinks go with dot-product scores only"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Attention(**{**given, **bad})


ONE = torch.ones(1, 1, 1)


POINTS = torch.tensor([[0.1], [0.5], [-0.7], [1.2]])


def by_autograd(f, x, weights=None):
    """The constant by automatic differentiation in float64."""
    return constant(f.to(dtype=torch.float64), x.double(), None if weights is None else weights.double()).item()


def test_equal_tokens_beside_a_sink_that_nobody_sees():
    """The mean of equal tokens: constant 1, whatever the logits, as long as they are far above the sink."""
    for method in ["dense", "lanczos"]:
        for memory in [2**30, 1]:
            for size in [1e2, 1e4, 1e6, 1e10]:
                f, x = Attention(ONE, ONE, ONE, sinks=torch.zeros(1)), torch.full((5, 1), size**0.5)
                answer = local_lipschitz(f, x, memory=memory, method=method)
                assert answer.value.item() == pytest.approx(1, rel=1e-5) and answer.upper.item() >= 1


def test_a_bias_that_changes_no_derivative_costs_no_digits():
    for method in ["dense", "lanczos"]:
        for memory in [2**30, 1]:
            for bias in ["value_bias", "key_bias", "output_bias"]:
                f = Attention(ONE, ONE, ONE)
                truth = by_autograd(f, POINTS)
                biased = Attention(
                    ONE, ONE, ONE, ONE, **{bias: torch.full((1,) if bias == "output_bias" else (1, 1), 1e6)}
                )
                answer = local_lipschitz(biased, POINTS, memory=memory, method=method)
                assert answer.value.item() == pytest.approx(truth, rel=1e-5)


def test_a_key_bias_that_changes_derivatives_is_kept():
    for added in [{"score": "l2"}, {"cap": 2.0}, {"sinks": torch.zeros(1)}]:
        f = Attention(ONE, ONE, ONE, key_bias=torch.ones(1, 1), **added)
        answer = local_lipschitz(f, POINTS, memory=1)
        assert answer.value.item() == pytest.approx(by_autograd(f, POINTS), rel=1e-5)
        assert answer.value.item() != pytest.approx(by_autograd(f.replace(key_bias=None), POINTS), rel=1e-2)


def test_sinks_that_take_nearly_all_leave_a_constant_that_is_found():
    """Squares of it underflow in float32, and it is found in float64; at 50 they are just above zero."""
    for memory in [2**30, 1]:
        for sink in [40.0, 50.0, 55.0, 60.0, 80.0, 100.0]:
            generator = torch.Generator().manual_seed(0)
            query, key, value = (torch.randn(1, 4, 4, generator=generator) for _ in range(3))
            f, x = Attention(query / 4, key, value, sinks=torch.tensor([sink])), torch.randn(40, 4, generator=generator)
            answer, truth = local_lipschitz(f, x, memory=memory), by_autograd(f, x)
            assert answer.value.item() == pytest.approx(truth, rel=1e-4) and answer.upper.item() >= truth * (1 - 1e-6)
            assert truth < 1e-12 and answer.precision == ("input" if sink < 50 else "float64")


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
        truth = by_autograd(f, x)
        for memory in (2**30, 1):
            answer = local_lipschitz(f, x, memory=memory, rtol=1e-6)
            assert answer.value.item() == pytest.approx(truth, rel=2e-6 if scale == 1 else 1e-3)
