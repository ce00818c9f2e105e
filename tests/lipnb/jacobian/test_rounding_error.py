"""Rounding before the products: its bound, which is in `upper`; float32 goes on in float64 if it is large."""

import math

import mpmath
import pytest
import torch
from cases import random_case

from lipnb import Attention, certify, local_lipschitz
from lipnb.jacobian.linearization import Linearization
from lipnb.jacobian.rounding_error import jacobian_error, linearized, projected, received, squares

UNIT = 2.0**-24
EVERY = {"plain": {}, "masked": {"masked": True}, "window": {"masked": True, "window": 3}, "capped": {"cap": 2.0}}
EVERY |= {"l2": {"score": "l2"}, "sinks": {"sinks": torch.tensor([0.5, -1.0, 0.0, 2.0])}}
EVERY |= {"rotary": {"frequencies": torch.tensor([1.0, 0.1])}, "relative": {"relative": torch.randn(4, 15)}}
EVERY |= {"norms": {"query_norm": torch.rand(4, 5) + 0.5, "key_norm": torch.rand(2, 5) + 0.5}}
EVERY |= {
    "joint": {**EVERY["norms"], "joint_norm": True},
    "sinks and bias": {**EVERY["sinks"], "value_bias": torch.ones(2, 3)},
}


def drawn(seed, n, d, batch=5):
    """An attention with logits of 1 to 1e5, and tokens up to 1e4 times their spread away from zero."""
    generator = torch.Generator().manual_seed(seed)
    logits, offset = (10 ** (top * torch.rand((), generator=generator).item()) for top in (5, 4))

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    h, k = 1 + seed % 3, 1 + seed % 4
    query, key, value, x = normal(h, k, d), normal(h, k, d), normal(h, d, d), normal(batch, n, d)
    x = x + (seed % 2) * offset * normal(1, 1, d)
    output = None if seed % 5 else normal(h, d, d)
    spread = (x - x.mean(1, keepdim=True)).double() @ key[0].double().mT
    size = (x.double() @ query[0].double().mT @ spread.mT).abs().amax().item()
    return Attention(query, key, value, output, scale=logits / size, masked=seed % 7 == 0), x


def true_norm(f, x, weights=None):
    """Norms in float64 of the map with these float32 numbers."""
    weights = None if weights is None else weights.double()
    return local_lipschitz(f.to(dtype=torch.float64), x.double(), weights=weights, method="dense").value


def test_the_three_tokens_of_the_review_lie_below_the_bound():
    eye, x = torch.eye(1), torch.tensor([[100], [100.01], [99.987]])
    lip = local_lipschitz(Attention.from_matrices(eye, eye), x)
    truth = certify(Attention.from_matrices(eye, eye), x)
    assert truth.lower <= lip.upper <= truth.upper * (1 + 1e-4) and lip.precision == "input"


@pytest.mark.parametrize(("n", "d", "options"), [(4, 3, {}), (9, 8, {}), (9, 8, {"memory": 1})])
def test_no_bound_is_below_the_constant_however_large_logits_and_far_the_tokens(n, d, options):
    for seed in range(60 if n < 9 else 12):
        f, x = drawn(seed, n, d)
        truth, lip = true_norm(f, x), local_lipschitz(f, x, **options)
        assert lip.converged.all() and (lip.upper >= truth).all(), seed
        assert (lip.upper <= truth * (1 + 3e-4)).all() and (lip.value <= truth * (1 + 1e-4)).all(), seed


def test_particles_far_from_zero():
    x = 100 + 0.02 * torch.rand(4000, 1, generator=torch.Generator().manual_seed(0))
    f = Attention(*torch.ones(3, 1, 1, 1))
    lip, truth = (local_lipschitz(f.to(dtype=kind), x.to(kind), memory=1) for kind in (torch.float32, torch.float64))
    assert lip.route == "separable" and truth.value <= lip.upper <= truth.value * (1 + 2e-4)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", EVERY)
def test_the_rounded_jacobian_is_as_near_as_stated(kind, weighted):
    generator = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    query, key, value, output = normal(4, 5, 6), normal(2, 5, 6), normal(2, 3, 6), normal(4, 6, 3)
    f = Attention(query, key, value, output, query_bias=normal(4, 5), key_bias=normal(2, 5), **EVERY[kind])
    wide = f.to(dtype=torch.float64)
    for spread in (0.1, 1.0, 3.0):
        x = spread * normal(3, 8, 6)
        weights = torch.rand(3, 8, generator=generator) + 0.1 if weighted else None
        at, error = linearized(f, x, weights)
        true = Linearization.of(wide, x.double(), None if weights is None else weights.double())
        apart = at.to(wide).dense() - true.dense()  # of the rounded numbers, in exact arithmetic but for float64
        if weights is not None:
            root = weights.double().sqrt().repeat_interleave(6, -1)
            apart = root[..., None] * apart / root[..., None, :]
        norm = torch.linalg.matrix_norm(apart, 2)
        assert (norm <= error).all() and (error <= 5e3 * norm).all()
        assert at.probabilities.dtype == torch.float32


def test_the_bound_by_hand():
    """Two tokens 1 and -1 of one dimension, A = a, V = v."""
    a, v, x = 2.0, 3.0, torch.tensor([[[1.0], [-1.0]]])
    f = Attention.from_matrices(torch.tensor([[a]]), torch.tensor([[v]]))
    P = 1 / (1 + math.exp(-2 * a))
    sigma, o = v * math.sqrt(4 * P * (1 - P)), v * (2 * P - 1)
    # P, slope and weights, k; v and o
    query = a * UNIT * (3 * sigma + 4 * v)
    # P, q; v and o
    key = a * UNIT * (2 * sigma + 4 * v)
    assert math.isclose(v**2, sigma**2 + o**2)
    assert linearized(f, x)[1].item() == pytest.approx(query + key + UNIT * v, rel=1e-5)
    assert linearized(f, x[:, :1])[1].item() == pytest.approx(UNIT * v, rel=1e-5)  # one token: only its value
    # in float64, in units of 2^-53: P errs by 2 (17 + q (5 + 4)) = 70; v and o by 3 (5 + 4) each, times q
    error = linearized(f.to(dtype=torch.float64), x[:, :1].double())[1].item()
    assert error == pytest.approx((70 * v + a * 2 * 27) * 2.0**-53, rel=1e-5)


def exact_norm(x):
    """The constant of A = V = 1 at numbers x, with fifty digits."""
    with mpmath.workdps(50):
        x, n = [mpmath.mpf(one) for one in x], len(x)
        J = mpmath.matrix(n, n)
        for i in range(n):
            P = [mpmath.exp(x[i] * (one - max(x))) for one in x]
            P = [one / mpmath.fsum(P) for one in P]
            mean = mpmath.fdot(P, x)
            for j in range(n):
                J[i, j] = P[j] * (1 + x[i] * (x[j] - mean))
            J[i, i] += mpmath.fsum(p * (one - mean) ** 2 for p, one in zip(P, x, strict=True))
        return max(mpmath.svd_r(J, compute_uv=False))


def test_float64_counts_its_own_rounding():
    """Two logits of 1e8 near each other, one of -1e8: the rounding of a decomposition alone would not do."""
    eye, missed = torch.eye(1, dtype=torch.float64), 0
    for seed in range(12):
        x = 1e4 + 2e-4 * torch.randn(3, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        x[2] = -1e4
        f, truth = Attention.from_matrices(eye, eye), exact_norm(x[:, 0].tolist())
        lip = local_lipschitz(f, x)
        assert lip.upper.item() >= truth >= lip.value.item() * (1 - 1e-6) and lip.route == "dense"
        error = linearized(f, x[None], blocks=True)[1][0]
        assert lip.upper.item() == pytest.approx((lip.value * (1 + 8 * 6 * 2.0**-52) + error).item(), rel=1e-15)
        missed += lip.upper.item() - error.item() < truth
    assert missed > 2


@pytest.mark.parametrize("options", [{"memory": 2**30}, {"memory": 1}])
def test_what_float32_rounds_too_much_is_solved_in_float64(options):
    case = random_case(3, n=30, dtype=torch.float32)
    f, x = case.attention, case.x
    assert local_lipschitz(f, x, **options).precision == "input"
    hard = local_lipschitz(f.replace(scale=1e3 * f.scale), x, **options)
    assert hard.precision == "float64" and hard.converged.all()
    free = local_lipschitz(f.replace(scale=1e3 * f.scale), x, confidence=None, **options)
    assert free.precision == "input"  # no upper bound to keep


def test_tokens_far_from_zero_stay_in_float32():
    """Products of centred rows lose no digits."""
    generator = torch.Generator().manual_seed(0)
    query, key, value, x = (torch.randn(shape, generator=generator) for shape in [(2, 4, 16)] * 3 + [(1, 30, 16)])
    far = x + 1000 * torch.randn(16, generator=generator)
    f = Attention(query, key, value, scale=1e-3)
    for options in ({"memory": 2**30}, {"memory": 1}):
        lip, truth = local_lipschitz(f, far, **options), true_norm(f, far)
        assert lip.precision == "input" and abs(lip.value / truth - 1) < 1e-6


def test_an_error_that_is_not_known_is_infinite():
    at = Linearization.at(projected(f := Attention(*torch.ones(3, 1, 2, 2)), x := torch.ones(1, 3, 2)))
    means, sums = at.attention.average(at.probabilities, squares(at)), received(None, at.probabilities)
    assert jacobian_error(at, x, means * torch.nan, sums, at.heads, None, f) == torch.inf
