"""Heads as transformers have them, on a ball: no input found exceeds the bound, and its parts are what they state."""

import math

import pytest
import torch
from cases import ADDED, constant, layer_in_use

from lipnb import Attention, bounds
from lipnb.bounds.multihead_norms import Region
from lipnb.bounds.rotary import PLACES
from lipnb.bounds.transformer_heads import range_of_relative, sizes_of_features
from lipnb.worst_case import climb, gaussian

MASKS = ({}, {"masked": True}, {"masked": True, "window": 2})


def test_no_input_exceeds_the_bound_on_its_ball():
    for added in ADDED:
        normal = gaussian(len(added))
        for case, (n, R) in enumerate(((1, 2.0), (2, 0.3), (4, 1.0), (7, 4.0))):
            f = layer_in_use(normal, bias=case != 2, **ADDED[added](normal), **MASKS[case % 3])
            x = normal(30, n, 3)
            x = R * x / x.norm(dim=-1, keepdim=True)
            x[::3] = x[::3, :1] * (
                2.0 * torch.randint(0, 2, (10, n, 1), generator=torch.Generator().manual_seed(n)) - 1
            )
            x[1::3] *= 0.1
            found = constant(f, x)
            best = climb(f, x[found.topk(2).indices], R, steps=20)[1].max()
            upper = bounds.ball_upper(f, n, R)
            assert max(found.max(), best) <= upper * (1 + 1e-9)
            assert upper < 1e4 * best, "no bound of this size says anything"
            assert bounds.ball_upper(f, n, R, log=True) == pytest.approx(math.log(upper))


def test_no_output_of_an_rms_norm_exceeds_the_bound_on_its_ellipsoid():
    for added in [*ADDED]:
        normal = gaussian(3)
        f, gain = layer_in_use(normal, **ADDED[added](normal)), torch.tensor([3.0, 1.0, 0.1]).double()
        x = normal(40, 5, 3)
        x = gain * x / x.square().mean(-1, keepdim=True).sqrt()
        radius = bounds.layer_norm_radius(gain, None)
        assert radius == pytest.approx(3 * math.sqrt(3)) and x.norm(dim=-1).max() <= radius
        upper = bounds.ball_upper(f, 5, math.inf, ellipsoid=(gain, None))
        assert constant(f, x).max() <= upper <= bounds.ball_upper(f, 5, radius) * (1 + 1e-9)


def test_sums_of_the_heads_are_no_smaller_and_bounds_of_rotary_heads_neither():
    normal = gaussian(1)
    for case in range(12):
        f = layer_in_use(normal, frequencies=torch.tensor([1.0, 0.03]), masked=case % 2 == 1, bias=case % 3 == 1)
        n, R = (1, 2, 9, PLACES + 1)[case % 4], (0.1, 1.0, 10.0)[case % 3]
        upper = bounds.ball_upper(f, n, R)
        assert upper <= bounds.rotary_upper(f, n, R) * (1 + 1e-9)
        heads, whole = sizes_of_features(
            f.expand_groups(), [Region(torch.zeros(3).double(), R * torch.eye(3).double())], n
        )
        for name in ("value", "key", "query"):
            assert getattr(whole, name) <= math.log(sum(math.exp(getattr(head, name)) for head in heads)) + 1e-9


def test_relative_positions_are_counted_where_tokens_see_them():
    table = torch.tensor([[5.0, 1.0, 2.0, 4.0, 9.0]]).double()  # distances -2 to 2
    one = torch.ones(1, 1, 1).double()
    f = Attention(one, one, one, relative=table)
    assert [range_of_relative(f, n).item() for n in (1, 2, 3, 9)] == [0, 3, 8, 8]
    f = f.replace(masked=True)
    assert [range_of_relative(f, n).item() for n in (1, 2, 3, 9)] == [0, 1, 4, 4]
    assert [range_of_relative(f.replace(window=w), 9).item() for w in (1, 2, 3)] == [0, 1, 4]


def test_a_cap_and_norms_bound_logits_on_every_ball():
    """A head of tiny values and no key or query term: only how unevenly it attends is left."""
    normal, eye = gaussian(4), torch.eye(3, 2).double().T[None]
    for more in ({"cap": 0.1}, {"query_norm": torch.full((1, 2), 0.1).double(), "key_norm": torch.ones(1, 2).double()}):
        f = Attention(normal(1, 2, 3), normal(1, 2, 3), eye, **more)
        regions = [Region(torch.zeros(3).double(), 1e6 * torch.eye(3).double())]
        (head,), _ = sizes_of_features(f, regions, 4)
        most = 0.2 if "cap" in more else 2 * 0.1 * math.sqrt(2)
        assert math.exp(head.spread) == pytest.approx(most, rel=1e-6)


def test_a_sink_moves_even_values_that_are_constant():
    """One token and a sink: the share of the sink alone depends on the token."""
    one = torch.ones(1, 1, 1).double()
    f = Attention(one, one, 0 * one, value_bias=torch.tensor([[3.0]]).double(), sinks=torch.zeros(1).double())
    found = constant(f, torch.linspace(-2, 2, 401).double()[:, None, None]).max().item()
    assert 0.6 < found <= bounds.ball_upper(f, 1, 2.0) < 20 * found
    unseen = Attention(one, one, 0 * one, value_bias=torch.tensor([[3.0]]).double())
    assert bounds.ball_upper(unseen, 1, 2.0) == 0


def test_rows_that_cannot_vanish_need_no_epsilon():
    f = layer_in_use(gaussian(0), query_norm=torch.ones(4, 5).double(), norm_eps=0.0, bias=False)
    assert math.isfinite(bounds.ball_upper(f.replace(query_bias=100 * torch.ones(4, 5).double()), 3, 1.0))
