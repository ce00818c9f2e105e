"""Lanczos on diagonal operators, whose singular values are known: values, upper bounds and lost bases."""

import pytest
import torch
from cases import normal
from spectra import ROUNDING, SPECTRA, Diagonal, check, few_large_values, nearly_equal, one, random_starts

from lipnb import Attention, local_lipschitz
from lipnb.spectral import lanczos, power_iteration, start_vectors


def test_a_close_second_value_does_not_fool_lanczos():
    """Start vectors that nearly miss the top vector: the guard goes on where a residual alone would stop."""
    values = torch.cat([torch.tensor([1.0]), torch.linspace(0, 0.98, 399)]).double()
    start = normal(1, 400, seed=3)
    start[:, 0] = 1e-6
    found = lanczos(lambda u: values**2 * u, start, rtol=1e-3)
    assert found.converged.all() and abs(found.value.item() - 1) <= 1e-3
    # what the residual rule would have said: settled on the second value, far earlier
    early = lanczos(lambda u: values**2 * u, start, rtol=1e-3, max_steps=found.steps.item() // 3)
    assert early.value.item() < 0.99 and not early.converged.all()


@pytest.mark.parametrize("values", [[3.0], [0.0] * 5, [2.0] * 7, [5.0, 5.0, 1e-9], [1.0, 1 - 1e-9, 1 - 1e-7, 0.5]])
def test_small_spaces(values):
    """No more steps are taken than the space has dimensions."""
    factors = torch.tensor(values, dtype=torch.float64)
    start = start_vectors(1, len(values), seed=0, dtype=torch.float64, device="cpu")
    found = lanczos(lambda u: factors**2 * u, start)
    assert found.converged.all() and found.steps.item() <= len(values) and found.residual.item() <= 1e-6
    assert abs(found.value.item() - max(values)) <= 1e-7 * max(values)


def test_lanczos_finds_the_top_of_any_spectrum():
    for rtol in [1e-2, 1e-4, 1e-7]:
        for seed in range(2):
            operator = Diagonal(torch.stack([*SPECTRA.values()]))
            exact = operator.values.max(1).values
            start = start_vectors(len(exact), 120, seed=seed, dtype=torch.float64, device="cpu")
            found = lanczos(operator, start, rtol=rtol)
            check(found, exact, rtol)
            assert (found.upper >= exact).all()
            assert torch.allclose(found.upper, found.value * (1 + rtol), rtol=1e-12, atol=0)
            alone = lanczos(operator.gram, start, rtol=rtol)  # no batch made smaller on the way: the same answers
            assert torch.equal(alone.steps, found.steps)
            assert torch.allclose(alone.value, found.value, rtol=1e-12, atol=0)


def test_upper_holds_at_whichever_step_it_stops():
    """Also where some items finish in the very last step and the batch is made smaller."""
    operator = Diagonal(torch.stack([*SPECTRA.values(), one(1.0, rest=0.01)]))
    exact = operator.values.max(1).values
    start = start_vectors(len(exact), 120, seed=4, dtype=torch.float64, device="cpu")
    some_end = lanczos(operator, start).steps[-1].item()
    for max_steps in (some_end, *range(1, 40, 3)):
        found = lanczos(operator, start, max_steps=max_steps)
        assert (found.steps <= max_steps).all() and (found.upper >= exact).all() and not found.upper.isnan().any()
        plain = lanczos(operator.gram, start, max_steps=max_steps)
        assert torch.allclose(plain.upper, found.upper, rtol=1e-9, atol=0)
        open_ = ~found.converged
        assert (found.upper[open_] > found.value[open_] * (1 + 1e-4)).all()
        without = lanczos(operator, start, max_steps=max_steps, confidence=None)
        assert torch.isinf(without.upper).all() and (without.value <= exact * (1 + 1e-12)).all()


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


def test_where_nothing_goes_wrong_the_last_product_says_what_the_recurrence_said():
    """The Ritz value is ``upper / (1 + rtol)``; the page on the solver says how near it is to the value."""
    values, rtol = torch.stack([few_large_values(300, 0.02, draw) for draw in range(200)]), 1e-4
    found = lanczos(lambda u: values * (values * u), random_starts(200, 300, 11).float(), rtol=rtol)
    assert found.converged.all()
    apart = (found.upper.double() / (1 + rtol) / found.value.double() - 1).abs()
    assert apart.max() < 4 * torch.finfo(torch.float32).eps


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


def test_a_product_that_is_nothing_but_rounding_ends_no_proof():
    """Where the space is invariant less is left of a product at each step, down to what no number divides by."""
    for size in (3, 8, 64):
        for seed in range(40):
            start = start_vectors(1, size, seed=seed, dtype=torch.float32, device="cpu")
            v = torch.nn.functional.normalize(torch.randn(size, generator=torch.Generator().manual_seed(seed)), dim=0)
            for gram in (torch.clone, lambda u, v=v: (u @ v)[:, None] * v):
                found = lanczos(gram, start, rtol=1e-6)
                assert found.converged and abs(found.value.item() - 1) < 1e-6 and found.upper >= 1


def test_products_that_are_rounding_alone_never_converge():
    """Quotients of zero or less, though the products are not zero: a sign of cancellation, not of a zero Jacobian."""
    start = random_starts(3, 60, 0)
    values = -torch.linspace(0.1, 1, 60, dtype=torch.float64)
    for confidence in (None, 0.5):
        found = lanczos(lambda u: values * u, start, max_steps=3, confidence=confidence, rtol=0.1)
        assert not found.converged.any() and (found.value == 0).all() and (found.residual > 0.1).all()
    found = power_iteration(lambda u: values * u, start, max_steps=3, rtol=0.9)
    assert not found.converged.any() and (found.value == 0).all() and (found.residual > 0.1).all()


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


@pytest.mark.parametrize("size", [64, 30000])
def test_the_identity_in_float32_is_certified_without_a_proof_by_exhaustion(size):
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


@pytest.mark.parametrize("inside", INSIDE)
def test_what_float32_cannot_hear_is_not_certified(inside):
    """A bulk close below the top: the rounding of the first product is louder than the weakest start that counts.

    None of these maps can go on in float64, whatever the type of its answer.
    """
    lip = local_lipschitz(INSIDE[inside], torch.zeros(100, 1))
    assert not lip.converged and 1.01 <= lip.upper < 3 and lip.precision == "input"


WIDE = Attention(torch.zeros(1, 1, 100), torch.zeros(1, 1, 100), torch.diag(BULK)[None])
ABLE = [
    (WIDE, torch.zeros(1, 100), None),
    (lambda x: BULK[:, None] * x, torch.zeros(100, 1), None),
    (lambda x: BULK[:, None] * x, torch.zeros(100, 1), torch.linspace(1, 2, 100)),  # a diagonal map keeps its norm
]


@pytest.mark.parametrize(("f", "x", "weights"), ABLE, ids=["attention", "callable", "callable, weighted"])
def test_what_float32_cannot_hear_goes_on_in_float64_where_the_map_can(f, x, weights):
    exact, lip = BULK.double().max(), local_lipschitz(f, x, weights=weights)
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
