"""Every bound against dense values, from above, and where it is sharp."""

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from cases import normal, random_case

from lipnb import Attention, AttentionJacobian, bounds, certify, local_lipschitz
from lipnb.bounds import (
    biased_upper,
    catalogue,
    general_lower,
    general_upper,
    general_upper_sharp,
    masked_mean_field_upper,
    mean_field_lower,
    mean_field_upper,
    three_terms,
    without_query_bias,
    yudin_upper,
)
from lipnb.bounds.catalogue import CATALOGUE, Case
from lipnb.bounds.cholesky_certificates import Computed, Prover, largest_proved, sandwich
from lipnb.bounds.term_bounds import RoundedLinearization
from lipnb.bounds.upper_norms import UNIT, gamma, largest_singular, largest_singular_of_each


def matrices(seed, d=5, m=4):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((d, d), (m, d), (7, d))]


def test_yudins_bound_is_the_formula_and_sharp_without_scores():
    A, V, x = matrices(3)
    A = A / 8  # no row is hard: its second entry counts
    P = (x @ A.T @ x.T).softmax(-1)
    top = P.topk(2, dim=-1).values
    g1 = (top[:, 0] * (1 - top[:, 0] + top[:, 1])).max()
    norm = [torch.linalg.matrix_norm(M, 2) for M in (V, P, x, A)]
    expected = norm[0] * (norm[1] + 2 * norm[2] ** 2 * norm[3] * g1)
    assert yudin_upper(Attention.from_matrices(A, V), x).item() == pytest.approx(expected.item(), rel=1e-7)
    still = Attention.from_matrices(0 * A, V, masked=True)  # only the value term is left
    exact = local_lipschitz(still, x, method="dense").value.item()
    assert yudin_upper(still, x).item() == pytest.approx(exact, rel=1e-7)


def parts(attention, x, weights):
    """Dense query, key and value terms: each alone moves; with weights, in the weighted norm."""
    root = torch.ones(len(x), dtype=x.dtype) if weights is None else weights.sqrt()
    dense = []
    for name in ("query", "key", "value"):

        def f(y, name=name):
            moved, still = attention.project(y), attention.project(x)
            q, k, v = (
                m if name == part else s for part, m, s in zip(("query", "key", "value"), moved, still, strict=True)
            )
            return attention.combine(attention.probabilities_of(q, k, weights) @ v)

        J = torch.func.jacrev(f)(x)
        dense.append(root[:, None, None, None] * J / root[:, None])
    return dense


def test_each_term_is_above_the_dense_term_on_what_is_kept():
    for directions in [(0, 0), (1, 0), (0, 2), (2, 3)]:
        r, s = directions
        for seed in range(40):
            case = random_case(seed, n=4 + seed % 5, spread=(0.3, 1.0, 3.0)[seed % 3])
            x, (n, d) = case.x[0], case.x.shape[1:]
            weights = None if case.weights is None else case.weights[0]
            made = RoundedLinearization(case.attention, x, weights)
            generator = torch.Generator().manual_seed(seed)
            S, Y = (
                torch.linalg.qr(torch.randn(rows, min(rows, count), generator=generator, dtype=x.dtype)).Q
                for rows, count in ((n, r), (d, s))
            )
            E, F = torch.eye(n) - S @ S.T, torch.eye(d) - Y @ Y.T
            bounds = three_terms(made, S, Y)
            for bound, J in zip(bounds, parts(case.attention, x, weights), strict=True):
                kept = torch.einsum("iajc,jl,ce->iale", J, E, F).reshape(n * J.shape[1], n * d)
                assert torch.linalg.matrix_norm(kept, 2) <= bound * (1 + 1e-12) + 1e-14, (seed, bounds._fields)


def test_feature_directions_left_out_cost_nothing():
    """Queries and values of directions in which no token lies change no term; with all left out no term remains."""
    for seed in range(12):
        case = random_case(seed, n=6)
        f, x = case.attention, case.x[0]
        d = x.shape[-1]
        turned = torch.linalg.qr(normal(d, d, seed=seed)).Q
        Y = turned[:, : 1 + d // 3]
        x = x - (x @ Y) @ Y.T
        plain = three_terms(RoundedLinearization(f, x), Y=Y)
        query, key, value = (
            one + 3 * normal(*one.shape, seed=seed + i) @ Y @ Y.T for i, one in enumerate((f.query, f.key, f.value))
        )
        found = three_terms(RoundedLinearization(f.replace(query=query, key=key, value=value), x), Y=Y)
        assert found.query.item() == pytest.approx(plain.query.item(), rel=1e-6, abs=1e-12)
        assert found.value.item() == pytest.approx(plain.value.item(), rel=1e-6, abs=1e-12)
        nothing = torch.stack(three_terms(RoundedLinearization(f, x), Y=turned))
        assert (nothing <= 1e-6 * torch.stack(three_terms(RoundedLinearization(f, x)))).all()


def test_blocks_and_chunks_change_nothing(monkeypatch):
    """The largest diagonal block may be any: rows are passed over only when they cannot be the largest."""
    for seed in range(20):
        case = random_case(seed, n=12)
        expected = three_terms(RoundedLinearization(case.attention, case.x[0]))
        with monkeypatch.context() as patch:
            patch.setattr("lipnb.bounds.term_bounds.AT_ONCE", 1)
            patch.setattr("lipnb.checks.TILE", 1)
            found = three_terms(RoundedLinearization(case.attention, case.x[0]))
        assert torch.allclose(torch.stack(found), torch.stack(expected), rtol=1e-10), seed


def test_the_terms_add_up_to_the_jacobian():
    case = random_case(15, n=5)
    J = sum(parts(case.attention, case.x[0], None)).reshape(AttentionJacobian(case.attention, case.x[0]).shape)
    assert torch.allclose(J, AttentionJacobian(case.attention, case.x[0]).dense(), atol=1e-12)


def test_one_head_is_never_above_yudin():
    for seed in range(120):
        for masked in (False, True):
            A, V, x = matrices(seed, d=1 + seed % 6, m=1 + seed % 4)
            x = (0.2, 1.0, 3.0)[seed % 3] * x[: 1 + seed % 7]
            attention = Attention.from_matrices(A, V, masked=masked)
            assert sum(three_terms(RoundedLinearization(attention, x))) <= yudin_upper(attention, x) * (1 + 1e-7)


def test_a_query_bias_is_one_more_coordinate():
    case = random_case(12, n=5)
    assert case.attention.query_bias is not None
    same, x = without_query_bias(case.attention, case.x, size=2.0)
    plain = case.attention.replace(value_bias=None, output_bias=None)
    assert torch.allclose(same(x), plain(case.x), atol=1e-12)
    with pytest.raises(ValueError, match="size must be positive"):
        without_query_bias(case.attention, case.x, size=0)


def test_norms_are_upper_bounds_and_tight():
    generator = torch.Generator().manual_seed(0)
    for a, b in ((1, 1), (3, 8), (8, 3), (40, 40), (200, 30)):
        for scale in (1e-120, 1.0, 1e120):
            M = torch.randn(4, a, b, generator=generator, dtype=torch.float64)
            exact = torch.linalg.matrix_norm(M, 2)
            got = largest_singular(scale * M) / scale
            assert (got >= exact).all() and (got <= exact * (1 + 1e-6)).all()
    assert (largest_singular(torch.zeros(2, 3, 4, dtype=torch.float64)) == 0).all()
    assert gamma(1) >= UNIT and gamma(100) > 100 * UNIT


def test_traces_of_powers_stay_above(monkeypatch):
    monkeypatch.setattr("lipnb.bounds.upper_norms.EXACT_WORK", 0)
    M = normal(6, 12, 9)
    exact = torch.linalg.matrix_norm(M, 2)
    got = largest_singular_of_each(M)
    assert (got >= exact).all() and (got <= exact * 9 ** (1 / 8) * (1 + 1e-6)).all()
    assert (largest_singular_of_each(0 * M) == 0).all()


EYE = torch.eye(3, dtype=torch.float64)


def test_the_catalogue_names_functions_and_sources_that_are_there():
    assert {bound.name for bound in CATALOGUE} - {*bounds.__all__, "certify"} <= vars(catalogue).keys()
    assert len({bound.key for bound in CATALOGUE}) == len(CATALOGUE)
    known = (Path(__file__).parents[2] / "book" / "references.bib").read_text(encoding="utf-8")
    assert all(bound.source == "ours" or f"{{{bound.source}," in known for bound in CATALOGUE)
    masks = [(bound.column, masked) for bound in CATALOGUE if bound.column for masked in bound.masks]
    assert len(set(masks)) == len(masks)  # one bound fills a column
    assert {bound.instead.split()[0] for bound in CATALOGUE} <= {bound.key for bound in CATALOGUE}


MORE = {
    "plain": {},
    "window": {"masked": True, "window": 2},
    "window on both sides": {"masked": False, "window": 1},
    "rotary": {"frequencies": torch.ones(1).double()},
    "cap": {"cap": 1.0},
    "sinks": {"sinks": torch.zeros(2).double()},
}


def test_what_the_catalogue_says_applies_holds():
    """As stated, and for a whole layer where it has a column; for a map with query biases and for one without."""
    for masked in [False, True]:
        for more in MORE:
            for heads in [1, 2]:
                stated, columns = set(), set()
                for seed in range(12):
                    Q, K, V, x = (
                        normal(*shape, seed=40 * seed + i) for i, shape in enumerate([(heads, 2, 3)] * 3 + [(5, 3)])
                    )
                    added = MORE[more] | ({"sinks": MORE[more]["sinks"][:heads]} if more == "sinks" else {})
                    f = Attention(Q, K, V, normal(heads, 3, 2, seed=seed), masked=masked).replace(**added)
                    if seed % 2:
                        biases = {"key_bias": 3 * normal(heads, 2, seed=seed + 2)}
                        f = f.replace(query_bias=3 * normal(heads, 2, seed=seed + 1), **biases)
                    x = (0.03, 0.3, 1.0)[seed % 3] * x
                    if seed % 4 == 3:  # a large bias that makes no difference between tokens
                        f, c = f.replace(query_bias=100 * f.query_bias), f.query_bias[0] @ K[0]
                        x = x - torch.outer(x @ c, c) / (c @ c)
                    case, norm = Case(f, x), local_lipschitz(f, x, method="dense").value.item()
                    for bound in CATALOGUE:
                        if bound.evaluate is None or bound.norm == "largest token" or bound.scope == "limit":
                            continue
                        if bound.applies(f) is None:
                            stated.add(bound.key)
                            assert norm <= float(bound.evaluate(case)) * (1 + 1e-9), (seed, bound.key)
                        if bound.column and bound.applies(f, layer=True) is None:
                            columns.add(bound.column)
                            assert math.log(norm) <= bound.log(case) + 1e-9, (seed, bound.key)
                assert "three_terms" in stated and (columns == {"rotary_terms", "rotary_upper"}) == (more == "rotary")
                assert len(columns) == {"plain": 7, "window": 5, "rotary": 2}.get(more, 0)
                assert ("general" in stated) == (heads == 1 and more in ("plain", "window"))


def test_bounds_of_heads_are_those_of_one_head():
    A, V, x = normal(6, 6), normal(4, 6, seed=1), normal(9, 6, seed=2) / 3
    R = x.norm(dim=-1).max().item()
    for masked in (False, True):
        f = Attention.from_matrices(A, V, masked=masked)
        norms = bounds.head_norms(f)
        found = {**bounds.heads_on_ball(norms, 9, R, masked), **bounds.heads.heads_at_input(f, norms, x)}
        mean_field = masked_mean_field_upper if masked else mean_field_upper
        expected = {
            "general": general_upper(A, V, 9, R),
            "general_sharp": general_upper_sharp(A, V, 9, R),
            "mean_field": mean_field(A, V, R),
            "spread": bounds.spread_upper(A, V, x).item(),
            "column": bounds.column_upper(A, V, x, masked=masked).item(),
            "yudin": yudin_upper(f, x).item(),
        }
        assert {name: math.exp(found[name]) for name in expected} == pytest.approx(expected, rel=1e-6)


def test_bad_input_of_the_general_bound():
    for arguments, sentence in [
        ((EYE[:2], EYE, 4, 1.0), "A must be square"),
        ((EYE, EYE[:, :2], 4, 1.0), "V of shape"),
        ((EYE * torch.nan, EYE, 4, 1.0), "NaN"),
        ((EYE, EYE, 0, 1.0), "n must be a positive integer"),
        ((EYE, EYE, 2.5, 1.0), "n must be a positive integer"),
        ((EYE, EYE, 4, -1.0), "R must be"),
        ((EYE, EYE, 4, math.inf), "R must be"),
    ]:
        for bound in (general_upper, general_upper_sharp):
            with pytest.raises(ValueError, match=sentence):
                bound(*arguments)


def test_yudins_bound_refuses_biases():
    x, bias = torch.ones(2, 3, dtype=torch.float64), torch.ones(1, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="without query biases"):
        yudin_upper(Attention(EYE[None], EYE[None], EYE[None], query_bias=bias), x)
    with pytest.raises(ValueError, match="d = 3"):
        yudin_upper(Attention.from_matrices(EYE, EYE), x[:, :2])


def test_balls_whose_squared_radius_is_beyond_float64():
    """They raised OverflowError; a map that is zero or has no scores keeps its bound."""
    one, R = torch.eye(2, dtype=torch.float64), 1e200
    for bound in (general_upper, general_upper_sharp):
        assert bound(one, one, 3, R) == math.inf and bound(one, 0 * one, 3, R) == 0
        assert bound(0 * one, one, 3, R) == pytest.approx({general_upper: 3.0, general_upper_sharp: 3**0.5}[bound])
    assert biased_upper(one, one, 3, R, one[0]) == math.inf and biased_upper(one, 0 * one, 3, R, one[0]) == 0
    assert general_lower(one, 3, R) == pytest.approx(2**0.5)
    assert mean_field_upper(one, one, R, log=True) == math.inf
    assert mean_field_upper(one, 0 * one, R, log=True) == -math.inf
    assert mean_field_lower(-one, R, log=True) < math.inf and mean_field_lower(0 * one, R) == 0


def test_the_size_of_tiles_loosens_no_bound(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    f = Attention(*(normal(2, 16, 48) / 48**0.5 for _ in range(3)), normal(2, 48, 16) / 8)
    x = normal(24, 48)
    monkeypatch.setattr(
        "lipnb.bounds.upper_norms.EXACT_WORK", 4e5
    )  # eigenvalues for some rows, traces for all of them together
    whole = [float(term) for term in three_terms(RoundedLinearization(f, x))]
    monkeypatch.setattr("lipnb.checks.TILE", 1)
    assert [float(term) for term in three_terms(RoundedLinearization(f, x))] == pytest.approx(whole, rel=1e-9)


def test_norms_of_many_matrices_from_above():
    """Above each norm, by a percent or two; one bound on the largest; zeros among them; what K may lack is added."""
    for kind in [Prover, Computed]:
        for h in [1, 3]:
            for shape in [(9, 9), (4, 9), (12, 9)]:
                g = torch.Generator().manual_seed(sum(shape))
                R = torch.randn(*shape, generator=g, dtype=torch.float64)
                X = torch.randn(6, h, 9 // h, 5, generator=g, dtype=torch.float64)
                X = X * torch.tensor([1.0, 1e-3, 0.0, 2.0, 1.0, 1.0], dtype=torch.float64)[:, None, None, None]
                whole = torch.stack([torch.block_diag(*one) for one in X])
                exact, norms, none = torch.linalg.matrix_norm(R @ whole, 2), kind(R), torch.zeros(6).double()
                K = X @ X.mT
                found = norms.upper(K, none)
                near = 1.04 if kind is Prover else 1 + 1e-7
                assert (found >= exact).all() and (found <= near * exact + 1e-5 * exact.max()).all()
                one = norms.upper(K, none, at_least=torch.tensor(0.0).double())
                assert exact.max() <= one <= near * exact.max()
                assert norms.upper(K, none, at_least=2 * one) == pytest.approx(2 * one.item(), rel=1e-6)
                away = norms.upper(K, 1 + none)
                assert (away**2 >= exact**2 + torch.linalg.matrix_norm(R, 2) ** 2 * (1 - 1e-9)).all()


def test_a_wrong_guess_is_mended():
    g = torch.Generator().manual_seed(0)
    R, X = torch.randn(9, 9, generator=g).double(), torch.randn(6, 1, 9, 5, generator=g).double()
    exact, prover, none = torch.linalg.matrix_norm(R @ X[:, 0], 2), Prover(R), torch.zeros(6).double()
    prover.guess = lambda K: torch.full((len(K),), 1e-3 * exact.max().item() ** 2)
    assert (prover.upper(X @ X.mT, none) >= exact).all()
    for at_least in (None, torch.tensor(1e9).double()):
        with pytest.raises(torch.linalg.LinAlgError, match="no bound was proved"):
            prover.upper(torch.nan * X @ X.mT, none, at_least=at_least)


@pytest.mark.parametrize("route", [0, 1e30])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("power", [0, -20, 20])
def test_a_head_with_small_keys_or_none_costs_no_digits(route, turned, power, monkeypatch):
    """Keys over a power of two and queries times it are the same map; without keys a head has no key term."""
    g = torch.Generator().manual_seed(1)
    Q, K, V = (torch.randn(2, 4, 8, generator=g).double() / 8**0.5 for _ in range(3))
    x = torch.randn(6, 8, generator=g).double()
    frequencies = torch.tensor([1.0, 0.1]).double() if turned else None
    moved = torch.tensor([1.0, 2.0**power]).double()[:, None, None]
    without = torch.tensor([1.0, 0.0]).double()[:, None, None]
    monkeypatch.setattr("lipnb.bounds.term_bounds.DEAR", route)
    terms = [
        three_terms(RoundedLinearization(Attention(query, key, V).replace(frequencies=frequencies), x)).key
        for query, key in ((Q, K), (Q * moved, K / moved), (Q, K * without), (30 * Q, K * without))
    ]
    assert terms[1] == pytest.approx(terms[0].item(), rel=1e-3)
    # steeper queries sharpen the other head alone: nothing is left of the head without keys
    alone = three_terms(
        RoundedLinearization(Attention(30 * Q[:1], K[:1], V[:1]).replace(frequencies=frequencies), x)
    ).key
    assert terms[3] <= 1.06 * alone + 1e-9


@pytest.mark.parametrize("masked", [False, True])
def test_zero_keys_and_faint_tokens_are_answered_by_a_factorisation_too(masked, monkeypatch):
    g = torch.Generator().manual_seed(2)
    Q, K, V = (torch.randn(2, 4, 8, generator=g).double() for _ in range(3))
    x = torch.randn(6, 8, generator=g).double()
    monkeypatch.setattr("lipnb.bounds.term_bounds.DEAR", 0)
    for f, tokens in ((Attention(Q, 0 * K, V, masked=masked), x), (Attention(Q, K, V, masked=masked), x * 2.0**-150)):
        bracket = certify(f, tokens, columns=0)
        assert bracket.upper <= 3 * bracket.lower


def test_the_largest_eigenvalue_is_proved():
    for order in [7, 513, 700]:
        g = torch.Generator().manual_seed(order)
        X = torch.randn(order, 20, generator=g).double()
        exact = torch.linalg.matrix_norm(X, 2) ** 2
        assert exact <= largest_proved(X @ X.T) <= 1.02 * exact
        assert largest_proved(torch.zeros(order, order).double()) == 0
        with pytest.raises(torch.linalg.LinAlgError):
            largest_proved(torch.nan * (X @ X.T))


def test_tokens_of_unlike_weight_cost_the_key_term_little():
    """A first token with large keys and no value: one weight for all tokens would cost 32 or 51 percent."""
    for masked in [False, True]:
        g = torch.Generator().manual_seed(3)
        n, d, h, k = 40, 24, 3, 8
        Q, K, V = (torch.randn(h, k, d, generator=g).double() / d**0.5 for _ in range(3))
        x = torch.randn(n, d, generator=g).double()
        Q[..., 1], V[..., 0] = Q[..., 1] + 2 * K[..., 0], 0
        x[:, 1], x[0] = 2, 3 * torch.eye(d)[0]
        attention = Attention(Q, K, V, masked=masked)
        at = RoundedLinearization(attention, x)
        eye = torch.eye(n * d).double().view(-1, n, d)
        key = torch.einsum("cnd,hkd->chnk", eye, attention.key)
        t = at.P * (at.query @ key.mT)
        moved = t @ at.value - t.sum(-1, keepdim=True) * at.mean
        truth = torch.linalg.matrix_norm(moved.movedim(1, 2).flatten(1), 2)
        assert truth <= three_terms(at).key <= 1.25 * truth


def test_blocks_between_a_gram_matrix():
    g = torch.Generator().manual_seed(0)
    C, W = torch.randn(2, 3, 4, 5, generator=g).double(), torch.randn(15, 7, generator=g).double()
    whole = torch.stack([torch.block_diag(*one) for one in C]) @ W
    assert torch.allclose(sandwich(C, W @ W.T), whole @ whole.mT)
