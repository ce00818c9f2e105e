"""Sliding windows: token i sees the last w tokens up to itself, or w - 1 on each side; what bounds make of them."""

import itertools

import pytest
import torch
from cases import normal, relative

from lipnb import Attention, AttentionJacobian, bounds, local_lipschitz
from lipnb.jacobian.separable import SeparableJacobian


def windowed(w, seed=0, *, h=2, k=3, d=4, score="dot"):
    return Attention(
        normal(h, k, d, seed=seed),
        normal(h, k, d, seed=seed + 1),
        normal(h, 3, d, seed=seed + 2),
        normal(h, 5, 3, seed=seed + 3),
        query_bias=normal(h, k, seed=seed + 4),
        masked=True,
        window=w,
        score=score,
    )


def test_what_is_hidden_and_which_tokens_some_rows_see():
    for n, w, masked in itertools.product((1, 5, 23), (None, 1, 2, 7, 22, 23, 40), (True, False)):
        f, reach = windowed(2).replace(window=w, masked=masked), w or n
        expected = torch.tensor(
            [[j <= i - reach or (j > i if masked else j >= i + reach) for j in range(n)] for i in range(n)]
        )
        if w is None and not masked:
            assert f.hidden(n) is None
        else:
            assert torch.equal(f.hidden(n), expected)
            for rows, columns in ((slice(1, 4), slice(0, 3)), (torch.tensor([n - 1, 0]), slice(None))):
                assert torch.equal(f.hidden(n, rows, columns), expected[rows][:, columns])
        for first, last in itertools.combinations(range(n + 1), 2):
            used = (~expected[first:last]).any(0).nonzero()
            assert f.seen(n, first, last) == slice(used.min().item(), used.max().item() + 1)


def test_it_is_the_window_of_the_library_of_models():
    masks = pytest.importorskip("transformers.masking_utils")
    i, j = torch.arange(30)[:, None], torch.arange(30)
    for w in (1, 4, 16):
        theirs = masks.sliding_window_causal_mask_function(w)(0, 0, i, j)
        assert torch.equal(windowed(w).hidden(30), ~theirs)


def test_a_separable_kernel_is_refused_and_not_chosen():
    f, x = windowed(3, k=2, d=2), 0.1 * normal(2000, 2)
    with pytest.raises(ValueError, match="masked attention has no separable kernel"):
        SeparableJacobian(f, x)
    assert not SeparableJacobian.if_it_pays(f, x)
    assert SeparableJacobian.if_it_pays(f.replace(masked=False, window=None), x)
    assert local_lipschitz(f, x, memory=1).route == "streamed"


def test_what_is_no_window():
    for window, masked in [(0, True), (-1, True), (2.0, True), ("4", True), (True, False)]:
        with pytest.raises(ValueError, match="window must be None or how many tokens each one sees on a side"):
            windowed(2).replace(window=window, masked=masked)


def test_the_window_stands_in_the_representation_and_survives_a_move():
    assert "window 3" in repr(windowed(3)) and windowed(3).to(dtype=torch.float32).window == 3


def test_a_query_bias_becomes_a_coordinate_with_a_window():
    for seed in range(12):
        f, x = windowed(1 + seed % 5, seed=10 * seed), (0.3 + seed / 4) * normal(9, 4, seed=99 + seed)
        norm = torch.linalg.matrix_norm(AttentionJacobian(f, x).dense(), 2).item()
        wider, tokens = bounds.without_query_bias(f, x, 1.0)
        assert wider.window == f.window and relative(wider(tokens), f(x)) < 1e-12
        assert norm <= torch.linalg.matrix_norm(AttentionJacobian(wider, tokens).dense(), 2).item() * (1 + 1e-9)


def test_a_window_on_both_sides_is_said_and_has_no_bound_on_a_ball():
    f = windowed(2).replace(masked=False)
    assert "window 2" in repr(f) and f.replace(window=None).more == ()
    with pytest.raises(ValueError, match="a window on both sides"):
        bounds.ball_upper(f, 8, 1.0)


def test_the_limit_at_large_radius():
    for w in [1, 2, 4, 8]:
        f, x = windowed(w, seed=3, h=1, d=3).replace(query_bias=None), normal(8, 3, seed=40 + w)
        chosen = bounds.chosen_tokens(f, x)
        place = torch.arange(8)
        assert ((chosen <= place) & (chosen > place - w)).all()
        for far in (1e3, 1e4):
            measured = torch.linalg.matrix_norm(AttentionJacobian(f, far * x).dense(), 2)
            assert relative(measured, bounds.large_radius_limit(f, x)) < 1e-6
        if w < 4:
            assert (
                relative(bounds.large_radius_limit(f, x), bounds.large_radius_limit(f.replace(window=None), x)) > 1e-3
            )
