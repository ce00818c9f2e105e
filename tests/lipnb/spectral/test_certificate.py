"""The certificate on its own: its sums, the mass it leaves, and how often it fails."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from spectra import Diagonal, one, random_starts

from lipnb.spectral import FunctionGram, lanczos, start_vectors
from lipnb.spectral.certificate import Certificate, least_log_mass, log_christoffel
from lipnb.spectral.krylov import Krylov

CONFIDENCE = 0.5


HARD = {
    "repeated near the top": one(1.0, 0.9991, 0.9991, 0.9991),
    "gap 1e-3": one(1.0, 0.999, rest=0.9),
    "hidden top": one(1.0, rest=0.98),
    "alone": one(1.0, rest=0.5),
}


def test_the_certificate_fails_at_most_as_often_as_it_says():
    """400 starts: at most half fail, plus three standard deviations; some do fail, so the test is live."""
    for max_steps in [300, 8]:
        for name in HARD:
            starts = 400
            operator = Diagonal(HARD[name].expand(starts, -1))
            start = random_starts(starts, 120, seed=7)
            found = lanczos(operator, start, confidence=CONFIDENCE, max_steps=max_steps)
            failed = (found.upper < 1 - 1e-12).sum().item()
            assert failed <= (1 - CONFIDENCE) * starts + 3 * (CONFIDENCE * (1 - CONFIDENCE) * starts) ** 0.5
            if name != "alone" and (name, max_steps) != ("hidden top", 300):
                assert failed >= starts * 0.02, failed
            sure = lanczos(operator.gram, start, confidence=0.99, max_steps=max_steps)
            assert (sure.upper < 1 - 1e-12).sum() <= 0.01 * starts + 3 * (0.01 * 0.99 * starts) ** 0.5
            assert (sure.upper >= sure.value).all()


def coefficients(nodes, mass, steps):
    """Lanczos coefficients of the measure with these masses at these nodes."""
    krylov = Krylov(Diagonal(torch.as_tensor(nodes).sqrt()[None]), torch.as_tensor(mass).sqrt()[None])
    for _ in range(steps):
        krylov.extend()
    return krylov.diagonal, krylov.off_diagonal


def test_the_christoffel_sum_is_that_of_the_monomials():
    """K(t, t) = m(t)^T G^{-1} m(t), with m the monomials up to the degree and G their Gram matrix."""
    for steps in [1, 2, 3, 4]:
        for seed in range(4):
            random = np.random.default_rng(seed)
            nodes, mass = np.sort(random.uniform(0.1, 1, 7)), random.dirichlet(np.ones(7))
            powers = np.vander(nodes, steps + 1)
            gram = powers.T @ (mass[:, None] * powers)
            diagonal, off_diagonal = coefficients(nodes, mass, steps)
            for t in (nodes[-1] * 1.001, 1.1, 2.0, 50.0):
                monomials = np.vander([t], steps + 1)[0]
                expected = monomials @ np.linalg.solve(gram, monomials)
                assert abs(log_christoffel(diagonal, off_diagonal, np.array([t]))[0] - np.log(expected)) < 1e-5


def test_mass_at_an_eigenvalue_is_at_most_one_over_the_sum_and_all_of_it_in_the_end():
    for seed in range(4):
        random = np.random.default_rng(seed)
        nodes, mass = np.sort(random.uniform(0.1, 1, 8)), random.dirichlet(np.ones(8))
        sums = []
        for steps in range(1, 8):
            diagonal, off_diagonal = coefficients(nodes, mass, steps)
            sums.append([log_christoffel(diagonal, off_diagonal, np.array([t]))[0] for t in nodes])
            assert (np.log(mass) <= -np.array(sums[-1]) + 1e-9).all()
        assert (np.diff(sums, axis=0) >= 0).all()
        assert np.allclose(np.log(mass), -np.array(sums[-1]), atol=1e-6)
        diagonal, off_diagonal = coefficients(nodes, mass, 7)
        assert log_christoffel(diagonal, np.zeros_like(off_diagonal), np.array([2.0]))[0] == np.inf
        assert np.isfinite(log_christoffel(diagonal, off_diagonal, np.array([1e200]))[0])
        usual = log_christoffel(diagonal, off_diagonal, np.array([1.1]))
        for unit in (1e-200, 1e200):  # squares of such couplings are no numbers
            assert np.allclose(log_christoffel(unit * diagonal, unit * off_diagonal, np.array([1.1 * unit])), usual)


def test_the_least_mass_is_a_quantile_of_random_unit_vectors():
    for size in [2, 3, 10, 300]:
        for confidence in [0.5, 0.9, 0.99]:
            draws = 20000
            vectors = np.random.default_rng(size).standard_normal((draws, size))
            component = vectors[:, 0] ** 2 / (vectors**2).sum(1)
            below = (component < np.exp(least_log_mass(size, confidence))).mean()
            assert abs(below - (1 - confidence)) <= 4 * (confidence * (1 - confidence) / draws) ** 0.5
            assert least_log_mass(1, confidence) == 0


BULK = torch.cat([torch.linspace(0.95, 1, 99), torch.tensor([1.01])])  # close below the top, float32


def test_the_upper_bound_of_what_is_not_heard_lies_where_it_is():
    """At the tolerance the mass is enough, but the weakest start is not heard: the bound is where both hold."""
    certificate = Certificate(100, 1 - 1e-6, torch.finfo(torch.float32).eps)
    start = start_vectors(1, 100, seed=0, dtype=torch.float32, device="cpu")
    krylov = Krylov(FunctionGram(lambda u: BULK**2 * u), start)
    for _ in range(70):
        krylov.extend()
    theta = krylov.ritz().values[:, -1]
    near = theta * (1 + 1e-4) ** 2
    assert certificate.christoffel(krylov, near).all() and not certificate.above_rounding(krylov, near).any()
    upper = certificate.upper(krylov, theta)
    assert certificate.above_rounding(krylov, upper * (1 + 1e-12)).all() and (upper > near).all()


def run_of(diagonal, coupling):
    """A run with these coefficients, from one random vector."""
    random = np.arange(len(diagonal))[None] == 0
    return SimpleNamespace(
        diagonal=np.array([diagonal]), coupling=np.array([coupling]), random=random, steps=len(diagonal)
    )


def test_a_coefficient_below_zero_is_zero_up_to_the_noise_and_certifies_nothing_beyond_it():
    """No square of a length is negative: rounding beyond what the certificate assumes."""
    for dtype in [torch.float32, torch.float64]:
        eps, theta, t = torch.finfo(dtype).eps, np.ones(1), np.full(1, 1.001)
        certificate = Certificate(100, 1 - 1e-6, eps)
        for own, shown in ((0.0, True), (-3 * eps, True), (-5 * eps, False), (-0.1, False)):
            for diagonal in ((own, 0.5), (0.5, own)):
                run = run_of(diagonal, (1e-3, 1e-3))
                assert certificate.above_rounding(run, t).item() is shown
                upper = certificate.upper(run, theta).item()  # so large that this is noise there
                assert 4 * eps * upper >= -own


def test_the_noise_is_relative_to_the_largest_eigenvalue_not_to_the_product():
    """A start with hardly a product is heard no better: a confidence beyond float32 is not certified in it."""
    run, t = run_of((1e-12,), (1e-3,)), np.full(1, 1.001)
    heard = {
        (dtype, far): Certificate(100, 1 - far, torch.finfo(dtype).eps).above_rounding(run, t).item()
        for dtype in (torch.float32, torch.float64)
        for far in (1e-6, 1e-7)
    }
    assert [*heard.values()] == [True, False, True, True]


def test_the_upper_bound_is_infinite_where_its_far_end_is_not_shown_either():
    """One step in float32: however far the point, no coupling counts as less than the noise there."""
    certificate = Certificate(1000, 1 - 1e-6, torch.finfo(torch.float32).eps)
    assert np.isinf(certificate.upper(run_of((0.3,), (0.2,)), np.full(1, 0.3))).all()
    assert np.isfinite(certificate.upper(run_of((0.3, 0.3), (0.2, 0.2)), np.full(1, 0.5))).all()
    assert np.isinf(certificate.upper(run_of((0.0, 0.0), (0.0, 0.0)), np.zeros(1))).all()


def test_vectors_that_are_nearly_orthonormal_need_a_larger_sum():
    """At the point where the sum is just what exact vectors need, nothing is certified; a little further on it is."""
    certificate, run = Certificate(100, 1 - 1e-6, torch.finfo(torch.float32).eps), run_of((0.3, 0.3), (0.2, 0.2))
    t = certificate.upper(run, np.full(1, 0.5))
    missing = log_christoffel(run.diagonal, run.coupling, t) - certificate.log_threshold
    assert missing == pytest.approx(3 * 1e3 * torch.finfo(torch.float32).eps, rel=1e-3)
