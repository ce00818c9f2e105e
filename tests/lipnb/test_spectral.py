"""The solvers on diagonal operators, whose singular values are known, and the certificate on its own."""

import numpy as np
import pytest
import torch

from lipnb import Attention, local_lipschitz
from lipnb.spectral import evaluate, lanczos, mixed_lanczos, power_iteration, start_vectors
from lipnb.spectral.certificate import Certificate, least_log_mass, log_christoffel
from lipnb.spectral.krylov import Krylov, _in_pieces

ROUNDING = 16 * torch.finfo(torch.float32).eps


class Diagonal:
    """Diagonal operators with given singular values (b, N); as `CachedProducts`, each answer overwrites the last."""

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
    start = torch.randn(batch, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return start / start.norm(dim=1, keepdim=True)


def check(found, exact, rtol, rounding=1e-12):
    assert not any(field.isnan().any() for field in found[:5])
    assert found.converged.all()
    assert (found.value <= exact * (1 + rounding)).all()
    assert (found.value >= exact * (1 - rtol)).all(), NAMES[int((found.value / exact).nan_to_num(1).argmin())]


@pytest.mark.parametrize("rtol", [1e-2, 1e-4, 1e-7])
@pytest.mark.parametrize("seed", range(2))
def test_lanczos_finds_the_top_of_any_spectrum(seed, rtol):
    operator = Diagonal(torch.stack([*SPECTRA.values()]))
    exact = operator.values.max(1).values
    start = start_vectors(len(exact), 120, seed=seed, dtype=torch.float64, device="cpu")
    found = lanczos(operator.gram, start, rtol=rtol, restrict=lambda index: operator.restrict(index).gram)
    check(found, exact, rtol)
    assert (found.upper >= exact).all() and (found.upper <= found.value * (1 + rtol) * (1 + 1e-12)).all()
    alone = lanczos(operator.gram, start, rtol=rtol)  # no batch made smaller on the way: the same answers
    assert torch.equal(alone.steps, found.steps) and torch.allclose(alone.value, found.value, rtol=1e-12, atol=0)


@pytest.mark.parametrize("low", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rtol", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("seed", range(2))
def test_mixed_lanczos_finds_the_top_of_any_spectrum(seed, rtol, low):
    scales = torch.tensor([1e10 if name == "huge" else 1e-10 if name == "tiny" else 1.0 for name in NAMES])
    values = torch.stack([*SPECTRA.values()])
    values = values / torch.where(scales != 1, scales.double() ** 2, 1.0)[:, None]  # units that float32 holds
    high, exact = Diagonal(values), values.max(1).values
    start, second = (
        start_vectors(len(values), 120, seed=s, dtype=torch.float64, device="cpu") for s in (seed, seed + 100)
    )
    found = mixed_lanczos(Diagonal(values, low), high, start, second, rtol=rtol)
    check(found, exact, rtol)
    assert (found.upper >= exact * (1 - 1e-12)).all()
    assert (found.upper <= found.value * (1 + rtol) * (1 + 1e-12)).all()
    bare = mixed_lanczos(Diagonal(values, low), high, start, second, rtol=rtol, confidence=None)
    assert torch.isinf(bare.upper).all() and (bare.value <= exact * (1 + 1e-12)).all() and bare.converged.all()
    assert bare.steps.sum() < found.steps.sum()


@pytest.mark.parametrize("seed", range(5))
def test_a_proof_is_each_items_own_whatever_its_neighbours_set_aside(seed):
    """Item 0 hides its top from the search; item 1 sets nearly its whole space aside."""
    hidden, spread = one(1.0, 0.6, size=24, rest=0.1), torch.linspace(0.05, 1, 24, dtype=torch.float64) ** 2
    values = torch.stack([hidden, spread])
    start, second = random_starts(2, 24, seed), random_starts(2, 24, seed + 50)
    start[0, 0] = 0
    low, high = Diagonal(values, torch.float32), Diagonal(values)
    together = mixed_lanczos(low, high, start, second, rtol=1e-6)
    alone = mixed_lanczos(Diagonal(values[:1], torch.float32), Diagonal(values[:1]), start[:1], second[:1], rtol=1e-6)
    assert together.converged[0] == alone.converged[0] and abs(together.value[0] / alone.value[0] - 1) < 1e-6


def test_a_proof_asks_for_the_mass_of_its_own_complement(monkeypatch):
    """The law of a start's component depends on the dimension left: each item has its own."""
    from lipnb.spectral import mixed

    asked = []
    monkeypatch.setattr(mixed, "least_log_mass", lambda *given: asked.append(given) or -20.0)
    # one item settles at once, the other late: they set different numbers of vectors aside
    values = torch.stack([one(1.0, 0.5, size=60, rest=0.01), one(1.0, size=60, rest=0.8)])
    start, second = random_starts(2, 60, 1), random_starts(2, 60, 2)
    mixed_lanczos(Diagonal(values, torch.float32), Diagonal(values), start, second, confidence=0.7)
    assert len(set(asked)) == 2 and max(size for size, _ in asked) < 60
    assert {round(confidence, 12) for _, confidence in asked} == {0.9}


def test_the_solve_in_full_precision_has_a_third_of_the_failures_too(monkeypatch):
    from lipnb.spectral import mixed

    asked = []
    monkeypatch.setattr(
        mixed, "lanczos", lambda *given, **more: asked.append(more["confidence"]) or lanczos(*given, **more)
    )
    values = torch.stack([SPECTRA["gap 1e-8"]] * 2)
    start, second = random_starts(2, 120, 0), random_starts(2, 120, 1)
    mixed_lanczos(Diagonal(values, torch.bfloat16), Diagonal(values), start, second, confidence=0.7)
    assert asked == [pytest.approx(0.9)]


@pytest.mark.parametrize("seed", range(3))
def test_a_hidden_top_is_found_by_the_proof(seed):
    """The start of the search misses the top vector: the second start does not."""
    values = torch.stack([one(1.0, 0.7, rest=0.2)] * 4)
    start, second = random_starts(4, 120, seed), random_starts(4, 120, seed + 10)
    start[:2, 0] = 1e-6
    blind = mixed_lanczos(Diagonal(values, torch.float32), Diagonal(values), start, second, rtol=1e-2, confidence=None)
    assert torch.allclose(blind.value, torch.tensor([0.7, 0.7, 1.0, 1.0]).double(), rtol=1e-2)
    found = mixed_lanczos(Diagonal(values, torch.float32), Diagonal(values), start, second, rtol=1e-2)
    assert found.converged.all() and (found.value > 0.99).all()


@pytest.mark.parametrize("max_steps", range(1, 40, 3))
def test_upper_holds_at_whichever_step_it_stops(max_steps):
    """Also where some items finish in the very last step and the batch is made smaller."""
    operator = Diagonal(torch.stack([*SPECTRA.values()]))
    exact = operator.values.max(1).values
    start = start_vectors(len(exact), 120, seed=4, dtype=torch.float64, device="cpu")
    restrict = lambda index: operator.restrict(index).gram  # noqa: E731
    found = lanczos(operator.gram, start, max_steps=max_steps, restrict=restrict)
    assert (found.steps <= max_steps).all() and (found.upper >= exact).all() and not found.upper.isnan().any()
    plain = lanczos(operator.gram, start, max_steps=max_steps)
    assert torch.allclose(plain.upper, found.upper, rtol=1e-9, atol=0)
    open_ = ~found.converged
    assert (found.upper[open_] > found.value[open_] * (1 + 1e-4)).all()
    without = lanczos(operator.gram, start, max_steps=max_steps, confidence=None, restrict=restrict)
    assert torch.isinf(without.upper).all() and (without.value <= exact * (1 + 1e-12)).all()


def test_a_batch_made_smaller_in_the_last_step_keeps_its_upper_bounds():
    operator = Diagonal(torch.stack([one(1.0, rest=0.01), one(1.0, rest=0.01), tail(120, 1.0), tail(120, 1.0)]))
    start = start_vectors(4, 120, seed=4, dtype=torch.float64, device="cpu")
    restrict = lambda index: operator.restrict(index).gram  # noqa: E731
    free = lanczos(operator.gram, start, restrict=restrict)
    found = lanczos(operator.gram, start, restrict=restrict, max_steps=int(free.steps[0]))
    assert found.converged.tolist() == [True, True, False, False]
    assert (found.upper >= 1).all() and found.upper[0] < 1.001 < found.upper[2]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tops", [[1.0, 0.999] + [0.5] * 18, [1 - 1e-4 * i for i in range(20)]])
def test_float32_vectors_stay_orthogonal_when_the_space_is_nearly_used_up(tops, seed):
    operator = Diagonal(one(*tops, rest=0.0).expand(2, -1), torch.float32)
    found = lanczos(operator.gram, random_starts(2, 120, seed).float(), rtol=1e-5)
    assert (found.value <= 1 + 1e-6).all() and (found.value >= 1 - 1e-5).all() and found.converged.all()


def test_what_is_left_of_a_product_is_made_orthogonal_until_a_pass_leaves_it_as_it_is():
    """A product that lies in the old vectors but for one part in a million: rounding hides it in the first pass."""
    N, asked = 40, iter(range(9))
    far = random_starts(1, N, 5).float()

    def gram(v):
        """Two ordinary products, then the oldest vector, much of the newest, and a little of another."""
        if next(asked) < 2:
            return v * torch.linspace(1, 2, N)
        return 1e3 * v + krylov.basis[0] + 1e-6 * far

    krylov = Krylov(gram, random_starts(1, N, 4).float())
    for _ in range(3):
        krylov.advance()
    assert not krylov.full and krylov.off_diagonal[0, -1] < 1e-2
    along = torch.bmm(krylov.basis[:3].transpose(0, 1).double(), krylov.current.double()[..., None])
    assert along.abs().max() < 1e-5


@pytest.mark.parametrize("size", [16, 32, 64])
def test_float32_values_stay_below_the_norm_when_the_whole_space_is_used(size):
    """With one pass of orthogonalisation a step the vectors were lost after some twenty, and 1 came out as 3.6."""
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


@pytest.mark.parametrize("max_steps", [300, 8])
@pytest.mark.parametrize("name", HARD)
def test_the_certificate_fails_at_most_as_often_as_it_says(name, max_steps):
    """400 starts: at most half fail, plus three standard deviations; some do fail, so the test is live."""
    starts = 400
    operator = Diagonal(HARD[name].expand(starts, -1))
    start = random_starts(starts, 120, seed=7)
    found = lanczos(
        operator.gram,
        start,
        confidence=CONFIDENCE,
        max_steps=max_steps,
        restrict=lambda index: operator.restrict(index).gram,
    )
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
    for restrict in (None, lambda index: operator.restrict(index).gram):
        found = lanczos(operator.gram, start, rtol=1e-8, vectors=True, restrict=restrict)
        v, square = found.vector, found.value[:, None] ** 2
        assert ((v.norm(dim=1) - 1).abs() < 1e-12).all()
        misfit = (operator.gram(v) - square * v).norm(dim=1) / square[:, 0]
        assert (misfit <= 2e-4).all() and (misfit <= found.residual + 1e-12).all()
        value, residual = evaluate(operator.gram, 3 * v)
        assert torch.allclose(value, found.value, rtol=1e-12, atol=0)
        assert torch.allclose(residual, found.residual, rtol=1e-3, atol=1e-11)
    stopped = lanczos(operator.gram, start, max_steps=4, rtol=1e-8, vectors=True)
    assert ((stopped.vector.norm(dim=1) - 1).abs() < 1e-12).all()
    assert torch.allclose(evaluate(operator.gram, stopped.vector)[0], stopped.value, rtol=1e-12, atol=0)


def test_krylov_goes_on_with_the_right_items():
    values = torch.stack([tail(50, 1.0 + i) for i in range(6)])
    start = random_starts(6, 50, seed=0)
    whole, part = Krylov(Diagonal(values).gram, start), Krylov(Diagonal(values).gram, start)
    kept = np.arange(6)
    for chosen in ([1, 2, 4, 5], [0, 2], [1]):
        for krylov in (whole, part):
            for _ in range(7):
                krylov.advance()
        kept = kept[chosen]
        part.restrict(np.array(chosen), Diagonal(values[kept]).gram)
        # products of other batches may round otherwise; a wrong item is off by far more
        assert np.allclose(part.diagonal, whole.diagonal[kept], rtol=1e-8, atol=0)
        whole_ritz, ritz = whole.ritz(), part.ritz()
        items = np.arange(len(kept))
        for mine, other in zip(
            part.combine(ritz.vectors[:, :, -1], items),
            whole.combine(whole_ritz.vectors[kept, :, -1], kept),
            strict=True,
        ):
            assert torch.allclose(mine, other, rtol=1e-6, atol=1e-8)
    part.advance(), whole.advance()
    assert np.allclose(part.off_diagonal, whole.off_diagonal[kept], rtol=1e-8, atol=0)


def test_krylov_against_vectors_stays_in_their_complement():
    values = torch.stack([tail(30, 1.0), tail(30, 2.0)])
    against = torch.zeros(2, 2, 30, dtype=torch.float64)
    against[0, 0, 29] = against[1, 0, 29] = against[1, 1, 28] = 1  # the top of one, the top two of the other
    krylov = Krylov(Diagonal(values).gram, random_starts(2, 30, 0), against)
    for _ in range(28):
        krylov.advance()
        assert (torch.bmm(against, krylov.current[..., None]).abs() < 1e-10).all()
    assert np.allclose(krylov.ritz().values[:, -1], [values[0, 28] ** 2, values[1, 27] ** 2], rtol=1e-10)


def coefficients(nodes, mass, steps):
    """Lanczos coefficients of the measure with these masses at these nodes."""
    krylov = Krylov(Diagonal(torch.as_tensor(nodes).sqrt()[None]).gram, torch.as_tensor(mass).sqrt()[None])
    for _ in range(steps):
        krylov.advance()
    return krylov.diagonal, krylov.off_diagonal


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_the_christoffel_sum_is_that_of_the_monomials(seed, steps):
    """K(t, t) = m(t)^T G^{-1} m(t), with m the monomials up to the degree and G their Gram matrix."""
    random = np.random.default_rng(seed)
    nodes, mass = np.sort(random.uniform(0.1, 1, 7)), random.dirichlet(np.ones(7))
    powers = np.vander(nodes, steps + 1)
    gram = powers.T @ (mass[:, None] * powers)
    diagonal, off_diagonal = coefficients(nodes, mass, steps)
    for t in (nodes[-1] * 1.001, 1.1, 2.0, 50.0):
        monomials = np.vander([t], steps + 1)[0]
        expected = monomials @ np.linalg.solve(gram, monomials)
        assert abs(log_christoffel(diagonal, off_diagonal, np.array([t]))[0] - np.log(expected)) < 1e-5


@pytest.mark.parametrize("seed", range(4))
def test_mass_at_an_eigenvalue_is_at_most_one_over_the_sum_and_all_of_it_in_the_end(seed):
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


@pytest.mark.parametrize("size", [2, 3, 10, 300])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_the_least_mass_is_a_quantile_of_random_unit_vectors(size, confidence):
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


@pytest.mark.parametrize("seed", range(12))
def test_float32_sees_one_entry_in_a_million_that_is_a_little_larger(seed):
    """An exhausted space was once taken for a proof: upper 1.00010 where the truth is 1.00030, for all twelve seeds."""
    f, exact = nearly_equal(10**6, 3e-4)
    lip = local_lipschitz(f, torch.zeros(10**6, 1), seed=seed)
    assert exact == pytest.approx(1.0003, abs=1e-7)
    assert lip.converged and lip.upper.item() >= exact * (1 - ROUNDING) and lip.upper.item() < 1.00041
    assert lip.value.item() == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("seed", range(12))
def test_sums_that_are_off_make_no_value_too_large(monkeypatch, seed):
    """Those of a million entries are, on one processor: orthogonality was lost, and the value was 23.87 for 1.0003."""
    product, draw = torch.mv, torch.Generator().manual_seed(seed)

    def rough(rows, vector):
        exact = product(rows, vector)
        return exact + 3e-4 * torch.randn(exact.shape, generator=draw) * torch.linalg.vector_norm(vector)

    monkeypatch.setattr(torch, "mv", rough)
    f, exact = nearly_equal(10**4, 3e-4)
    lip = local_lipschitz(f, torch.zeros(10**4, 1), seed=seed)
    assert lip.value.item() <= exact * (1 + 1e-4) and lip.upper.item() >= exact * (1 - ROUNDING)


def test_products_in_pieces_are_products():
    draw = torch.Generator().manual_seed(0)
    rows, vector = (torch.randn(*shape, 100_003, generator=draw, dtype=torch.float64) for shape in ((3,), ()))
    assert torch.allclose(_in_pieces(rows, vector), rows @ vector, rtol=0, atol=1e-9)
    near = (rows[0] / rows[0].norm()).float()
    exact = near.double() @ near.double()
    assert abs(_in_pieces(near[None], near).item() - exact.item()) < 1e-6


@pytest.mark.parametrize("size", [64, 1000, 30000])
def test_the_identity_in_float32_is_certified_without_a_proof_by_exhaustion(size):
    lip = local_lipschitz(lambda x: 1 * x, torch.zeros(size, 1))
    assert lip.converged and 2 <= lip.steps <= 6 and 1 <= lip.upper.item() <= 1 + 1.01e-4
    assert lip.value.item() == pytest.approx(1, abs=ROUNDING)


@pytest.mark.parametrize("confidence", [0.5, 0.9])
def test_near_degenerate_float32_fails_at_most_as_often_as_it_says(confidence):
    """Three standard deviations of 200 starts are allowed."""
    f, exact = nearly_equal(400, 1e-3)
    failed = sum(
        local_lipschitz(f, torch.zeros(400, 1), seed=seed, confidence=confidence).upper.item() < exact * (1 - ROUNDING)
        for seed in range(200)
    )
    assert failed <= 200 * (1 - confidence) + 3 * (200 * confidence * (1 - confidence)) ** 0.5


BULK = torch.cat([torch.linspace(0.95, 1, 99), torch.tensor([1.01])])  # close below the top, float32
INSIDE = {
    "answers in float32": lambda x: BULK[:, None] * x.float(),
    "refuses float64": lambda x: torch.diag(BULK) @ x,
    "answers in float64": lambda x: (BULK[:, None] * x.float()).to(x.dtype),
}


@pytest.mark.parametrize("inside", INSIDE)
def test_what_float32_cannot_hear_is_not_certified(inside):
    """A bulk close below the top: the rounding of the first product is louder than the weakest start that counts.

    None of these maps can go on in float64, whatever the type of its answer.
    """
    lip = local_lipschitz(INSIDE[inside], torch.zeros(100, 1))
    assert not lip.converged and 1.01 <= lip.upper < 3 and lip.precision == "input"


@pytest.mark.parametrize("map_", ["attention", "callable", "callable, weighted"])
def test_what_float32_cannot_hear_goes_on_in_float64_where_the_map_can(map_):
    exact, weights = BULK.double().max(), None
    if map_ == "attention":
        f, x = Attention(torch.zeros(1, 1, 100), torch.zeros(1, 1, 100), torch.diag(BULK)[None]), torch.zeros(1, 100)
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
    krylov = Krylov(lambda u: BULK**2 * u, start_vectors(1, 100, seed=0, dtype=torch.float32, device="cpu"))
    for _ in range(70):
        krylov.advance()
    theta = krylov.ritz().values[:, -1]
    near = theta * (1 + 1e-4) ** 2
    assert certificate.mass(krylov, theta, near).all() and not certificate.heard(krylov, near).any()
    upper = certificate.largest(krylov, theta)
    assert certificate.heard(krylov, upper * (1 + 1e-12)).all() and (upper > near).all()


class Planted:
    """A low-precision operator that is wrong by a symmetric perturbation: M - loss on given directions."""

    def __init__(self, values, loss, dtype, directions):
        self.values, self.loss, self.dtype, self.directions = values, loss, dtype, directions

    def gram(self, u):
        u = u.double()
        out = self.values**2 * u
        for direction in self.directions:
            out = out - self.loss * (u @ direction)[:, None] * direction
        return out

    def restrict(self, index):
        return Planted(self.values[index], self.loss, self.dtype, self.directions)


@pytest.mark.parametrize("seed", range(6))
def test_a_proof_leaves_room_for_the_rounding_that_is_allowed(seed, dtype=torch.bfloat16, loss=0.9e-2):
    """The first start misses the top, and low products hide it below the second value, by less than is allowed."""
    values = one(1.0, (1 - loss / 2) ** 0.5, size=60, rest=0.3)[None]
    hidden = torch.zeros(60, dtype=torch.float64)
    hidden[0] = 1
    start, second = random_starts(1, 60, seed), random_starts(1, 60, seed + 40)
    start[0, 0] = 0
    assert not proved_by(Planted(values, loss, dtype, [hidden]), values, start, second)


def proved_by(low, values, start, second):
    """Whether the proof of a mixed solve, after search and finish, says that nothing larger is left."""
    from lipnb.spectral import mixed

    search = mixed._search(low, start, 1e-7 / mixed.CAUTION, 60)
    finish = mixed._finish(Diagonal(values), search.vectors, np.array([1e-16]), 60)
    return mixed._prove(low, second, search, finish, rtol=1e-7, max_steps=60, confidence=1 - 1e-6).proved.any()


def test_constants_of_the_two_precisions_and_the_share_of_each_part():
    """They are allowances: smaller ones prove less than they say."""
    from lipnb.spectral import mixed, share
    from lipnb.spectral.certificate import NOISE
    from lipnb.spectral.lanczos import CAUTION

    assert mixed.ROUNDING == {torch.bfloat16: 1e-2, torch.float16: 1e-2, torch.float32: 1e-5}
    assert (CAUTION, NOISE) == (4, 4)
    assert share(None) is None and share(0.7) == pytest.approx(0.9) and 3 * (1 - share(0.4)) == pytest.approx(0.6)


@pytest.mark.parametrize("seed", range(3))
def test_a_proof_in_bfloat16_leaves_room_for_products_that_lose_one_percent(seed):
    """The search found 0.995 of the top. A dense bulk that reaches the top stands lower than that in low products."""
    bulk = tail(800, 1.0)
    bulk[0] = 0.995**0.5
    v = torch.zeros(1, 800, dtype=torch.float64)
    v[0, 0] = 1
    assert not proof(Lossy(bulk[None], 0.9e-2, torch.bfloat16), v, bulk[None], 1e-3, seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_proof_in_float32_leaves_room_for_products_that_lose_a_hundred_thousandth(seed):
    """Two values whose bound by residual and gap is an equality: half of what is allowed decides the answer."""
    rtol, gap, room = 3e-3, 1.2e-3, 3e-6
    ratio = 2 * rtol * (1 + room / gap)  # rho^2 / g: more than the tolerance covers
    share = ratio / (gap + ratio)  # of the second vector in the one whose quotient was taken; the other was set aside
    values = one(1.0, (1 - (gap + ratio) / (1 + ratio)) ** 0.5, size=60, rest=0.3)[None]
    y, v = torch.zeros(2, 1, 60, dtype=torch.float64)
    y[0, 0], v[0, 0], v[0, 1] = 1, (1 - share) ** 0.5, share**0.5
    assert evaluate(Diagonal(values).gram, v)[0].item() * (1 + rtol) < 1 - 1e-7
    assert not proof(Lossy(values, 0.95e-5, torch.float32), v, values, rtol, seed, y)


class Lossy(Diagonal):
    """Low-precision products that are too small by a share, as symmetric an error as there is."""

    def __init__(self, values, loss, dtype):
        self.values, self.loss, self.dtype = values, loss, dtype

    def gram(self, u):
        return (1 - self.loss) * self.values**2 * u


def proof(low, v, values, rtol, seed, y=None):
    """Whether a mixed solve takes the quotient at `v` for proved when its search has found y, by default `v`."""
    from types import SimpleNamespace

    from lipnb.spectral import mixed

    y = v if y is None else y
    value, residual = evaluate(Diagonal(values).gram, v)
    search = SimpleNamespace(values=[np.zeros(0)], couplings=[np.zeros(0)], seen=[y], vectors=y)
    finish = mixed.Finish(value.numpy(), residual.numpy(), np.zeros(1, dtype=np.int64))
    second = random_starts(1, v.shape[1], seed)
    return mixed._prove(low, second, search, finish, rtol=rtol, max_steps=300, confidence=1 - 1e-6).proved.all()


@pytest.mark.parametrize("seed", range(20))
def test_the_room_for_the_rest_is_what_the_arrow_can_bear(seed):
    """Coupled to vectors of these Ritz values, a rest of that size makes the ceiling the largest eigenvalue."""
    from lipnb.spectral import mixed

    random = np.random.default_rng(seed)
    values, couplings = random.uniform(0, 0.9, 4), random.uniform(-0.1, 0.1, 4)
    room = mixed._room(0.95, values, couplings)
    arrow = np.diag(np.append(values, room))
    arrow[:4, 4] = arrow[4, :4] = couplings
    assert np.linalg.eigvalsh(arrow)[-1] == pytest.approx(0.95, rel=1e-12)
    assert mixed._room(0.95, np.append(values, 0.96), np.append(couplings, 0)) == 0


@pytest.mark.parametrize("aside", [0.5, 0.0])
def test_a_proof_leaves_the_gap_that_the_residual_needs(aside):
    """A vector 30 degrees off the top: the rest lies below its quotient, and the top still above the tolerance."""
    values, v = one(1.0, 0.9**0.5, size=60, rest=0.3)[None], torch.zeros(1, 60, dtype=torch.float64)
    v[0, :2] = torch.tensor([(1 - aside**2) ** 0.5, aside])
    assert (evaluate(Diagonal(values).gram, v)[0].item() * 1.01 < 1) == bool(aside)
    assert proof(Diagonal(values, torch.float32), v, values, 1e-2, 5) == (not aside)


@pytest.mark.parametrize("seed", range(200))
def test_one_large_value_alone_is_within_its_residual_squared_over_the_gap(seed):
    """M <= (1 - g) theta on the complement of any y: then lambda_max <= theta (1 + rho^2 / g), v near y or not."""
    random = np.random.default_rng(seed)
    size = int(random.integers(2, 7))
    matrix = np.linalg.qr(random.standard_normal((size, size)))[0]
    values = np.append(random.uniform(0, 1, size - 1), 1.0)
    matrix = matrix @ np.diag(values) @ matrix.T
    top = np.linalg.eigh(matrix)[1][:, -1]
    y, v = (
        w / np.linalg.norm(w)
        for w in (top + 10 ** random.uniform(-3, 0.5) * random.standard_normal(size) for _ in range(2))
    )
    off = np.linalg.svd(y[None])[2][1:]
    kappa, theta = np.linalg.eigvalsh(off @ matrix @ off.T)[-1], v @ matrix @ v
    if kappa < theta:
        rho, gap = np.linalg.norm(matrix @ v - theta * v) / theta, 1 - kappa / theta
        assert 1 <= theta * (1 + rho**2 / gap) * (1 + 1e-12)


def test_the_bound_by_residual_and_gap_is_reached():
    """Two values, y the lower vector's complement: equality, so that no smaller multiple of rho^2 / g is enough."""
    v = np.array([np.cos(0.3), np.sin(0.3)])
    theta = v**2 @ [1.0, 0.5]
    rho = np.linalg.norm(v * [1.0, 0.5] - theta * v) / theta
    assert theta * (1 + rho**2 / (1 - 0.5 / theta)) == pytest.approx(1.0, abs=1e-14)


def test_the_limit_of_a_proof_is_lowered_by_rounding_and_gap(monkeypatch):
    from types import SimpleNamespace

    from lipnb.spectral import mixed

    limits = []

    def remembered(low, second, aside, limit, **options):
        limits.append(limit.copy())
        return mixed.Proof(np.zeros(1, dtype=bool), np.zeros(1, dtype=np.int64))

    monkeypatch.setattr(mixed, "_prove_below", remembered)
    search = SimpleNamespace(
        values=[np.zeros(0)], couplings=[np.zeros(0)], seen=[torch.zeros(1, 9)], vectors=torch.zeros(1, 9)
    )
    for residual, dtype, expected in (
        (1e-5, torch.bfloat16, 1 - 0.01 - 0.001),
        (1e-5, torch.float32, 0.99899),
        (0.01, torch.bfloat16, 1 - 0.01 - 0.5),
    ):
        finish = mixed.Finish(np.array([2.0]), np.array([residual]), np.zeros(1, dtype=np.int64))
        low = SimpleNamespace(dtype=dtype)
        mixed._prove(low, torch.zeros(1, 9), search, finish, rtol=1e-4, max_steps=10, confidence=0.9)
        assert limits[-1] == pytest.approx(4 * expected, rel=1e-12)


def test_a_low_precision_space_that_is_used_up_proves_nothing():
    """Equal values below the top: the complement is used up in one float32 product, which was once a proof."""
    from lipnb.spectral import mixed

    values = torch.full((5, 100), 0.9, dtype=torch.float64)
    top = torch.zeros(5, 1, 100, dtype=torch.float64)
    top[:, 0, 0] = 1
    proof = mixed._prove_below(
        Diagonal(values, torch.float32),
        random_starts(5, 100, 3).float(),
        list(top.float()),
        np.full(5, 0.9),
        max_steps=60,
        confidence=1 - 1e-6,
    )
    assert not proof.proved.any() and (proof.steps == 1).all()


@pytest.mark.parametrize("rtol", [1e-1, 1e-2, 1e-3])
def test_an_answer_without_certificate_is_settled_four_times_finer_than_asked(rtol):
    """At the step where it stops the estimated error is a quarter of what is asked, and not before."""
    start, gram = random_starts(1, 120, 0), Diagonal(SPECTRA["bulk"][None]).gram
    found = lanczos(gram, start, rtol=rtol, confidence=None)
    krylov, errors = Krylov(gram, start), []
    for _ in range(int(found.steps)):
        krylov.advance()
        errors.append(krylov.ritz().error[0])
    assert errors[-1] <= rtol / 4 < min(errors[:-1])


def test_a_larger_value_that_shows_late_is_looked_at():
    """Settled on 1, the run waits for its proof without looking; the 2 that comes up must be seen, and soon."""
    values = one(2.0, 1.0, size=400, rest=0.3)[None]
    start = random_starts(1, 400, 0)
    start[:, 0] *= 1e-6
    found = lanczos(Diagonal(values).gram, start)
    assert abs(found.value.item() - 2) < 1e-3 and found.steps.item() < 40
    settled = lanczos(Diagonal(values).gram, start, confidence=None)
    assert abs(settled.value.item() - 1) < 1e-3  # it did settle on 1 first
    assert settled.steps.item() < found.steps.item()
