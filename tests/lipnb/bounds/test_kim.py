"""Bounds of kim2021lipschitz on L2 attention, in both norms, step by step, and the sharper one."""

import math

import pytest
import torch
from cases import l2_parameters, normal
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from strategies import quickly, seeds

from lipnb import Attention, AttentionJacobian, bounds, local_lipschitz


def unit_head(d, masked=False):
    """L2 attention with A = I: weights exp(-|x_i - x_j|^2)."""
    eye = torch.eye(d, dtype=torch.float64)[None]
    return Attention(eye, eye, eye, scale=1.0, score="l2", masked=masked)


def star(a, m, h, rho):
    """a tokens at 0, m around them in m + 1 dimensions."""
    x = torch.zeros(a + m, m + 1, dtype=torch.float64)
    x[a:, 0], x[a:, 1:] = h, rho * torch.eye(m, dtype=torch.float64)
    return x


def tokens(seed, n, d, size):
    if seed % 3 == 0:
        return star(1 + n // 3, n, 1.0, 0.4 + size / 4)
    x = size * normal(n, d, seed=seed)
    return x[torch.arange(n) // 2] if seed % 3 == 1 else x


@given(seed=seeds, n=st.integers(1, 14), d=st.integers(1, 8), size=st.floats(0, 4))
@quickly
def test_attention_that_a_token_gets_and_the_growth_that_follows(seed, n, d, size):
    x = tokens(seed, n, d, size)
    gap = x[:, None] - x
    for masked in (False, True):
        f = unit_head(x.shape[1], masked)
        P, J = f.probabilities(x)[0], AttentionJacobian(f, x).dense()
        largest = torch.linalg.matrix_norm(torch.einsum("ij,ija,ijb->jab", P, gap, gap), 2)
        most = 2 * len(x) - 1 if masked else P.trace()
        assert (P.sum(0) ** 2 + 2 * largest**2).max() <= most * (1 + 1e-12)
        assert torch.linalg.matrix_norm(J, 2) <= bounds.l2_growth_sharp(len(x), masked) * (1 + 1e-12)


def test_attention_that_a_token_gets_is_of_that_order():
    """The square is about half the trace at a star, and all of it where tokens are equal."""
    for x, least, most in ((star(1, 200, 0.0, math.sqrt(math.log(200) / 2)), 0.4, 0.6), (torch.zeros(5, 2), 1, 1)):
        P = unit_head(x.shape[1]).probabilities(x.double())[0]
        assert least - 1e-12 < P.sum(0).max() ** 2 / P.trace() < most + 1e-12


def test_growth_is_at_least_that_of_a_token_between_two_clusters():
    for n in [3, 5, 33, 301]:
        z = bounds.phi_inverse(n - 1)
        x = torch.full((n, 1), math.sqrt(1 + z), dtype=torch.float64)
        x[1::2] *= -1
        x[0] = 0
        entry = AttentionJacobian(unit_head(1), x).dense()[0, 0].item()
        assert abs(entry / (2 * z + 1 / (1 + z)) - 1) < 1e-12
        assert entry < bounds.l2_growth_sharp(n, masked=False) < bounds.l2_growth_sharp(n)


def test_growth_by_hand():
    assert bounds.l2_growth_sharp(1) == bounds.l2_growth_sharp(1, masked=False) == 1
    z = bounds.phi_inverse(1)
    assert abs(bounds.l2_growth_sharp(2, masked=False) - (2**0.25 + 4 * z)) < 1e-14
    assert abs(bounds.l2_growth_sharp(2) - (1.5**0.5 + 4 * z)) < 1e-14
    for n in [*range(1, 300), 10**4, 10**6, 10**12]:
        unmasked, both = (bounds.l2_growth_sharp(n, masked) for masked in (False, True))
        assert unmasked <= both <= min(2**0.25 * unmasked, bounds.l2_growth(n)) * (1 + 1e-12)
    for n in (10**8, 10**16, 10**32):
        rate = n**0.25 * math.sqrt(math.log(n))
        assert 0.1416 < bounds.l2_growth_sharp(n, masked=False) / rate < 1.81


def test_the_bounds_of_the_theorem_are_its_formulas():
    for n in [1, 2, 16, 1000]:
        z = brentq(lambda z: z * math.exp(z + 1) - (n - 1), 0, 10, xtol=1e-15)
        assert bounds.l2_growth(n) == pytest.approx(math.sqrt(n) * (4 * z + 1), rel=1e-12)
        generator = torch.Generator().manual_seed(n)
        query, value, output = (torch.randn(2, 3, 3, generator=generator, dtype=torch.float64) for _ in range(3))

        def largest(matrices, p):
            return torch.linalg.matrix_norm(matrices, p)

        joined = torch.cat([*output], 1)
        maximum = (largest(query, math.inf) * largest(query.mT, math.inf)).max() * largest(value, math.inf).max()
        expected = (4 * z + 3**-0.5) * maximum * largest(joined, math.inf)
        assert bounds.l2_upper(query, value, output, n, math.inf) == pytest.approx(expected.item(), rel=1e-12)
        heads = (largest(query, 2) ** 4 * largest(value, 2) ** 2 / 3).sum().sqrt()
        expected = math.sqrt(n) * (4 * z + 1) * heads * largest(joined, 2)
        assert bounds.l2_upper(query, value, output, n) == pytest.approx(expected.item(), rel=1e-7)


def test_star_reaches_the_order():
    """The formula of the book, page 58, against the Jacobian; and its limit."""

    def formula(a, m, h, rho):
        b, c = math.exp(-h * h - rho * rho), math.exp(-2 * rho * rho)
        D = 1 + a * b + (m - 1) * c
        q = a * b / D
        side = 4 * h * h * rho * rho / D**2 * (1 + (m - 1) * c * c)
        return math.sqrt(m / a) * q * math.sqrt((1 - 2 * h * h * (1 - q)) ** 2 + side)

    for a, m, h, rho in ((1, 1, 0.0, 1.0), (2, 5, 1.0, 1.1), (7, 20, 0.6, 1.5)):
        u = torch.zeros(a + m, m + 1, dtype=torch.float64)
        u[:a, 0] = a**-0.5
        moved = AttentionJacobian(unit_head(m + 1), star(a, m, h, rho)).jvp(u)[a:].norm().item()
        assert abs(moved / formula(a, m, h, rho) - 1) < 1e-10
    for rho in (4.0, 6.0, 10.0):
        a, m = 0.4 * math.exp(1 + rho**2), 0.2 * math.exp(2 * rho**2)
        assert formula(a, m, 1.0, rho) > 0.1416 * (a + m) ** 0.25 * math.sqrt(math.log(a + m))


@given(seed=seeds, n=st.integers(1, 12), size=st.floats(0.02, 4), spread=st.floats(-2, 1.5), masked=st.booleans())
@quickly
def test_bounds_hold_in_both_norms(seed, n, size, spread, masked):
    query, value, output = l2_parameters(seed, size=size)
    f, x = Attention.l2(query, value, output, masked=masked), 10**spread * normal(n, query.shape[2], seed=seed)
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
