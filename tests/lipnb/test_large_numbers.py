"""Constants where attention is nearly hard, where sinks take nearly all, and beside biases that dwarf the tokens."""

import itertools

import pytest
import torch
from cases import constant

from lipnb import Attention, certify, local_lipschitz
from lipnb.spectral import lanczos, start_vectors

ONE = torch.ones(1, 1, 1)
POINTS = torch.tensor([[0.1], [0.5], [-0.7], [1.2]])


def by_autograd(f, x, weights=None):
    """The constant by automatic differentiation in float64."""
    return constant(f.to(dtype=torch.float64), x.double(), None if weights is None else weights.double()).item()


def test_nearly_hard_attention_far_from_the_origin():
    """Logits of 4e4 in float32: their rounding is far above the tolerance, and moves the constant by little."""
    for memory in [2**30, 1]:
        for kind in ["plain", "weights", "relative", "window", "sinks", "cap", "masked"]:
            generator = torch.Generator().manual_seed(1)
            x, eye = torch.randn(64, 4, generator=generator) + 100, torch.eye(4)[None]
            weights = torch.rand(64, generator=generator) + 0.1
            f = {
                "relative": Attention(eye, eye, eye, relative=torch.randn(1, 9, generator=generator)),
                "window": Attention(eye, eye, eye, window=5),
                "sinks": Attention(eye, eye, eye, sinks=torch.tensor([2e4])),
                "cap": Attention(eye, eye, eye, cap=50.0, scale=1e-2),
                "masked": Attention(eye, eye, eye, masked=True),
            }.get(kind, Attention(eye, eye, eye))
            weights = weights if kind == "weights" else None
            truth = by_autograd(f, x, weights)
            answer = local_lipschitz(f, x, weights=weights, memory=memory)
            assert answer.route == ("streamed" if memory == 1 else "cached")
            assert answer.value.item() == pytest.approx(truth, rel=1e-2)


def test_streamed_rows_of_logits_of_a_trillion_sum_to_one():
    generator = torch.Generator().manual_seed(2)
    x, eye = 1e5 * torch.randn(64, 4, generator=generator).double(), torch.eye(4)[None].double()
    weights = torch.rand(64, generator=generator).double() + 0.1
    streamed, cached = (local_lipschitz(Attention(eye, eye, eye), x, weights=weights, memory=m) for m in (1, 2**30))
    assert streamed.route == "streamed" and cached.route == "cached"
    assert streamed.value.item() == pytest.approx(cached.value.item(), rel=1e-3)


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


def test_products_that_underflow_are_not_certified():
    for factor in [1e-20, 1e-21, 1e-22, 3e-23]:
        factors = factor * torch.linspace(0.1, 1, 200)
        found = lanczos(lambda u: factors**2 * u, start_vectors(1, 200, seed=0, dtype=torch.float32, device="cpu"))
        assert found.precision_limited.all() and found.upper.isinf().all() or found.value.item() == 0


def test_float64_certifies_nothing_whose_squares_underflow():
    generator = torch.Generator().manual_seed(0)
    x, eye = torch.randn(40, 3, generator=generator).double(), torch.eye(3).double()[None]
    A = torch.randn(1, 3, 3, generator=generator).double()
    for sink, method in itertools.product([190.0, 200.0, 210.0, 400.0], ["lanczos", "power"]):
        f = Attention(A, eye, eye, sinks=torch.tensor([sink]).double())
        answer, truth = local_lipschitz(f, x, method=method), by_autograd(f, x)
        certified = answer.converged.item() and answer.upper.item() < torch.inf
        assert answer.value.item() == 0 or not answer.converged or answer.value.item() == pytest.approx(truth, rel=1e-4)
        assert not certified or answer.upper.item() >= truth or (answer.value.item() == 0 and truth < 1e-146)


def test_certify_answers_where_products_leave_float64():
    x, eye = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).double(), torch.eye(3).double()[None]
    for sink in (300.0, 380.0, 700.0):
        bracket = certify(Attention(0 * eye, eye, eye, sinks=torch.tensor([sink]).double()), x)
        assert bracket.lower.item() <= 40 * 2.8**-sink <= bracket.upper.item()


def test_particles_whose_coordinates_differ_in_size_keep_all_of_their_logits():
    """A direction of keys is small beside the others, and of the logits as large as they: it is not left out."""
    points = 2 * torch.rand(3000, 2, generator=torch.Generator().manual_seed(0)) - 1
    for small, dtype in itertools.product([1e-6, 1e-9, 1e-15], [torch.float32, torch.float64]):
        x = (points.double() * torch.tensor([1.0, small**-0.5], dtype=torch.float64)).to(dtype)
        f = Attention.from_matrices(*(torch.diag(torch.tensor([1.0, s], dtype=dtype)) for s in (small, small**0.5)))
        separable, exact = local_lipschitz(f, x, memory=1), local_lipschitz(f, x, memory=2**40)
        assert separable.route == "separable" and exact.route == "cached"
        assert separable.upper.item() >= exact.value.item() * (1 - 1e-5)
        assert separable.value.item() == pytest.approx(exact.value.item(), rel=2e-4)


def test_a_kernel_is_no_coarser_than_the_answer_asked_for():
    x, one = torch.randn(3000, 1, generator=torch.Generator().manual_seed(0)).double(), torch.ones(1, 1).double()
    f = Attention.from_matrices(one, one)
    routes = {rtol: local_lipschitz(f, x, memory=1, rtol=rtol) for rtol in (1e-4, 1e-11, 1e-13)}
    assert routes[1e-4].route == "separable" and routes[1e-13].route == "streamed"
    exact = local_lipschitz(f, x, memory=2**40, rtol=1e-13)
    for rtol, answer in routes.items():
        assert answer.upper.item() >= exact.value.item() * (1 - 1e-14)
        assert answer.value.item() == pytest.approx(exact.value.item(), rel=2 * rtol + 1e-12)


def test_lowered_float32_products_are_certified_with_their_own_rounding():
    matrix = torch.randn(400, 400, generator=torch.Generator().manual_seed(0))
    Q, R = (torch.linalg.qr(part).Q for part in (matrix, matrix.mT))
    M = (Q * torch.linspace(0, 1, 400)) @ R.mT
    before, answers = torch.get_float32_matmul_precision(), {}
    try:
        for precision in ("highest", "high"):
            torch.set_float32_matmul_precision(precision)
            answers[precision] = local_lipschitz(lambda x: x @ M, torch.zeros(1, 400), confidence=1 - 1e-9)
    finally:
        torch.set_float32_matmul_precision(before)
    for answer in answers.values():
        assert not answer.converged and answer.upper.isinf()


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


def test_a_far_value_that_all_rows_weigh_little_is_weighed_right():
    x = (torch.randn(900, 3, generator=torch.Generator().manual_seed(0)) * 0.4).clamp(-1, 1)
    x[0] = torch.tensor([4.0, 4.0, 1e6])
    query, key = torch.tensor([[[1.0, -1, 0], [-1, 1, 0]]]), torch.tensor([[[1.0, 0, 0], [0, 1, 0]]])
    f = Attention(query, key, torch.tensor([[[0.0, 0, 1]]]), query_bias=torch.tensor([[-1.5, -1.5]]), scale=1.0)
    answer, exact = (local_lipschitz(f, x, rtol=1e-2, memory=memory) for memory in (1, 2**30))
    assert exact.route == "cached" and answer.value.item() == pytest.approx(exact.value.item(), rel=2e-2)


def test_power_iteration_has_not_converged_where_squares_underflow():
    g = torch.Generator().manual_seed(1)
    q, k, v, x = (torch.randn(*s, generator=g).double() for s in ((1, 3, 3), (1, 3, 3), (1, 3, 3), (30, 3)))
    for sink in (200.0, 345.0):
        f = Attention(q * 0.5, k * 0.5, v, sinks=torch.tensor([sink]).double())
        answer = local_lipschitz(f, x, method="power")
        assert not answer.converged or answer.value.item() == pytest.approx(by_autograd(f, x), rel=1e-3)
    for method in ("power", "lanczos"):
        f32 = Attention(*(w.float() * s for w, s in ((q, 0.5), (k, 0.5), (v, 1))), sinks=torch.tensor([60.0]))
        assert local_lipschitz(f32, x.float(), method=method, confidence=None).value.item() > 0
