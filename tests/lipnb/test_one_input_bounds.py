"""Bounds on a ball and at one input: never below what is measured, on random, structured and ascended inputs."""

import math

import pytest
import torch
from cases import normals
from hypothesis import given, settings
from hypothesis import strategies as st

from lipnb import Attention, local_lipschitz
from lipnb.bounds import column_upper, general_lower, general_upper, general_upper_sharp, spread_upper
from lipnb.bounds.castin import spread

some = settings(max_examples=60, deadline=None, derandomize=True, database=None)
EYE = torch.eye(3, dtype=torch.float64)


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
