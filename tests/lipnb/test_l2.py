"""L2 attention: the map, its Jacobian in both norms, its bounds, and what it is not."""

import math

import pytest
import torch
from cases import random_case, relative
from hypothesis import given, settings
from hypothesis import strategies as st

from lipnb import Attention, AttentionJacobian, bounds, certify, local_lipschitz, measures
from lipnb.jacobian import infinity_norm
from lipnb.jacobian.separable import SeparableJacobian
from lipnb.measures import splitting


def parameters(seed, *, size=1.0):
    """Query, value and output matrices of a random case."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    h, k, d, v, m = (int(torch.randint(1, 5, (), generator=generator)) for _ in range(5))
    return size * normal(h, k, d), normal(h, v, d), normal(h, m, v) if seed % 3 else None


def tokens(seed, n, d, size=1.0):
    return size * torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_far_from_the_origin_no_digit_is_lost():
    query, value, _ = parameters(1)
    f, x = Attention.l2(query, value), tokens(0, 9, query.shape[2])
    assert relative(f.probabilities(x + 1e6), f.probabilities(x)) < 1e-8
    single = f.to(dtype=torch.float32)
    assert relative(single.probabilities((x + 100).float()).double(), f.probabilities(x)) < 1e-3


def test_tied_heads_are_those_of_the_paper():
    """P X A_h W_V W_O, row by row as in the paper."""
    for seed in range(12):
        query, value, output = parameters(seed)
        x = tokens(seed, 7, query.shape[2])
        heads = []
        for h in range(len(query)):
            W, k = query[h].T, query.shape[1]
            P = (-(torch.cdist(x @ W, x @ W) ** 2) / k**0.5).softmax(-1)
            heads.append(P @ x @ (W @ W.T / k**0.5) @ value[h].T)
        expected = (
            torch.cat(heads, -1)
            if output is None
            else sum(head @ matrix.T for head, matrix in zip(heads, output, strict=True))
        )
        assert relative(Attention.l2(query, value, output)(x), expected) < 1e-9


def test_infinity_norm_in_tiles_and_its_gradient(monkeypatch):
    case = random_case(3, score="l2", n=7)
    whole = infinity_norm(case.attention, case.x)
    monkeypatch.setattr("lipnb.checks.TILE", 1)
    assert relative(infinity_norm(case.attention, case.x), whole) < 1e-14
    x = case.x[:1].clone().requires_grad_()
    infinity_norm(case.attention, x).sum().backward()
    step = tokens(5, *case.x.shape[1:])[None]
    ends = [infinity_norm(case.attention, case.x[:1] + sign * 1e-6 * step).item() for sign in (1, -1)]
    assert abs((ends[0] - ends[1]) / 2e-6 / (x.grad * step).sum().item() - 1) < 1e-5


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 12),
    size=st.floats(0.02, 4),
    spread=st.floats(-2, 1.5),
    masked=st.booleans(),
)
def test_bounds_hold_in_both_norms(seed, n, size, spread, masked):
    query, value, output = parameters(seed, size=size)
    f, x = Attention.l2(query, value, output, masked=masked), tokens(seed, n, query.shape[2], 10**spread)
    euclidean = local_lipschitz(f, x, method="dense").value.item()
    sharp, stated = bounds.l2_upper_sharp(query, value, output, n), bounds.l2_upper(query, value, output, n)
    assert euclidean <= sharp * (1 + 1e-12) and sharp <= stated * (1 + 1e-12)
    maximum = AttentionJacobian(f, x).infinity_norm().item()
    assert maximum <= bounds.l2_upper(query, value, output, n, math.inf) * (1 + 1e-12)


def test_phi_inverse_is_the_inverse_and_the_largest_spread():
    for n in [2, 3, 10, 101, 1001]:
        z = bounds.phi_inverse(n - 1)
        assert abs(z * math.exp(z + 1) / (n - 1) - 1) < 1e-12

        def spread(s):
            return (s * torch.exp(-s)).sum(-1) / (1 + torch.exp(-s).sum(-1))

        best = torch.full((n - 1,), 1 + z, dtype=torch.float64)
        assert abs(spread(best) / z - 1) < 1e-12
        others = torch.rand(2000, n - 1, generator=torch.Generator().manual_seed(n), dtype=torch.float64) * 3 * (1 + z)
        assert spread(others).max() < z


def test_the_smaller_exponent_is_no_bound():
    query, value = torch.full((1, 1, 1), 4.0, dtype=torch.float64), torch.ones(1, 1, 1, dtype=torch.float64)
    constant = local_lipschitz(Attention.l2(query, value), torch.zeros(2, 1, dtype=torch.float64)).value.item()
    assert abs(constant - 16) < 1e-9
    assert bounds.printed_l2_upper(query, value, None, 2) < 12 < constant < bounds.l2_upper(query, value, None, 2)


def test_what_is_not_lipschitz():
    """Untied queries and keys, or tokens that do not see themselves: four times the constant at twice the size."""
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    sizes = torch.tensor([10.0, 20, 40], dtype=torch.float64)
    pair = torch.stack([sizes, 0 * sizes], -1)[..., None]
    untied = local_lipschitz(Attention(one, 2 * one, one, score="l2"), pair).value
    assert ((untied[1:] / untied[:-1] - 4).abs() < 0.1).all()
    assert (local_lipschitz(Attention.l2(one, one), pair).value <= bounds.l2_upper(one, one, None, 2)).all()

    def blind(x):  # the diagonal masked out
        logits = -((x[..., None, :] - x[..., None, :, :]) ** 2).sum(-1)
        return logits.masked_fill(torch.eye(3, dtype=torch.bool), -torch.inf).softmax(-1) @ x

    triple = torch.stack([0 * sizes, sizes, -sizes], -1)[..., None]
    grown = local_lipschitz(blind, triple).value
    assert ((grown[1:] / grown[:-1] - 4).abs() < 0.1).all()
    assert (local_lipschitz(Attention.l2(one, one), triple).value <= bounds.l2_upper(one, one, None, 3)).all()


def test_what_knows_dot_products_only_says_so():
    for what, call in [
        ("certify", lambda f, x: certify(f, x)),
        ("yudin_upper", lambda f, x: bounds.yudin_upper(f, x)),
        ("chosen_tokens", lambda f, x: bounds.large_radius_limit(f, x)),
        ("nearby_upper", lambda f, x: bounds.nearby_upper(f, x, torch.tensor([0.1]))),
        ("a separable kernel", lambda f, x: SeparableJacobian(f, x)),
        ("without_query_bias", lambda f, x: bounds.without_query_bias(f, x, 1.0)),
    ]:
        query, value, output = parameters(2)
        with pytest.raises(ValueError, match=f"{what}.* knows dot-product scores only"):
            call(Attention.l2(query, value, output), tokens(0, 4, query.shape[2]))
        assert not SeparableJacobian.if_it_pays(Attention.l2(query, value, output), tokens(0, 4, query.shape[2]))


def test_fields_and_blocks_of_queries():
    """What a point sees of an L2 measure: the map at its own tokens, and derivatives in the query alone."""
    for seed in range(6):
        query, value, output = parameters(seed)
        f, x = Attention.l2(query, value, output), tokens(seed, 6, query.shape[2])
        weights = torch.rand(6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
        assert relative(measures.mean_field_map(f, x, weights, x), f(x, weights)) < 1e-12
        blocks = splitting.query_blocks(f, x, weights)
        step = 1e-6 * tokens(seed + 1, 6, x.shape[1])
        ends = [measures.mean_field_map(f, x, weights, x + sign * step) for sign in (1, -1)]
        assert relative(torch.einsum("nmd,nd->nm", blocks, step), (ends[0] - ends[1]) / 2) < 1e-6


def test_bad_input():
    for p, n, word in [(1, 3, "p must be"), (2, 0, "n must be"), (2, 2.5, "n must be")]:
        with pytest.raises(ValueError, match=word):
            bounds.l2_upper(*parameters(1), n, p)
        with pytest.raises(ValueError, match="value must have shape"):
            bounds.l2_upper(torch.ones(2, 1, 3), torch.ones(1, 1, 3), None, 3)
        with pytest.raises(ValueError, match="value must have shape"):
            Attention.l2(torch.ones(1, 1, 3), torch.ones(1, 1, 4))
        with pytest.raises(ValueError, match="y must be"):
            bounds.phi_inverse(-1)
