"""The names that others call: they take these arguments, answer in these shapes. Doors: tests/lipscan/test_doors.py."""

import math

import pytest
import torch
from cases import constant, normal

import lipnb
from lipnb import bounds

A, V, X = normal(3, 3), normal(2, 3, seed=1), normal(4, 3, seed=2)
QUERY, KEY, VALUE, OUTPUT = (normal(*shape, seed=3) for shape in ((2, 2, 3), (2, 2, 3), (2, 2, 3), (2, 3, 2)))
BIASES = {"query_bias": normal(2, 2), "key_bias": normal(2, 2), "value_bias": normal(2, 2), "output_bias": normal(3)}
WEIGHTS = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)


def test_attention_is_made_in_three_ways():
    f = lipnb.Attention(QUERY, KEY, VALUE, OUTPUT, **BIASES, scale=0.5, masked=True, score="dot")
    assert f(X).shape == (4, 3) and f(X.expand(2, 5, 4, 3)).shape == (2, 5, 4, 3)
    assert lipnb.Attention(QUERY, KEY, VALUE)(X, weights=WEIGHTS).shape == (4, 4)  # heads side by side
    assert lipnb.Attention(QUERY, KEY, VALUE, score="l2")(X).shape == (4, 4)
    one = lipnb.Attention.from_matrices(A, V, masked=False)
    assert torch.allclose(one(X), (X @ A.mT @ X.mT).softmax(-1) @ X @ V.mT)
    tied = lipnb.Attention.l2(QUERY, VALUE, OUTPUT, masked=False)
    assert torch.equal(tied.query, tied.key) and tied(X).shape == (4, 3)


def test_the_jacobian_has_products_and_a_dense_twin():
    f = lipnb.Attention.from_matrices(A, V)
    J = lipnb.AttentionJacobian(f, X, weights=None)
    dense = J.dense()
    assert tuple(J.shape) == tuple(dense.shape) == (4 * 2, 4 * 3)
    assert torch.allclose(J.jvp(X).flatten(), dense @ X.flatten())
    assert torch.allclose(J.vjp(f(X)).flatten(), dense.mT @ f(X).flatten())
    assert lipnb.AttentionJacobian(f, X.expand(2, 4, 3), weights=WEIGHTS).jvp(X.expand(2, 4, 3)).shape == (2, 4, 2)


def test_the_local_constant():
    for method in ["lanczos", "power", "dense"]:
        for f in [lipnb.Attention.from_matrices(A, V), torch.tanh]:
            found = lipnb.local_lipschitz(f, X, weights=None, rtol=1e-4, max_steps=None, seed=0, method=method)
            assert found.value.shape == found.residual.shape == found.steps.shape == found.converged.shape == ()
            exact = constant(f, X)
            assert found.converged and abs(found.value / exact - 1) < 1e-4
            assert lipnb.local_lipschitz(f, X.expand(2, 4, 3), method=method).value.shape == (2,)


def test_the_local_constant_between_measures_is_below_its_certificate():
    f = lipnb.Attention.from_matrices(A, V)
    assert lipnb.local_lipschitz(f, X, weights=WEIGHTS).value == pytest.approx(constant(f, X, WEIGHTS).item(), rel=1e-4)
    bracket = lipnb.certify(f, X)
    assert bracket.lower <= constant(f, X) <= bracket.upper


# each bound, called as the papers' letters say; one number each
n, R = 4, 1.5
BOUNDS = {
    "general_upper": (A, V, n, R),
    "general_upper_sharp": (A, V, n, R),
    "general_lower": (A, n, R),
    "spread_upper": (A, V, X),
    "mean_field_upper": (A, V, R),
    "mean_field_upper_sharp": (A, V, R),
    "mean_field_lower": (A, R),
    "mean_field_upper_exact": (A, V, R),
    "mean_field_lower_exact": (A, V, R),
    "general_lower_pair": (A, V, n, R),
    "masked_mean_field_upper": (A, V, R),
    "masked_mean_field_upper_sharp": (A, V, R),
    "masked_mean_field_upper_exact": (A, V, R),
    "large_radius_limit": (lipnb.Attention.from_matrices(A, V), X),
    "multi_head_upper": (OUTPUT, torch.tensor([1.0, 2.0], dtype=torch.float64)),
    "biased_upper": (A, V, n, R, normal(3)),
    "l2_upper": (QUERY, VALUE, OUTPUT, n, 2),
    "general_upper_exact": (A, V, n, R),
    "general_upper_optimal": (A, V, n, R),
    "ball_upper": (lipnb.Attention(QUERY, KEY, VALUE, OUTPUT, **BIASES, masked=True), n, R),
}


def test_a_bound_is_a_number():
    for name in BOUNDS:
        value = float(getattr(bounds, name)(*BOUNDS[name]))
        assert 0 < value < math.inf
        if "mean_field" in name or name == "general_upper_exact":
            assert getattr(bounds, name)(*BOUNDS[name], log=True) == pytest.approx(math.log(value))
    assert bounds.l2_upper(QUERY, VALUE, OUTPUT, n, torch.inf) > 0
    assert bounds.masked_mean_field_upper(A, V, R, p=3, log=False) > 0


def test_the_bound_of_a_layer_knows_layer_norms_and_logarithms():
    f, shape = lipnb.Attention(QUERY, KEY, VALUE, OUTPUT, **BIASES), (torch.ones(3), torch.zeros(3))
    assert bounds.ball_upper(f, n, math.inf, ellipsoid=shape) <= bounds.ball_upper(f, n, 3**0.5) * (1 + 1e-9)
    assert bounds.ball_upper(f, n, R, log=True) == pytest.approx(math.log(bounds.ball_upper(f, n, R)))


def test_the_roughest_input_of_a_ball():
    f = lipnb.Attention(QUERY, KEY, VALUE, OUTPUT, masked=True)
    found = lipnb.worst_case.on_ball(f, 4, R, seed=0, effort=1)
    assert found.x.shape == (4, 3) and isinstance(found.kind, str) and isinstance(found.value, float)
    assert lipnb.local_lipschitz(f, found.x).value.item() == pytest.approx(found.value, rel=2e-4)


def test_reference_cases_are_attentions_with_their_constants():
    cases = lipnb.reference_cases()
    assert isinstance(cases, tuple) and len(cases) >= 30
    case = cases[0]
    assert isinstance(case.attention, lipnb.Attention) and case.attention(case.x).shape[0] == len(case.x)
    assert {"float64", "float32"} == case.tolerance.keys() and case.kind in ("local", "limit", "ball")
    assert case.name and case.formula and case.proof and case.source and case.weights is None
    assert lipnb.local_lipschitz(case.attention, case.x).value == pytest.approx(case.value)
