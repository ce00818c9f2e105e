"""Attention as transformers have it: rotary places, shared keys, normalised rows, caps, relative positions, sinks.

The map and its products are those of `test_routes.py`; here what is known of each feature, and what bounds make of it.
"""

import itertools
import math

import pytest
import torch
from cases import KINDS, covering, derivative, drawn, every_kind, normal, of_a_kind, relative, weighted

from lab.benchmarks.tiled import TiledJacobian
from lipnb import Attention, AttentionJacobian, bounds, certify, local_lipschitz
from lipnb.bounds.rounded_linearization import RoundedLinearization
from lipnb.jacobian.separable import SeparableJacobian
from lipnb.measures import splitting, transport
from lipnb.worst_case.forks import bulk_directions, slopes

DOT = [kind for kind in KINDS if covering()[kind]["score"] == "dot"]


def test_the_constant_lies_in_its_bracket():
    """Whatever is treated exactly, and in units that are far apart."""
    for kind in DOT:
        f, x, weights = every_kind(kind, n=min(6, covering()[kind]["tokens"]))
        norm = torch.linalg.matrix_norm(weighted(derivative(f, x, weights), x, weights), 2)
        for columns in (0, 5, None):
            found = certify(f, x, weights=weights, columns=columns)
            assert (found.lower <= norm * (1 + 1e-12)).all() and (norm <= found.upper * (1 + 1e-12)).all()
            assert (found.ratio < (1.0001 if columns is None else 12)).all() and (found.rounding < 1e-5 * norm).all()
        unit, closed = 2.0**40, certify(f, x, weights=weights, columns=0).upper
        far = f.replace(query=f.query / unit, key=f.key / unit, value=f.value / unit)
        assert relative(unit * certify(far, unit * x, weights=weights, columns=0).upper, closed) < 1e-6


def test_terms_tested_by_a_factorisation_are_those_computed(monkeypatch):
    for kind in DOT:
        f, x, weights = every_kind(kind)
        at = RoundedLinearization(f, x[0], None if weights is None else weights[0])
        computed = torch.stack(bounds.three_terms(at))
        with monkeypatch.context() as patched:
            patched.setattr("lipnb.bounds.term_bounds.DEAR", 0)
            tested = torch.stack(bounds.three_terms(at))
        # of a width of one, what the output sends to nothing costs more than a few percent of a tiny term
        assert (tested >= computed * (1 - 1e-6)).all() and (tested <= 1.05 * computed + 1e-5 * computed.sum()).all()


def test_products_stay_transposes_of_one_another_where_attention_is_nearly_hard():
    for kind, steep in itertools.product(DOT, (30.0, 3000.0)):
        f, x, _ = every_kind(kind, n=9)
        x = x / covering()[kind]["spread"]
        J, u, w = AttentionJacobian(f, steep * x), normal(*x.shape), normal(*x.shape[:2], f.output_width, seed=1)
        size = torch.linalg.matrix_norm(J.dense(), 2).amax() * u.norm() * w.norm()
        assert abs((J.jvp(u) * w).sum() - (u * J.vjp(w)).sum()) < 1e-15 * steep**2 * size  # what such logits round


def test_slopes_of_a_cap_keep_their_digits_where_it_is_flat():
    """Two tokens, logits 0 and -r c: the slope at the second is 1 / cosh(r)^2, which 1 - tanh^2 loses in float32."""
    r, one = 8.0, torch.ones(1, 1, 1)
    f = Attention(one, -one, one, scale=r, cap=1.0)
    _, bend = f.capped(torch.tensor([0.0, -r]))
    assert bend[1].item() == pytest.approx(math.cosh(r) ** -2, rel=1e-5) and bend[0] == 1
    assert f.capped(torch.tensor([1000.0]))[1] == 0


def test_logits_of_rotary_attention_depend_on_distances_alone():
    draw = drawn(0)
    given = {"query": draw(2, 6, 5), "key": draw(1, 6, 5), "value": draw(1, 6, 5)}
    f = Attention(**given, masked=True, window=4, frequencies=draw(2).double())
    x = draw(9, 5)
    assert relative(f(x)[5:], f(x[1:])[4:]) < 1e-12
    assert relative(f(x)[5:], Attention(**given, masked=True, window=4)(x)[5:]) > 1e-3


def test_shared_keys_are_repeated_keys():
    """And the products of shared keys hold fewer numbers."""
    for kind in KINDS:
        f, x, weights = every_kind(kind)
        times = f.heads // f.groups
        names = [
            name for name in ("key", "value", "key_bias", "value_bias", "key_norm") if getattr(f, name) is not None
        ]
        apart = f.replace(**{name: getattr(f, name).repeat_interleave(times, 0) for name in names})
        assert relative(f(x, weights), apart(x, weights)) < 1e-12
        shared, repeated = (AttentionJacobian(one, x).operator() for one in (f, apart))
        assert shared.keys.numel() * times == repeated.keys.numel()


MORE = {
    "shared keys": {"query": torch.ones(2, 2, 3).double()},
    "rotary positions": {"frequencies": torch.ones(1)},
    "normalised queries or keys": {"key_norm": torch.ones(1, 2).double()},
    "capped logits": {"cap": 1.0},
    "relative positions": {"relative": torch.ones(1, 3).double()},
    "sinks": {"sinks": torch.ones(1).double()},
}
PLAIN_ONLY = {
    "slopes": lambda f, x: slopes(f, x),
    "bulk_directions": lambda f, x: bulk_directions(f),
    "mean-field map": lambda f, x: transport.mean_field_map(f, x, torch.ones(4).double(), x),
    "the mean-field map": splitting.query_blocks,
    "TiledJacobian": TiledJacobian,
    "a separable kernel": SeparableJacobian,
    "head_norms": lambda f, x: bounds.head_norms(f),
    "nearby_upper": lambda f, x: bounds.nearby_upper(f, x, torch.ones(1).double()),
    "max_token_terms": bounds.heads.max_token_terms,
    "yudin_upper": bounds.yudin_upper,
    "yudin_upper_sharp": bounds.yudin.yudin_upper_sharp,
    "chosen_tokens": bounds.chosen_tokens,
    "max_token_upper": lambda f, x: bounds.max_token_upper(f, 1.0),
}


FOLDS = ("head_norms", "nearby_upper", "max_token_terms", "max_token_upper", "yudin_upper", "yudin_upper_sharp")
KNOWN = {(name, "shared keys") for name in (*FOLDS, "chosen_tokens")}
KNOWN |= {(name, "relative positions") for name in ("max_token_terms", "max_token_upper", "chosen_tokens")}
KNOWN |= {("chosen_tokens", "rotary positions")}


def test_what_knows_plain_heads_only_says_so():
    """No bound of the theorems for a map that they do not speak of."""
    one, x = torch.ones(1, 2, 3).double(), torch.eye(4, 3).double()
    for name, more in {*itertools.product(PLAIN_ONLY, MORE)} - KNOWN:
        f = Attention(**{"query": one, "key": one, "value": one, **MORE[more]})
        assert f.more == (more,)
        with pytest.raises(ValueError, match=f"{name} knows plain heads.* only, not {more}"):
            PLAIN_ONLY[name](f, x)


def test_bounds_for_rotary_positions_know_shared_keys_and_nothing_else():
    draw = drawn(5)
    given = {"query": draw(4, 6, 5), "key": draw(2, 6, 5), "value": draw(2, 6, 5)}
    f, x = Attention(**given, frequencies=torch.ones(2), masked=True), draw(7, 5)
    constant, R = local_lipschitz(f, x).value.item(), x.norm(dim=-1).max().item()
    assert constant <= bounds.rotary_terms(f, x) <= bounds.rotary_upper(f, 7, R)
    apart = f.replace(key=draw(4, 6, 5), value=draw(4, 6, 5))
    assert bounds.rotary_terms(apart, x) > 0
    for bad in (f.replace(frequencies=None), f.replace(cap=1.0), apart.replace(cap=1.0)):
        with pytest.raises(ValueError, match="is for rotary positions, with or without shared keys, got"):
            bounds.rotary_terms(bad, x)
        with pytest.raises(ValueError, match="is for rotary positions"):
            bounds.rotary_upper(bad, 7, R)


def test_it_says_what_it_is_and_what_it_has_not():
    draw = drawn(0)
    given = {"query": draw(4, 6, 5), "key": draw(2, 6, 5), "value": draw(2, 6, 5)}
    plain = {**given, "query": given["query"][:2]}
    f = Attention(**given, frequencies=torch.ones(3), cap=50.0, masked=True)
    assert repr(f) == (
        "Attention(4 heads on 2 of keys, width 5, key width 6, output width 24, masked, shared keys, rotary positions, "
        "capped logits, float64)"
    )
    assert Attention(**plain).more == ()
    x = draw(9, 5)
    with pytest.raises(ValueError, match="yudin_upper knows plain heads only, not rotary positions, capped logits"):
        bounds.yudin_upper(f, x)
    for bad, sentence in (
        ({"key": draw(3, 6, 5)}, "or fewer heads, a divisor of 4, got"),
        ({"value": draw(4, 6, 5)}, "value must have shape"),
        ({"frequencies": torch.ones(4)}, "frequencies must have shape .* 1 <= p <= 3"),
        ({"frequencies": torch.ones(2).half()}, "in float32 or float64"),
        ({"query_norm": draw(6)}, "query_norm must have shape"),
        ({"key_norm": draw(4, 6)}, "key_norm must have shape"),
        ({"norm_eps": -1.0}, "norm_eps must be"),
        ({"cap": 0.0}, "cap must be None or a positive number"),
        ({"relative": draw(4, 4)}, "relative must have shape"),
        ({"sinks": draw(2)}, "sinks must have shape"),
        ({"sinks": draw(4), "score": "l2"}, "cap and sinks go with dot-product scores only"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Attention(**{**given, **bad})


def test_it_does_not_change_and_goes_to_other_types():
    for kind in KINDS:
        given, x, _ = of_a_kind(kind)
        f = Attention(**given)
        expected = f(x)
        for one in given.values():
            if isinstance(one, torch.Tensor):
                one.mul_(3)
        assert torch.equal(f(x), expected) and torch.equal(f.replace()(x), expected)
        back = f.to(dtype=torch.float32).to(dtype=torch.float64)
        assert relative(back(x), expected) < 1e-3
        if f.frequencies is not None:
            assert torch.equal(back.frequencies, f.frequencies) and back.frequencies.dtype == f.frequencies.dtype
