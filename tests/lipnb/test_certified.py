"""The bracket holds the dense value, on both sides, whatever is treated exactly."""

import pytest
import torch
from cases import KINDS, covering, derivative, every_kind, extreme_case, normal, random_case, relative, weighted

from lipnb import Attention, local_lipschitz
from lipnb.bounds import nearby_upper
from lipnb.certified import certify


def dense(case):
    return local_lipschitz(case.attention, case.x, weights=case.weights, method="dense").value


@pytest.mark.parametrize("columns", [0, 30, None])
@pytest.mark.parametrize("seed", range(6))
def test_the_dense_value_lies_inside(seed, columns):
    case = random_case(seed, n=9, spread=(4.0, 0.3, 1.0)[seed % 3])
    exact, found = dense(case), certify(case.attention, case.x, weights=case.weights, columns=columns)
    room = 1e-13 * exact  # of the dense value itself
    assert (found.lower <= exact + room).all() and (exact <= found.upper + room).all()
    assert (found.lower >= exact * (1 - 2e-4)).all()
    assert (found.ratio >= 1).all() and (found.ratio < (1.001 if columns is None else 7)).all()
    parts = torch.hypot(found.columns_norm, found.query + found.key + found.value) + found.rounding
    assert torch.allclose(parts, found.upper, rtol=1e-12)


def test_zero_one_token_and_equal_tokens():
    zero = torch.zeros(1, 3, 3, dtype=torch.float64)
    eye = torch.eye(3, dtype=torch.float64)[None]
    x = normal(4, 3)
    for columns in (0, 5, None):
        nothing = certify(Attention(eye, eye, zero), x, columns=columns)
        assert nothing.lower == 0 and nothing.upper == 0 and nothing.ratio == 1
        one = certify(Attention(eye, eye, 2 * eye), x[:1], columns=columns)
        assert one.lower <= 2 <= one.upper and one.ratio < 1 + 1e-6
        same = certify(Attention(eye, eye, 2 * eye), x[:1].expand(4, 3), columns=columns)
        assert same.lower <= 2 * (1 + 1e-12) and same.upper >= 2


@pytest.mark.parametrize("columns", [None, 0, 3, 1000])
@pytest.mark.parametrize("faint", [0.0, 1e-200])
def test_no_head_with_both_values_and_outputs(faint, columns):
    """Zeros raised; Frobenius norms of the others became zero, and divided."""
    (query, key, value, output), x = normal(4, 2, 2, 2), normal(3, 2, seed=1)
    whole = certify(Attention(query, key, value, output), x, columns=columns)
    value[1] *= faint
    output[0] *= faint
    found = certify(Attention(query, key, value, output), x, columns=columns)
    if faint == 0:
        assert found.lower == found.upper == 0
    else:  # the map is as good as another: both heads in units that are alike
        assert torch.allclose(found.upper / faint, whole.upper, rtol=1e-6)
        assert torch.allclose(found.lower / faint, whole.lower, rtol=1e-3)


def test_a_head_too_faint_to_see_changes_nothing():
    (query, key, value, output), x = normal(4, 2, 2, 2, seed=1), normal(3, 2)
    one = certify(Attention(query[:1], key[:1], value[:1], output[:1]), x)
    value[1], output[1] = value[1] * 2.0**-700, output[1] * 2.0**-700
    found = certify(Attention(query, key, value, output), x)
    assert torch.allclose(found.upper, one.upper, rtol=1e-7) and torch.allclose(found.lower, one.lower, rtol=1e-3)


def test_tokens_that_are_all_zero():
    """Then no query counts, however large its matrix: the map is V times the mean."""
    for size, bias in [(1e200, None), (1e300, 1e-300), (1e300, 1.0)]:
        query, key, value = normal(3, 1, 2, 2)
        bias = None if bias is None else torch.full((1, 2), bias, dtype=torch.float64)
        f, x = Attention(size * query, key, value, query_bias=bias), torch.zeros(3, 2, dtype=torch.float64)
        exact, found = torch.linalg.matrix_norm(value[0], 2), certify(f, x)
        assert found.lower <= exact * (1 + 1e-12) and exact <= found.upper and found.ratio < 1.001
        assert (nearby_upper(f, x, [0.0, 1e-200, 1.0]).best >= torch.tensor([0, 1e-200, 1]) * exact).all()


@pytest.mark.parametrize("start", range(0, 80, 20))
def test_every_finite_input_has_an_answer(start):
    for seed in range(start, start + 20):
        attention, x, weights, columns = extreme_case(seed)
        found = certify(attention, x, weights=weights, columns=columns)
        assert 0 <= found.lower <= found.upper, seed
        assert not torch.stack([one.double() for one in vars(found).values()]).isnan().any(), seed
        near = nearby_upper(attention, x, [0.0, 5e-324, 1e-160, 1.0, 1e160, 1.7e308])
        assert all((one >= 0).all() for one in near), seed  # no NaN
        assert weights is not None or found.lower <= near.local, seed


def test_what_no_factorisation_finds_is_unknown(monkeypatch):
    import lipnb.bounds.columns

    def fails(*_):
        raise torch.linalg.LinAlgError("no end")

    monkeypatch.setattr(lipnb.bounds.columns, "three_terms", fails)
    case = random_case(3, n=3)
    found = certify(case.attention, case.x[0])
    assert found.lower == 0 and found.upper == torch.inf


def test_a_batch_is_each_of_its_sequences():
    case = random_case(10, n=5)
    x = torch.stack([case.x, case.x.flip(1)])
    together = certify(case.attention, x, columns=10)
    assert together.lower.shape == together.upper.shape == together.columns.shape == (2, 2)
    alone = certify(case.attention, x[1, 0], columns=10)
    assert alone.upper.shape == ()
    assert torch.allclose(together.upper[1, 0], alone.upper, rtol=1e-12)
    weights = torch.tensor([1.0, 2.0, 1.0, 0.5, 3.0], dtype=torch.float64)
    shared = certify(case.attention, x[0], weights=weights, columns=10)
    assert torch.allclose(shared.upper[0], certify(case.attention, x[0, 0], weights=weights, columns=10).upper)


def test_a_bad_solver_leaves_the_bracket_true(monkeypatch):
    import lipnb.certified
    from lipnb.spectral import SpectralNorm

    def unfinished(gram, start, **options):
        return SpectralNorm(None, None, None, None, None, vector=5 * start)

    monkeypatch.setattr(lipnb.certified, "lanczos", unfinished)
    monkeypatch.setattr(lipnb.certified, "SMALL", 0)
    case = random_case(11, n=5)
    found = certify(case.attention, case.x)
    assert (0 < found.lower).all() and (found.lower < dense(case)).all() and (dense(case) <= found.upper).all()


DOT = [kind for kind in KINDS if covering()[kind]["score"] == "dot"]


@pytest.mark.parametrize("kind", DOT)
def test_the_constant_lies_in_its_bracket(kind):
    """Whatever is treated exactly, and in units that are far apart."""
    f, x, weights = every_kind(kind, n=min(6, covering()[kind]["tokens"]))
    norm = torch.linalg.matrix_norm(weighted(derivative(f, x, weights), x, weights), 2)
    for columns in (0, 5, None):
        found = certify(f, x, weights=weights, columns=columns)
        assert (found.lower <= norm * (1 + 1e-12)).all() and (norm <= found.upper * (1 + 1e-12)).all()
        assert (found.ratio < (1.0001 if columns is None else 12)).all() and (found.rounding < 1e-5 * norm).all()
    unit, closed = 2.0**40, certify(f, x, weights=weights, columns=0).upper
    far = f.replace(query=f.query / unit, key=f.key / unit, value=f.value / unit)
    assert relative(unit * certify(far, unit * x, weights=weights, columns=0).upper, closed) < 1e-6


def test_certify_answers_where_products_leave_float64():
    x, eye = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).double(), torch.eye(3).double()[None]
    for sink in (300.0, 380.0, 700.0):
        bracket = certify(Attention(0 * eye, eye, eye, sinks=torch.tensor([sink]).double()), x)
        assert bracket.lower.item() <= 40 * 2.8**-sink <= bracket.upper.item()
