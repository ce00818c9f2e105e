"""The least bound on a ball: above everything found by chance and by ascent, below every bound it replaces, tight."""

import itertools
import math

import pytest
import torch
from cases import constant
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import quickly, seeds

from lipnb import Attention, local_lipschitz
from lipnb.bounds import (
    ball_upper,
    general_upper_optimal,
    general_upper_sharp,
    head_norms,
    heads_on_ball,
    layer_norm_radius,
    masked_mean_field_upper_sharp,
    mean_field_upper_sharp,
)
from lipnb.bounds.ball import _log_of_rows, _through_few, _uniform, rows_of
from lipnb.bounds.multihead_norms import Region, Sizes, sizes_of_heads
from lipnb.worst_case import adam, ascend, climb, fork_input, gaussian

EYE = torch.eye(3, dtype=torch.float64)


MASKS = {"all": {}, "causal": {"masked": True}, "window": {"masked": True, "window": 2}}


def layer(normal, h, d, *, bias, size=1.0, side_by_side=False, **mask):
    """A random layer, on request with query biases."""
    k, m = 2, 3
    output = None if side_by_side else normal(h, m, k)
    biases = {"query_bias": 2 * normal(h, k), "key_bias": normal(h, k)} if bias else {}
    return Attention(size * normal(h, k, d), normal(h, k, d), normal(h, k, d), output, **biases, **mask)


def in_ball(normal, *shape):
    y = normal(*shape)
    return y / y.norm(dim=-1, keepdim=True) * normal(*shape[:-1], 1).abs().clamp_max(1) ** 0.5


@given(
    seed=seeds, n=st.integers(1, 12), R=st.floats(0.1, 8), h=st.integers(1, 4), mask=st.sampled_from(sorted(MASKS)),
    bias=st.booleans(), side_by_side=st.booleans(),
)  # fmt: skip
@settings(quickly, max_examples=20)
def test_no_input_exceeds_it(seed, n, R, h, mask, bias, side_by_side):
    """Among random ones and what ascents from the best of them find."""
    normal, d = gaussian(seed), 2 + seed % 3
    f = layer(normal, h, d, bias=bias, side_by_side=side_by_side, **MASKS[mask])
    x = R * in_ball(normal, 30, n, d)
    found = constant(f, x)
    best = climb(f, x[found.topk(2).indices], R, steps=20)[1].max()
    assert max(found.max(), best) <= ball_upper(f, n, R)


def test_no_fork_exceeds_it_and_some_come_near():
    for mask in MASKS:
        normal, ratios = gaussian(len(mask)), []
        for case in range(4):
            n, d, R = 20 * (case + 1), 2 + case % 3, (1.0, 2.0, 3.0, 5.0)[case % 4]
            A, V = normal(d, d), normal(2, d)
            if case % 2:
                A, V = -A @ A.mT - torch.eye(d), torch.eye(d).double()
            f = Attention.from_matrices(A, V).replace(**MASKS[mask])
            x = fork_input(A, V, n, R)[0]
            ratios.append((local_lipschitz(f, x).value / ball_upper(f, n, R)).item())
        assert max(ratios) <= 1
        assert mask == "window" or max(ratios) > 0.9


def test_several_heads_of_one_fork_come_near():
    for masked in [False, True]:
        h, n, R, A = 4, 200, 4.5, -torch.diag(torch.tensor([1.0, 0.7, 0.4]).double())
        s, same = torch.linspace(1, 1.5, h).double()[:, None, None], EYE.expand(h, 3, 3)
        f = Attention(s * A, same, same, s.flip(0) * EYE, scale=1.0, masked=masked)
        found = local_lipschitz(f, fork_input(A, EYE, n, R)[0]).value
        assert 0.95 < found / ball_upper(f, n, R) <= 1


def test_no_output_of_a_layer_norm_exceeds_it():
    for both in [False, True]:
        normal = gaussian(5)
        for case in range(4):
            d, n, h = 3 + case % 2, 2 + 2 * case, 1 + case % 3
            gain, shift = normal(d).exp(), normal(d)
            f = layer(normal, h, d, bias=case % 2 == 1, masked=case % 3 == 0)
            G = math.sqrt(d) * gain[:, None] * (torch.eye(d).double() - 1 / d)
            u, _ = ascend(
                lambda u, f=f, G=G, shift=shift: constant(f, shift + u @ G.mT),
                (in_ball(normal, 10, n, d),),
                adam(0.05, inside=lambda u: u / u.norm(dim=-1, keepdim=True).clamp_min(1)),
                steps=25,
                log=True,
            )
            x = shift + torch.cat([u[0], in_ball(normal, 10, n, d)]) @ G.mT
            sizes = x.norm(dim=-1).amax(-1)
            reach = layer_norm_radius(gain, shift)
            R = (1 + 1e-12) * sizes.median().item() if both else math.inf
            upper = ball_upper(f, n, R, ellipsoid=(gain, shift))
            assert sizes.max() <= reach * (1 + 1e-9)
            assert constant(f, x)[sizes <= R].max() <= upper
            assert upper <= ball_upper(f, n, math.inf, ellipsoid=(gain, shift)) * (1 + 1e-9)
            assert upper <= ball_upper(f, n, min(R, reach * (1 + 1e-9))) * (1 + 1e-9)


@given(
    seed=seeds, h=st.integers(1, 4), d=st.integers(1, 4), masked=st.booleans(), bias=st.booleans(),
    n=st.sampled_from([1, 2, 5, 40, 10**6, 10**12]), R=st.sampled_from([0.0, 1e-3, 0.3, 1.0, 4.0, 30.0, 1e4]),
)  # fmt: skip
@quickly
def test_it_is_never_above_the_bounds_of_the_heads(seed, n, R, h, d, masked, bias):
    """Nor, for one head, above the closed formula, and that not above the older."""
    normal = gaussian(seed)
    f = layer(normal, h, d, bias=bias, masked=masked)
    assert ball_upper(f, n, R, log=True) <= min(heads_on_ball(head_norms(f), n, R, masked).values()) + 1e-8
    A, V = normal(d, d), normal(h, d)
    optimal = general_upper_optimal(A, V, n, R)
    assert ball_upper(Attention.from_matrices(A, V), n, R) <= optimal * (1 + 1e-7)
    assert optimal <= general_upper_sharp(A, V, n, R)


def test_layers_with_orthogonal_weights_have_a_bound():
    """Their blocks' largest singular values are alike, and LAPACK, asked for the last pair alone, returned none."""
    for heads, width, scale in itertools.product((2, 8), (32, 96), (1.0, 0.01)):
        normal, k, R = gaussian(0), width // heads, math.sqrt(width)
        turns = [scale * torch.linalg.qr(normal(width, width)).Q for _ in range(4)]
        query, key, value = (turn.view(heads, k, width) for turn in turns[:3])
        f = Attention(query, key, value, turns[3].view(width, heads, k).movedim(1, 0), scale=1 / k)
        others = heads_on_ball(head_norms(f), 6, R, False)
        assert ball_upper(f, 6, R, log=True) <= min(others.values()) + 1e-8


def test_long_forks_reach_the_leading_constant():
    n, R = 4000, 30**0.5
    V = torch.diag(torch.tensor([0.5, 1.0]).double())
    x = fork_input(-EYE[:2, :2], V, n, R)[0]
    found = local_lipschitz(Attention.from_matrices(-EYE[:2, :2], V), x).value.item()
    assert found / (30 * math.sqrt(n)) == pytest.approx(0.7068, abs=1e-3)
    assert 0.995 < found / general_upper_optimal(-EYE[:2, :2], V, n, R) < 1


def test_without_logits_it_is_the_norm_of_the_value_matrix():
    V = torch.diag(torch.tensor([1.0, 2.0, 3.0]).double())
    assert ball_upper(Attention.from_matrices(0 * EYE, V), 50, 2.0) == pytest.approx(3, rel=1e-7)
    assert ball_upper(Attention.from_matrices(EYE, V), 50, 0.0) == pytest.approx(3, rel=1e-7)
    assert ball_upper(Attention.from_matrices(EYE, 0 * V), 50, 2.0) == 0
    assert ball_upper(Attention.from_matrices(EYE, 0 * V), 50, 2.0, log=True) == -math.inf
    assert ball_upper(Attention.from_matrices(100 * EYE, V), 1, 9.0) == pytest.approx(3, rel=1e-7)
    alone = Attention.from_matrices(100 * EYE, V, masked=True).replace(window=1)
    assert ball_upper(alone, 50, 9.0) == pytest.approx(3, rel=1e-7)


def test_small_logits_take_the_mean_field_rate():
    A, V = 0.05 * EYE, EYE
    upper = ball_upper(Attention.from_matrices(A, V), 10**9, 1.0)
    assert upper <= mean_field_upper_sharp(A, V, 1.0) < 1.2


def test_masked_heads_take_the_sharper_mean_field_rate_but_not_in_a_window():
    A, V, R = 0.2 * EYE, torch.diag(torch.tensor([1.0, 2.0, 3.0]).double()), 1.5
    f = Attention.from_matrices(A, V, masked=True)
    stated = masked_mean_field_upper_sharp(A, V, R)
    assert heads_on_ball(head_norms(f), 9, R, True)["mean_field_sharp"] == pytest.approx(math.log(stated))
    assert ball_upper(f, 10**9, R) == pytest.approx(stated, rel=1e-9)
    assert ball_upper(f.replace(window=10**9), 10**9, R) > 1.01 * stated  # proved for the whole past alone
    biased = Attention(*(part[None] for part in (A, EYE, V)), scale=1.0, masked=True, query_bias=EYE[:1])
    t = 0.2 * R**2 + R
    assert ball_upper(biased, 10**9, R) == pytest.approx(masked_mean_field_upper_sharp(t * EYE, V, 1.0), rel=1e-9)


def summed(f):
    return (torch.eye(len(f.value) * f.value_width).double() if f.output is None else torch.cat([*f.output], 1)) @ (
        f.value.flatten(0, 1)
    )


def test_one_token_and_no_radius_are_exact():
    for mask in MASKS:
        for h in [1, 3]:
            normal = gaussian(h + len(mask))
            for case in range(4):
                n, d = 2 + 2 * case, 2 + case % 3
                f = layer(normal, h, d, bias=case % 2 == 0, side_by_side=case == 3, **MASKS[mask])
                M = torch.linalg.matrix_norm(summed(f), 2).item()
                assert M * (1 - 1e-12) <= ball_upper(f, 1, 7.0) <= M * (1 + 1e-7)
                still = constant(f, torch.zeros(1, n, d).double()).item()
                assert still * (1 - 1e-12) <= ball_upper(f, n, 0.0) <= still * (1 + 1e-7)
                assert ball_upper(f, n, 1e-5) <= still * 1.01


def test_heads_that_cancel_leave_rounding():
    normal = gaussian(21)
    query, key, value, output = normal(1, 2, 3), normal(1, 2, 3), normal(1, 2, 3), normal(1, 4, 2)
    f = Attention(*(torch.cat([part, part]) for part in (query, key, value)), torch.cat([output, -output]))
    assert 0 < ball_upper(f, 1, 1.0) < 1e-13 and 0 < ball_upper(f, 5, 0.0) < 1e-13
    assert ball_upper(f, 5, 1e-9) < 1e-7
    one, near = torch.ones(2, 1, 1).double(), torch.tensor([2.0**-30, 0.0]).double()[:, None, None]
    f = Attention(one, one, one - near, torch.tensor([1.0, -1.0]).double()[:, None, None] * (one + near))
    assert 2**-60 <= ball_upper(f, 1, 1.0) < 1e-14  # the sum of the values is -2^-60, computed 0


def test_heads_that_cancel_and_attend_otherwise_attain_the_part_of_the_values():
    for delta in [0.01, 1.0, 5.0]:
        P = torch.tensor([[delta, 0.0], [0.0, delta]], dtype=torch.float64).softmax(-1)
        found = 0.5 * torch.linalg.matrix_norm((P[0] - P[1]).expand(2, 2), 2)  # values 1/2 and -1/2
        sizes = Sizes(value=0.0, key=-math.inf, query=-math.inf, spread=math.log(delta), same=-math.inf)
        rows = rows_of(Attention.from_matrices(EYE, EYE), 2)
        assert _log_of_rows(sizes, rows, heads=2, apart=False) == pytest.approx(found.log().item(), abs=1e-12)


@pytest.mark.parametrize("window", [None, 1, 2, 5, 40])
def test_averages_of_many_tokens_are_bounded_by_a_number(window, monkeypatch):
    f = Attention.from_matrices(EYE, EYE, masked=True).replace(window=window)
    lengths = 1, 2, 10, 60, 200
    exact = [rows_of(f, n).uniform for n in lengths]
    assert exact == sorted(exact) and exact[0] == pytest.approx(1)
    monkeypatch.setattr("lipnb.bounds.ball.AVERAGES", 0)
    assert all(1 - 1e-7 <= rows_of(f, n).uniform / one <= 2.3 for one, n in zip(exact, lengths, strict=True))
    assert _uniform(f, 10**6, 1e9) == (2 if window is None else math.sqrt(5))


def test_behind_a_window_the_second_token_is_seen_most():
    for n, R in [(5, 1e-6), (6, 0.1), (12, 1e-6), (40, 0.1)]:
        one = torch.ones(2, 1, 1, dtype=torch.float64)
        sign = torch.tensor([1.0, -1.0], dtype=torch.float64)
        f = Attention(
            0 * one, one, sign[:, None, None], one, query_bias=sign[:, None], scale=1.0, masked=True, window=2
        )
        x = R * torch.tensor([(-1.0) ** i for i in range(n)], dtype=torch.float64)[:, None]
        exact = local_lipschitz(f, x, method="dense").value.item()
        assert exact <= ball_upper(f, n, R) <= 1.6 * exact  # without the row of one more: 0.93 to 0.98 of it


def test_heads_of_their_own_directions_cost_no_more_than_one():
    h, n, R = 4, 400, 5.0
    blocks = torch.eye(3 * h).double().unflatten(0, (h, 3))
    one = Attention(-EYE[None], EYE[None], EYE[None], scale=1.0)
    f = Attention(-blocks, blocks, blocks, scale=1.0)
    assert ball_upper(f, n, R) < 1.4 * ball_upper(one, n, R)
    same = Attention(-EYE.expand(h, 3, 3), *(EYE.expand(h, 3, 3),) * 3, scale=1.0)
    assert ball_upper(same, n, R) == pytest.approx(4 * ball_upper(one, n, R), rel=1e-6)


def test_zero_heads_count_nothing():
    normal = gaussian(9)
    f = layer(normal, 2, 3, bias=True)
    wider = f.replace(**{name: torch.cat([getattr(f, name), 0 * getattr(f, name)]) for name in f.tensors()})
    assert ball_upper(wider, 20, 3.0) <= 1.2 * ball_upper(f, 20, 3.0)


@pytest.mark.parametrize("radius", [1.0, 1e12, 1e100])
def test_heads_that_score_nothing_have_the_norm_of_their_means(radius):
    eye = torch.eye(2).double().expand(2, 2, 2)
    for query, key in ((0 * eye, eye), (eye, 0 * eye), (0 * eye, 0 * eye)):
        assert abs(ball_upper(Attention(query, key, eye, eye, scale=1.0), 3, radius) / 2 - 1) < 1e-6


def test_rows_through_few_tokens_add_up_as_their_worst_perturbation():
    for n, few, query, kappa in [(50, 2, 1.0, 0.7), (9, 4, 2.0, 0.5), (7, 7, 1.0, 3.0), (30, 2, 0.0, 1.0)]:

        def norm(sizes):  # of rows query |eps_i| + kappa tau
            sizes = sizes / sizes.norm(dim=-1, keepdim=True)
            tau = sizes.abs().sort(descending=True).values[..., :few].norm(dim=-1, keepdim=True)
            return (query * sizes.abs() + kappa * tau).norm(dim=-1).max().item()

        stated = _through_few(query, kappa, n * kappa**2, few, n)
        level = torch.ones(2001, n).double()
        level[:, few:] = torch.linspace(0, 1, 2001).double()[:, None]
        assert norm(gaussian(0)(5000, n)) <= stated
        assert norm(level) == pytest.approx(stated, rel=1e-6)


def test_rows_of_a_long_mask_are_counted_once():
    f = Attention.from_matrices(EYE, EYE, masked=True)
    for n, window in ((5, None), (5, 3), (10**6, None), (10**6, 100)):
        rows = rows_of(f.replace(window=window), n)
        assert rows.times.sum() == n and rows.column.sum() == min(n, window or n) and rows.seen[0] == 1


def test_beyond_the_largest_float_its_logarithm_is_known():
    for A, times in ((-EYE, 0.767), (EYE, 0.450)):
        f = Attention.from_matrices(A, EYE)
        assert ball_upper(f, 3, 1e200, log=True) == pytest.approx(math.log(1e200) * 2 + times, abs=1e-3)


def test_logits_of_a_row_differ_by_no_more_than_the_spread():
    normal, R = gaussian(12), 2.0
    f = layer(normal, 2, 3, bias=True)
    spreads = [head.spread for head in sizes_of_heads(f, [Region(torch.zeros(3).double(), R * EYE)])]
    query, _, _ = f.project(R * in_ball(normal, 4000, 1, 3))
    steepest = 2 * R * torch.einsum("bhnk,hkd->bhnd", query, f.key).norm(dim=-1).amax((0, 2))
    assert all(0.8 * spread <= log <= spread for log, spread in zip(steepest.log().tolist(), spreads, strict=True))
    one = Attention.from_matrices(-EYE, EYE)
    assert sizes_of_heads(one, [Region(torch.zeros(3).double(), R * EYE)])[0].spread == pytest.approx(
        math.log(2 * R**2)
    )


def test_products_that_underflow_count_what_they_may_be():
    for at in [1e-170, 1e-150]:
        scale = 1.0 if at < 1e-160 else 1e-30
        R = 3 / (at * scale**0.5)
        eye = torch.eye(2).double()[None]
        f = Attention(-at * eye, at * eye, eye, scale=scale)
        same = Attention.from_matrices(-9 * eye[0], eye[0])  # the same map in units of R
        x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [1.0, 0.1]]).double() / 1.01
        assert ball_upper(f, 4, R, log=True) >= math.log(local_lipschitz(same, x, method="dense").value.item())
        small = Attention(-9 * eye, eye, 1e-170 * eye, 1e-170 * eye, scale=1.0)
        known = ball_upper(same, 4, 1.0, log=True) + 2 * math.log(1e-170)
        assert ball_upper(small, 4, 1.0, log=True) == pytest.approx(known, rel=1e-9)


def test_large_biases_and_small_radii_have_a_bound():
    for R, bias in [(1e-320, 1.0), (1e-300, 1e10), (1e-160, 1e150), (3.0, 1e160)]:
        eye = torch.eye(1).double()[None]
        f = Attention(eye, eye, eye, query_bias=torch.tensor([[bias]], dtype=torch.float64), scale=1.0)
        assert ball_upper(f, 3, R, log=True) >= 0


def test_parameters_of_several_heads_are_read_without_their_gradients():
    plain = layer(gaussian(5), 2, 3, bias=True)
    asking = plain.replace(**{name: torch.nn.Parameter(part.clone()) for name, part in plain.tensors().items()})
    assert ball_upper(asking, 9, 2.0) == ball_upper(plain, 9, 2.0)


def test_lengths_beyond_whole_numbers_of_64_bits():
    for mask in MASKS.values():
        f = layer(gaussian(6), 2, 3, bias=False, **mask)
        found = [ball_upper(f, n, 0.5, log=True) for n in (10**15, 10**30, 10**300)]
        assert found == pytest.approx([found[0]] * 3)  # of the mean-field bounds, or of the window, alone


def test_relative_positions_widen_the_rows_of_a_layer_too():
    """Without logits, heads that attend to the farthest token: far from the mean that they were without positions."""
    nothing, n = torch.zeros(2, 3, 3, dtype=torch.float64), 9
    far = 9.0 * (torch.arange(17) - 8).abs().double().expand(2, 17)
    f = Attention(nothing, nothing, EYE.expand(2, 3, 3), EYE.expand(2, 3, 3), relative=far)
    assert constant(f, torch.zeros(n, 3).double()) <= ball_upper(f, n, 1.0)
