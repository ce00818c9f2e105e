"""Certificates, precisions, memory and lists of `local_lipschitz`, against dense values in float64."""

import itertools

import pytest
import torch
from cases import normal, random_case

from lipnb import Attention, local_lipschitz

GRID = [(seed, spread) for seed in (2, 4, 5, 9, 10) for spread in (0.3, 1.0, 4.0)]


def dense(attention, x, weights=None):
    return local_lipschitz(attention.to(dtype=torch.float64), x.double(), weights=weights, method="dense").value


def with_spectrum(values, dtype=torch.float64, masked=False):
    """Uniform attention: the singular values of the Jacobian are these, and zeros."""
    d = len(values)
    left, right = (torch.linalg.qr(normal(d, d, seed=s))[0] for s in (1, 2))
    zero = torch.zeros(1, 2, d, dtype=torch.float64)
    value = left @ torch.diag(torch.as_tensor(values, dtype=torch.float64)) @ right.mT
    return Attention(zero, zero, value[None], masked=masked).to(dtype=dtype)


@pytest.fixture(params=[(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=["float64", "float32"])
def precision(request):
    """Type of the input, and the error to expect of the value."""
    return request.param


def test_every_precision_meets_the_tolerance(precision):
    dtype, rounding = precision
    for seed, spread in GRID:
        f, x, heavy = random_case(seed, n=12, spread=spread, dtype=dtype)
        exact = dense(f, x, None if heavy is None else heavy.double())
        for rtol, options in itertools.product((1e-2, 1e-4), ({}, {"memory": 1}, {"method": "dense"})):
            lip = local_lipschitz(f, x, weights=heavy, rtol=rtol, **options)
            assert lip.converged.all() and lip.confidence == (1.0 if "method" in options else 1 - 1e-6)
            assert (lip.value >= exact * (1 - rtol - rounding)).all() and (
                lip.value <= exact * (1 + 4 * rounding)
            ).all()
            assert (lip.upper >= exact * (1 - rounding)).all()
            assert dtype == torch.float32 or (lip.upper <= lip.value * (1 + rtol) * (1 + 1e-12)).all()
        wide = local_lipschitz(f, x, weights=heavy, max_steps=3)
        assert (wide.upper >= exact * (1 - rounding)).all() and (wide.value <= exact * (1 + 4 * rounding)).all()
        assert (wide.upper > wide.value).all() and torch.isfinite(wide.upper).all()


def test_without_confidence_nothing_is_certified():
    case = random_case(5, n=20)
    lip = local_lipschitz(case.attention, case.x, weights=case.weights, confidence=None)
    sure = local_lipschitz(case.attention, case.x, weights=case.weights, confidence=0.9)
    assert lip.confidence is None and torch.isinf(lip.upper).all() and lip.converged.all()
    assert sure.confidence == 0.9 and torch.isfinite(sure.upper).all()
    assert lip.steps.sum() <= sure.steps.sum()
    power = local_lipschitz(case.attention, case.x, weights=case.weights, method="power")
    assert power.confidence is None and torch.isinf(power.upper).all()
    few = local_lipschitz(case.attention, case.x, weights=case.weights, confidence=None, max_steps=2)
    assert torch.isinf(few.upper).all() and not few.converged.any()


def test_more_confidence_costs_more_products():
    case = random_case(14, n=30)
    steps = [local_lipschitz(case.attention, case.x, confidence=c).steps.sum() for c in (0.5, 0.99, 1 - 1e-12)]
    assert steps[0] < steps[1] < steps[2]


SPECTRA = {
    "repeated": [2.0] * 6 + [1.0] * 14,
    "gap 1e-8": [1.0, 1 - 1e-8] + [0.5] * 18,
    "gap 1e-3": [1.0, 0.999] + [0.5] * 18,
    "rank one": [3.0] + [0.0] * 19,
    "zero": [0.0] * 20,
    "all equal": [1.0] * 20,
    "near": [1 - 1e-4 * i for i in range(20)],
    "graded": [10.0**-i for i in range(20)],
}


def test_adversarial_spectra(precision):
    for method in ["lanczos", "power", "dense"]:
        for name in SPECTRA:
            dtype, rounding = precision
            top, rtol = max(SPECTRA[name]), 1e-4
            for n in (1, 6):
                x = normal(2, n, 20).to(dtype)
                for scale in (1e-20, 1.0, 1e20):
                    attention = with_spectrum([scale * value for value in SPECTRA[name]], dtype)
                    lip = local_lipschitz(attention, x, method=method, max_steps=100 if method == "power" else None)
                    for field in (lip.value, lip.residual, lip.upper):
                        assert not field.isnan().any()
                    # many close values: power iteration stops at any of them, as its residual says
                    right = lip.value >= scale * top * (1 - rtol - 4 * rounding)
                    assert (right | ~lip.converged | torch.tensor(method == "power")).all()
                    assert right.all() or method == "power" and name in ("gap 1e-3", "near")
                    assert (lip.value <= scale * top * (1 + 8 * rounding)).all()
                    assert (lip.upper >= scale * top * (1 - 8 * rounding)).all()


def test_units_of_the_matrices_change_nothing_but_the_unit_of_the_answer(precision):
    """Key and query matrices in inverse units are the same map; values in other units scale the answer."""
    for method in ["lanczos", "power", "dense"]:
        dtype, rounding = precision
        for seed in (2, 4, 7, 9):
            case = random_case(seed, n=8, dtype=torch.float64)
            att = case.attention

            def built(query=1.0, key=1.0, value=1.0, att=att):
                tensors = (att.query * query, att.key * key, att.value * value, att.output)
                return Attention(*tensors, masked=att.masked).to(dtype=dtype)

            exact = dense(built(), case.x.to(dtype))
            for power in (-20, -12, 12, 20):
                unit = 10.0**power
                for options, factor in (({"value": unit}, unit), ({"query": unit, "key": 1 / unit}, 1)):
                    lip = local_lipschitz(built(**options), case.x.to(dtype), method=method)
                    assert ((lip.value / factor / exact - 1).abs() <= 1.1e-4).all() or not lip.converged.all()
                    assert not lip.value.isnan().any() and (lip.upper >= exact * factor * (1 - 1e-4)).all()


def test_logits_of_any_size_give_hard_or_uniform_attention(precision):
    for unit in [1e-20, 1e-3, 30.0, 1e4, 1e6, 1e20]:
        dtype, rounding = precision
        for seed in (2, 4, 7):
            case = random_case(seed, n=8)
            att = case.attention
            scaled = Attention(att.query * unit, att.key, att.value, att.output, masked=att.masked).to(dtype=dtype)
            exact = dense(scaled, case.x.to(dtype))
            for method in ("lanczos", "power", "dense"):
                lip = local_lipschitz(scaled, case.x.to(dtype), method=method, rtol=1e-3)
                assert not lip.value.isnan().any()
                assert (((lip.value / exact - 1).abs() <= 1.1e-3) | ~lip.converged).all()


def test_tokens_in_other_units_are_the_same_map():
    """x / s with the value, query and key matrices times s, and with the query alone times s^2."""
    for power in [-20, -12, 12, 20]:
        for options in [{}, {"memory": 1}, {"method": "power"}, {"method": "dense"}]:
            unit = 10.0**power
            for seed in (2, 7):
                case = random_case(seed, n=8)
                att = case.attention
                plain = Attention(att.query, att.key, att.value, att.output, masked=att.masked)
                exact = dense(plain, case.x)
                for query, key in ((1 / unit, 1 / unit), (1 / unit**2, 1.0), (1.0, 1 / unit**2)):
                    scaled = Attention(
                        att.query * query, att.key * key, att.value / unit, att.output, masked=att.masked
                    )
                    lip = local_lipschitz(scaled, case.x * unit, **options)
                    assert ((lip.value * unit / exact - 1).abs() <= 1.1e-4).all()


def test_a_list_of_mixed_lengths_gives_each_of_its_answers_in_order():
    for number, options in enumerate(
        [{}, {"method": "power"}, {"memory": 1}, {"confidence": None}, {"method": "dense"}]
    ):
        f, x, _ = random_case((0, 2, 5, 7)[number % 4])
        x = [normal(n, f.width, seed=i) for i, n in enumerate([9, 3, 12, 9, 1, 12, 5, 9])]
        weights = [tokens[:, 0].exp() for tokens in x]
        for given, heavy in ((x, None), (x, weights), (tuple(x), tuple(weights))):
            together = local_lipschitz(f, given, weights=heavy, **options)
            assert together.value.shape == together.steps.shape == (8,)
            routes = set()
            for i, tokens in enumerate(x):
                alone = local_lipschitz(f, tokens, weights=None if heavy is None else heavy[i], **options)
                routes.add(alone.route)
                assert abs(together.value[i] / alone.value - 1) < 1e-7 and together.converged[i] == alone.converged
                assert together.steps[i] == alone.steps and together.confidence == alone.confidence
                assert together.upper[i] == alone.upper or abs(together.upper[i] / alone.upper - 1) < 1e-7
            assert together.route == " + ".join(sorted(routes))
