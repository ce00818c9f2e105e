"""The three terms of the Jacobian at an input, each above the dense one, whatever is left out, tiled or tiny."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from cases import KINDS, covering, every_kind, normal, random_case

from lipnb import Attention, AttentionJacobian, bounds, certify
from lipnb.bounds import three_terms
from lipnb.bounds.term_bounds import RoundedLinearization


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
        for seed in range(15):
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


def test_the_size_of_tiles_loosens_no_bound(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    f = Attention(*(normal(2, 16, 48) / 48**0.5 for _ in range(3)), normal(2, 48, 16) / 8)
    x = normal(24, 48)
    monkeypatch.setattr(
        "lipnb.spectral.upper_norms.EXACT_WORK", 4e5
    )  # eigenvalues for some rows, traces for all of them together
    whole = [float(term) for term in three_terms(RoundedLinearization(f, x))]
    monkeypatch.setattr("lipnb.checks.TILE", 1)
    assert [float(term) for term in three_terms(RoundedLinearization(f, x))] == pytest.approx(whole, rel=1e-9)


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


DOT = [kind for kind in KINDS if covering()[kind]["score"] == "dot"]


def test_terms_tested_by_a_factorisation_are_those_computed(monkeypatch):
    for kind in DOT:
        f, x, weights = every_kind(kind)
        at = RoundedLinearization(f, x[0], None if weights is None else weights[0])
        computed = torch.stack(bounds.three_terms(at))
        with monkeypatch.context() as patched:
            patched.setattr("lipnb.bounds.term_bounds.DEAR", 0)
            tested = torch.stack(bounds.three_terms(at))
        # of a width of one, what the output sends to nothing costs more than a few percent of a tiny term
        assert (tested >= computed * (1 - 1e-6)).all() and (tested <= 1.05 * computed + 1e-5 * computed.sum()).all()


def test_the_key_term_counts_the_rows_of_the_outputs_that_are_factorised():
    """Householder's factorisation errs by up to 8 r u at r rows: rows of zeros widen the bound by as much."""
    f, x, rows = Attention(*normal(3, 1, 2, 2), normal(1, 2, 2)), normal(3, 2), 10**5
    tall = f.replace(output=torch.cat([f.output, f.output.new_zeros(1, rows, 2)], 1))
    found, wide = (certify(one, x, columns=0) for one in (f, tall))
    assert wide.key >= found.key * (1 + 8 * rows * 2.0**-53) and wide.key == pytest.approx(found.key.item(), rel=1e-6)
