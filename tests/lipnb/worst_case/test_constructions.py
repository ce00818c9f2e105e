"""The constructions of castin2024smooth, and forks, reach what they claim."""

import math

import pytest
import torch
from cases import normal
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import linregress
from strategies import quickly, seeds

from lipnb import Attention, AttentionJacobian, bounds, local_lipschitz
from lipnb.worst_case import eigenvector, even_fork_input, fork_input, quadratic_input, tight_input

EYE = torch.eye(2, dtype=torch.float64)


TURN = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)  # no real eigenvalue


def with_real_eigenvalues(seed, signs):
    """Not symmetric, with real eigenvalues of these signs."""
    generator = torch.Generator().manual_seed(seed)
    d = len(signs)
    S = torch.randn(d, d, generator=generator, dtype=torch.float64) + 2 * torch.eye(d, dtype=torch.float64)
    values = torch.rand(d, generator=generator, dtype=torch.float64) + 0.2
    return S @ torch.diag(values * torch.tensor(signs, dtype=torch.float64)) @ torch.linalg.inv(S)


def exponent(x, y):
    """The slope of log y on log x."""
    return linregress(torch.as_tensor(x).log(), torch.as_tensor(y).log()).slope


def exact(attention, x, weights=None):
    return local_lipschitz(attention, x, weights=weights, method="dense").value.item()


def test_the_eigenvector_is_real_of_length_one_and_the_one_of_the_rate():
    for signs in [[-1], [1], [1, -1], [1, 1], [-1, -1, 1], [1, 1, 1]]:
        for seed in range(3):
            A = with_real_eigenvalues(seed, signs)
            eigenvalue, u = eigenvector(A)
            assert u.norm().item() == pytest.approx(1) and torch.allclose(A @ u, eigenvalue * u, atol=1e-8)
            assert bounds.growth_rate(A) == pytest.approx(eigenvalue / 8 if eigenvalue > 0 else -eigenvalue)
    with pytest.raises(ValueError, match="no real eigenvalue"):
        eigenvector(TURN)


@given(seed=seeds, negative=st.booleans(), n=st.integers(2, 30), R=st.floats(0.05, 4))
@quickly
def test_two_clusters_reach_the_lower_bound_with_the_factor_kept(seed, negative, n, R):
    A = with_real_eigenvalues(seed, [1, -1, 1] if negative else [1, 1, 1])
    V = normal(2, 3, seed=seed)
    eigenvalue, u = eigenvector(A)
    s = (eigenvalue / 4 if eigenvalue >= 0 else -2 * eigenvalue) * R**2
    p = 1 / (1 + (n - 1) * math.exp(-s))
    kept = math.sqrt(n - 1) * p * (1 + s * (1 - p))
    x = tight_input(A, n, R)
    assert x.norm(dim=1).max() <= R * (1 + 1e-12)
    plain = exact(Attention.from_matrices(A, torch.eye(3, dtype=torch.float64)), x)
    assert plain >= kept * (1 - 1e-9) >= bounds.general_lower(A, n, R) * (1 - 1e-8)
    assert exact(Attention.from_matrices(A, V), x) >= (V @ u).norm().item() * kept * (1 - 1e-9)
    assert plain <= bounds.general_upper_sharp(A, torch.eye(3, dtype=torch.float64), n, R)


def test_two_weighted_tokens_give_the_norm_of_many():
    for A in (EYE, -EYE, with_real_eigenvalues(4, [1, -1])):
        f = Attention.from_matrices(A, EYE)
        for n, R in ((3, 0.5), (9, 2.0), (60, 3.0)):
            many = tight_input(A, n, R)
            x, a = many[:2], torch.tensor([1 / n, 1 - 1 / n], dtype=torch.float64)
            p = (a.log() + x @ A @ x[1]).softmax(0)
            spread = p[0] * p[1] * torch.outer(x[0] - x[1], x[0] - x[1])
            found = max(exact(f, x, a), torch.linalg.matrix_norm(spread @ A, 2).item())
            assert found == pytest.approx(exact(f, many), rel=1e-10)


def test_the_rate_in_n_is_one_half_and_ends_with_the_window():
    f, R = Attention.from_matrices(-EYE, EYE), 3.0
    lengths = torch.logspace(1, 5, 15, dtype=torch.float64).round()
    a = torch.stack([1 / lengths, 1 - 1 / lengths], dim=1)
    x = tight_input(-EYE, 2, R)

    def constants(weights):
        return local_lipschitz(f, x.expand(len(weights), 2, 2), weights=weights, method="dense").value

    assert exponent(lengths - 1, constants(a)) == pytest.approx(0.5, abs=0.01)
    late = lengths * math.exp(2 * R**2)
    assert exponent(late, constants(torch.stack([1 / late, 1 - 1 / late], dim=1))) < -0.2


def test_at_the_end_of_the_window_the_sharper_upper_bound_is_twice_too_high():
    R = 3.0
    n = 1 + math.exp(2 * R**2)
    a = torch.tensor([1 / n, 1 - 1 / n], dtype=torch.float64)
    found = exact(Attention.from_matrices(-EYE, EYE), tight_input(-EYE, 2, R), a)
    assert 2 < bounds.general_upper_sharp(-EYE, EYE, round(n), R) / found < 2.01


def test_three_tokens_are_enough_for_quadratic_growth():
    for n in [3, 5, 11]:
        f, u = Attention.from_matrices(EYE, EYE), torch.tensor([3.0, 4.0])
        radii, found = [8, 16, 32, 64, 128, 256, 512], []
        for R in radii:
            x = quadratic_input(n, R, u)
            J = AttentionJacobian(f, x).dense()
            unit = u.double() / 5
            block = (n - 1) / n * R**2 * torch.outer(unit, unit) + EYE / n
            assert torch.allclose(J[:2, :2], block, rtol=1e-12, atol=1e-9)
            found.append(exact(f, x))
            assert found[-1] >= ((n - 1) / n * R**2 + 1 / n) * (1 - 1e-12)
        assert exponent(radii, found) == pytest.approx(2, abs=0.01)
        assert found[3] / 64**2 == pytest.approx((n - 1) / n, rel=1e-3)


def test_the_fork_reaches_its_bound_in_the_ball_whatever_the_eigenvalues():
    for masked in [False, True]:
        for A in [TURN, -EYE, EYE, torch.tensor([[0.3, 2.0], [-0.1, 0.4]], dtype=torch.float64)]:
            V = torch.tensor([[1.0, 0.5], [-0.2, 2.0], [0.3, 0.1]], dtype=torch.float64)
            for n in (3, 6, 40):
                for R in (0.5, 1.5, 3.0):
                    x, stated = fork_input(A, V, n, R)
                    found = exact(Attention.from_matrices(A, V, masked=masked), x)
                    assert x.norm(dim=-1).max() <= R * (1 + 1e-12) and found >= stated * (1 - 1e-9)
                    assert found <= bounds.general_upper_sharp(A, V, n, R) * (1 + 1e-9)


def test_the_fork_comes_near_the_bound_where_two_clusters_do_not():
    """A quarter turn has no real eigenvalue: nothing to follow for two clusters, and a fork within a factor two."""
    x, stated = fork_input(TURN, EYE, 400, 4.0)
    found, upper = exact_copies(TURN, x), bounds.general_upper_sharp(TURN, EYE, 400, 4.0)
    assert stated <= found * (1 + 1e-9) and 0.5 < stated / upper < 0.55
    # here k . v = 0 and V = I: the best angle of sqrt(2 (n - 2)) s tau q
    c = torch.arange(33) / 33
    values = (2 * 398 * (1 - c**2)).sqrt() * 16 / (2 + 398 * torch.exp(-16 * c))
    assert stated == pytest.approx(values.max().item())


def exact_copies(A, x, V=EYE):
    """The constant where all tokens but the first two are copies, from three weighted ones."""
    n = len(x)
    weights = torch.tensor([1.0, 1.0, n - 2.0], dtype=torch.float64) / n
    return exact(Attention.from_matrices(A, V), x[:3], weights)


def test_the_block_of_two_clusters_is_exact():
    for A in (EYE, -EYE):
        eigenvalue, u = eigenvector(A)
        n, R = 6, 1.3
        s = (eigenvalue / 4 if eigenvalue >= 0 else -2 * eigenvalue) * R**2
        p = 1 / (1 + (n - 1) * math.exp(-s))
        J = AttentionJacobian(Attention.from_matrices(A, EYE), tight_input(A, n, R)).dense()
        assert torch.allclose(J[2:4, :2] @ u, p * (1 + s * (1 - p)) * u, atol=1e-12)


def reflected(d, t, seed):
    """The best A of norm t, by an orthonormal w, e, f, and a V of norm 2 that is largest at w."""
    turn = torch.linalg.qr(normal(d, d, seed=seed)).Q
    w, e, f = turn[:, :3].T
    A = t * (torch.outer(e, w) + torch.outer(w, e) - torch.outer(f, f))
    u = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    return A, u @ torch.stack([2 * w, 1.5 * (e + f) / math.sqrt(2)]), w, f


def test_even_forks_reach_the_exact_bound_at_every_length():
    for d in (3, 5):
        for n in (2, 3, 4, 6, 10, 98, 1000):
            A, V, w, f = reflected(d, 1e6, seed=d)
            x, lower = even_fork_input(A, V, n, 1.0)
            upper = bounds.general_upper_exact(A, V, n, 1.0)
            assert 0.9999 < lower / upper <= 1 and x.shape == (n, d) and x.norm(dim=1).max() <= 1 + 1e-12
            found = exact_copies(A, x, V) if n > 2 else exact(Attention.from_matrices(A, V), x)
            assert found == pytest.approx(lower, rel=1e-9)
            if n == 98:
                assert local_lipschitz(Attention.from_matrices(A, V), x).value.item() == pytest.approx(found, rel=1e-4)
    # at moderate t, with n tokens: the best of the grid
    ratios = [even_fork_input(100 * A / 1e6, V, n, 1.0)[1] / bounds.general_upper_exact(100 * A / 1e6, V, n, 1.0)
              for n in (2, 3, 10, 98, 1000)]  # fmt: skip
    assert ratios == pytest.approx([1.0, 0.9727, 0.9499, 0.9759, 0.996], abs=2e-4)


def test_even_forks_attend_evenly_and_their_bound_holds_at_every_size():
    for t in (3.0, 30.0, 300.0, 1e5):
        for n in (3, 7, 40):
            A, V, w, f = reflected(4, t, seed=n)
            x, lower = even_fork_input(A, V, n, 1.0)
            P = Attention.from_matrices(A, V).probabilities(x)[0]
            assert torch.allclose(P[:, 0], P[:, 1], rtol=1e-9) and x[0] @ x[1] < 0
            b1, b = (x[0] @ f).abs().item(), (x[2] @ f).abs().item()
            p = 1 / (1 + 2 * math.exp(t * min(b, b1) * (b - b1)) / (n - 2))
            assert P[:, 2:].sum(1).max() == pytest.approx(p)
            half = n / 2 + 4
            root = math.sqrt((half + math.sqrt(half * half - 16)) / 2)
            assert lower >= 2 * t * root * (1 - b * b) * (1 - p) * (1 - 1e-9)


def test_even_forks_of_small_and_of_large_matrices():
    for size in (1e-280, 1e-170, 1e160):
        A, V, *_ = reflected(3, 1.0, seed=0)
        R = math.sqrt(1e4 / size)
        lower = even_fork_input(size * A, size * V, 4, R)[1]
        assert lower > 0.999 * bounds.general_upper_exact(size * A, size * V, 4, R)


def test_any_isotropic_direction_is_as_good_if_values_are_kept():
    """V = I and A = t (2 p p^T - I): the multiplier has a double eigenvalue, and w lies between its eigenvectors."""
    for d in (2, 3, 6):
        p = torch.linalg.qr(normal(d, d, seed=d)).Q[0]
        A, eye = 1e6 * (2 * torch.outer(p, p) - torch.eye(d)), torch.eye(d, dtype=torch.float64)
        for n in (2, 5)[: d - 1]:
            x, lower = even_fork_input(A, eye, n, 1.0)
            assert abs((x[0] - x[1]) @ A @ (x[0] - x[1])) < 1e-6
            assert lower > 0.9999 * bounds.general_upper_exact(A, eye, n, 1.0)


def test_the_bound_of_an_even_fork_holds_for_any_matrices():
    for seed in range(24):
        d, n, R = 3 + seed % 3, 2 + seed % 7, (0.5, 1.0, 3.0)[seed % 3]
        A, V = normal(d, d, seed=seed), normal(1 + seed % 4, d, seed=seed + 50)
        if seed % 4 == 3:
            A = A @ A.mT if seed % 8 == 3 else -A @ A.mT  # definite: no w
        x, lower = even_fork_input(A, V, n, R)
        found = exact(Attention.from_matrices(A, V), x)
        assert x.norm(dim=1).max() <= R * (1 + 1e-12) and 0 < lower <= found * (1 + 1e-9)
    for A, V in ((0 * torch.eye(3), torch.eye(3)), (torch.eye(3), 0 * torch.eye(3))):
        x, lower = even_fork_input(A, V, 4, 1.0)
        assert torch.isfinite(x).all() and lower == pytest.approx(V[0, 0].item())
