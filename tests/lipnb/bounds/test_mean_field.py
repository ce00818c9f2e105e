"""Bounds on measures in a ball, with a mask and without: from both sides, and by logarithms where they overflow."""

import math

import numpy as np
import pytest
import torch
from cases import normal, normals
from scipy.integrate import quad

from lipnb import Attention, AttentionJacobian, bounds, local_lipschitz, measures
from lipnb.bounds import (
    growth_rate,
    masked_mean_field_upper,
    masked_mean_field_upper_sharp,
    mean_field_lower,
    mean_field_upper,
    mean_field_upper_sharp,
)
from lipnb.bounds.mean_field import _past_averages, log_masked_sharp
from lipnb.worst_case import eigenvector, two_diracs

ONE = torch.ones(1, 1, dtype=torch.float64)


EXPONENTS = (1.05, 1.5, 2.0, 3.0, math.inf)


HEATS = (0.0, 1e-9, 0.02, 0.3, 1.0, 3.0, 12.0, 30.0)


def upper(t, p=2.0):
    return masked_mean_field_upper_sharp(t * ONE, ONE, 1.0, p=p)


def bend(t):
    """rho of 1 + 2 t rho^2 = sqrt(1 + t^2)."""
    return math.sqrt((math.hypot(1, t) - 1) / (2 * t)) if t > 1e-4 else math.sqrt(t) / 2


def concave(t, q):
    """The primitive of the density 1 + 2 t max(1 - 2 q, 2 rho - 1)."""
    start = np.minimum(q, 1 - bend(t))
    return start * (1 + 2 * t * (1 - start)) + (1 + 2 * t * (2 * bend(t) - 1)) * (q - start)


def test_the_formula_is_the_integral():
    for p in EXPONENTS:
        for t in HEATS:
            eta, rho, power = -math.expm1(-2 * t), bend(t), 1 / (1 - 1 / p)  # q = y^power takes the singularity away

            def density(y):
                q = y**power
                return power * (1 + 2 * t * max(1 - 2 * q, 2 * rho - 1)) * (1 - eta * q) ** (1 / p)

            corner = (1 - rho) ** (1 / power)
            integral = quad(density, 0, corner, epsabs=0, epsrel=1e-11)[0] + quad(density, corner, 1, epsabs=1e-13)[0]
            assert upper(t, p) == pytest.approx(t + math.exp(2 * t / p) * integral, rel=1e-8)
            twice = masked_mean_field_upper_sharp(t * ONE / 4, -2 * ONE, 2.0, p=p)
            assert twice == pytest.approx(2 * upper(t, p), rel=1e-12)


def test_it_is_never_above_the_older_bound():
    for p in [1.001, *EXPONENTS, 17.0]:
        for t in np.concatenate([[0.0], np.geomspace(1e-6, 100, 60)]):
            hardy = 1.0 if math.isinf(p) else p / (p - 1)
            plain = t + hardy * (1 + 2 ** (1 / p) * t) * math.exp(2 * t / p)
            assert upper(t, p) <= plain * (1 + 1e-12)
            assert plain <= masked_mean_field_upper(t * ONE, ONE, 1.0, p=p) * (1 + 1e-12)


def test_its_ends():
    for p in (1 + 7.328e-9, 1 + 1e-6, *EXPONENTS, 1e6):
        assert upper(0.0, p) == pytest.approx(1.0 if math.isinf(p) else p / (p - 1), rel=1e-12)  # Hardy's constant
    for t in HEATS:
        assert upper(t, math.inf) == pytest.approx(t + math.hypot(1, t), rel=1e-12)
    large = masked_mean_field_upper_sharp(ONE, ONE, 1e3, log=True)
    assert large == pytest.approx(1e6 + math.log(1e6 * 2.12108), abs=1e-4)  # 2.121 t e^t
    assert masked_mean_field_upper_sharp(ONE, 0 * ONE, 1e3) == 0


def test_step_one_of_the_proof_no_set_receives_more():
    """Attention of density ratio e^(2t) gives a set of share r at most Er / (1 + (E - 1) r)."""
    draw = np.random.default_rng(0)
    for case in range(400):
        t, n = draw.choice([0.1, 1.0, 4.0]), draw.integers(1, 9)
        share, logits = draw.dirichlet(np.full(n, 0.3)), t * draw.uniform(-1, 1, n)
        logits = t * np.sign(logits) if case % 2 else logits
        P = share * np.exp(logits)
        P /= P.sum()
        for T in draw.random((20, n)) < 0.5:
            r, E = share[T].sum(), math.exp(2 * t)
            assert P[T].sum() <= E * r / (1 + (E - 1) * r) + 1e-12


def test_step_two_of_the_proof_values_and_keys_together():
    """A set of attention q carries at most the concave function of q, whatever the row; on the curve it is reached."""
    draw = np.random.default_rng(1)
    for case in range(400):
        t, n, d = draw.choice([0.1, 0.7, 3.0]), draw.integers(2, 9), 2
        P = draw.dirichlet(np.full(n, 0.3))
        x = draw.normal(size=(n, d))
        x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True)) if case % 3 else np.linalg.norm(x, axis=1)[:, None]
        v, c = draw.normal(size=(2, d))
        c = v if case % 2 else c
        v, c = v / np.linalg.norm(v), t * c / np.linalg.norm(c)
        phi = np.linalg.norm(v + ((x - P @ x) @ v)[:, None] * c, axis=1)
        assert P @ phi <= math.hypot(1, t) + 1e-12
        for T in [*(draw.random((20, n)) < 0.5), phi >= np.median(phi)]:
            assert (P * phi)[T].sum() <= concave(t, P[T].sum()) + 1e-12
    for t in (0.1, 0.7, 3.0):  # a share q at v, the rest at -v
        for q in np.linspace(0.05, 1 - bend(t), 5):
            assert q * (1 + t * 2 * (1 - q)) == pytest.approx(concave(t, q), rel=1e-12)


def test_step_one_for_keys_alone():
    """A set of attention q carries at most the least concave function above 2 t q (1 - q) that is t at 1."""

    def majorant(t, q):
        """Primitive of 2 t max(1 - 2 q, sqrt 2 - 1)."""
        start = min(q, 1 - math.sqrt(0.5))
        return 2 * t * (start * (1 - start) + (math.sqrt(2) - 1) * (q - start))

    draw, t = np.random.default_rng(3), 1.3
    for case in range(400):
        n, d = draw.integers(2, 9), 1 + case % 2
        P, x = draw.dirichlet(np.full(n, 0.3)), draw.normal(size=(n, d))
        x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True)) if case % 3 else np.linalg.norm(x, axis=1)[:, None]
        v = draw.normal(size=d)
        keys = t * np.abs((x - P @ x) @ v) / np.linalg.norm(v)
        for T in [*(draw.random((20, n)) < 0.5), keys >= np.median(keys), keys > 0]:
            assert (P * keys)[T].sum() <= majorant(t, P[T].sum()) + 1e-12
    # half of the mass at each end: t, where values and keys together are sqrt(1 + t^2), which is less than 1 + t
    assert majorant(t, 1.0) == pytest.approx(t, rel=1e-12) and concave(t, 1.0) - 1 < 0.5 * t
    q = 1 - math.sqrt(0.5)  # a share q at one end, the rest at the other, on the curve
    assert majorant(t, q) == pytest.approx(2 * t * q * (1 - q), rel=1e-12)


def test_keys_alone_by_the_norm_are_never_less_next_to_tau():
    """If 2 tau < values, sqrt 6 t tau < sqrt(3/2) t values, which is at most the bound of keys alone, at any t."""
    shares = []
    for t in (0.0, 0.1, 1.0, 2.38, 12.0, 300.0):

        def integral(weight, t=t):
            corner, eta = math.sqrt(1 - math.sqrt(0.5)), 1 - math.exp(-2 * t)
            ends = (0, corner), (corner, 1)  # of y, q = y^2
            return sum(quad(lambda y: 2 * weight(y * y) * math.sqrt(1 - eta * y * y), *end)[0] for end in ends)

        shares.append(integral(lambda q: max(1 - 2 * q, math.sqrt(2) - 1)) / integral(lambda q: 1))
    assert shares == sorted(shares) and shares[0] > 0.625 > math.sqrt(6) / 4
    # so the smaller of: both together by the norms; values by the norms or tau, keys by tau
    for t in (2.0, 10.0):  # at 10 there are tau above half of `values` whose keys are less than what is added for them
        values, keys = (math.exp(t) * one for one in _past_averages(t, 2))
        for tau in (0.1, 1.0, 0.45 * values, 0.515 * values, 1.5 * values):
            least = min(values + 2 * t * keys, min(values, 2 * tau) + math.sqrt(6) * t * tau)
            assert math.exp(log_masked_sharp(t, 1.0, log_tau=math.log(tau))) == pytest.approx(t + least, rel=1e-12)


def test_step_three_of_the_proof_averages_over_the_past():
    """Rows that attend to the largest of the past, at any weights of positions, against the dilated averages."""
    draw = np.random.default_rng(2)
    worst = 0.0
    for _ in range(300):
        n, E, p = draw.integers(1, 30), math.exp(2 * draw.choice([0.0, 0.3, 2.0])), draw.choice([1.3, 2.0, 4.0])
        a = draw.exponential(size=n) ** 3
        a /= a.sum()
        g = draw.exponential(size=n) ** 2 if draw.random() < 0.5 else np.cumsum(a) ** (-0.9 / p)
        rows = np.empty(n)
        for i in range(n):
            order = np.argsort(-g[: i + 1])
            r = np.concatenate([[0], np.cumsum(a[order]) / a[: i + 1].sum()])
            rows[i] = np.diff(E * r / (1 + (E - 1) * r)) @ g[order]
        exact = quad(lambda q, p=p, E=E: ((E - (E - 1) * q) / q) ** (1 / p), 0, 1, epsrel=1e-9)[0]
        worst = max(worst, ((a * rows**p).sum() / (a * g**p).sum()) ** (1 / p) / exact)
    assert 0.5 < worst <= 1


def test_in_other_orders_moves_of_tokens_do_not_pass_it():
    """Weighted tokens and their velocities climb on the ratio of the velocities' norms in L^p."""
    for p in [1.3, 4.0]:
        for t in [0.05, 0.5, 3.0]:
            g = torch.Generator().manual_seed(0)
            x, moves = (torch.randn(8, 2, generator=g, dtype=torch.float64).requires_grad_() for _ in range(2))
            logs = torch.linspace(-8, 0, 8, dtype=torch.float64).requires_grad_()
            climber, reached = torch.optim.Adam([x, moves, logs], lr=0.05), []
            hidden = torch.ones(8, 8).triu(1).bool()
            for _ in range(120):
                a = logs.softmax(0)

                def f(y, a=a):
                    return (-t * y @ y.T + a.log()).masked_fill(hidden, -torch.inf).softmax(1) @ y

                velocities = torch.func.jvp(f, (x / x.norm(dim=1, keepdim=True).clamp_min(1),), (moves,))[1]
                after, before = ((a * v.norm(dim=1) ** p).sum() for v in (velocities, moves))
                value = (after / before) ** (1 / p)
                reached.append(value.item())
                climber.zero_grad()
                (-value.log()).backward()
                climber.step()
            assert max(1.05 * reached[0], 0.15 * upper(t, p)) < max(reached) <= upper(t, p)


def two_clusters(t, share, tokens=2000, step=0.02):
    """Tokens 1, -1, 1, ... of geometrically growing weights, `share` of them at 1; A = -t, V = 1."""
    x = torch.ones(tokens, 1, dtype=torch.float64)
    x[1::2] = -1
    a = (step * torch.arange(1.0 - tokens, 1.0, dtype=torch.float64)).exp() * torch.where(x[:, 0] > 0, share, 1 - share)
    f = Attention.from_matrices(-t * ONE, ONE, masked=True)
    return local_lipschitz(f, x, weights=a / a.sum(), rtol=1e-6).value.item()


def test_two_clusters_reach_more_than_half():
    for t, odds in [(0.6, 1.9), (3.0, 7.0), (10.0, 21.0)]:
        assert 0.52 < two_clusters(t, 1 / (1 + math.exp(odds))) / upper(t) <= 1


def test_beyond_0_29_the_recalled_form_holds():
    """The bound grows with t, so a grid settles what lies between; from 0.43 on the plain form is below for good."""
    grid = np.arange(0.2901, 0.44, 1e-4)
    for t, after in zip(grid, grid[1:], strict=False):
        assert upper(t) <= upper(after) <= mean_field_upper(t * ONE, ONE, 1.0)
    assert upper(0.2899) > mean_field_upper(0.2899 * ONE, ONE, 1.0)
    plain = 0.43 + 2 * (1 + math.sqrt(2) * 0.43) * math.exp(0.43)
    assert plain < mean_field_upper(0.43 * ONE, ONE, 1.0)


EYE = torch.eye(2, dtype=torch.float64)


def averaging(n):
    """The masked map on n equal tokens of width one."""
    f = Attention.from_matrices(3 * ONE, ONE, masked=True)
    return local_lipschitz(f, ONE.expand(n, 1), rtol=1e-8).value.item()


def test_averages_over_the_past_refute_the_recalled_form():
    """Equal tokens average, whatever the scores are."""
    zero = torch.zeros(1, 1, dtype=torch.float64)
    recalled = bounds.mean_field_upper(zero, zero + 1, 1.0)
    assert recalled == pytest.approx(1)
    for n, expected in ((1, 1.0), (2, 1.144), (10, 1.410), (100, 1.630), (1000, 1.748)):
        norm = averaging(n)
        assert norm == pytest.approx(expected, abs=5e-4)
        assert norm <= bounds.masked_mean_field_upper(zero, zero + 1, 1.0)
        assert n == 1 or norm > 1.14 * recalled


def test_the_factor_of_p_enters_once():
    for p in (1.5, 2, 3, math.inf):
        hardy = 1 if math.isinf(p) else p / (p - 1)
        found = masked_mean_field_upper(0.3 * EYE, EYE, 1.0, p=p)
        assert found == pytest.approx(0.3 + hardy * (1 + 0.6) * math.exp(0.6), rel=1e-6)


def test_small_moves_cost_what_the_masked_jacobian_says():
    for seed in range(3):
        A, V, x, s = normals(seed, (2, 2), (2, 2), (5, 2), (5,))
        f, s = Attention.from_matrices(A, V, masked=True), s.sort().values
        _, sigma, Vh = torch.linalg.svd(AttentionJacobian(f, x).dense())
        y = x + 1e-6 * Vh[0].view_as(x)
        quotient = measures.conditional_wasserstein(s, f(x), s, f(y)) / measures.conditional_wasserstein(s, x, s, y)
        assert quotient == pytest.approx(sigma[0].item(), rel=1e-5)


def test_two_clusters_refute_the_recalled_form_beyond_equal_tokens():
    """The proof on the page: the constant of the ball is at least 2 + t / cosh(t)^2, the recalled form below it."""
    for t in [0.03, 0.16, 0.17]:
        one = torch.ones(1, 1, dtype=torch.float64)
        norm, lower = two_clusters(-t, 0.5), 2 + t / math.cosh(t) ** 2
        assert 0.98 * lower < norm <= lower
        assert norm > bounds.mean_field_upper(t * one, one, 1.0)
        assert lower < bounds.masked_mean_field_upper(t * one, one, 1.0)


def averaging_in_lp(p):
    """Norm ratio in l^p of averages over the past, at powers on a geometric grid of positions."""
    weights = np.exp(0.01 * np.arange(20_000))
    right = np.cumsum(weights)
    g = (right / right[-1]) ** (-0.98 / p)
    averages = np.cumsum(weights * g) / right
    return ((weights * averages**p).sum() / (weights * g**p).sum()) ** (1 / p)


def test_averages_in_lp_reach_the_corrected_bound_and_refute_the_recalled_form_near_one():
    """Averages over the past of s^(-b) are s^(-b) / (1 - b): the norm in l^p tends to p / (p - 1)."""
    for p in (1.2, 2.0, 5.0):
        assert 0.85 < averaging_in_lp(p) / masked_mean_field_upper(0 * ONE, ONE, 1.0, p=p) <= 1
    for t, p in ((0.3, 1.2), (0.5, 1.1), (0.7, 1.05)):  # equal tokens: averages, whatever the scores
        assert mean_field_upper(t * ONE, ONE, 1.0) < averaging_in_lp(p)
        assert averaging_in_lp(p) <= masked_mean_field_upper(t * ONE, ONE, 1.0, p=p)


def constant_of(A, V, x, a):
    return local_lipschitz(Attention.from_matrices(A, V), x, weights=a, method="dense").value.item()


MATRICES = [
    -EYE,
    EYE,
    torch.diag(torch.tensor([2.0, -0.1])).double(),
    torch.tensor([[-0.3, 2.0], [0, 0.7]]).double(),
    torch.tensor([[2.0, -1.0], [0, 0.5]]).double(),
]


def test_two_diracs_are_above_the_lower_bound_and_below_the_upper():
    """The lower bound with its factor theta, and times |V u| for another value matrix."""
    for case, A in enumerate(MATRICES):
        _, u = eigenvector(A)
        V = normal(3, 2, seed=case)
        for s in (0.1, 0.5, 2.0, 10.0, 300.0):
            R = math.sqrt(s / growth_rate(A))
            x, a = two_diracs(A, R)
            assert x.norm(dim=-1).max() <= R * (1 + 1e-12) and a.sum() == pytest.approx(1)
            measured, lower = math.log(constant_of(A, EYE, x, a)), mean_field_lower(A, R, log=True)
            r = 1 / (2 * math.exp(2 * s) - 1)
            assert measured >= lower + math.log(math.sqrt(1 - r**2) * (1 + 1 / s - r)) - 1e-9  # theta, above 1
            assert measured <= mean_field_upper_sharp(A, EYE, R, log=True) + 1e-9
            if s >= 10:
                assert measured == pytest.approx(lower + math.log1p(1 / s), abs=1e-6)
            assert math.log(constant_of(A, V, x, a)) >= lower + math.log((V @ u).norm().item())


def test_a_third_of_the_weight_is_best():
    x, a = two_diracs(-EYE, 10.0, share=1 / 3)
    best = constant_of(-EYE, EYE, x, a)
    x, a = two_diracs(-EYE, 10.0)
    assert best / constant_of(-EYE, EYE, x, a) == pytest.approx(3 * math.sqrt(3) / 4, rel=0.01)
    for share in (0.2, 0.28, 0.4, 0.6):
        x, a = two_diracs(-EYE, 10.0, share=share)
        assert constant_of(-EYE, EYE, x, a) < best
    # and then the sharp bound is 1.54 above, in the limit
    assert mean_field_upper_sharp(-EYE, EYE, 10.0) / best == pytest.approx(8 / (3 * math.sqrt(3)), rel=0.01)


def test_the_formulas_and_their_logarithms():
    for R in (0.0, 0.5, 1.0, 3.0):
        A, V = torch.diag(torch.tensor([1.5, -0.5])).double(), 2 * EYE
        t = 1.5 * R**2
        for bound, value in (
            (mean_field_upper, 2 * (1 + 3 * t) * math.exp(2 * t)),
            (mean_field_upper_sharp, 2 * (t + (1 + t) * math.exp(t))),
            (masked_mean_field_upper, 2 * (t + 2 * (1 + 2 * t) * math.exp(2 * t))),
        ):
            assert bound(A, V, R) == pytest.approx(value, rel=1e-6)
            assert bound(A, V, R, log=True) == pytest.approx(math.log(value), abs=1e-6)
        assert mean_field_lower(A, R) == pytest.approx(0.25 * R**2 * math.exp(0.5 * R**2), rel=1e-12)
    for t in (800.0, 1e6):  # where plain numbers are not finite
        R = math.sqrt(t)
        assert mean_field_upper(EYE, EYE, R, log=True) == pytest.approx(math.log1p(3 * t) + 2 * t, rel=1e-6)
        assert mean_field_upper_sharp(EYE, EYE, R, log=True) == pytest.approx(math.log1p(t) + t, rel=1e-6)
        assert masked_mean_field_upper(EYE, EYE, R, log=True) == pytest.approx(math.log(2 + 4 * t) + 2 * t, rel=1e-6)
        assert mean_field_lower(-EYE, R, log=True) == pytest.approx(math.log(t / 2) + t, rel=1e-12)
    assert mean_field_upper(EYE, 0 * EYE, 1.0) == 0 and mean_field_upper_sharp(EYE, 0 * EYE, 1.0, log=True) == -math.inf
    assert mean_field_lower(EYE, 0.0) == 0 == mean_field_lower(0 * EYE, 3.0)
