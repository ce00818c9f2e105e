"""Attention in use on a ball: no input found exceeds `ball_upper`, and `on_ball` ascends along the right slope."""

import importlib
import math

import pytest
import torch
from cases import constant

from lipnb import Attention, bounds, local_lipschitz
from lipnb.attention.rope_norm import rotation, turned
from lipnb.bounds.multihead_norms import Region
from lipnb.bounds.rotary import PLACES, RotaryNorms
from lipnb.bounds.transformer_heads import range_of_relative, sizes_of_features
from lipnb.worst_case import climb, gaussian, on_ball
from lipnb.worst_case.forks import plain_twins

on_ball_module = importlib.import_module("lipnb.worst_case.ball_search")
ADDED = {
    "shared": lambda normal: {},
    "rotary": lambda normal: {"frequencies": torch.tensor([1.0, 0.1])},
    "partial": lambda normal: {"frequencies": torch.tensor([0.7]).double()},
    "normalised": lambda normal: {"query_norm": normal(4, 5), "key_norm": normal(2, 5), "norm_eps": 0.05},
    "joint": lambda normal: {"query_norm": normal(4, 5), "key_norm": normal(2, 5), "norm_eps": 0.3, "joint_norm": True},
    "queries": lambda normal: {"query_norm": normal(4, 5), "norm_eps": 0.3, "frequencies": torch.tensor([2.0, 0.3])},
    "keys": lambda normal: {"key_norm": normal(2, 5), "norm_eps": 0.3, "frequencies": torch.tensor([2.0, 0.3])},
    "capped": lambda normal: {"cap": 1.5},
    "relative": lambda normal: {"relative": 3 * normal(4, 5)},
    "sinks": lambda normal: {"sinks": normal(4)},
}
MASKS = ({}, {"masked": True}, {"masked": True, "window": 2})


def layer(normal, d=3, *, bias=True, **rest):
    """A random layer of four heads on two of keys, of width 5."""
    biases = {"query_bias": normal(4, 5), "key_bias": normal(2, 5), "value_bias": 2 * normal(2, 2)} if bias else {}
    return Attention(normal(4, 5, d), normal(2, 5, d), normal(2, 2, d), normal(4, 3, 2), **biases, **rest)


def test_no_input_exceeds_the_bound_on_its_ball():
    for added in ADDED:
        normal = gaussian(len(added))
        for case, (n, R) in enumerate(((1, 2.0), (2, 0.3), (4, 1.0), (7, 4.0))):
            f = layer(normal, bias=case != 2, **ADDED[added](normal), **MASKS[case % 3])
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
        f, gain = layer(normal, **ADDED[added](normal)), torch.tensor([3.0, 1.0, 0.1]).double()
        x = normal(40, 5, 3)
        x = gain * x / x.square().mean(-1, keepdim=True).sqrt()
        radius = bounds.layer_norm_radius(gain, None)
        assert radius == pytest.approx(3 * math.sqrt(3)) and x.norm(dim=-1).max() <= radius
        upper = bounds.ball_upper(f, 5, math.inf, ellipsoid=(gain, None))
        assert constant(f, x).max() <= upper <= bounds.ball_upper(f, 5, radius) * (1 + 1e-9)


def test_sums_of_the_heads_are_no_smaller_and_bounds_of_rotary_heads_neither():
    normal = gaussian(1)
    for case in range(12):
        f = layer(normal, frequencies=torch.tensor([1.0, 0.03]), masked=case % 2 == 1, bias=case % 3 == 1)
        n, R = (1, 2, 9, PLACES + 1)[case % 4], (0.1, 1.0, 10.0)[case % 3]
        upper = bounds.ball_upper(f, n, R)
        assert upper <= bounds.rotary_upper(f, n, R) * (1 + 1e-9)
        heads, whole = sizes_of_features(
            f.expand_groups(), [Region(torch.zeros(3).double(), R * torch.eye(3).double())], n
        )
        for name in ("value", "key", "query"):
            assert getattr(whole, name) <= math.log(sum(math.exp(getattr(head, name)) for head in heads)) + 1e-9


@pytest.mark.parametrize("places", [(), (8,)], ids=["weights", "each distance"])
def test_turned_queries_meet_keys_no_more_than_stated(monkeypatch, places):
    monkeypatch.setattr("lipnb.bounds.rotary.PLACES", 0 if not places else 512)
    normal, n = gaussian(2), 8
    for frequencies in (torch.tensor([1.0, 0.2]), torch.tensor([0.5]).double(), torch.tensor([3000.0, 7.0])):
        for masked in (False, True):
            f = layer(normal, frequencies=frequencies, masked=masked).expand_groups()
            left, right, turns = normal(4, 5, 3), normal(4, 5, 2), RotaryNorms(f, n)
            cos, sin = rotation(frequencies, n, torch.float64)
            R = turned(torch.eye(5).double()[:, None].expand(-1, n, -1), (cos, sin)).movedim(0, -1)  # (n, 5, 5)
            met = torch.einsum("hka,jlk,ilm,hmb->hijab", left, R, R, right)
            seen = torch.ones(n, n).tril() > 0 if masked else torch.ones(n, n) > 0
            largest = torch.linalg.matrix_norm(met[:, seen], 2).amax(1)
            assert (largest <= turns.log_norms(left, right).exp()).all()
            y = normal(2)
            rows = torch.linalg.vector_norm(met[:, seen] @ y, dim=-1).amax(1)
            assert (rows <= torch.linalg.vector_norm(turns.bounding(left, right) @ y, dim=-1)).all()
            if places:  # exact but for what the cosines of the network are off
                assert torch.allclose(largest, turns.log_norms(left, right).exp(), rtol=1e-2)


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


def test_biases_left_out_of_the_search_change_no_derivative():
    for added in ADDED:
        normal = gaussian(13)
        f, x = layer(normal, **ADDED[added](normal)), normal(4, 3)
        bare = f.replace(output_bias=normal(3)).without_irrelevant_biases()
        assert bare.output_bias is None and (bare.value_bias is None) == (added != "sinks")
        assert torch.allclose(torch.func.jacrev(bare)(x), torch.func.jacrev(f)(x), rtol=1e-9, atol=1e-12)


def test_rows_that_may_vanish_are_refused_without_epsilon():
    normal = gaussian(0)
    f = layer(normal, query_norm=normal(4, 5), norm_eps=0.0, bias=False)
    with pytest.raises(ValueError, match="norm_eps=0 where the projection of a query may vanish"):
        bounds.ball_upper(f, 3, 1.0)
    away = f.replace(query_bias=100 * torch.ones(4, 5).double())
    assert math.isfinite(bounds.ball_upper(away, 3, 1.0))


def test_shared_keys_are_those_of_plain_heads_written_out():
    normal = gaussian(6)
    f, x = layer(normal, masked=True, window=3), normal(6, 3)
    apart = f.expand_groups()
    assert apart.groups == 4 and torch.allclose(apart(x), f(x)) and apart.expand_groups() is apart
    R = x.norm(dim=-1).max().item()
    for bound in (
        lambda g: bounds.ball_upper(g, 6, R),
        lambda g: bounds.max_token_upper(g, R),
        lambda g: bounds.heads.max_token_terms(g, x),
        lambda g: bounds.yudin.yudin_upper_sharp(g, x),
        lambda g: bounds.yudin_upper(g.replace(query_bias=None), x),
        lambda g: bounds.nearby_upper(g, x, [0.1]).best,
        lambda g: bounds.large_radius_limit(g, x),
        lambda g: bounds.head_norms(g).A,
        lambda g: bounds.heads.heads_at_input(g, bounds.head_norms(g), x)["spread"],
    ):
        assert torch.allclose(torch.as_tensor(bound(f)), torch.as_tensor(bound(apart)))


def test_large_tokens_choose_one_each():
    for added in ["rotary", "relative"]:
        normal = gaussian(7)
        f, x = layer(normal, **ADDED[added](normal), masked=True), normal(5, 3)
        assert local_lipschitz(f, 1e4 * x).value.item() == pytest.approx(
            bounds.large_radius_limit(f, x).item(), rel=1e-5
        )


def test_relative_positions_leave_the_bound_in_the_norm_of_the_largest_token():
    normal = gaussian(8)
    f, x = layer(normal, relative=2 * normal(4, 5)), normal(5, 3)
    blocks = torch.linalg.matrix_norm(torch.func.jacrev(f)(x).movedim(2, 1), 2)  # (i, j)
    u = normal(400, 5, 3)
    u = u / u.norm(dim=-1, keepdim=True)
    J = torch.func.jacrev(f)(x)
    moved = torch.einsum("imjd,bjd->bim", J, u).norm(dim=-1).max()
    terms = bounds.heads.max_token_terms(f, x)
    assert moved <= blocks.sum(1).max() and moved <= terms <= bounds.max_token_upper(f, x.norm(dim=-1).max().item())


def test_the_slope_of_the_ascent_is_that_of_the_constant():
    """Against differences of the constant itself, by all singular values."""
    for added in ADDED:
        normal = gaussian(9)
        f = layer(normal, **ADDED[added](normal), masked=True)
        x, v = normal(5, 3), normal(5, 3)
        found = torch.linalg.svd(torch.func.jacrev(f)(x).flatten(2).flatten(0, 1))
        left, right = found.U[:, 0].view(5, 3), found.Vh[0].view(5, 3)
        x.requires_grad_()
        (pulled,) = torch.autograd.grad((f(x) * left).sum(), x, create_graph=True)
        (slope,) = torch.autograd.grad((pulled * right).sum(), x)
        step, x = 1e-5, x.detach()
        ahead, back = constant(f, torch.stack([x + step * v, x - step * v]))
        assert (slope * v).sum().item() == pytest.approx(((ahead - back) / (2 * step)).item(), rel=1e-5)


@pytest.mark.parametrize("added", ["shared", "rotary", "normalised", "capped", "relative", "sinks"])
def test_the_search_stays_in_the_ball_under_the_bound_and_beats_its_starts(added, monkeypatch):
    monkeypatch.setattr(on_ball_module, "POINTS", (15, 15))
    monkeypatch.setattr(on_ball_module, "PLACED", 15)
    normal = gaussian(11)
    f = layer(normal, **ADDED[added](normal), masked=True)
    where = {"R": math.inf, "ellipsoid": (torch.tensor([1.0, 0.5, 2.0]), None)} if added == "rotary" else {"R": 1.5}
    start = on_ball(f, 6, **where, effort=0, progress=False)
    found = on_ball(f, 6, **where, progress=False)
    x = found.x if added != "rotary" else found.x / torch.tensor([1.0, 0.5, 2.0]) / math.sqrt(3) * 1.5
    assert x.norm(dim=-1).max() <= 1.5 * (1 + 1e-9)
    assert found.value == pytest.approx(constant(f, found.x[None]).item(), rel=1e-5)
    assert start.value * (1 - 1e-4) <= found.value <= bounds.ball_upper(f, 6, **where)
    assert found.value > 1.05 * constant(f, 1.5 * torch.nn.functional.normalize(normal(20, 6, 3), dim=-1)).median()


def test_twins_are_the_plain_heads_and_turn_their_keys():
    normal = gaussian(12)
    f = layer(normal, bias=False).expand_groups()
    assert plain_twins(f, 5) == [f]
    x, turning = normal(7, 3), f.replace(frequencies=torch.tensor([0.6, 0.2]).double())
    query, key, _ = turning.project(x)
    logits = turning.products(query, key)
    for m, twin in zip((0, 1, 3, 6), plain_twins(turning, 7), strict=True):
        asked, keys, _ = twin.project(x)
        assert torch.allclose(twin.products(asked, keys).diagonal(-m, 1, 2), logits.diagonal(-m, 1, 2))
    assert not plain_twins(f.replace(cap=1.0, sinks=normal(4), key_norm=normal(4, 5)), 3)[0].more
