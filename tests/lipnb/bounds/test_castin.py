"""Bounds of castin2024smooth on sequences: never below what is measured, the formulas they are, and sharp."""

import math

import pytest
import torch
from cases import normals
from hypothesis import given, settings
from hypothesis import strategies as st

from lipnb import Attention, bounds, local_lipschitz
from lipnb.bounds import (
    biased_upper,
    column_upper,
    general_lower,
    general_upper,
    general_upper_sharp,
    mean_field_lower,
    mean_field_upper,
    multi_head_upper,
    spread_upper,
)
from lipnb.bounds.castin import spread
from lipnb.worst_case import tight_input

PLANE = torch.eye(2, dtype=torch.float64)


def biased(A, V, c, masked=False):
    """One head with logits (A x_i + c) . x_j."""
    return Attention(
        A[None], torch.eye(len(A), dtype=A.dtype)[None], V[None], query_bias=c[None], scale=1.0, masked=masked
    )


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 7),
    d=st.integers(1, 4),
    heat=st.floats(-3, 2),
    push=st.floats(-3, 3),
    masked=st.booleans(),
)
def test_the_biased_bound_is_never_below_the_constant(seed, n, d, heat, push, masked):
    A, V, x, c = normals(seed, (d, d), (3, d), (n, d), (d,))
    A, c = 10**heat * A, 10**push * c
    R = x.norm(dim=1).max().item()
    norm = local_lipschitz(biased(A, V, c, masked), x, method="dense").value.item()
    assert norm <= bounds.biased_upper(A, V, n, R, c) * (1 + 1e-9)
    assert bounds.biased_upper(A, V, n, R, 0 * c) == pytest.approx(bounds.general_upper(A, V, n, R), rel=1e-12)
    assert bounds.biased_upper(A, V, n, R, c) >= bounds.general_upper(A, V, n, R)


def test_without_its_term_the_bias_breaks_the_general_bound():
    x, zero = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64), 0 * PLANE
    for push in (10.0, 1000.0):
        c = torch.tensor([0.0, push], dtype=torch.float64)
        norm = local_lipschitz(biased(zero, PLANE, c), x, method="dense").value.item()
        assert norm == pytest.approx(math.hypot(1, push), rel=1e-9)  # uniform attention, one slope of size push
        assert norm > 4 * bounds.general_upper(zero, PLANE, 2, 1.0)
        assert norm <= bounds.biased_upper(zero, PLANE, 2, 1.0, c)


def test_a_wrong_bias_is_said():
    for c in [torch.zeros(3), torch.tensor([0.0, torch.nan]), torch.zeros(2, 1)]:
        with pytest.raises(ValueError, match=r"c must have shape \(d,\) = \(2,\)"):
            bounds.biased_upper(PLANE, PLANE, 3, 1.0, c)


EYE = torch.eye(3, dtype=torch.float64)


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


def test_at_the_edge_the_general_bound_is_tight_up_to_a_constant():
    """n = 1 + exp(2 gamma R^2): at most 4 sqrt(3) |A| / gamma times too high."""
    for A, kappa in [(-torch.eye(2).double(), 1), (torch.eye(2).double(), 8)]:
        for s in [1.0, 2.0, 3.0]:
            n, R = 1 + round(math.exp(2 * s)), math.sqrt(s / bounds.growth_rate(A))
            measured = local_lipschitz(Attention.from_matrices(A, abs(A)), tight_input(A, n, R)).value.item()
            upper = bounds.general_upper(A, abs(A), n, R)
            assert measured <= upper <= 4 * math.sqrt(3) * kappa * measured


def layer(seed, *, masked=False):
    """A random projected layer with heads of very different size, and its input."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    h, k, v, d, m, n = (1 + int(torch.randint(6, (), generator=generator)) for _ in range(6))
    size = normal(h, 1, 1).exp()
    heads = normal(h, k, d), normal(h, k, d), size * normal(h, v, d), normal(h, m, v)
    f = Attention(*heads, query_bias=normal(h, k), value_bias=normal(h, v), masked=masked)
    return f, (0.3, 1.0, 3.0)[seed % 3] * normal(n, d)


def head(f, h):
    """Head h of a layer, without its output matrix."""
    names = ("query", "key", "value", "query_bias", "value_bias")
    return f.replace(output=None, **{name: getattr(f, name)[h : h + 1] for name in names})


def norm_at(f, x):
    return local_lipschitz(f, x, method="dense").value.item()


def test_no_layer_exceeds_the_sum_over_its_heads():
    for masked in [False, True]:
        for block in range(5):
            for seed in range(20 * block, 20 * block + 20):
                f, x = layer(seed, masked=masked)
                each = [norm_at(head(f, h), x) for h in range(f.heads)]
                bound = multi_head_upper(f.output, each)
                assert norm_at(f, x) <= bound * (1 + 1e-9)
                formula = sum(torch.linalg.matrix_norm(W, 2).item() * L for W, L in zip(f.output, each, strict=True))
                assert bound == pytest.approx(formula, rel=1e-7)


def test_exact_for_aligned_heads_and_half_angle_for_rotated_ones():
    for degrees in [0, 40, 90, 179, 180]:
        generator = torch.Generator().manual_seed(degrees)
        q, k, v, x = (torch.randn(2, 2, generator=generator, dtype=torch.float64) for _ in range(4))
        angle = math.radians(degrees)
        rotation = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]).double()
        W = torch.stack([torch.eye(2, dtype=torch.float64), rotation])
        alone = norm_at(Attention(q[None], k[None], v[None]), x)
        f = Attention(*(matrix.expand(2, 2, 2) for matrix in (q, k, v)), W)
        ratio = norm_at(f, x) / multi_head_upper(W, [alone, alone])
        assert ratio == pytest.approx(abs(math.cos(angle / 2)), abs=1e-7)


def test_heads_of_any_positive_size_written_alike_are_exact():
    generator = torch.Generator().manual_seed(1)
    q, k, v, x = (torch.randn(3, 3, generator=generator, dtype=torch.float64) for _ in range(4))
    sizes = torch.tensor([0.1, 1.0, 7.0], dtype=torch.float64)
    W = sizes[:, None, None] * torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64)).Q
    f = Attention(*(matrix.expand(3, 3, 3) for matrix in (q, k, v)), W)
    alone = norm_at(Attention(q[None], k[None], v[None]), x)
    assert norm_at(f, x) == pytest.approx(multi_head_upper(W, [alone] * 3), rel=1e-7)


def test_zero_heads_add_nothing_and_infinite_bounds_stay():
    W = torch.eye(2, dtype=torch.float64).expand(2, 2, 2)
    assert multi_head_upper(W, [0.0, 3.0]) == pytest.approx(3.0, rel=1e-7)
    assert multi_head_upper(W, [math.inf, 3.0]) == math.inf


def test_bad_inputs_get_one_sentence():
    for shape, each, sentence in [
        ((2, 2), [1.0, 1.0], r"output must have shape \(h, m, v\)"),
        ((2, 2, 2), [1.0], "one bound for each of the 2 heads"),
        ((2, 2, 2), [[1.0, 1.0]], "one bound for each of the 2 heads"),
        ((2, 2, 2), [1.0, -1.0], "0 or more"),
        ((2, 2, 2), [1.0, math.nan], "no NaN"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            multi_head_upper(torch.ones(shape, dtype=torch.float64), each)


some = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def exact(A, V, x, masked=False):
    return local_lipschitz(Attention.from_matrices(A, V, masked=masked), x, method="dense").value


def never_below(A, V, x, masked):
    """All four upper bounds at a batch of inputs, in their order."""
    measured, n = exact(A, V, x, masked).reshape(-1), x.shape[-2]
    columns, spreads = column_upper(A, V, x, masked=masked).reshape(-1), spread_upper(A, V, x).reshape(-1)
    assert (measured <= columns * (1 + 1e-12)).all() and (measured <= spreads * (1 + 1e-12)).all()
    for one, column, tokens in zip(measured, columns, x.reshape(-1, n, x.shape[-1]), strict=True):
        R = tokens.norm(dim=1).max().item()
        sharp, published = general_upper_sharp(A, V, n, R), general_upper(A, V, n, R)
        assert one <= sharp <= published and column <= sharp * (1 + 1e-9)


@some
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 9),
    d=st.integers(1, 4),
    m=st.integers(1, 5),
    size=st.sampled_from([0.05, 0.3, 1.0, 4.0]),
    far=st.sampled_from([0.0, 1.0, 5.0]),
    masked=st.booleans(),
)
def test_random_inputs_near_and_far_from_the_origin(seed, n, d, m, size, far, masked):
    A, V, x, shift = normals(seed, (d, d), (m, d), (5, n, d), (d,))
    never_below(A, V, size * x + far * shift, masked)


def test_the_formulas_are_what_they_say():
    A, V = torch.diag(torch.tensor([1.0, -2.0], dtype=torch.float64)), torch.tensor([[0.0, 3.0]]).double()
    n, R = 5, 0.5
    t = 2 * R**2
    assert general_upper(A, V, n, R) == pytest.approx(3 * math.sqrt(3 * (t**2 * 21 + 5)), rel=1e-7)
    assert general_upper_sharp(A, V, n, R) == pytest.approx(3 * (t + math.sqrt(5) * (1 + t)), rel=1e-7)
    x = R * torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)  # centre 0, r = R, |A x| = R
    expected = 3 * math.sqrt(3 * (4 * R**4 + 2 * (4 * R**2 * R**2 + 1)))
    one = torch.ones(()).double()
    assert spread(2 * one, 3.0, R * one, 2 * R, 2).item() == pytest.approx(
        3 * math.sqrt(3 * (4 * R**4 + 2 * (4 * 4 * R**4 + 1))), rel=1e-12
    )
    assert spread_upper(A, V, x).item() == pytest.approx(expected, rel=2e-2)  # the centre is found to a few digits
    turned = torch.tensor([[0.0, 2.0], [0.0, 0.0]], dtype=torch.float64)  # |A x| = 2 |x_2|, not |A^T x|
    upright = torch.tensor([[0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
    expected = math.sqrt(3 * (4 + 2 * (4 * 4 + 1)))
    assert spread_upper(turned, torch.eye(2), upright).item() == pytest.approx(expected, rel=2e-2)
    c = (x @ A.T @ x.T).softmax(1).sum(0).max().item()
    assert column_upper(A, V, x).item() == pytest.approx(3 * (t + math.sqrt(c) * (1 + t)), rel=1e-7)
    sideways = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]], dtype=torch.float64)
    c = (sideways @ turned.T @ sideways.T).softmax(1).sum(0).max().item()
    assert (sideways @ turned @ sideways.T).softmax(1).sum(0).max().item() < 0.9 * c
    found = column_upper(turned, torch.eye(2), sideways).item()
    assert found == pytest.approx(2 * 4 + math.sqrt(c) * (1 + 2 * 4), rel=1e-7)
    assert general_lower(A, n, R) == pytest.approx(2 / (1 + 4 * math.exp(-4 * R**2)), rel=1e-12)  # gamma = 2


def test_the_powers_of_n_and_of_the_radius():
    """Four times the tokens, at most twice the bound; twice a large radius, four times."""
    for bound in (general_upper, general_upper_sharp):
        assert bound(EYE, EYE, 4 * 10**8, 2.0) / bound(EYE, EYE, 10**8, 2.0) == pytest.approx(2, rel=1e-3)
        assert bound(EYE, EYE, 7, 2e4) / bound(EYE, EYE, 7, 1e4) == pytest.approx(4, rel=1e-6)
    assert general_lower(-EYE, 4 * 10**6, 6.0) / general_lower(-EYE, 10**6, 6.0) == pytest.approx(2, rel=1e-3)


def test_equal_tokens_have_the_constant_of_the_value_matrix_and_the_column_form_is_exact_there():
    A, V, x = normals(1, (3, 3), (2, 3), (1, 3))
    norm = torch.linalg.matrix_norm(V, 2).item()
    for size in (1e-4, 1.0, 50.0):
        for n in (1, 2, 9):
            same = size * x.expand(n, 3)
            assert exact(A, V, same).item() == pytest.approx(norm, rel=1e-9)
    assert column_upper(A, V, 1e-4 * x.expand(9, 3)).item() == pytest.approx(norm, rel=1e-6)


def from_distances(A, V, x, both_sides):
    """The form of Thm C.3 with distances between tokens; the released code leaves the transpose out."""
    r, n = torch.cdist(x, x).max().item(), len(x)
    reach = (x @ A.T).norm(dim=1).max().item()
    if both_sides:
        reach = max(reach, (x @ A).norm(dim=1).max().item())
    return math.sqrt(3 * ((reach * r) ** 2 * (n + 1) + n)) * torch.linalg.matrix_norm(V, 2).item()


def test_the_form_from_distances_needs_both_sides():
    for a, fails in [(2.0, False), (2.1, True), (50.0, True)]:
        plane = torch.eye(2, dtype=torch.float64)
        A, x = a * torch.outer(plane[0], plane[1]), torch.stack([plane[0], -plane[0]])
        measured = exact(A, plane, x).item()
        assert measured == pytest.approx((a + math.sqrt(a * a + 4)) / 2)
        assert (measured > from_distances(A, plane, x, both_sides=False)) == fails
        assert measured <= from_distances(A, plane, x, both_sides=True)
        assert measured <= spread_upper(A, plane, x).item()


@some
@given(seed=st.integers(0, 10**6), n=st.integers(2, 8), d=st.integers(1, 4), far=st.sampled_from([0.0, 3.0]))
def test_the_form_from_distances_holds_with_both_sides(seed, n, d, far):
    A, V, x, shift = normals(seed, (d, d), (2, d), (n, d), (d,))
    assert exact(A, V, x + far * shift).item() <= from_distances(A, V, x + far * shift, both_sides=True)


def test_any_centre_is_valid_and_the_one_taken_is_good():
    A, V, x = normals(0, (3, 3), (3, 3), (20, 6, 3))
    measured, best = exact(A, V, x + 4), spread_upper(A, V, x + 4)
    for center in (torch.zeros(20, 3), x.mean(1) + 4, (x + 4)[:, 0]):
        r, reach = (x + 4 - center[:, None]).norm(dim=-1).amax(-1), ((x + 4) @ A.mT).norm(dim=-1).amax(-1)
        found = spread(torch.linalg.matrix_norm(A, 2), torch.linalg.matrix_norm(V, 2), r, reach, 6) * (1 + 1e-12)
        assert (measured <= found).all() and (best <= found * 1.01).all()


def test_bad_input_gives_its_sentence():
    for bound in [column_upper, spread_upper]:
        for A, V, x, sentence in [
            (EYE[:2], EYE, EYE, "A must be square"),
            (EYE, EYE[:, :2], EYE, "V of shape"),
            (EYE * torch.nan, EYE, EYE, "NaN"),
            (EYE, EYE, EYE[0], "x must have shape"),
            (EYE, EYE, EYE[:, :2], "x must have shape"),
            (EYE, EYE, EYE * torch.inf, "x holds NaN"),
        ]:
            with pytest.raises(ValueError, match=sentence):
                bound(A, V, x)
