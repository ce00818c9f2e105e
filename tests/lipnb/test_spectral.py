"""The solvers on diagonal operators, whose singular values are known, and the certificate on its own."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cases import normal

from lipnb import Attention, local_lipschitz
from lipnb.spectral import FunctionGram, GramOperator, lanczos, power_iteration, start_vectors
from lipnb.spectral.answer import evaluate
from lipnb.spectral.certificate import Certificate, least_log_mass, log_christoffel
from lipnb.spectral.krylov import Krylov, _product

ROUNDING = 16 * torch.finfo(torch.float32).eps


class Diagonal(GramOperator):
    """Diagonal operators with given singular values (b, N); as `CachedGram`, each answer overwrites the last."""

    def __init__(self, values, dtype=torch.float64):
        self.values, self.dtype = values, dtype
        self.buffer = torch.empty(values.shape, dtype=dtype)

    def gram(self, u):
        return torch.mul((self.values**2).to(self.dtype), u.to(self.dtype), out=self.buffer)

    def restrict(self, index):
        return Diagonal(self.values[index], self.dtype)


def tail(size, top):
    return torch.linspace(0, top, size, dtype=torch.float64)


def one(*tops, size=120, rest=0.9):
    return torch.cat([torch.tensor(tops, dtype=torch.float64), tail(size - len(tops), rest)])


SPECTRA = {
    "far": one(1.0, rest=0.3),
    "bulk": tail(120, 1.0),
    "repeated": one(1.0, 1.0, 1.0),
    "all equal": torch.ones(120, dtype=torch.float64),
    "gap 1e-3": one(1.0, 0.999),
    "gap 1e-8": one(1.0, 1 - 1e-8),
    "rank one": one(1.0, rest=0.0),
    "rank two": one(1.0, 1 - 1e-6, rest=0.0),
    "near": one(1.0, rest=0.999),
    "zero": tail(120, 0.0),
    "tiny": 1e-20 * one(1.0),
    "huge": 1e20 * one(1.0, 0.99),
    "many near": one(*np.linspace(1, 0.99, 30)),
}
NAMES = list(SPECTRA)


def random_starts(batch, size, seed):
    start = normal(batch, size, seed=seed)
    return start / start.norm(dim=1, keepdim=True)


def check(found, exact, rtol, rounding=1e-12):
    assert not any(field.isnan().any() for field in found[:5])
    assert found.converged.all()
    assert (found.value <= exact * (1 + rounding)).all()
    assert (found.value >= exact * (1 - rtol)).all(), NAMES[int((found.value / exact).nan_to_num(1).argmin())]


def test_lanczos_finds_the_top_of_any_spectrum():
    for rtol in [1e-2, 1e-4, 1e-7]:
        for seed in range(2):
            operator = Diagonal(torch.stack([*SPECTRA.values()]))
            exact = operator.values.max(1).values
            start = start_vectors(len(exact), 120, seed=seed, dtype=torch.float64, device="cpu")
            found = lanczos(operator, start, rtol=rtol)
            check(found, exact, rtol)
            assert (found.upper >= exact).all() and (found.upper <= found.value * (1 + rtol) * (1 + 1e-12)).all()
            alone = lanczos(operator.gram, start, rtol=rtol)  # no batch made smaller on the way: the same answers
            assert torch.equal(alone.steps, found.steps)
            assert torch.allclose(alone.value, found.value, rtol=1e-12, atol=0)


def test_upper_holds_at_whichever_step_it_stops():
    """Also where some items finish in the very last step and the batch is made smaller."""
    for max_steps in range(1, 40, 3):
        operator = Diagonal(torch.stack([*SPECTRA.values()]))
        exact = operator.values.max(1).values
        start = start_vectors(len(exact), 120, seed=4, dtype=torch.float64, device="cpu")
        found = lanczos(operator, start, max_steps=max_steps)
        assert (found.steps <= max_steps).all() and (found.upper >= exact).all() and not found.upper.isnan().any()
        plain = lanczos(operator.gram, start, max_steps=max_steps)
        assert torch.allclose(plain.upper, found.upper, rtol=1e-9, atol=0)
        open_ = ~found.converged
        assert (found.upper[open_] > found.value[open_] * (1 + 1e-4)).all()
        without = lanczos(operator, start, max_steps=max_steps, confidence=None)
        assert torch.isinf(without.upper).all() and (without.value <= exact * (1 + 1e-12)).all()


def test_a_batch_made_smaller_in_the_last_step_keeps_its_upper_bounds():
    operator = Diagonal(torch.stack([one(1.0, rest=0.01), one(1.0, rest=0.01), tail(120, 1.0), tail(120, 1.0)]))
    start = start_vectors(4, 120, seed=4, dtype=torch.float64, device="cpu")
    free = lanczos(operator, start)
    found = lanczos(operator, start, max_steps=int(free.steps[0]))
    assert found.converged.tolist() == [True, True, False, False]
    assert (found.upper >= 1).all() and found.upper[0] < 1.001 < found.upper[2]


def test_float32_vectors_stay_orthogonal_when_the_space_is_nearly_used_up():
    for seed in range(4):
        for tops in [[1.0, 0.999] + [0.5] * 18, [1 - 1e-4 * i for i in range(20)]]:
            operator = Diagonal(one(*tops, rest=0.0).expand(2, -1), torch.float32)
            found = lanczos(operator.gram, random_starts(2, 120, seed).float(), rtol=1e-5)
            assert (found.value <= 1 + 1e-6).all() and (found.value >= 1 - 1e-5).all() and found.converged.all()


def few_large_values(size, bulk, draw):
    """Six values that settle in a few steps, above a small bulk, float32."""
    values = bulk * torch.rand(size, generator=torch.Generator().manual_seed(draw))
    values[:6] = torch.tensor([1, 0.7, 0.5, 0.3, 0.2, 0.1])
    return values


def test_float32_is_right_where_the_top_settles_in_a_few_steps():
    """One item at a time: 30 of these 144 gave NaN or bounds of 1e9, and one a certified 1.08 for 1."""
    for max_steps in [300, 30]:
        for size, bulk in [(100, 0.05), (300, 0.02), (1000, 0.01)]:
            for draw in range(8):
                values = few_large_values(size, bulk, draw)
                for seed in (104, 105, 106):
                    start, options = random_starts(1, size, seed).float(), {"rtol": 1e-2, "max_steps": max_steps}
                    found = lanczos(lambda u, v=values: v * (v * u), start, **options)
                    assert found.converged and 0.99 <= found.value.item() <= 1 + ROUNDING
                    assert found.upper >= 1 - ROUNDING and (found.vector.norm() - 1).abs() < 1e-5


def test_a_lower_bound_holds_whatever_the_recurrence_did(monkeypatch):
    """Without orthogonalisation Lanczos vectors are lost: values are still quotients, and nothing is certified."""
    from lipnb.spectral import krylov

    values = torch.stack([few_large_values(300, 0.02, draw) for draw in range(40)])
    monkeypatch.setattr(krylov, "_project_out", lambda vectors, basis: vectors)
    for max_steps in (5, 12, 20, 40, 300):
        found = lanczos(
            lambda u: values * (values * u), random_starts(40, 300, 7).float(), rtol=1e-6, max_steps=max_steps
        )
        assert (found.value <= 1 + ROUNDING).all() and (found.upper >= 1 - ROUNDING).all()
        if max_steps > 20:
            assert found.precision_limited.all() and not found.converged.any() and torch.isinf(found.upper).all()


def test_the_check_of_float32_vectors_has_more_digits_than_they():
    """Two vectors of four million entries: a float32 sum of their squares was off by 1,500 rounding units."""
    from lipnb.spectral.krylov import LOST

    limit, size = LOST * torch.finfo(torch.float32).eps, 2**22
    first, second = torch.randn(2, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first, second = (one / one.norm() for one in (first, second - (second @ first) / (first @ first) * first))
    krylov = Krylov(Diagonal(torch.ones(1, size), torch.float32), first[None].float())
    krylov.extend()
    krylov.extend()
    for length, cosine, lost in ((0, 0, False), (0.99, 0, False), (1.01, 0, True), (0, -0.99, False), (0, 1.01, True)):
        krylov.basis[0, 0] = (1 + length * limit) ** 0.5 * first
        krylov.basis[1, 0] = (1 - (cosine * limit) ** 2) ** 0.5 * second + cosine * limit * first
        krylov.lost[:] = False
        krylov.check_orthonormal(np.array([True]))
        assert krylov.lost[0] == lost


@pytest.mark.parametrize("factor", [1e4, torch.inf])
def test_an_item_that_loses_its_basis_leaves_its_neighbours_as_they_are(monkeypatch, factor):
    """One of two is made longer by its orthogonalisation, as a lost basis does, or beyond all numbers at once."""
    from lipnb.spectral import krylov

    values, take_off = torch.stack([few_large_values(300, 0.02, 0)] * 2), krylov._project_out

    def amplified(vectors, basis, **how):
        take_off(vectors, basis, **how)[0].mul_(factor)
        return vectors

    start = random_starts(2, 300, 7).float()
    alone = lanczos(lambda u: values * (values * u), start)
    monkeypatch.setattr(krylov, "_project_out", amplified)
    found = lanczos(lambda u: values * (values * u), start)
    assert found.precision_limited.tolist() == [True, False] and found.converged.tolist() == [False, True]
    assert torch.isinf(found.upper[0]) and found.value[0] <= 1 + ROUNDING
    assert found.value[1] == pytest.approx(alone.value[1].item(), rel=1e-6) and found.upper[1] < 1.001


def test_a_ritz_value_that_the_last_product_denies_is_not_certified():
    """The operator shrinks by a tenth after the run: what the recurrence said of it holds no more."""
    values, asked = few_large_values(300, 0.02, 0), iter(range(100))
    steps = lanczos(lambda u: values * (values * u), random_starts(1, 300, 7).float()).steps.item()
    shrinking = lambda u: (1 if next(asked) < steps else 0.81) * values * (values * u)  # noqa: E731
    found = lanczos(shrinking, random_starts(1, 300, 7).float())
    assert found.steps == steps and found.value.item() == pytest.approx(0.9, rel=1e-3)
    assert found.precision_limited and not found.converged and torch.isinf(found.upper)


def test_a_run_that_lost_its_basis_in_float32_is_made_again_in_float64(monkeypatch):
    from lipnb.spectral import krylov

    take_off = krylov._project_out
    monkeypatch.setattr(
        krylov, "_project_out", lambda v, *basis, **how: v if v.dtype == torch.float32 else take_off(v, *basis, **how)
    )
    values = few_large_values(300, 0.02, 0)
    f = Attention(torch.zeros(1, 1, 300), torch.zeros(1, 1, 300), torch.diag(values)[None])
    for map_ in (f, lambda x: values * x):
        lip = local_lipschitz(map_, torch.zeros(1, 300))
        assert lip.precision == "float64" and lip.converged and abs(lip.value.item() - 1) < 1e-4


def test_what_is_left_of_a_product_is_made_orthogonal_twice():
    """A product that lies in the old vectors but for one part in a million: rounding hides it in the first pass."""
    N, asked = 40, iter(range(9))
    far = random_starts(1, N, 5).float()

    def gram(v):
        """Two ordinary products, then the oldest vector, much of the newest, and a little of another."""
        if next(asked) < 2:
            return v * torch.linspace(1, 2, N)
        return 1e3 * v + krylov.basis[0] + 1e-6 * far

    krylov = Krylov(FunctionGram(gram), random_starts(1, N, 4).float())
    for _ in range(3):
        krylov.extend()
    assert krylov.off_diagonal[0, -1] < 1e-2 and not krylov.lost.any()
    along = torch.bmm(krylov.basis[:3].transpose(0, 1).double(), krylov.current.double()[..., None])
    assert along.abs().max() < 1e-5


def test_a_product_that_is_nothing_but_rounding_ends_no_proof():
    """Where the space is invariant less is left of a product at each step, down to what no number divides by."""
    for size in (3, 8, 64):
        for seed in range(40):
            start = start_vectors(1, size, seed=seed, dtype=torch.float32, device="cpu")
            v = torch.nn.functional.normalize(torch.randn(size, generator=torch.Generator().manual_seed(seed)), dim=0)
            for gram in (torch.clone, lambda u, v=v: (u @ v)[:, None] * v):
                found = lanczos(gram, start, rtol=1e-6)
                assert found.converged and abs(found.value.item() - 1) < 1e-6 and found.upper >= 1


def test_float32_values_stay_below_the_norm_when_the_whole_space_is_used():
    """With one pass of orthogonalisation a step the vectors were lost after some twenty, and 1 came out as 3.6."""
    for size in [16, 32, 64]:
        operator = Diagonal(torch.linspace(0.4, 1, size, dtype=torch.float64).expand(16, -1), torch.float32)
        found = lanczos(operator.gram, random_starts(16, size, 3).float(), rtol=1e-3)
        assert (found.value <= 1 + 1e-6).all() and (found.value >= 1 - 1e-3).all() and found.converged.all()


def test_products_that_are_rounding_alone_never_converge():
    """Quotients of zero or less, though the products are not zero: a sign of cancellation, not of a zero Jacobian."""
    start = random_starts(3, 60, 0)
    values = -torch.linspace(0.1, 1, 60, dtype=torch.float64)
    for confidence in (None, 0.5):
        found = lanczos(lambda u: values * u, start, max_steps=3, confidence=confidence, rtol=0.1)
        assert not found.converged.any() and (found.value == 0).all() and (found.residual > 0.1).all()
    found = power_iteration(lambda u: values * u, start, max_steps=3, rtol=0.9)
    assert not found.converged.any() and (found.value == 0).all() and (found.residual > 0.1).all()


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


@pytest.mark.parametrize("solver", ["lanczos", "power"])
def test_vectors_are_unit_and_go_with_the_value(solver):
    names = [name for name in NAMES if name not in ("near", "many near", "gap 1e-3", "bulk", "gap 1e-8")]
    operator = Diagonal(torch.stack([SPECTRA[name] for name in names if name != "zero"]))
    start = start_vectors(len(operator.values), 120, seed=0, dtype=torch.float64, device="cpu")
    if solver == "power":
        found = power_iteration(operator.gram, start, rtol=1e-5)
        assert found.converged.all() and torch.isinf(found.upper).all()
        exact = operator.values.max(1).values
        assert ((found.value / exact - 1).abs() <= 1e-5).all() and (found.value <= exact * (1 + 1e-12)).all()
        return
    for products in (operator.gram, operator):
        found = lanczos(products, start, rtol=1e-8)
        v, square = found.vector, found.value[:, None] ** 2
        assert ((v.norm(dim=1) - 1).abs() < 1e-12).all()
        misfit = (operator.gram(v) - square * v).norm(dim=1) / square[:, 0]
        assert (misfit <= 2e-4).all() and (misfit <= found.residual + 1e-12).all()
        value, residual = evaluate(operator.gram, 3 * v)
        assert torch.allclose(value, found.value, rtol=1e-12, atol=0)
        assert torch.allclose(residual, found.residual, rtol=1e-3, atol=1e-11)
    stopped = lanczos(operator.gram, start, max_steps=4, rtol=1e-8)
    assert ((stopped.vector.norm(dim=1) - 1).abs() < 1e-12).all()
    assert torch.allclose(evaluate(operator.gram, stopped.vector)[0], stopped.value, rtol=1e-12, atol=0)


def test_krylov_goes_on_with_the_right_items():
    values = torch.stack([tail(50, 1.0 + i) for i in range(6)])
    start = random_starts(6, 50, seed=0)
    whole, part = Krylov(Diagonal(values), start), Krylov(Diagonal(values), start)
    kept = np.arange(6)
    for chosen in ([1, 2, 4, 5], [0, 2], [1]):
        for krylov in (whole, part):
            for _ in range(7):
                krylov.extend()
        kept = kept[chosen]
        part.restrict(np.array(chosen))
        # products of other batches may round otherwise; a wrong item is off by far more
        assert np.allclose(part.diagonal, whole.diagonal[kept], rtol=1e-8, atol=0)
        whole_ritz, ritz = whole.ritz(), part.ritz()
        items = np.arange(len(kept))
        others = whole.combine(whole_ritz.vectors[kept, :, -1], kept)
        for mine, other in zip(part.combine(ritz.vectors[:, :, -1], items), others, strict=True):
            assert torch.allclose(mine, other, rtol=1e-6, atol=1e-8)
    part.extend(), whole.extend()
    assert np.allclose(part.off_diagonal, whole.off_diagonal[kept], rtol=1e-8, atol=0)


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


def nearly_equal(size, top):
    """A map of one entry that is larger than all others, float32; its largest value exactly."""
    factors = torch.ones(size, 1)
    factors[size // 3] = 1 + top
    return lambda x: factors * x, factors.double().max().item()


def test_float32_sees_one_entry_in_a_million_that_is_a_little_larger():
    """An exhausted space was once taken for a proof: upper 1.00010 where the truth is 1.00030, for any seed."""
    f, exact = nearly_equal(10**6, 3e-4)
    assert exact == pytest.approx(1.0003, abs=1e-7)
    for seed in range(4):
        lip = local_lipschitz(f, torch.zeros(10**6, 1), seed=seed)
        assert lip.converged and lip.upper.item() >= exact * (1 - ROUNDING) and lip.upper.item() < 1.00041
        assert lip.value.item() == pytest.approx(exact, rel=1e-4)


def test_sums_that_are_off_make_no_value_too_large(monkeypatch):
    """Those of a million entries are, on one processor: orthogonality was lost, and the value was 23.87 for 1.0003."""
    product, draw = torch.mv, torch.Generator().manual_seed(0)

    def rough(rows, vector):
        exact = product(rows, vector)
        return exact + 3e-4 * torch.randn(exact.shape, generator=draw) * torch.linalg.vector_norm(vector)

    monkeypatch.setattr(torch, "mv", rough)
    f, exact = nearly_equal(10**4, 3e-4)
    for seed in range(12):
        lip = local_lipschitz(f, torch.zeros(10**4, 1), seed=seed)
        assert lip.value.item() <= exact * (1 + 1e-4) and lip.upper.item() >= exact * (1 - ROUNDING)


def test_products_in_pieces_are_products():
    draw = torch.Generator().manual_seed(0)
    rows, vector = (torch.randn(*shape, 100_003, generator=draw, dtype=torch.float64) for shape in ((3,), ()))
    assert torch.allclose(_product(rows, vector), rows @ vector, rtol=0, atol=1e-9)
    near = (rows[0] / rows[0].norm()).float()
    exact = near.double() @ near.double()
    assert abs(_product(near[None], near).item() - exact.item()) < 1e-6


def test_long_vectors_stay_orthonormal_in_float32(monkeypatch):
    """Sums of two million entries were off by 6,000 rounding units: nothing was certified, or all done again."""
    seen, check = [], Krylov.check_orthonormal

    def looked(self, rows):
        if rows.any():
            gram = sum(piece.double() @ piece.double().mT for piece in self.basis[: self.steps, 0].split(2**16, 1))
            seen.append((gram - torch.eye(self.steps)).abs().max().item())
        return check(self, rows)

    monkeypatch.setattr(Krylov, "check_orthonormal", looked)
    size = 2**21
    factors = 20 * torch.rand(size, generator=torch.Generator().manual_seed(1)) ** 4
    factors[:50] = torch.cat([torch.tensor([84.0, 60.0]), torch.linspace(30, 50, 48)])
    found = lanczos(lambda u: factors * (factors * u), random_starts(1, size, 0).float(), confidence=0.99)
    assert found.converged.all() and 84 * (1 - 1e-6) < found.upper.item() < 84 * (1 + 2e-4)
    assert found.value.item() == pytest.approx(84, rel=1e-5) and max(seen) < 200 * torch.finfo(torch.float32).eps


def test_the_identity_in_float32_is_certified_without_a_proof_by_exhaustion():
    for size in [64, 1000, 30000]:
        lip = local_lipschitz(lambda x: 1 * x, torch.zeros(size, 1))
        assert lip.converged and 2 <= lip.steps <= 6 and 1 <= lip.upper.item() <= 1 + 1.01e-4
        assert lip.value.item() == pytest.approx(1, abs=ROUNDING)


def test_near_degenerate_float32_fails_at_most_as_often_as_it_says():
    """Three standard deviations of 200 starts are allowed."""
    f, exact = nearly_equal(400, 1e-3)
    operator = Diagonal(f(torch.ones(400, 1))[:, 0].expand(200, -1), torch.float32)
    for confidence in [0.5, 0.9]:
        found = lanczos(operator, random_starts(200, 400, 7).float(), confidence=confidence)
        failed = (found.upper < exact * (1 - ROUNDING)).sum()
        assert failed <= 200 * (1 - confidence) + 3 * (200 * confidence * (1 - confidence)) ** 0.5
        assert found.upper.isfinite().sum() > 100


BULK = torch.cat([torch.linspace(0.95, 1, 99), torch.tensor([1.01])])  # close below the top, float32
INSIDE = {
    "answers in float32": lambda x: BULK[:, None] * x.float(),
    "refuses float64": lambda x: torch.diag(BULK) @ x,
    "answers in float64": lambda x: (BULK[:, None] * x.float()).to(x.dtype),
}


def test_what_float32_cannot_hear_is_not_certified():
    """A bulk close below the top: the rounding of the first product is louder than the weakest start that counts.

    None of these maps can go on in float64, whatever the type of its answer.
    """
    for inside in INSIDE:
        lip = local_lipschitz(INSIDE[inside], torch.zeros(100, 1))
        assert not lip.converged and 1.01 <= lip.upper < 3 and lip.precision == "input"


def test_what_float32_cannot_hear_goes_on_in_float64_where_the_map_can():
    for map_ in ["attention", "callable", "callable, weighted"]:
        exact, weights = BULK.double().max(), None
        if map_ == "attention":
            f, x = (
                Attention(torch.zeros(1, 1, 100), torch.zeros(1, 1, 100), torch.diag(BULK)[None]),
                torch.zeros(1, 100),
            )
        else:
            f, x = (lambda x: BULK[:, None] * x), torch.zeros(100, 1)
            weights = torch.linspace(1, 2, 100) if map_.endswith("weighted") else None  # a diagonal map keeps its norm
        lip = local_lipschitz(f, x, weights=weights)
        assert lip.converged and exact <= lip.upper <= exact * (1 + 2.1e-4) and lip.precision == "float64"
        single = local_lipschitz(f, x, weights=weights, max_steps=int(lip.steps) // 2)
        assert single.upper >= exact * (1 - ROUNDING)


def test_of_a_batch_of_a_callable_only_what_is_stuck_goes_on_in_float64():
    easy = torch.cat([torch.linspace(0, 0.5, 99), torch.tensor([1.01])])
    factors = torch.stack([easy, BULK])[..., None]
    lip = local_lipschitz(lambda x: factors * x, torch.zeros(2, 100, 1))
    alone = local_lipschitz(lambda x: factors[0] * x, torch.zeros(100, 1))
    assert lip.precision == "float64 + input" and lip.converged.all() and lip.steps[0] == alone.steps
    assert lip.value[0].item() == pytest.approx(alone.value.item(), rel=1e-6)
    assert (lip.upper >= 1.01 * (1 - ROUNDING)).all()


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


def test_nothing_certified_is_wrong_at_the_least_tolerances():
    """One value above a cluster, a few tolerances apart; products off by all the rounding that is assumed."""
    for dtype in [torch.float32, torch.float64]:
        for units in [8, 50, 1000]:
            eps, runs, size, draw = torch.finfo(dtype).eps, 200, 60, torch.Generator().manual_seed(units)
            rtol = units * eps
            gap = rtol * 10 ** (2 * torch.rand(runs, 1, generator=draw, dtype=torch.float64) - 0.5)
            values = torch.where(torch.arange(size) < 30, 1 - gap, 0.5 * torch.rand(runs, size, generator=draw))
            values[:, 0] = 1
            values = values.to(dtype)

            def gram(u):
                noise = torch.randn(runs, size, generator=draw, dtype=torch.float64)
                return (values * (values * u) + 4 * eps * noise / noise.norm(dim=1, keepdim=True)).to(dtype)

            found = lanczos(gram, random_starts(runs, size, units).to(dtype), rtol=rtol)
            assert found.converged.sum() > runs / 2 and not found.upper.isnan().any()
            assert (found.value <= 1 + 16 * eps).all() and (found.upper >= 1 - 16 * eps).all()


def test_an_answer_without_certificate_is_settled_four_times_finer_than_asked():
    """At the step where it stops the estimated error is a quarter of what is asked, and not before."""
    for rtol in [1e-1, 1e-2, 1e-3]:
        start, gram = random_starts(1, 120, 0), Diagonal(SPECTRA["bulk"][None]).gram
        found = lanczos(gram, start, rtol=rtol, confidence=None)
        krylov, errors = Krylov(FunctionGram(gram), start), []
        for _ in range(int(found.steps)):
            krylov.extend()
            errors.append(krylov.ritz().error[0])
        assert errors[-1] <= rtol / 4 < min(errors[:-1])


def test_a_larger_value_that_shows_late_is_looked_at():
    """Settled on 1, the run waits for its proof without looking; the 2 that comes up must be seen, and soon."""
    values = one(2.0, 1.0, size=400, rest=0.6)[None]
    start = random_starts(1, 400, 0)
    start[:, 0] *= 1e-8
    found = lanczos(Diagonal(values).gram, start, confidence=1 - 1e-6)
    assert abs(found.value.item() - 2) < 1e-3 and found.steps.item() < 12  # 14 where it is not looked at
    settled = lanczos(Diagonal(values).gram, start, confidence=None)
    assert abs(settled.value.item() - 1) < 0.05  # it did settle on 1 first
    assert settled.steps.item() < found.steps.item()
