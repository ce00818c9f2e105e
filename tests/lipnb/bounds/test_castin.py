"""Bounds of castin2024smooth on sequences: never below what is measured, the formulas they are, and sharp."""

import math

import pytest
import torch
from cases import drawn, normals
from hypothesis import given
from hypothesis import strategies as st
from strategies import heads, quickly, seeds

from lipnb import Attention, bounds, local_lipschitz
from lipnb.bounds import (
    biased_upper,
    column_upper,
    general_lower,
    general_upper,
    general_upper_exact,
    general_upper_optimal,
    general_upper_sharp,
    mean_field_lower,
    mean_field_upper,
    multi_head_upper,
    spread_upper,
)
from lipnb.bounds.ball import _through_few
from lipnb.bounds.castin import spread
from lipnb.worst_case import climb, tight_input

EYE = torch.eye(2, dtype=torch.float64)


def biased(A, V, c, masked=False):
    """One head with logits (A x_i + c) . x_j."""
    return Attention(A[None], torch.eye(len(A)).double()[None], V[None], query_bias=c[None], scale=1.0, masked=masked)


def norm_at(f, x):
    return local_lipschitz(f, x, method="dense").value.item()


def exact(A, V, x, masked=False):
    return norm_at(Attention.from_matrices(A, V, masked=masked), x)


def from_distances(A, V, x, both_sides):
    """The form of Thm C.3 with distances between tokens; the released code leaves the transpose out."""
    r, n = torch.cdist(x, x).max().item(), len(x)
    reach = (x @ A.T).norm(dim=1).max().item()
    if both_sides:
        reach = max(reach, (x @ A).norm(dim=1).max().item())
    return math.sqrt(3 * ((reach * r) ** 2 * (n + 1) + n)) * torch.linalg.matrix_norm(V, 2).item()


@given(head=heads(most=9), far=st.sampled_from([0.0, 1.0, 5.0]), masked=st.booleans())
@quickly
def test_no_bound_is_below_the_constant_and_sharper_ones_are_below_others(head, far, masked):
    A, V, x, _, c = head
    x = x + far * c / c.norm()
    n, R, measured = len(x), x.norm(dim=1).max().item(), exact(A, V, x, masked)
    column, published = column_upper(A, V, x, masked=masked).item(), general_upper(A, V, n, R)
    sharp = general_upper_sharp(A, V, n, R)
    assert measured <= column * (1 + 1e-9) and column <= sharp * (1 + 1e-9) and sharp <= published * (1 + 1e-9)
    assert measured <= spread_upper(A, V, x).item() * (1 + 1e-9)
    assert masked or measured <= from_distances(A, V, x, both_sides=True) * (1 + 1e-9)
    assert norm_at(biased(A, V, c, masked), x) <= biased_upper(A, V, n, R, c) * (1 + 1e-9)
    assert biased_upper(A, V, n, R, 0 * c) == pytest.approx(published, rel=1e-12)
    assert biased_upper(A, V, n, R, c) >= published


def test_without_its_term_the_bias_breaks_the_general_bound():
    x = torch.stack([EYE[0], -EYE[0]])
    for push in (10.0, 1000.0):
        norm = norm_at(biased(0 * EYE, EYE, push * EYE[1]), x)
        assert norm == pytest.approx(math.hypot(1, push), rel=1e-9)  # uniform attention, one slope of size push
        assert 4 * general_upper(0 * EYE, EYE, 2, 1.0) < norm <= biased_upper(0 * EYE, EYE, 2, 1.0, push * EYE[1])


def test_the_form_from_distances_needs_both_sides():
    for a, fails in [(2.0, False), (2.1, True), (50.0, True)]:
        A, x = a * torch.outer(EYE[0], EYE[1]), torch.stack([EYE[0], -EYE[0]])
        measured = exact(A, EYE, x)
        assert measured == pytest.approx((a + math.sqrt(a * a + 4)) / 2)
        assert (measured > from_distances(A, EYE, x, both_sides=False)) == fails
        assert measured <= from_distances(A, EYE, x, both_sides=True)


def test_balls_whose_squared_radius_is_beyond_float64():
    """They raised OverflowError; a map that is zero or has no scores keeps its bound."""
    R = 1e200
    for bound, still in ((general_upper, 3.0), (general_upper_sharp, 3**0.5)):
        assert bound(EYE, EYE, 3, R) == math.inf and bound(EYE, 0 * EYE, 3, R) == 0
        assert bound(0 * EYE, EYE, 3, R) == pytest.approx(still)
    assert biased_upper(EYE, EYE, 3, R, EYE[0]) == math.inf and biased_upper(EYE, 0 * EYE, 3, R, EYE[0]) == 0
    assert general_lower(EYE, 3, R) == pytest.approx(2**0.5)
    assert mean_field_upper(EYE, EYE, R, log=True) == math.inf
    assert mean_field_upper(EYE, 0 * EYE, R, log=True) == -math.inf
    assert mean_field_lower(-EYE, R, log=True) < math.inf and mean_field_lower(0 * EYE, R) == 0


def test_at_the_edge_the_general_bound_is_tight_up_to_a_constant():
    """n = 1 + exp(2 gamma R^2): at most 4 sqrt(3) |A| / gamma times too high."""
    for A, kappa in [(-EYE, 1), (EYE, 8)]:
        for s in (1.0, 3.0):
            n, R = 1 + round(math.exp(2 * s)), math.sqrt(s / bounds.growth_rate(A))
            measured = exact(A, abs(A), tight_input(A, n, R))
            assert measured <= general_upper(A, abs(A), n, R) <= 4 * math.sqrt(3) * kappa * measured


@given(seed=seeds, h=st.integers(1, 6), masked=st.booleans())
@quickly
def test_no_layer_exceeds_the_sum_over_its_heads(seed, h, masked):
    normal = drawn(seed)
    k, v, d, m, n = (1 + (seed >> i) % 6 for i in range(5))
    heads = normal(h, k, d), normal(h, k, d), normal(h, 1, 1).exp() * normal(h, v, d), normal(h, m, v)
    f = Attention(*heads, query_bias=normal(h, k), value_bias=normal(h, v), masked=masked)
    x, names = normal(n, d), ("query", "key", "value", "query_bias", "value_bias")
    each = [
        norm_at(f.replace(output=None, **{name: getattr(f, name)[i : i + 1] for name in names}), x) for i in range(h)
    ]
    bound = multi_head_upper(f.output, each)
    assert norm_at(f, x) <= bound * (1 + 1e-9)
    assert bound == pytest.approx(
        sum(torch.linalg.matrix_norm(W, 2).item() * L for W, L in zip(f.output, each, strict=True)), rel=1e-7
    )


def test_the_sum_is_exact_for_aligned_heads_and_falls_with_half_the_angle_between_them():
    for degrees in (0, 40, 90, 179, 180):
        q, k, v, x = normals(degrees, *[(2, 2)] * 4)
        angle = math.radians(degrees)
        rotation = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]).double()
        W = torch.stack([EYE, rotation])
        alone = norm_at(Attention(q[None], k[None], v[None]), x)
        f = Attention(*(matrix.expand(2, 2, 2) for matrix in (q, k, v)), W)
        assert norm_at(f, x) / multi_head_upper(W, [alone] * 2) == pytest.approx(abs(math.cos(angle / 2)), abs=1e-7)
    # heads of any positive size, written alike
    q, k, v, x, W = normals(1, *[(3, 3)] * 5)
    W = torch.tensor([0.1, 1, 7]).double()[:, None, None] * torch.linalg.qr(W).Q
    alone = norm_at(Attention(q[None], k[None], v[None]), x)
    f = Attention(*(matrix.expand(3, 3, 3) for matrix in (q, k, v)), W)
    assert norm_at(f, x) == pytest.approx(multi_head_upper(W, [alone] * 3), rel=1e-7)
    assert multi_head_upper(EYE.expand(2, 2, 2), [0.0, 3.0]) == pytest.approx(3.0, rel=1e-7)
    assert multi_head_upper(EYE.expand(2, 2, 2), [math.inf, 3.0]) == math.inf


def test_the_formulas_are_what_they_say():
    A, V = torch.diag(torch.tensor([1.0, -2.0])).double(), torch.tensor([[0.0, 3.0]]).double()
    for n, R in ((5, 0.5), (10**8, 2.0), (7, 1e4)):
        t = 2 * R**2
        assert general_upper(A, V, n, R) == pytest.approx(3 * math.sqrt(3 * (t**2 * (4 * n + 1) + n)), rel=1e-7)
        assert general_upper_sharp(A, V, n, R) == pytest.approx(3 * (t + math.sqrt(n) * (1 + t)), rel=1e-7)
        lower = math.sqrt(n - 1) / (1 + (n - 1) * math.exp(-4 * R**2))  # gamma = 2
        assert general_lower(A, n, R) == pytest.approx(lower, rel=1e-12)
    one = torch.ones(()).double()
    expected = 3 * math.sqrt(3 * (4 * 0.5**4 + 2 * (4 * 4 * 0.5**4 + 1)))
    assert spread(2 * one, 3.0, 0.5 * one, 1.0, 2).item() == pytest.approx(expected, rel=1e-12)
    turned = torch.tensor([[0.0, 2.0], [0.0, 0.0]], dtype=torch.float64)  # |A x| = 2 |x_2|, not |A^T x|
    expected = math.sqrt(3 * (4 + 2 * (4 * 4 + 1)))  # the centre is found to a few digits
    assert spread_upper(turned, EYE, torch.stack([EYE[1], -EYE[1]])).item() == pytest.approx(expected, rel=2e-2)
    sideways = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]], dtype=torch.float64)
    c = (sideways @ turned.T @ sideways.T).softmax(1).sum(0).max().item()
    assert (sideways @ turned @ sideways.T).softmax(1).sum(0).max().item() < 0.9 * c
    expected = 2 * 4 + math.sqrt(c) * (1 + 2 * 4)
    assert column_upper(turned, EYE, sideways).item() == pytest.approx(expected, rel=1e-7)


def test_equal_tokens_have_the_constant_of_the_value_matrix_and_the_column_form_is_exact_there():
    A, V, x = normals(1, (3, 3), (2, 3), (1, 3))
    norm = torch.linalg.matrix_norm(V, 2).item()
    for size in (1e-4, 50.0):
        assert exact(A, V, size * x.expand(9, 3)) == pytest.approx(norm, rel=1e-9)
    assert column_upper(A, V, 1e-4 * x.expand(9, 3)).item() == pytest.approx(norm, rel=1e-6)


def test_any_centre_is_valid_and_the_one_taken_is_good():
    A, V, x = normals(0, (3, 3), (3, 3), (20, 6, 3))
    x = x + 4
    measured = local_lipschitz(Attention.from_matrices(A, V), x, method="dense").value
    for center in (torch.zeros(20, 3), x.mean(1), x[:, 0]):
        r, reach = (x - center[:, None]).norm(dim=-1).amax(-1), (x @ A.mT).norm(dim=-1).amax(-1)
        found = spread(torch.linalg.matrix_norm(A, 2), torch.linalg.matrix_norm(V, 2), r, reach, 6) * (1 + 1e-12)
        assert (measured <= found).all() and (spread_upper(A, V, x) <= found * 1.01).all()


def leading(n):
    """The root of lambda_n, the leading constant of n tokens."""
    half = n / 2 + 4
    return math.sqrt((half + math.sqrt(half * half - 16)) / 2)


def test_the_exact_bound_is_that_of_the_layer_and_has_the_leading_constant():
    assert [round(leading(n) ** 2, 3) for n in (2, 3, 4, 6)] == [4, 4.637, 5.236, 6.372]
    for n in (2, 3, 4, 6, 10, 98, 1000):
        assert general_upper_exact(1e6 * EYE, 3 * EYE, n, 1.0) / 3e6 == pytest.approx(leading(n), rel=1e-7)
        for t in (0.0, 0.3, 1.0, 30.0, 1e6):
            found, rho = general_upper_exact(t * EYE, EYE, n, 1.0), math.hypot(1, t / math.sqrt(2))
            assert found == pytest.approx(_through_few(t, rho, n * rho**2, 2, n), rel=1e-7)
            assert leading(n) * t <= found * (1 + 1e-12) <= leading(n) * math.sqrt(t * t + 2) * (1 + 1e-7)
            assert found <= general_upper_optimal(t * EYE, EYE, n, 1.0) * (1 + 1e-12)
    some = range(2, 20)
    loss = [general_upper_optimal(1e6 * EYE, EYE, n, 1.0) / general_upper_exact(1e6 * EYE, EYE, n, 1.0) for n in some]
    assert loss[:4] == pytest.approx([1, 1.033095, 1.05505, 1.057557], abs=1e-5) and max(loss) == loss[3]


def test_the_exact_bound_of_one_token_and_beyond_floats():
    assert general_upper_exact(EYE, 3 * EYE, 1, 2.0) == pytest.approx(3) == 3 * general_upper_exact(EYE, EYE, 1, 9.0)
    assert general_upper_exact(EYE, 0 * EYE, 5, 2.0) == 0 == general_upper_exact(EYE, 0 * EYE, 5, 0.0)
    far = general_upper_exact(EYE, EYE, 4, 1e200, log=True)
    assert far == pytest.approx(400 * math.log(10) + math.log(leading(4)))
    with pytest.raises(OverflowError, match="use log=True"):
        general_upper_exact(EYE, EYE, 4, 1e200)


@given(head=heads(most=9), masked=st.booleans(), R=st.sampled_from([0.3, 1.0, 3.0]))
@quickly
def test_no_ascent_exceeds_the_exact_bound(head, masked, R):
    A, V, x, *_ = head
    found = climb(Attention.from_matrices(A, V, masked=masked), R * x / x.norm(dim=1).max(), R, steps=15)[1]
    upper = general_upper_exact(A, V, len(x), R)
    assert found.max() <= upper * (1 + 1e-9) and upper <= general_upper_optimal(A, V, len(x), R) * (1 + 1e-9)
