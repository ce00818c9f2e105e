"""The bracket holds the dense value, on both sides, whatever is treated exactly."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cases import extreme_case, normal, random_case

from lipnb import Attention, local_lipschitz
from lipnb.bounds import nearby_upper, three_terms
from lipnb.bounds.columns import sizes_of_columns
from lipnb.bounds.rounded_linearization import RoundedLinearization
from lipnb.bounds.upper_norms import largest_singular, length
from lipnb.certified import certify

ROOT = Path(__file__).parents[2]


def dense(case):
    return local_lipschitz(case.attention, case.x, weights=case.weights, method="dense").value


def test_the_dense_value_lies_inside():
    for columns in [0, 30, None]:
        for spread in [0.3, 1.0, 4.0]:
            for seed in range(24 if columns is not None else 6):
                case = random_case(seed, spread=spread)
                exact, found = dense(case), certify(case.attention, case.x, weights=case.weights, columns=columns)
                room = 1e-13 * exact  # of the dense value itself
                assert (found.lower <= exact + room).all() and (exact <= found.upper + room).all(), (seed, spread)
                assert (found.lower >= exact * (1 - 2e-4)).all(), (seed, spread)
                assert (found.ratio >= 1).all() and (found.ratio < (1.001 if columns is None else 7)).all(), (
                    seed,
                    spread,
                )
                parts = torch.hypot(found.columns_norm, found.query + found.key + found.value) + found.rounding
                assert torch.allclose(parts, found.upper, rtol=1e-12)


def test_more_columns_close_the_bracket():
    case = random_case(7, n=8)
    d = case.x.shape[-1]
    ratios = [certify(case.attention, case.x, columns=c).ratio.max() for c in (0, 3 * d, 6 * d, 8 * d)]
    assert ratios[0] > 1.2 and ratios[-1] < 1 + 1e-3
    found = certify(case.attention, case.x, columns=10**9)
    assert (found.columns == 8 * d).all() and (found.query == 0).all()
    assert torch.allclose(found.columns_norm, dense(case), rtol=1e-6)


def test_one_map_in_other_units():
    """Tokens in other units, the matrices in the inverse ones: the same Jacobian up to the units of the value."""
    for columns in [0, 12, None]:
        for power in [-20, -8, 8, 20]:
            case, unit = random_case(3, n=6), 10.0**power
            att = case.attention
            scaled = att.replace(query=att.query / unit, key=att.key / unit, value=att.value / unit)
            here, there = certify(att, case.x, columns=columns), certify(scaled, case.x * unit, columns=columns)
            assert torch.allclose(there.upper * unit, here.upper, rtol=1e-6)
            assert torch.allclose(there.lower * unit, here.lower, rtol=1e-3)
            big = Attention(att.query, att.key, att.value * unit, att.output, masked=att.masked)
            plain = Attention(att.query, att.key, att.value, att.output, masked=att.masked)
            expected = certify(plain, case.x, columns=columns).upper
            assert torch.allclose(certify(big, case.x, columns=columns).upper / unit, expected, rtol=1e-6)


def test_tokens_so_large_that_attention_is_hard():
    """At 1e20 every row picks itself by far: the map is the identity."""
    V = torch.eye(2, dtype=torch.float64)
    x = 1e20 * torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    found = certify(Attention.from_matrices(V, V), x)
    assert found.lower <= 1 <= found.upper < torch.inf
    found = certify(Attention.from_matrices(V, V), x / 1e17)  # 1e3: exp(-1e6) is zero already
    assert found.lower <= 1 <= found.upper and found.ratio < 1.01


def test_attention_that_float64_does_not_resolve_is_said():
    V, turn = torch.eye(2, dtype=torch.float64), torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    line = torch.tensor([[1.0], [2.0], [-0.5]], dtype=torch.float64)
    x = line * torch.tensor([1 / 3, 0.7], dtype=torch.float64)  # all logits are 0
    found = certify(Attention.from_matrices(turn, V), 1e12 * x)
    assert found.upper == torch.inf and found.lower == 0 and found.rounding == torch.inf


def test_units_at_the_ends_of_float64():
    """Values so large or so small that products over- or underflow: still a bracket, or [0, inf]."""
    for power in [-1000, -500, 500, 1000]:
        case, unit = random_case(3, n=4), 2.0**power
        att = case.attention
        plain = Attention(att.query, att.key, att.value, att.output, masked=att.masked)
        one = certify(plain, case.x[0])
        far = Attention(att.query / unit, att.key / unit, att.value, att.output, masked=att.masked)
        found = certify(far, case.x[0] * unit)
        assert found.ratio < 1 + 1e-6
        assert torch.allclose(found.upper, one.upper, rtol=1e-6)
        heavy = certify(Attention(att.query, att.key, att.value * unit, att.output, masked=att.masked), case.x[0])
        assert heavy.lower <= heavy.upper and (
            heavy.upper == torch.inf or torch.allclose(heavy.upper / unit, one.upper)
        )


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


def test_no_head_with_both_values_and_outputs():
    """Zeros raised; Frobenius norms of the others became zero, and divided."""
    for columns in [None, 0, 1, 3, 1000]:
        for faint in [0.0, 1e-200]:
            g = torch.Generator().manual_seed(0)
            query, key, value, output = torch.randn(4, 2, 2, 2, generator=g, dtype=torch.float64)
            x = torch.randn(3, 2, generator=g, dtype=torch.float64)
            plain = Attention(query, key, value.clone(), output.clone())
            value[1] *= faint
            output[0] *= faint
            found = certify(Attention(query, key, value, output), x, columns=columns)
            if faint == 0:
                assert found.lower == found.upper == 0
            else:  # the map is as good as another: both heads in units that are alike
                whole = certify(plain, x, columns=columns)
                assert torch.allclose(found.upper / faint, whole.upper, rtol=1e-6)
                assert torch.allclose(found.lower / faint, whole.lower, rtol=1e-3)


def test_a_head_too_faint_to_see_changes_nothing():
    g = torch.Generator().manual_seed(1)
    query, key, value, output = torch.randn(4, 2, 2, 2, generator=g, dtype=torch.float64)
    x = torch.randn(3, 2, generator=g, dtype=torch.float64)
    one = certify(Attention(query[:1], key[:1], value[:1], output[:1]), x)
    value[1] *= 2.0**-700
    output[1] *= 2.0**-700
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


def test_lengths_whose_squares_underflow():
    rows, five = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64), torch.tensor(5.0, dtype=torch.float64)
    for unit in (1.0, 2.0**-600, 2.0**-1000, 2.0**1000):
        for found in (length(rows * unit)[0], length(rows * unit, (-2, -1))):
            assert five * unit <= found <= five * unit * (1 + 1e-14)
        assert length(rows * unit)[1] == 0
    assert length(rows * 2.0**-1074)[0] == 5 * 2.0**-1074


def test_sums_that_no_count_of_rounding_covers_are_unknown():
    x = torch.zeros(1, 2**20 + 1, dtype=torch.float64)
    x[0, 0] = 1
    f = Attention(*x.expand(3, 1, 1, -1))
    found = certify(f, x, columns=0)
    assert found.lower == 0 and found.upper == torch.inf
    assert nearby_upper(f, x, [1.0]).best.item() == torch.inf
    found = certify(Attention(*x[:, 1:].expand(3, 1, 1, -1)), x[:, 1:], columns=0)
    assert found.upper < torch.inf


def test_singular_and_eigenvectors_may_be_wrong(monkeypatch):
    """All that is made of them is measured: vectors a thousandth too short gave a value term below the truth."""
    V = torch.diag(torch.tensor([1.0, 0.5, 0.25], dtype=torch.float64))
    x = normal(5, 3)
    at = RoundedLinearization(Attention.from_matrices(0 * V, V), x)  # uniform attention: the value term has norm 1
    assert 1 <= three_terms(at).value <= 1 + 1e-7
    svd, eigh = torch.linalg.svd, torch.linalg.eigh
    with monkeypatch.context() as patch:
        patch.setattr(torch.linalg, "eigh", lambda gram: SimpleNamespace(eigenvectors=0.999 * eigh(gram).eigenvectors))
        assert 1 <= three_terms(at).value <= 1.01
    with monkeypatch.context() as patch:
        patch.setattr(torch.linalg, "svd", lambda A, **how: (0.999 * (found := svd(A, **how))[0], *found[1:]))
        assert 1 <= three_terms(at).value <= 1.01


def test_every_finite_input_has_an_answer():
    for start in range(0, 80, 10):
        radii = [0.0, 5e-324, 1e-160, 1.0, 1e160, 1.7e308]
        for seed in range(start, start + 10):
            attention, x, weights, columns = extreme_case(seed)
            found = certify(attention, x, weights=weights, columns=columns)
            assert 0 <= found.lower <= found.upper, seed
            assert not torch.stack([one.double() for one in vars(found).values()]).isnan().any(), seed
            near = nearby_upper(attention, x, radii)
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


def test_float32_is_bracketed_in_float64():
    case = random_case(9, n=6, dtype=torch.float32)
    found = certify(case.attention, case.x, columns=0)
    exact = local_lipschitz(case.attention.to(dtype=torch.float64), case.x.double(), method="dense").value
    assert found.lower.dtype == torch.float64
    assert (found.lower <= exact).all() and (exact <= found.upper).all()
    assert (found.lower >= exact * (1 - 1e-4)).all()


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


def test_bad_input_is_said_in_one_sentence():
    for change, sentence in [
        ({"attention": lambda x: x}, "local_lipschitz"),
        ({"x": [[1.0]]}, r"must be a torch tensor, got list: use torch.as_tensor\(x\)"),
        ({"x": [torch.ones(3, 4).double()] * 2}, r"got list: give one of them at a time, or .* torch.stack\(x\)"),
        ({"x": torch.ones(3, 5, dtype=torch.float64)}, "d = 4"),
        ({"x": torch.ones(0, 4, dtype=torch.float64)}, "holds no token"),
        ({"x": torch.full((3, 4), torch.nan, dtype=torch.float64)}, "NaN"),
        ({"x": torch.ones(3, 4).half()}, r"x is torch.float16 .* use x.to\(attention.query\)"),
        ({"weights": torch.ones(3)}, r"weights are torch.float32 .*: use weights.to\(x\)"),
        ({"weights": torch.zeros(3, dtype=torch.float64)}, "weights must be positive"),
        ({"columns": -1}, "columns must be 0 or more"),
        ({"rtol": 0.0}, "rtol must lie"),
    ]:
        eye = torch.eye(4, dtype=torch.float64)
        good = {"attention": Attention.from_matrices(eye, eye), "x": torch.ones(3, 4, dtype=torch.float64)}
        with pytest.raises(ValueError, match=sentence):
            certify(**{**good, **change})


def test_a_factorisation_that_does_not_converge_leaves_the_trace(monkeypatch):
    def fails(*given):
        raise torch.linalg.LinAlgError("failed to converge")

    matrix = normal(3, 5, 4)
    exact = torch.linalg.matrix_norm(matrix, 2)
    monkeypatch.setattr(torch.linalg, "eigvalsh", fails)
    found = largest_singular(matrix)
    assert (found >= exact).all() and (found <= torch.linalg.matrix_norm(matrix) * (1 + 1e-9)).all()
    with pytest.raises(torch.linalg.LinAlgError):
        largest_singular(matrix / 0)


def test_what_columns_are_by_default_is_what_the_readme_says():
    """Of a layer of MiniLM's sizes: a thousand at 32 tokens; at 256 none, as with columns=0."""
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert "a thousand or so at these 32 tokens, none at 256, where `columns=0` changes nothing" in said
    f = Attention(*(torch.zeros(12, 32, 384) for _ in range(3)), torch.zeros(12, 384, 32))
    for n, most in ((32, 1024), (256, 0)):
        r, s = sizes_of_columns(f, n, 384, None)[0]
        assert 0.9 * most <= 384 * r + (n - r) * s <= most
