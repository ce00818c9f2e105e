"""The exact rate of the mean-field constant and the bounds that have it, from both sides."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import MATRICES, heads, quickly, seeds

from lipnb import Attention, AttentionJacobian, local_lipschitz
from lipnb.bounds import (
    ball_upper,
    general_lower,
    general_lower_pair,
    general_upper_optimal,
    growth_rate,
    head_norms,
    heads_on_ball,
    masked_mean_field_upper,
    masked_mean_field_upper_exact,
    masked_mean_field_upper_sharp,
    mean_field_lower_exact,
    mean_field_rate,
    mean_field_upper,
    mean_field_upper_exact,
    mean_field_upper_sharp,
)
from lipnb.bounds.mean_field_rate import _log_density_of_lengths, log_masked_tau

EYE = torch.eye(2, dtype=torch.float64)


TURN = torch.tensor([[0.0, -1.0], [1.0, 0.0]]).double()


NILPOTENT = torch.tensor([[0.0, 1.0], [0.0, 0.0]]).double()


SHEAR = torch.tensor([[-0.3, 2.0], [0.0, 0.7]]).double()


STRETCH = torch.diag(torch.tensor([1.0, -1 / 8])).double()


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


KINDS = {**MATRICES, "tiny": lambda M: 1e-100 * M}
UPPER = (mean_field_upper_exact, mean_field_upper_sharp, mean_field_upper)
MASKED = (masked_mean_field_upper_exact, masked_mean_field_upper_sharp, masked_mean_field_upper)


def objective(A, x):
    y = x @ A.T
    return (y.norm(dim=-1) - (x * y).sum(-1)) / 2


@pytest.mark.parametrize(
    ("A", "rate"),
    [
        (-EYE, 1),
        (EYE, 1 / 8),
        (TURN, 1 / 2),
        (NILPOTENT, 3 * math.sqrt(3) / 8),
        (SHEAR, 1.2538343085504),
        (STRETCH, 81 / 448),
        (-torch.diag(torch.tensor([1.0, 1.0, 0.0]).double()), 1),
        (torch.diag(torch.tensor([3.0, 3.0, 1.0]).double()), 3 / 8),
    ],
)
def test_rates_that_are_known(A, rate):
    found = mean_field_rate(A)
    assert found.lower == pytest.approx(rate, rel=1e-12) and found.lower <= found.upper <= found.lower * (1 + 1e-11)


@given(seed=seeds, d=st.integers(1, 6), kind=st.sampled_from(sorted(KINDS)))
@quickly
def test_the_rate_is_the_global_maximum(seed, d, kind):
    A = KINDS[kind](normal(seed, d, d))
    found, norm = mean_field_rate(A), torch.linalg.matrix_norm(A, 2).item()
    assert 0 <= found.upper - found.lower <= 1e-12 * d * norm
    assert norm / 8 <= found.upper and found.lower <= norm * (1 + 1e-12)
    assert found.x.norm() <= 1 + 1e-12
    assert objective(A, found.x).item() == pytest.approx(found.lower, rel=1e-9)
    if norm:
        assert torch.allclose(found.y * (A @ found.x).norm(), A @ found.x, atol=1e-12 * norm)
        points = normal(seed + 1, 400, d)
        points /= points.norm(dim=1, keepdim=True)
        points = torch.cat([points * share for share in (0.25, 0.5, 0.75, 1.0)])
        assert objective(A, points).max() <= found.upper
    if kind in ("symmetric", "positive"):
        assert growth_rate(A) <= found.upper * (1 + 1e-12)


def test_a_wide_matrix_of_small_rank_has_the_rate_of_its_core():
    U, W = torch.linalg.qr(normal(0, 40, 6)).Q, torch.linalg.qr(normal(1, 40, 40)).Q
    core = normal(2, 6, 6)
    wide = mean_field_rate(U @ core @ U.T)
    assert wide.lower == pytest.approx(mean_field_rate(core).lower, rel=1e-12)
    assert wide.x.shape == (40,) and objective(U @ core @ U.T, wide.x).item() == pytest.approx(wide.lower, rel=1e-12)
    assert mean_field_rate(W @ U @ core @ U.T @ W.T).lower == pytest.approx(wide.lower, rel=1e-12)
    # an image that is not the span of the rows
    left, right = torch.linalg.qr(normal(3, 40, 2)).Q, torch.linalg.qr(normal(4, 40, 2)).Q
    both, small = torch.linalg.qr(torch.cat([left, right], 1)).Q, left @ core[:2, :2] @ right.T
    assert mean_field_rate(small).lower == pytest.approx(mean_field_rate(both.T @ small @ both).lower, rel=1e-12)


def log_tau_of_boxes(A, t, N, seed):
    """3 kappa + log(sum_c E_c)/2 for these numbers of boxes, each E_c at points of the unit ball: from below."""
    (d, _), count, (_, S, Vh) = A.shape, 200_000, torch.linalg.svd(A)
    x = normal(seed, count, d)
    x *= torch.rand(count, 1, generator=torch.Generator().manual_seed(seed)).double() ** (0.5 / d) / x.norm(
        dim=1, keepdim=True
    )
    box = ((x @ Vh.mT + 1) / 2 * N).floor().clamp_min(0).minimum(N - 1)
    name = torch.zeros(count, dtype=torch.long)
    for coordinate, many in zip(box.T, N, strict=True):
        name = name * int(many) + coordinate.long()
    largest = torch.full((int(N.prod()),), -math.inf).double().scatter_reduce(0, name, 2 * t * objective(A, x), "amax")
    return 3 * t * (S / N).norm().item() + torch.logsumexp(largest, 0).item() / 2


BOXES = {"eye": EYE, "minus": -EYE, "turn": TURN, "nilpotent": NILPOTENT, "stretch": STRETCH,
         "thin": torch.diag(torch.tensor([1.0, 0.05])).double(), "line": EYE[:1, :1], "minus line": -EYE[:1, :1],
         "three": torch.eye(3).double(), "random": normal(11, 3, 3)}  # fmt: skip


@pytest.mark.parametrize("name", BOXES)
def test_tau_is_above_the_sum_over_boxes(name):
    """Never below the sum at 200,000 points for the numbers of boxes it chooses among; near it where best x abound."""
    A = BOXES[name] / torch.linalg.matrix_norm(BOXES[name], 2)
    S, over = torch.linalg.svdvals(A), []
    for t in (0.7, 4.0, 16.0, 40.0):
        boxes = [(6 * t * S / m**0.5).round().clamp_min(1) for m in range(1, len(S) + 1)]
        direct = min(log_tau_of_boxes(A, t, N, seed) for seed, N in enumerate(boxes))
        over.append(log_masked_tau(A, math.sqrt(t)) - direct)
    assert min(over) > -1e-9
    assert over[-1] < {"line": 0.05, "eye": 0.4, "turn": 0.3, "thin": 0.4}.get(name, math.inf)


def test_the_density_of_lengths_in_a_box():
    """Against the box's own, from a million points; in one direction and in a cube it is exact."""
    y = torch.rand(1_000_000, 3, generator=torch.Generator().manual_seed(0)).double() * 2 - 1
    for sides in ([1.0, 1.0, 1.0], [1.0, 0.9, 0.3], [1.0, 0.3, 0.01], [1.0, 0.02, 0.01], [1.0, 1.0, 0.0]):
        s = torch.tensor(sides).double()
        cut, lengths = (s > 0)[None], (y * s).norm(dim=1)
        for rho in (0.1, 0.3, 0.5, 0.9):
            low, high = (torch.tensor([rho + sign * 0.02]).double() for sign in (-1, 1))
            drawn = ((lengths >= low) & (lengths <= high)).double().mean().item() / 0.04
            bound = _log_density_of_lengths(s, cut, low, high).exp().item()
            assert drawn <= 1.02 * bound
            if rho < 0.95 and sides in ([1.0, 1.0, 1.0], [1.0, 1.0, 0.0]) or sides[1] == 0.02 and rho > 0.25:
                assert bound < drawn * (1.5 if rho < 0.2 else 1.15)
    one = torch.ones(1).double()
    assert _log_density_of_lengths(one, one[None] > 0, 0 * one, one).item() == 0
    assert _log_density_of_lengths(one, one[None] > 1, 0 * one, one).item() == math.inf


def test_the_windows_of_lengths_by_hand():
    """diag(1, 1/20), t = 400: one of the windows around |A x| = 1/2, its density and what is outside of it."""
    A, t, m, log = torch.diag(torch.tensor([1.0, 0.05])).double(), 400.0, 200.0, math.log
    s, found = (t, t / 20), []
    for N in ((round(6 * s[0]), round(6 * s[1])), *([(round(6 * s[0] / 2**0.5), round(6 * s[1] / 2**0.5))])):
        kappa = math.hypot(s[0] / N[0], s[1] / N[1])
        for slack in (log(401) * many for many in (1, 2, 4, 16)):
            spread = math.sqrt(2 * m * slack) + 2 * kappa
            densities = [2 * math.pi * (m + spread) / (4 * s[0] * s[1])]
            if m - spread > s[1]:
                densities.append(1 / (s[0] * math.sqrt(1 - (s[1] / (m - spread)) ** 2)))
            share = min(densities) * (math.sqrt(2 * math.pi * m) + 4 * kappa) + math.exp(-slack)
            found.append(3 * kappa + (2 * m / 4 + log(N[0] * N[1] * min(1, share))) / 2)
    assert log_masked_tau(A, 20.0) == pytest.approx(min(found), rel=1e-9)


@pytest.mark.parametrize(
    ("A", "power"), [(EYE[:1, :1], 1 / 4), (-EYE[:1, :1], 0), (EYE, 3 / 4), (TURN, 1 / 2), (-EYE, 1 / 2)]
)
def test_the_power_of_t_next_to_the_rate(A, power):
    """Half the rank, less 1/4 with best x inside the ball, less 1/2 with best x on its sphere."""
    beside = [log_masked_tau(A, 10.0**k) - mean_field_rate(A).upper * 100.0**k for k in (3, 4)]
    assert (beside[1] - beside[0]) / math.log(100) == pytest.approx(power, abs=0.02)


def masked_line(t, light, count=161):
    """The measure of the proof, A = 1: R at weight `light`, then tokens R (1/2 + u / sqrt t), u from -1 to 1."""
    x = math.sqrt(t) * torch.cat([torch.ones(1), 0.5 + torch.linspace(-1, 1, count) / math.sqrt(t)]).double()
    a = torch.tensor([light, *[1 / count] * count], dtype=torch.float64)
    return x[:, None], a / a.sum()


@pytest.mark.parametrize("t", [16.0, 40.0, 200.0, 1000.0])
def test_with_a_mask_the_order_is_larger_by_a_power(t):
    """Both inequalities of the theorem at its own measure, by a dense Jacobian of autograd; both from above too."""
    one, light = EYE[:1, :1], 2 * math.e / math.sqrt(t) * math.exp(-t / 4)
    x, a = masked_line(t, light)
    P = (x @ x.mT + a.log()).masked_fill(~torch.ones(len(x), len(x)).bool().tril(), -math.inf).softmax(1)
    reached = torch.linalg.matrix_norm(a.sqrt()[:, None] * P / a.sqrt(), 2).item()
    tau = math.exp(log_masked_tau(one, math.sqrt(t)))
    assert t**0.25 * math.exp(t / 8) / math.sqrt(8 * math.e) <= reached <= 2 * tau
    assert (P[1:, 0] >= 0.49).all()  # 1/2 in the limit of many tokens

    def outputs(x):
        scores = (x @ x.mT + a.log()).masked_fill(~torch.ones(len(x), len(x)).bool().tril(), -math.inf)
        return (scores.softmax(1) @ x)[:, 0]

    x, a = masked_line(t, light / 5)
    J = torch.func.jacrev(outputs)(x)[:, :, 0]
    full = torch.linalg.matrix_norm(a.sqrt()[:, None] * J / a.sqrt(), 2).item()
    assert t**1.25 * math.exp(t / 8) / 57 <= full <= masked_mean_field_upper_exact(one, one, math.sqrt(t))
    assert full < 6 * t**1.25 * math.exp(t / 8) / 57  # so the order is reached, not more


def log_masked_constants(A, x, log_a):
    """Logarithm of the constant at masked tokens (batch, n, d) of the unit ball with weights, V = I, by autograd."""
    n, d = x.shape[-2:]
    past = torch.ones(n, n).tril().bool()

    def outputs(x, A, log_a):
        return (x @ A.mT @ x.mT + log_a).masked_fill(~past, -math.inf).softmax(1) @ x

    J = torch.func.vmap(torch.func.jacrev(outputs))(x, A, log_a) * (log_a / 2).exp()[..., None, None, None]
    J = J / (log_a / 2).exp()[:, None, None, :, None]
    return torch.linalg.matrix_norm(J.reshape(-1, n * d, n * d), 2).log()


def test_ascent_does_not_pass_the_masked_bound():
    """Twelve tokens in order and their weights, half of the starts near the measures of the proof."""
    kinds = (-EYE, EYE, TURN, NILPOTENT, SHEAR / 2.2, STRETCH)
    A = torch.stack([t * M for M in kinds for t in (1.0, 2.38, 6.0, 16.0) for _ in range(2)])
    bound = torch.tensor([masked_mean_field_upper_exact(M, EYE, 1.0, log=True) for M in A]).double()
    x, log_a = normal(0, len(A), 12, 2), normal(1, len(A), 12)
    for case in range(0, len(A), 2):
        rate = mean_field_rate(A[case])
        along = torch.linspace(-1.5, 1.5, 11).double()[:, None] / torch.linalg.matrix_norm(A[case], 2).sqrt()
        x[case] = torch.cat([rate.y[None], rate.x + along * rate.y])
        log_a[case] = torch.tensor([-2 * rate.lower, *[-math.log(11)] * 11]).double()

    def over(x, log_a):
        return log_masked_constants(A, x / x.norm(dim=-1, keepdim=True).clamp_min(1), log_a.log_softmax(-1)) - bound

    shares = ascended(over, [x, log_a], lr=0.03).amax(0).exp().view(-1, 2).amax(1)
    assert 0.45 < shares.max() <= 1 and shares.min() > 1e-4


def test_a_quarter_turn_exceeds_what_holds_without_a_mask():
    """Tokens on an arc, and a light one a quarter turn ahead of them, first: above the bound for measures."""
    ratios = []
    for t in (16.0, 64.0, 200.0):
        angles = torch.linspace(-1.5, 1.5, 161).double() / math.sqrt(t)
        x = math.sqrt(t) * torch.cat([EYE[1:], torch.stack([angles.cos(), angles.sin()], 1)])
        a = torch.tensor([math.exp(-t - 2) / math.sqrt(t), *[1 / 161] * 161], dtype=torch.float64)
        f = Attention.from_matrices(TURN, EYE, masked=True)
        found = local_lipschitz(f, x, weights=a / a.sum(), method="dense").value.item()
        assert found < masked_mean_field_upper_exact(TURN, EYE, math.sqrt(t))
        ratios.append(found / mean_field_upper_exact(TURN, EYE, math.sqrt(t)))
    assert ratios == pytest.approx([1.47, 1.89, 2.38], abs=0.02)


def test_values_by_tau_and_keys_by_the_norm():
    """Rank one, t = 2.38: 2 tau and the form of values and keys together would be 67.697, which nothing proves."""
    one = EYE[:1, :1]
    assert masked_mean_field_upper_exact(one, one, math.sqrt(2.38)) == pytest.approx(67.956402, rel=1e-7)


def log_popularity(A, x, log_a, y):
    """Logarithm of T(y), the attention that y would get, over its weight; weights as logarithms, of total one."""
    slopes = x @ A.mT
    seen = torch.logsumexp(slopes @ x.mT + log_a[..., None, :], -1)
    return torch.logsumexp(log_a + (slopes @ y[..., None])[..., 0] - seen, -1)


def ascended(objective, free, lr):
    """What 150 steps of Adam on `free` make of an objective of them, shape (150, ...), the sum of it ascended."""
    free, found = [one.requires_grad_() for one in free], []
    climber = torch.optim.Adam(free, lr=lr)
    for _ in range(150):
        found.append(objective(*free))
        climber.zero_grad()
        (-found[-1].sum()).backward()
        climber.step()
    return torch.stack(found).detach()


def test_no_point_is_more_popular_than_the_rate_allows_and_some_are():
    """Six points, their weights and y ascended for each of six matrices: T(y) comes to e^(2 gamma*), not beyond."""
    A = torch.stack([t * M for M in (-EYE, EYE, TURN, NILPOTENT, SHEAR, STRETCH) for t in (0.3, 2.0, 8.0)])
    most = torch.tensor([2 * mean_field_rate(M).upper for M in A], dtype=torch.float64)

    def excess_at(x, log_a, y):
        x, y = (one / one.norm(dim=-1, keepdim=True).clamp_min(1) for one in (x, y))
        return log_popularity(A, x, log_a.log_softmax(-1), y) - most

    excess = ascended(excess_at, [normal(0, 18, 6, 2), normal(1, 18, 6), normal(2, 18, 2)], lr=0.05)[-1]
    assert -0.02 < excess.max() <= 1e-12 and excess.min() > -3
    for M, bound in zip(A, most, strict=True):  # all mass at x, none at y: equality
        rate = mean_field_rate(M)
        alone = log_popularity(M, rate.x[None], torch.zeros(1).double(), rate.y)
        assert alone.item() == pytest.approx(bound.item(), rel=1e-9)


def constant(A, V, x, a):
    return local_lipschitz(Attention.from_matrices(A, V), x, weights=a, method="dense").value.item()


def at_pair(A, R, odds):
    """Two atoms at the pair, the light one of these odds times exp(-2 gamma* R^2)."""
    rate = mean_field_rate(A)
    light = odds * math.exp(-2 * rate.lower * R**2)
    weights = torch.tensor([light, 1]).double() / (1 + light)
    return R * torch.stack([rate.y, rate.x]), weights


@given(head=heads(), masked=st.booleans())
@quickly
def test_upper_bounds_hold_for_any_measure_and_sharper_ones_are_below_others(head, masked):
    A, V, x, a, _ = head
    f = Attention.from_matrices(A, V, masked=masked)
    exact, sharp, published = (bound(A, V, 1.0, log=True) for bound in (MASKED if masked else UPPER))
    for points, weights in ((x, a), at_pair(A, 1.0, 1 / 3)):
        reached = local_lipschitz(f, points, weights=weights, method="dense").value.item()
        assert math.log(reached) <= exact + 1e-9
    assert mean_field_lower_exact(A, V, 1.0, log=True) <= exact + 1e-9  # all tokens at one position see each other
    assert exact <= sharp + 1e-9 and sharp <= published + 1e-9
    if masked:
        blocks = AttentionJacobian(f, x).dense().view(len(x), 3, *x.shape)
        rows = torch.linalg.matrix_norm(blocks, 2, dim=(1, 3)).sum(1).max().item()
        assert math.log(rows) <= masked_mean_field_upper(A, V, 1.0, p=math.inf, log=True) + 1e-9


@pytest.mark.parametrize("A", [-EYE, EYE, TURN, NILPOTENT, SHEAR, STRETCH])
@pytest.mark.parametrize("s", [0.3, 2.0, 15.0])
def test_the_lower_bound_is_the_constant_at_the_pair(A, s):
    R = math.sqrt(s / mean_field_rate(A).lower)
    alone = constant(A, SHEAR, torch.zeros(1, 2).double(), torch.ones(1).double())
    reached = max(alone, *(constant(A, SHEAR, *at_pair(A, R, odds)) for odds in (1, 1 / 3)))
    lower = mean_field_lower_exact(A, SHEAR, R)
    assert lower <= reached * (1 + 1e-9)
    if s > 10:
        assert lower > 0.99 * reached


@pytest.mark.parametrize("A", [-EYE, EYE, TURN, NILPOTENT, SHEAR, STRETCH])
def test_both_sides_have_the_exact_exponent(A):
    rate = mean_field_rate(A).lower
    for s in (1e4, 1e8):
        lower, upper = (
            bound(A, EYE, math.sqrt(s / rate), log=True) / s
            for bound in (mean_field_lower_exact, mean_field_upper_exact)
        )
        masked = masked_mean_field_upper_exact(A, EYE, math.sqrt(s / rate), log=True) / s
        assert 1 <= lower <= upper <= masked <= 1 + 50 * math.log(s) / s
    # the exponent of the bound by the norm alone is larger, except where the norm is the rate
    norm = torch.linalg.matrix_norm(A, 2).item()
    assert mean_field_upper_sharp(A, EYE, 1e4, log=True) == pytest.approx(norm * 1e8, rel=1e-5)


def test_the_leading_constant_is_exact_for_minus_the_identity():
    over = [mean_field_upper_exact(-EYE, EYE, R) / mean_field_lower_exact(-EYE, EYE, R) for R in (2.0, 4.0, 10.0)]
    assert over == sorted(over, reverse=True) and 1 <= over[-1] < 1.011
    t = 100.0
    assert mean_field_upper_exact(-EYE, EYE, 10.0) == pytest.approx(
        (3 * math.sqrt(3) / 8 * t + 0.5) * math.exp(t), rel=1e-9
    )
    # at t = 1 both minima are those of the norm: cosh t, and the root below e^t
    assert mean_field_upper_exact(-EYE, EYE, 1.0) == pytest.approx(
        1 + math.cosh(1) + math.sqrt(27 / 64 * math.exp(2) + 1), rel=1e-7
    )
    assert mean_field_upper_exact(-EYE / 10, EYE, 1.0) == pytest.approx(
        0.1 + math.hypot(1, 0.1) * math.exp(0.1), rel=1e-7
    )


@pytest.mark.parametrize("width", [1, 3, 50])
def test_the_order_is_known_in_every_width(width):
    """A = I, V = I: t + (1 + t^2)^(1/2) e^(t/8), and no more than 13 times the constant at two atoms."""
    eye = torch.eye(width).double()
    for t in (0.1, 1.0, 8.0, 400.0):
        upper = mean_field_upper_exact(eye, eye, math.sqrt(t))
        assert upper == pytest.approx(t + math.hypot(1, t) * math.exp(t / 8), rel=1e-7)
        reached = constant(eye, eye, *at_pair(eye, math.sqrt(t), 1 / 3))
        assert mean_field_lower_exact(eye, eye, math.sqrt(t)) * 13 > upper >= reached


def test_ascent_comes_near_the_upper_bound_and_does_not_pass_it():
    """Four points on a line, their weights and all: at t = 6 nearly the exact constant."""
    t = 6.0

    def log_constant(x, log_a):
        a = log_a.softmax(0)
        J = torch.func.jacrev(lambda y: (-t * y @ y.T + a.log()).softmax(1) @ y)(x.clamp(-1, 1))[:, 0, :, 0]
        return torch.linalg.matrix_norm(a.sqrt()[:, None] * J / a.sqrt(), 2).log()

    free = [torch.tensor([[-1.0], [1.0], [0.9], [0.5]]).double(), torch.tensor([-2 * t, 0.0, -1.0, -2.0]).double()]
    bound = mean_field_upper_exact(-t * EYE[:1, :1], EYE[:1, :1], 1.0)
    assert math.log(0.98 * bound) < ascended(log_constant, free, lr=0.03).max() <= math.log(bound)


def test_the_masked_bound_by_hand():
    """A = 1, R^2 = 40, one line: 240 boxes, kappa = 1/6, best x at 1/2; without logits Hardy's 2."""
    one = EYE[:1, :1]
    share = (math.sqrt(40 * math.pi) + 4 / 6) / 40
    tau = math.exp(0.5 + 5) * math.sqrt(240 * share)
    assert masked_mean_field_upper_exact(one, one, math.sqrt(40)) == pytest.approx(
        40 + (2 + math.sqrt(6) * 40) * tau, rel=1e-7
    )
    # A = -1: best x at the end, and 1 + 4 kappa for the width of the window
    assert log_masked_tau(-one, math.sqrt(40)) == pytest.approx(0.5 + 40 + math.log(240 * (1 + 4 / 6) / 40) / 2)
    assert masked_mean_field_upper_exact(0 * EYE, EYE, 3.0) == pytest.approx(2, rel=1e-7)
    assert math.isfinite(masked_mean_field_upper_exact(EYE, EYE, 1e150, log=True))
    assert not math.isnan(masked_mean_field_upper_exact(EYE, EYE, 1.2e154, log=True))
    for size in (1e-300, 1e300):
        A = torch.tensor([[size]], dtype=torch.float64)
        assert log_masked_tau(A, 2 / math.sqrt(size)) == pytest.approx(log_masked_tau(one, 2.0), rel=1e-9)
    assert log_masked_tau(0 * EYE, 3.0) == 0  # a query bias may be left
    head = Attention(torch.zeros(1, 1, 1).double(), one[None], one[None], query_bias=one / 10, masked=True)
    assert ball_upper(head, 100, 3.0) < 10
    least = torch.tensor([[5e-324]], dtype=torch.float64)
    assert log_masked_tau(one, 2.0) <= log_masked_tau(least, 2 / math.sqrt(5e-324)) < log_masked_tau(one, 2.0) + 0.1


@given(seed=seeds, d=st.integers(1, 6), kind=st.sampled_from(sorted(KINDS)), t=st.floats(1e-3, 1e5))
@quickly
def test_the_lower_bound_is_a_thirteenth_of_the_upper_one(seed, d, kind, t):
    """V = I: 64 / (3 sqrt 3) = 12.32 suffices in every width and for every A, also A = 0 and R near 0."""
    A, eye = KINDS[kind](normal(seed, d, d)), torch.eye(d).double()
    if norm := torch.linalg.matrix_norm(A, 2).item():
        A = t / norm * A
    for R in (1.0, 1e-6):
        lower, upper = (bound(A, eye, R, log=True) for bound in (mean_field_lower_exact, mean_field_upper_exact))
        assert 0 <= lower <= upper + 1e-12 and upper - lower <= math.log(64 / 3**1.5)


def test_the_factor_between_the_two_bounds_is_reached_far_out():
    """A = I has t = 8 gamma* R^2: 64 / (3 sqrt 3) in the limit, and no less suffices."""
    ends = (mean_field_upper_exact, mean_field_lower_exact)
    logs = [[end(EYE, EYE, math.sqrt(8 * g), log=True) for end in ends] for g in (0.01, 1.0, 10.0, 1e3, 1e5)]
    logs = [upper - lower for upper, lower in logs]
    assert logs == sorted(logs) and math.log(64 / 3**1.5) - 1e-4 < logs[-1] <= math.log(64 / 3**1.5)


def test_lower_bounds_are_never_below_the_norm_of_values():
    """One token that sees itself alone, or n equal ones: the map is V."""
    V = normal(3, 3, 2)
    norm = torch.linalg.matrix_norm(V, 2).item()
    for A, R in ((EYE, 1.0), (EYE, 1e-3), (SHEAR, 1e-200), (0 * EYE, 1.7), (TURN, 0.0)):
        assert mean_field_lower_exact(A, V, R) == pytest.approx(norm, rel=1e-12)
        for n in (1, 2, 10**300):
            assert general_lower_pair(A, V, n, R) == pytest.approx(norm, rel=1e-12)


def blocks_at_pair(A, V, n, R):
    """The gain of the block of `general_lower_pair` at m tokens R y and n - m tokens R x, for each m, by autograd."""
    rate, found = mean_field_rate(A), []
    for m in range(1, n):
        x = R * torch.cat([rate.y.expand(m, -1), rate.x.expand(n - m, -1)])
        move = torch.cat([rate.y.expand(m, -1), torch.zeros(n - m, 2).double()])
        moved = torch.func.jvp(lambda x: (x @ A.mT @ x.mT).softmax(1) @ x @ V.mT, (x,), (move,))[1]
        found.append(moved[m:].norm().item() / math.sqrt(m))
    return found


@pytest.mark.parametrize("A", [-EYE, EYE, TURN, NILPOTENT, SHEAR, STRETCH])
@pytest.mark.parametrize("n", [2, 3, 20])
def test_sequences_at_the_pair(A, n):
    V = normal(5, 3, 2)
    norm = torch.linalg.matrix_norm(V, 2).item()
    for R in (0.3, 0.8, 1.5, 3.0):
        rate, blocks = mean_field_rate(A), blocks_at_pair(A, V, n, R)
        lower = general_lower_pair(A, V, n, R)
        assert norm * (1 - 1e-12) <= lower <= max(norm, *blocks) * (1 + 1e-12)
        m = max(range(1, n), key=lambda m: blocks[m - 1])
        x = R * torch.cat([rate.y.expand(m, -1), rate.x.expand(n - m, -1)])
        reached = local_lipschitz(Attention.from_matrices(A, V), x, method="dense").value.item()
        assert lower <= max(norm, reached) * (1 + 1e-9) <= general_upper_optimal(A, V, n, R) * (1 + 1e-8)
        # with V = I the two numbers m that are tried come near the best of all
        assert general_lower_pair(A, EYE, n, R) > 0.93 * max(blocks_at_pair(A, EYE, n, R))
        if A is not TURN:
            assert general_lower_pair(A, EYE, n, R) >= general_lower(A, n, R) * (1 - 1e-12)


def test_a_block_of_a_long_sequence_by_hand():
    """A = I, R = 4, n - 1 = e^4: s = 2, y = (1, 0), x = y / 2, q = 1/2 and the block 1 + (1/2) 8 (1/2) = 3."""
    n = 1 + round(math.exp(4))
    q = 1 / (1 + (n - 1) * math.exp(-4))
    assert general_lower_pair(EYE, EYE, n, 4.0) == pytest.approx(math.sqrt(n - 1) * q * (1 + (1 - q) * 4), rel=1e-9)
    # far beyond the promised length the constant of two atoms, c = 1/3: e^2 (sqrt(3) / 4) (1 + 4 (3/4))
    assert general_lower_pair(EYE, EYE, 10**12, 4.0) == pytest.approx(math.exp(2) * 3**0.5, rel=1e-9)
    # at 500 tokens three are at R y: q = 3 / (3 + 497 e^-4)
    q = 3 / (3 + 497 * math.exp(-4))
    assert general_lower_pair(EYE, EYE, 500, 4.0) == pytest.approx((497 / 3) ** 0.5 * q * (5 - 4 * q), rel=1e-9)
    assert general_lower_pair(EYE, EYE, 10**12, 1e100) == pytest.approx(1e6, rel=1e-9)


@pytest.mark.parametrize("A", [-EYE, EYE, TURN, NILPOTENT, SHEAR, STRETCH])
def test_long_sequences_keep_the_constant_of_measures(A):
    """From 1 + e^(2s) tokens on at least sqrt(2)/3 e^s (1 + 2s/3) for V = I, and in the limit all of it."""
    for s in (0.01, 0.5, 4.0, 30.0):
        R = math.sqrt(s / mean_field_rate(A).lower)
        least, upper = 2**0.5 / 3 * math.exp(s) * (1 + 2 * s / 3), mean_field_upper_exact(A, EYE, R)
        for times in (1, 1.2, 1.49, 1.51, 2.6, 10, 1e3):
            n = 1 + math.ceil(times * math.exp(2 * s))
            assert least <= general_lower_pair(A, EYE, n, R) <= upper <= 36 / 2**0.5 * least
        for V, n in ((EYE, 10**40), (SHEAR, 10**300)):
            assert general_lower_pair(A, V, n, R) == pytest.approx(mean_field_lower_exact(A, V, R), rel=1e-9)


def test_a_million_tokens_by_their_jacobian():
    """A = -1, V = 1, R = 2: with one token at -R 26.7 are left at a million tokens, with 112 of them 165.5."""
    for n, m in ((10**6, 112), (10**12, 111_780_000)):
        lower = general_lower_pair(-EYE[:1, :1], EYE[:1, :1], n, 2.0)
        weights = torch.tensor([m / n, 1 - m / n]).double()
        reached = constant(-EYE[:1, :1], EYE[:1, :1], torch.tensor([[-2.0], [2.0]]).double(), weights)
        assert 165 < lower <= reached * (1 + 1e-4) and reached < 1.01 * lower


def test_nothing_to_attend_to():
    zero = mean_field_rate(0 * EYE)
    assert zero.lower == zero.upper == 0 and not zero.x.any() and not zero.y.any()
    assert mean_field_upper_exact(0 * EYE, SHEAR, 1.7) == pytest.approx(
        torch.linalg.matrix_norm(SHEAR, 2).item(), rel=1e-7
    )
    assert mean_field_lower_exact(0 * EYE, EYE, 1.7) == 1 == general_lower_pair(0 * EYE, EYE, 5, 1.7)
    assert mean_field_lower_exact(EYE, 0 * EYE, 1.7) == 0 == general_lower_pair(EYE, 0 * EYE, 5, 1.7)
    assert mean_field_upper_exact(EYE, 0 * EYE, 1.7) == 0 and mean_field_upper_exact(EYE, EYE, 0.0) == pytest.approx(1)


def test_lower_bounds_stay_below_the_upper_one_at_the_ends_of_float64():
    for R in (1e77, 1e150, 1e155, 1e200):
        lower, upper = (bound(-EYE, EYE, R, log=True) for bound in (mean_field_lower_exact, mean_field_upper_exact))
        assert min(R * R * (1 - 1e-9), torch.finfo(torch.float64).max) <= lower <= upper and math.isfinite(lower)
    # two tokens: 1; five: 2, the root of n - 1; at any radius
    for R in (1e76, 1e150, 1e151, 1e153, 1e155, 1e300):
        assert [general_lower_pair(-EYE, EYE, n, R) for n in (2, 5)] == pytest.approx([1, 2], rel=1e-12)
    assert mean_field_lower_exact(-EYE, 1e-200 * EYE, 30.0, log=True) == pytest.approx(
        mean_field_lower_exact(-EYE, EYE, 30.0, log=True) - 200 * math.log(10), rel=1e-12
    )
    assert mean_field_lower_exact(-EYE, 0 * EYE, 30.0, log=True) == -math.inf
    # V is small on the pair alone
    A, V = torch.diag(torch.tensor([0.0, -1.0])).double(), torch.tensor([[1.0, 0.0], [0.0, 1e-200]], dtype=EYE.dtype)
    assert mean_field_lower_exact(A, V, 30.0, log=True) == pytest.approx(
        mean_field_lower_exact(A, EYE, 30.0, log=True) - 200 * math.log(10), rel=1e-12
    )


@pytest.mark.parametrize("s", [1e-300, 1e-170, 1e155, 1e300])
def test_lower_bounds_know_scores_alone(s):
    """A = s M at the radius (5 / s)^(1/2) has the scores of M at 5^(1/2); no bound changes."""
    for M in (-EYE, SHEAR):
        for bound in (mean_field_lower_exact, lambda A, V, R: general_lower_pair(A, V, 10**6, R)):
            assert bound(s * M, SHEAR, math.sqrt(5 / s)) == pytest.approx(bound(M, SHEAR, math.sqrt(5)), rel=1e-10)


def test_the_rate_of_the_largest_matrices_is_attained():
    one = torch.full((1, 1), -1e308, dtype=torch.float64)
    assert 1e308 * (1 - 1e-12) <= mean_field_rate(one).lower <= mean_field_rate(one).upper < 1.1e308
    full = torch.full((4, 4), 1.7e308, dtype=torch.float64)  # its norm, eight times the rate, is no float
    assert mean_field_rate(full).lower == pytest.approx(8.5e307, rel=1e-9)
    assert mean_field_rate(-full).lower == torch.finfo(torch.float64).max and mean_field_rate(-full).upper == math.inf


def test_subnormal_matrices_have_a_rate_that_is_not_rounded_away():
    A = torch.tensor([[5e-324]], dtype=torch.float64)
    assert mean_field_rate(A).upper >= 5e-324 / 8 and mean_field_rate(A).upper > 0
    logit = A.item() * 8e162 * 8e162
    scaled = mean_field_lower_exact(torch.tensor([[logit]]).double(), torch.eye(1).double(), 1.0, log=True)
    assert mean_field_upper_exact(A, torch.ones(1, 1).double(), 8e162, log=True) >= scaled > 40


def test_parameters_are_read_without_their_gradients():
    A, V = (torch.nn.Parameter(part.clone()) for part in (SHEAR, STRETCH))
    rate = mean_field_rate(A)
    assert not (rate.x.requires_grad or rate.y.requires_grad)
    for bound in (mean_field_lower_exact, mean_field_upper_exact, masked_mean_field_upper_exact):
        assert bound(A, V, 2.0) == bound(SHEAR, STRETCH, 2.0)
    assert general_lower_pair(A, V, 7, 2.0) == general_lower_pair(SHEAR, STRETCH, 7, 2.0)


def test_a_length_beyond_the_promised_one_keeps_the_order_up_to_a_power():
    """A = -1, V = 1, R = 2: 24 e^8 tokens, eight of them at -R, and more than half the root."""
    n, light = 71_543, 8
    x, a = 2 * torch.tensor([[-1.0], [1.0]]).double(), torch.tensor([light, n - light]).double() / n
    f = Attention.from_matrices(-EYE[:1, :1], EYE[:1, :1])
    reached = local_lipschitz(f, x, weights=a, method="dense").value.item()
    assert n > 23 * math.exp(8) and reached > 0.6 * math.sqrt(n - 1)


def test_the_longest_sequences_have_lower_bounds():
    assert general_lower(-EYE, 10**300, 1.0) < 1e-100
    assert general_lower_pair(-EYE, EYE, 10**300, 1.0) == pytest.approx(mean_field_lower_exact(-EYE, EYE, 1.0))


def test_the_bound_of_a_layer_takes_the_exact_rate():
    A, V = 6 * torch.diag(torch.tensor([1.0, 0.1])).double(), torch.diag(torch.tensor([1.0, 2.0])).double()
    f, stated = Attention.from_matrices(A, V), mean_field_upper_exact(A, V, 1.0)
    norms = head_norms(f)
    by_norm = heads_on_ball(norms, 10**9, 1.0, False)["mean_field_optimal"]
    assert stated < 0.5 * math.exp(by_norm)
    assert ball_upper(f, 10**9, 1.0) == pytest.approx(stated, rel=1e-8)
    assert ball_upper(f, 5, 1.0) < stated  # for few tokens the bound for sequences is less
    two = Attention(*(torch.stack([part, part]) for part in (A, EYE, V)), EYE.expand(2, 2, 2), scale=1.0)
    assert ball_upper(two, 10**9, 1.0) == pytest.approx(2 * stated, rel=1e-8)
    # a query bias of length 1 adds 1 to t and to the exponent
    biased = Attention(*(part[None] for part in (A, EYE, V)), scale=1.0, query_bias=EYE[:1])
    assert ball_upper(biased, 10**9, 1.0) == pytest.approx(2 * (7 + math.sqrt(50) * math.exp(6 / 8 + 1)), rel=1e-8)
    rate = mean_field_rate(A)
    pair = torch.stack([rate.y, rate.x]), torch.tensor([1e-9, 1 - 1e-9]).double()
    assert local_lipschitz(biased, pair[0], weights=pair[1], method="dense").value < ball_upper(biased, 10**9, 1.0)
    masked = f.replace(masked=True)
    assert ball_upper(masked, 10**30, 3.0) == pytest.approx(masked_mean_field_upper_exact(A, V, 3.0), rel=1e-8)
    assert ball_upper(masked, 10**30, 3.0) < 1e-3 * masked_mean_field_upper_sharp(A, V, 3.0)
    assert ball_upper(masked.replace(window=10**30), 10**30, 3.0) > 1.01 * ball_upper(masked, 10**30, 3.0)
    # and by the norm alone it is that of -I
    assert heads_on_ball(head_norms(Attention.from_matrices(-6 * EYE, V)), 5, 1.0, False)[
        "mean_field_optimal"
    ] == pytest.approx(mean_field_upper_exact(-6 * EYE, V, 1.0, log=True), rel=1e-9)
