"""Attention as transformers have it: rotary places, shared keys, normalised rows, caps, relative positions, sinks.

Forward against loops over tokens and heads, Jacobians against automatic differentiation, both against the library.
"""

import itertools
import math

import pytest
import torch
from cases import relative

from lab.benchmarks.tiled import TiledJacobian
from lipnb import Attention, AttentionJacobian, bounds, certify, local_lipschitz
from lipnb.bounds.rounded_linearization import RoundedLinearization
from lipnb.jacobian import AutodiffJacobian
from lipnb.jacobian.separable import SeparableJacobian
from lipnb.jacobian.streamed import StreamedGram
from lipnb.measures import splitting, transport
from lipnb.worst_case.forks import bulk_directions, slopes

CLOSE = 1e-12
SEEDS = range(60)


class Draw:
    """Random numbers of one seed."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape):
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def pick(self, *items):
        return items[int(torch.randint(len(items), (), generator=self.generator))]


def arguments(seed):
    """What a random map of today is made of, each switch on or off."""
    draw = Draw(seed)
    g, times, k, d, v, m = (draw.pick(*sizes) for sizes in ((1, 2, 3), (1, 2, 3), (2, 3, 6), (1, 4, 7), (1, 3), (2, 5)))
    h = g * times
    score = draw.pick("dot", "dot", "dot", "l2")
    given = {"query": draw.normal(h, k, d), "key": draw.normal(g, k, d), "value": draw.normal(g, v, d), "score": score}
    masked = draw.pick(False, True)
    given |= {"masked": masked, "window": draw.pick(None, 1, 3) if masked else None, "scale": draw.pick(None, 0.7)}
    if draw.pick(0, 1):
        given["output"] = draw.normal(h, m, v)
    if draw.pick(0, 1):
        given |= {"query_bias": draw.normal(h, k), "key_bias": draw.normal(g, k), "value_bias": draw.normal(g, v)}
    if draw.pick(0, 1, 1):
        frequencies = draw.normal(draw.pick(1, k // 2)).abs()
        given["frequencies"] = draw.pick(frequencies, frequencies.float())
    if draw.pick(0, 1):
        given |= {
            "query_norm": draw.normal(h, k),
            "norm_eps": draw.pick(1e-6, 0.3),
            "joint_norm": draw.pick(False, True),
        }
    if draw.pick(0, 1):
        given["key_norm"] = draw.normal(g, k)
    if draw.pick(0, 1):
        given["relative"] = draw.normal(h, draw.pick(1, 5, 31))
    if score == "dot" and draw.pick(0, 1):
        given["cap"] = draw.pick(0.5, 3.0)
    if score == "dot" and draw.pick(0, 1):
        given["sinks"] = draw.normal(h)
    return given


def case(seed, n=None):
    """A map, two sequences and weights or None."""
    draw = Draw(1000 + seed)
    f = Attention(**arguments(seed))
    n = n or draw.pick(1, 2, 6, 11)
    weights = draw.pick(None, draw.normal(2, n).exp())
    return f, draw.normal(2, n, f.width), weights


def loops(given, x, weights):
    """The same map, token by token and head by head, of one sequence (n, d): nothing of the package is used."""
    h, k, _ = given["query"].shape
    times, scale = h // len(given["key"]), given["scale"] or k**-0.5

    def row(name, head, place):
        y = given[name][head] @ x[place]
        if f"{name}_bias" in given:
            y = y + given[f"{name}_bias"][head]
        if f"{name}_norm" in given:
            every = given[name] @ x[place] + given.get(f"{name}_bias", torch.tensor(0.0))
            size = every.square().mean() if given.get("joint_norm") else y.square().mean()
            y = given[f"{name}_norm"][head] * y / (size + given.get("norm_eps", 1e-6)).sqrt()
        if name != "value" and "frequencies" in given:
            y, old, p = y.clone(), y.clone(), len(given["frequencies"])
            for c, omega in enumerate(given["frequencies"]):
                angle = torch.tensor(float(place)).to(omega) * omega
                cos, sin = angle.cos().double(), angle.sin().double()
                y[c], y[c + p] = old[c] * cos - old[c + p] * sin, old[c + p] * cos + old[c] * sin
        return y

    heads = []
    for head, i in itertools.product(range(h), range(len(x))):
        total, sizes = 0, torch.tensor(0.0)
        if "sinks" in given:
            sizes = given["sinks"][head].exp()
        for j in range(len(x)):
            if given["masked"] and (j > i or (given["window"] and j <= i - given["window"])):
                continue
            query, key = row("query", head, i), row("key", head // times, j)
            logit = scale * query @ key if given["score"] == "dot" else -scale * (query - key).square().sum()
            if "cap" in given:
                logit = given["cap"] * torch.tanh(logit / given["cap"])
            if "relative" in given:
                reach = given["relative"].shape[1] // 2
                logit = logit + given["relative"][head, min(max(j - i, -reach), reach) + reach]
            size = logit.exp() * (1 if weights is None else weights[j])
            total, sizes = total + size * row("value", head // times, j), sizes + size
        heads.append(total / sizes)
    heads = torch.stack(heads).unflatten(0, (h, len(x)))
    if "output" not in given:
        return heads.movedim(0, 1).flatten(1)
    return torch.einsum("hnv,hmv->nm", heads, given["output"])


@pytest.mark.parametrize("seed", SEEDS)
def test_the_map_is_that_of_loops(seed):
    f, x, weights = case(seed)
    expected = torch.stack([loops(arguments(seed), x[b], None if weights is None else weights[b]) for b in range(2)])
    # cosines in float32 may differ in their last digit between one angle and many
    close = 1e-6 if f.frequencies is not None and f.frequencies.dtype == torch.float32 else CLOSE
    assert relative(f(x, weights), expected) < close
    P = f.probabilities(x, weights)
    assert (P.sum(-1) <= 1 + CLOSE if f.sinks is not None else (P.sum(-1) - 1).abs() < CLOSE).all()


def derivative(f, x, weights):
    """The dense Jacobian of each sequence by automatic differentiation."""
    one = AutodiffJacobian(lambda x: f(x, weights), x)
    return one.dense()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_jacobian_is_that_of_automatic_differentiation(seed):
    f, x, weights = case(seed)
    J, expected = AttentionJacobian(f, x, weights), derivative(f, x, weights)
    draw = Draw(seed)
    u, w = draw.normal(3, *x.shape), draw.normal(3, *x.shape[:2], f.output_width)
    assert relative(J.dense(), expected) < CLOSE
    assert relative(J.jvp(u).flatten(-2), torch.einsum("bij,cbj->cbi", expected, u.flatten(-2))) < CLOSE
    assert relative(J.vjp(w).flatten(-2), torch.einsum("bji,cbj->cbi", expected, w.flatten(-2))) < CLOSE
    if weights is None:
        assert relative(J.infinity_norm(), expected.abs().sum(-1).amax(-1)) < CLOSE


def symmetrised(f, x, weights):
    J = derivative(f, x, weights)
    if weights is None:
        return J
    root = weights.sqrt()
    return (
        root.repeat_interleave(f.output_width, -1)[..., :, None] * J / root.repeat_interleave(f.width, -1)[..., None, :]
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_cached_and_streamed_products_and_the_constant(seed):
    f, x, weights = case(seed, n=13)
    M, u = symmetrised(f, x, weights), Draw(seed).normal(2, x[0].numel())
    expected = (M.mT @ (M @ u[..., None]))[..., 0]
    cached = AttentionJacobian(f, x, weights).operator()
    assert relative(cached.gram(u) * cached.unit**2, expected) < 10 * CLOSE
    assert relative(cached.restrict(torch.tensor([1])).gram(u[1:]) * cached.unit**2, expected[1:]) < 10 * CLOSE
    for rows in (1, 4, 64):
        streamed = StreamedGram(f, x, weights, rows=rows)
        assert relative(streamed.gram(u) * streamed.unit**2, expected) < 10 * CLOSE
        assert relative(streamed.restrict(torch.tensor([1])).gram(u[1:]) * streamed.unit**2, expected[1:]) < 10 * CLOSE
    norm = torch.linalg.matrix_norm(M, 2)
    for memory in (2**30, 1):
        found = local_lipschitz(f, x, weights=weights, memory=memory, rtol=1e-8)
        assert (
            found.converged.all() and relative(found.value, norm) < 1e-8 and (found.upper >= norm * (1 - 1e-12)).all()
        )
    assert relative(local_lipschitz(f, x, weights=weights, method="dense").value, norm) < 1e-10
    assert (
        relative(
            local_lipschitz(f.to(dtype=torch.float32), x.float(), weights=None).value.double(),
            local_lipschitz(f, x).value,
        )
        < 1e-2
    )


DOT = [seed for seed in SEEDS if Attention(**arguments(seed)).score == "dot"]


@pytest.mark.parametrize("seed", DOT)
def test_the_constant_lies_in_its_bracket(seed):
    """Whatever is treated exactly, and in units that are far apart."""
    f, x, weights = case(seed, n=Draw(seed).pick(1, 2, 6))
    norm = torch.linalg.matrix_norm(symmetrised(f, x, weights), 2)
    for columns in (0, 5, None):
        found = certify(f, x, weights=weights, columns=columns)
        assert (found.lower <= norm * (1 + 1e-12)).all() and (norm <= found.upper * (1 + 1e-12)).all()
        assert (found.ratio < (1.0001 if columns is None else 12)).all() and (found.rounding < 1e-5 * norm).all()
    unit, closed = 2.0**40, certify(f, x, weights=weights, columns=0).upper
    far = f.replace(query=f.query / unit, key=f.key / unit, value=f.value / unit)
    assert relative(unit * certify(far, unit * x, weights=weights, columns=0).upper, closed) < 1e-6


@pytest.mark.parametrize("seed", DOT[:25])
def test_terms_tested_by_a_factorisation_are_those_computed(seed, monkeypatch):
    f, x, weights = case(seed)
    x, weights = x[0], None if weights is None else weights[0]
    computed = torch.stack(bounds.three_terms(RoundedLinearization(f, x, weights)))
    monkeypatch.setattr("lipnb.bounds.term_bounds.DEAR", 0)
    tested = torch.stack(bounds.three_terms(RoundedLinearization(f, x, weights)))
    # of a width of one, what the output sends to nothing costs more than a few percent of a tiny term
    assert (tested >= computed * (1 - 1e-6)).all() and (tested <= 1.05 * computed + 1e-5 * computed.sum()).all()


@pytest.mark.parametrize("seed", DOT[:20])
@pytest.mark.parametrize("steep", [30.0, 3000.0])
def test_products_stay_transposes_of_one_another_where_attention_is_nearly_hard(seed, steep):
    f, x, _ = case(seed, n=9)
    J, draw = AttentionJacobian(f, steep * x), Draw(seed)
    u, w = draw.normal(*x.shape), draw.normal(*x.shape[:2], f.output_width)
    size = torch.linalg.matrix_norm(J.dense(), 2).amax() * u.norm() * w.norm()
    assert abs((J.jvp(u) * w).sum() - (u * J.vjp(w)).sum()) < 1e-15 * steep**2 * size  # what logits of this size round


def test_slopes_of_a_cap_keep_their_digits_where_it_is_flat():
    """Two tokens, logits 0 and -r c: the slope at the second is 1 / cosh(r)^2, which 1 - tanh^2 loses in float32."""
    r, one = 8.0, torch.ones(1, 1, 1)
    f = Attention(one, -one, one, scale=r, cap=1.0)
    _, bend = f.capped(torch.tensor([0.0, -r]))
    assert bend[1].item() == pytest.approx(math.cosh(r) ** -2, rel=1e-5) and bend[0] == 1
    assert f.capped(torch.tensor([1000.0]))[1] == 0


def test_logits_of_rotary_attention_depend_on_distances_alone():
    draw = Draw(0)
    given = {"query": draw.normal(2, 6, 5), "key": draw.normal(1, 6, 5), "value": draw.normal(1, 6, 5)}
    f = Attention(**given, masked=True, window=4, frequencies=draw.normal(2).double())
    x = draw.normal(9, 5)
    assert relative(f(x)[5:], f(x[1:])[4:]) < CLOSE
    assert relative(f(x)[5:], Attention(**given, masked=True, window=4)(x)[5:]) > 1e-3


def test_shared_keys_are_repeated_keys():
    """And the products of shared keys hold fewer numbers."""
    for seed in SEEDS:
        f, x, weights = case(seed)
        times = f.heads // f.groups
        names = [
            name for name in ("key", "value", "key_bias", "value_bias", "key_norm") if getattr(f, name) is not None
        ]
        apart = f.replace(**{name: getattr(f, name).repeat_interleave(times, 0) for name in names})
        assert relative(f(x, weights), apart(x, weights)) < CLOSE
        assert relative(AttentionJacobian(f, x).dense(), AttentionJacobian(apart, x).dense()) < CLOSE
        shared, repeated = (AttentionJacobian(one, x).operator() for one in (f, apart))
        assert shared.keys.numel() * times == repeated.keys.numel()


def test_a_gain_of_rotation_and_an_l2_norm_are_in_the_weights():
    """RMSNorm with weights 1 / sqrt(k) and no epsilon is division by the length."""
    draw = Draw(3)
    given = {"query": draw.normal(2, 4, 5), "key": draw.normal(2, 4, 5), "value": draw.normal(2, 3, 5)}
    ones, x = torch.full((2, 4), 0.5).double(), draw.normal(6, 5)
    f = Attention(**given, query_norm=ones, key_norm=ones, norm_eps=0.0, scale=10.0)
    query, key, value = f.project(x)
    assert torch.allclose(query.norm(dim=-1), torch.tensor(10.0).double()) and torch.allclose(
        key.norm(dim=-1), torch.tensor(1.0).double()
    )
    cosine = torch.nn.functional.cosine_similarity(
        (x @ given["query"].mT)[:, :, None], (x @ given["key"].mT)[:, None], dim=-1
    )
    assert relative(f.probabilities(x), (10 * cosine).softmax(-1)) < CLOSE


def test_alibi_and_sinks_by_hand():
    eye, zero = torch.eye(1).double()[None], torch.zeros(1, 1, 1).double()
    x = torch.tensor([[1.0], [2.0], [4.0]]).double()
    alibi = -math.log(2) * torch.arange(-2, 3).abs().double()[None]  # each step of distance halves the weight
    f = Attention(zero, zero, eye, relative=alibi, masked=True)
    assert torch.allclose(f(x)[:, 0], torch.tensor([1.0, (0.5 + 2) / 1.5, (0.25 + 1 + 4) / 1.75]).double())
    f = Attention(zero, zero, eye, sinks=torch.zeros(1).double())  # one more token of value 0
    assert torch.allclose(f(x)[:, 0], torch.full((3,), 7 / 4).double())
    assert local_lipschitz(f, x).value.item() == pytest.approx(3 / 4)


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
    **{
        name: getattr(bounds, name) for name in ("max_token_terms", "yudin_upper", "yudin_upper_sharp", "chosen_tokens")
    },
    "max_token_upper": lambda f, x: bounds.max_token_upper(f, 1.0),
}


FOLDS = ("head_norms", "nearby_upper", "max_token_terms", "max_token_upper", "yudin_upper", "yudin_upper_sharp")
KNOWN = {(name, "shared keys") for name in (*FOLDS, "chosen_tokens")}
KNOWN |= {(name, "relative positions") for name in ("max_token_terms", "max_token_upper", "chosen_tokens")}
KNOWN |= {("chosen_tokens", "rotary positions")}


@pytest.mark.parametrize(("name", "more"), [pair for pair in itertools.product(PLAIN_ONLY, MORE) if pair not in KNOWN])
def test_what_knows_plain_heads_only_says_so(name, more):
    """No bound of the theorems for a map that they do not speak of."""
    one = torch.ones(1, 2, 3).double()
    f, x = Attention(**{"query": one, "key": one, "value": one, **MORE[more]}), torch.eye(4, 3).double()
    assert f.more == (more,)
    with pytest.raises(ValueError, match=f"{name} knows plain heads.* only, not {more}"):
        PLAIN_ONLY[name](f, x)


def test_bounds_for_rotary_positions_know_shared_keys_and_nothing_else():
    draw = Draw(5)
    given = {"query": draw.normal(4, 6, 5), "key": draw.normal(2, 6, 5), "value": draw.normal(2, 6, 5)}
    f, x = Attention(**given, frequencies=torch.ones(2), masked=True), draw.normal(7, 5)
    constant, R = local_lipschitz(f, x).value.item(), x.norm(dim=-1).max().item()
    assert constant <= bounds.rotary_terms(f, x) <= bounds.rotary_upper(f, 7, R)
    apart = f.replace(key=draw.normal(4, 6, 5), value=draw.normal(4, 6, 5))
    assert bounds.rotary_terms(apart, x) > 0
    for bad in (f.replace(frequencies=None), f.replace(cap=1.0), apart.replace(cap=1.0)):
        with pytest.raises(ValueError, match="is for rotary positions, with or without shared keys, got"):
            bounds.rotary_terms(bad, x)
        with pytest.raises(ValueError, match="is for rotary positions"):
            bounds.rotary_upper(bad, 7, R)


def test_it_says_what_it_is_and_what_it_has_not():
    draw = Draw(0)
    given = {"query": draw.normal(4, 6, 5), "key": draw.normal(2, 6, 5), "value": draw.normal(2, 6, 5)}
    plain = {**given, "query": given["query"][:2]}
    f = Attention(**given, frequencies=torch.ones(3), cap=50.0, masked=True)
    assert repr(f) == (
        "Attention(4 heads on 2 of keys, width 5, key width 6, output width 24, masked, shared keys, rotary positions, "
        "capped logits, float64)"
    )
    assert Attention(**plain).more == ()
    x = draw.normal(9, 5)
    with pytest.raises(ValueError, match="yudin_upper knows plain heads only, not rotary positions, capped logits"):
        bounds.yudin_upper(f, x)
    for bad, sentence in (
        ({"key": draw.normal(3, 6, 5)}, "or fewer heads, a divisor of 4, got"),
        ({"value": draw.normal(4, 6, 5)}, "value must have shape"),
        ({"frequencies": torch.ones(4)}, "frequencies must have shape .* 1 <= p <= 3"),
        ({"frequencies": torch.ones(2).half()}, "in float32 or float64"),
        ({"query_norm": draw.normal(6)}, "query_norm must have shape"),
        ({"key_norm": draw.normal(4, 6)}, "key_norm must have shape"),
        ({"norm_eps": -1.0}, "norm_eps must be"),
        ({"cap": 0.0}, "cap must be None or a positive number"),
        ({"relative": draw.normal(4, 4)}, "relative must have shape"),
        ({"sinks": draw.normal(2)}, "sinks must have shape"),
        ({"sinks": draw.normal(4), "score": "l2"}, "cap and sinks go with dot-product scores only"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Attention(**{**given, **bad})


@pytest.mark.parametrize("seed", range(0, 60, 7))
def test_it_does_not_change_and_goes_to_other_types(seed):
    given = arguments(seed)
    f, x, _ = case(seed)
    expected, kept = f(x), {name: one.clone() for name, one in given.items() if isinstance(one, torch.Tensor)}
    g = Attention(**(theirs := {**given, **kept}))
    for one in kept.values():
        one.mul_(3)
    assert torch.equal(g(x), expected) and torch.equal(g.replace()(x), expected) and theirs is not given
    back = g.to(dtype=torch.float32).to(dtype=torch.float64)
    assert relative(back(x), expected) < 1e-4
    if f.frequencies is not None:
        assert torch.equal(back.frequencies, f.frequencies) and back.frequencies.dtype == f.frequencies.dtype
