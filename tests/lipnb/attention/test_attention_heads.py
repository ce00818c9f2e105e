"""The maps: against loops over tokens and heads, definitions and PyTorch; masks, windows; unchanging once made."""

import copy
import dataclasses
import inspect
import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from cases import (
    FEATURES,
    KINDS,
    NAMES,
    covering,
    every_kind,
    l2_parameters,
    normal,
    of_a_kind,
    pairs,
    parts_of_a_map,
    possible,
    relative,
    windowed,
)

from lipnb import Attention, AttentionJacobian, certify, local_lipschitz
from lipnb.attention.parameters import AXES
from lipnb.jacobian import infinity_norm
from lipnb.jacobian.matrices import ScaledMatrices
from lipnb.jacobian.streamed import StreamedGram

CLOSE = 1e-11


@pytest.mark.parametrize("kind", KINDS)
def test_other_types_transforms_and_shared_keys(kind):
    """Keys that heads share are repeated keys, whose products hold more numbers."""
    f, x, weights = every_kind(kind)
    expected, back = f(x, weights), f.to(torch.float32).to(dtype=torch.float64)
    assert relative(back(x, weights), expected) < 1e-3
    if f.frequencies is not None:
        assert torch.equal(back.frequencies, f.frequencies) and back.frequencies.dtype == f.frequencies.dtype
    if weights is None:
        assert relative(torch.func.vmap(f)(x), expected) < 1e-13
    times, parts = f.heads // f.groups, ("key", "value", "key_bias", "value_bias", "key_norm")
    names = [name for name in parts if getattr(f, name) is not None]
    apart = f.replace(**{name: getattr(f, name).repeat_interleave(times, 0) for name in names})
    assert relative(apart(x, weights), expected) < 1e-12
    shared, repeated = (AttentionJacobian(one, x).operator() for one in (f, apart))
    assert shared.keys.numel() * times == repeated.keys.numel()


def test_what_a_map_keeps_is_what_it_was_made_of():
    """`replace`, pickles and copies go through these: a new argument that is not kept would be lost there."""
    eye = torch.eye(2)[None]
    f = Attention(eye, eye, eye)
    arguments = set(inspect.signature(Attention).parameters)
    assert {one.name for one in dataclasses.fields(f) if one.init} == arguments and {*AXES} < arguments
    assert all(getattr(f.replace(), name) is not getattr(f, name) for name in f.tensors())


def test_far_from_the_origin_no_digit_is_lost():
    query, value, _ = l2_parameters(1)
    f, x = Attention.l2(query, value), normal(9, query.shape[2])
    assert relative(f.probabilities(x + 1e6), f.probabilities(x)) < 1e-8
    single = f.to(dtype=torch.float32)
    assert relative(single.probabilities((x + 100).float()).double(), f.probabilities(x)) < 1e-3


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_tied_heads_are_those_of_the_paper(seed):
    """P X A_h W_V W_O, row by row as in the paper; without and with output matrices."""
    query, value, output = l2_parameters(seed)
    x, heads = normal(7, query.shape[2]), []
    for h in range(len(query)):
        W, k = query[h].T, query.shape[1]
        P = (-(torch.cdist(x @ W, x @ W) ** 2) / k**0.5).softmax(-1)
        heads.append(P @ x @ (W @ W.T / k**0.5) @ value[h].T)
    if output is not None:
        heads = [sum(head @ matrix.T for head, matrix in zip(heads, output, strict=True))]
    assert relative(Attention.l2(query, value, output)(x), torch.cat(heads, -1)) < 1e-9


def test_any_two_features_stand_together_in_a_map():
    assert len(covering()) == len(KINDS)
    met = set().union(*map(pairs, covering()))
    for one, other in itertools.combinations(FEATURES, 2):
        for both in itertools.product(FEATURES[one], FEATURES[other]):
            two = dict(zip((one, other), both, strict=True))
            assert tuple(two.items()) in met or not possible(**two), two


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
            size = every.square().mean() if given["joint_norm"] else y.square().mean()
            y = given[f"{name}_norm"][head] * y / (size + given.get("norm_eps", 1e-6)).sqrt()
        if name != "value" and "frequencies" in given:
            y, old, p = y.clone(), y.clone(), len(given["frequencies"])
            for c, omega in enumerate(given["frequencies"]):
                angle = torch.tensor(float(place)).to(omega) * omega
                cos, sin = angle.cos().double(), angle.sin().double()
                y[c], y[c + p] = old[c] * cos - old[c + p] * sin, old[c + p] * cos + old[c] * sin
        return y

    def hidden(i, j):
        far = given["window"] and abs(i - j) >= given["window"]
        return far or (given["masked"] and j > i)

    heads = []
    for head, i in itertools.product(range(h), range(len(x))):
        logits, values = [given["sinks"][head]] if "sinks" in given else [], [0 * row("value", head // times, i)]
        for j in range(len(x)):
            if hidden(i, j):
                continue
            query, key = row("query", head, i), row("key", head // times, j)
            logit = scale * query @ key if given["score"] == "dot" else -scale * (query - key).square().sum()
            if given["cap"]:
                logit = given["cap"] * torch.tanh(logit / given["cap"])
            if "relative" in given:
                reach = given["relative"].shape[1] // 2
                logit = logit + given["relative"][head, min(max(j - i, -reach), reach) + reach]
            logits.append(logit if weights is None else logit + weights[j].log())
            values.append(row("value", head // times, j))
        heads.append(torch.stack(logits).softmax(0) @ torch.stack(values)[-len(logits) :])
    heads = torch.stack(heads).unflatten(0, (h, len(x)))
    out = heads.movedim(0, 1).flatten(1)
    if given["output"] is not None:
        out = torch.einsum("hnv,hmv->nm", heads, given["output"])
    return out + given.get("output_bias", 0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_map_is_that_of_loops(kind):
    given, x, weights = of_a_kind(kind)
    f = every_kind(kind).attention
    expected = torch.stack([loops(given, x[b], None if weights is None else weights[b]) for b in range(2)])
    # cosines in float32 may differ in their last digit between one angle and many
    assert relative(f(x, weights), expected) < (1e-6 if covering()[kind]["rotary"] == torch.float32 else CLOSE)
    P = f.probabilities(x, weights)
    assert (P.sum(-1) <= 1 + CLOSE if f.sinks is not None else (P.sum(-1) - 1).abs() < CLOSE).all()


def answers(f, x):
    """What every route says of a map at tokens x, as one vector."""
    u, flat = normal(*x.shape, seed=5), AttentionJacobian(f, x)
    streamed = StreamedGram(f, x[None], rows=7)
    bracket = certify(f, x, columns=4)
    said = [f(x), f.probabilities(x), flat.gram(u), flat.jvp(u), flat.dense(), flat.infinity_norm()]
    said += [streamed.gram(u[None].flatten(1)) * streamed.unit**2, bracket.lower, bracket.upper]
    said += [local_lipschitz(f, x).value, local_lipschitz(f, x, memory=1).value, local_lipschitz(f, x[:3]).value]
    said += [local_lipschitz(lambda x: f(x), x).value, *(getattr(f, name) for name in NAMES)]
    return torch.cat([part.flatten() for part in said])


CHANGES = {
    "in place": lambda tensor: tensor.mul_(2),
    "one entry": lambda tensor: tensor.view(-1)[1:2].add_(1),
    "heads in another order": lambda tensor: tensor.copy_(tensor.flip(0)),
    "through .data": lambda tensor: tensor.data.mul_(2),
    "a numpy array that shares the memory": lambda tensor: tensor.numpy().fill(1.0),
    "storages exchanged": lambda tensor: setattr(tensor, "data", 2 * tensor),
    "in inference mode": torch.inference_mode()(lambda tensor: tensor.data.neg_()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_written_into_the_tensors_of_a_map_changes_all_that_it_answers(change):
    """As a map made anew of these numbers does; what the caller had, and a Jacobian made before, change nothing."""
    given, x = parts_of_a_map()
    f, u = Attention(**given), normal(20, 4, seed=3)
    before, J, other = answers(f, x), AttentionJacobian(f, x), AttentionJacobian(f, x)
    kept = [other.jvp(u), other.gram(u), other.dense(), other.infinity_norm()]
    for tensor in given.values():
        CHANGES[change](tensor)
    assert torch.equal(answers(f, x), before)
    for name in NAMES[3:4] if change == "one entry" else NAMES:
        CHANGES[change](getattr(f, name))
    new = {name: torch.from_numpy(getattr(f, name).numpy().copy()) for name in NAMES}
    found = answers(f, x)
    assert torch.equal(found, answers(Attention(**new), x)) and not torch.equal(found, before)
    assert all(map(torch.equal, [J.jvp(u), J.gram(u), J.dense(), J.infinity_norm()], kept))


def test_replace_keeps_the_rest():
    given, x = parts_of_a_map()
    f = Attention(**given, scale=0.3, masked=True, window=3)
    again, other = f.replace(), f.replace(scale=0.7, output=None, output_bias=None)
    assert again is not f and repr(again) == repr(f) and torch.equal(again(x), f(x))
    assert (other.scale, other.masked, other.window, other.score, other.output) == (0.7, True, 3, "dot", None)
    assert other.output_width == 6 and f.scale == 0.3
    assert torch.equal(f.replace(masked=False, window=None)(x), Attention(**given, scale=0.3)(x))


def test_gradients_reach_the_tensors_that_a_map_was_made_of():
    given, x = parts_of_a_map(n=5)
    leaves = {name: tensor.requires_grad_() for name, tensor in given.items()}
    Attention(**leaves)(x).square().sum().backward()
    found = {name: leaf.grad for name, leaf in leaves.items()}
    for name, leaf in leaves.items():
        others = {key: tensor.detach() for key, tensor in given.items()}
        expected = torch.func.grad(
            lambda t, name=name, others=others: Attention(**{**others, name: t})(x).square().sum()
        )(leaf.detach())
        assert relative(found[name], expected) < 1e-12 and expected.abs().max() > 0
    f = Attention(**leaves)
    assert local_lipschitz(f, x.repeat(4, 1)).converged and not any(
        getattr(ScaledMatrices.of(f, f.dtype), name).requires_grad for name in ("projection", "output")
    )
    leaves["value"].grad = None
    infinity_norm(f, x).sum().backward()  # by the map without idle biases, which the solve made
    assert leaves["value"].grad.abs().max() > 0
    f(x).sum().backward()  # after a solve too


def test_many_threads_solve_with_one_map():
    given, x = parts_of_a_map(n=40)
    xs = [(1 + i / 10) * x for i in range(8)]
    expected = [local_lipschitz(Attention(**given), one).value for one in xs]
    f = Attention(**given)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda one: local_lipschitz(f, one).value, xs))
    assert torch.equal(torch.stack(found), torch.stack(expected))


def test_a_map_is_pickled_copied_and_moved():
    given, x = parts_of_a_map()
    f = Attention(**given, masked=True, window=4)
    local_lipschitz(f, x)
    stored = pickle.dumps(f)
    assert len(stored) < 1.5 * sum(t.numel() * 8 for t in given.values()) + 4000  # without what was prepared
    for again in (pickle.loads(stored), copy.copy(f), copy.deepcopy(f), f.to(dtype=torch.float64), f.to("cpu")):
        assert torch.equal(answers(again, x), answers(f, x)) and repr(again) == repr(f)
    half = f.to(dtype=torch.float32)
    assert half.dtype == torch.float32 and (half.window, half.masked) == (4, True)
    assert relative(local_lipschitz(half, x.float()).value.double(), local_lipschitz(f, x).value) < 1e-3
    trained = Attention(**{name: torch.nn.Parameter(tensor) for name, tensor in given.items()})
    assert torch.equal(copy.deepcopy({"map": trained})["map"](x), trained(x))


def test_inference_mode_before_and_after():
    given, x = parts_of_a_map()
    expected = local_lipschitz(Attention(**given), x).value
    with torch.inference_mode():
        f = Attention(**given)
        assert torch.equal(local_lipschitz(f, x).value, expected)
    assert torch.equal(local_lipschitz(f, x).value, expected)
    f = Attention(**given)
    with torch.inference_mode():
        local_lipschitz(f, x)
    assert torch.equal(local_lipschitz(f, x).value, expected)
    assert torch.isfinite(torch.func.jacrev(f)(x)).all()


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


def test_augmented_assignment_is_written_in_place():
    given, x = parts_of_a_map()
    f, twice = Attention(**given), Attention(**{**given, "query": 2 * given["query"]})
    f.query *= 2
    assert torch.equal(f(x), twice(x)) and local_lipschitz(f, x).value == local_lipschitz(twice, x).value


def test_a_window_is_that_of_the_library_of_models():
    masks = pytest.importorskip("transformers.masking_utils")
    i, j = torch.arange(30)[:, None], torch.arange(30)
    for w in (1, 4, 16):
        theirs = masks.sliding_window_causal_mask_function(w)(0, 0, i, j)
        assert torch.equal(windowed(2).replace(window=w).hidden(30), ~theirs)
