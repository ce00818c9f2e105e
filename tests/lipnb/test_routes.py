"""The map against loops over tokens and heads, and every route to its Jacobian against automatic differentiation.

Any two features of attention stand together in one of the maps; beside them plain heads of many sizes.
"""

import itertools

import pytest
import torch
from cases import FEATURES, KINDS, covering, derivative, every_kind, of_a_kind, pairs, possible, random_case, relative
from cases import weighted as symmetrised

from lipnb import AttentionJacobian, local_lipschitz
from lipnb.jacobian import Linearization
from lipnb.jacobian.streamed import StreamedGram

CLOSE = 1e-11
PLAIN = [(seed, spread) for seed in range(24) if seed // 8 != 1 for spread in (0.3, 1.0, 4.0)]  # of 16 tokens or fewer
each = pytest.mark.parametrize("kind", [*KINDS, "plain"])


def maps(kind, n=None):
    """One map of a kind, or the plain ones: each with its dense Jacobian, and u and w of three directions."""
    for f, x, weights in (
        [random_case(seed, spread=s) for seed, s in PLAIN] if kind == "plain" else [every_kind(kind, n=n)]
    ):
        generator = torch.Generator().manual_seed(len(x[0]))
        u, w = (torch.randn(3, *x.shape[:2], m, generator=generator, dtype=x.dtype) for m in (f.width, f.output_width))
        yield f, x, weights, derivative(f, x, weights), u, w


def applied(matrix, vectors):
    """Products (c, b, M) of matrices (b, M, N) with vectors (c, b, n, d)."""
    return torch.einsum("bij,cbj->cbi", matrix, vectors.flatten(-2))


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


@each
def test_the_closed_form(kind):
    """Products of many directions at once, the dense matrix, and with weights those of the weighted norm."""
    for f, x, weights, J, u, w in maps(kind):
        closed = AttentionJacobian(f, x, weights)
        assert relative(closed.dense(), J) < CLOSE
        tangent, gradient = closed.jvp(u), closed.vjp(w)
        assert relative(tangent.flatten(-2), applied(J, u)) < CLOSE
        assert relative(gradient.flatten(-2), applied(J.mT, w)) < CLOSE
        size = tangent.norm() * w.norm()
        assert abs((tangent * w).sum() - (u * gradient).sum()) <= 1e-12 * size
        M = symmetrised(J, x, weights)
        assert relative(closed.gram(u).flatten(-2), applied(M.mT @ M, u)) < CLOSE
        if weights is None:
            assert relative(closed.infinity_norm(), J.abs().sum(-1).amax(-1)) < CLOSE


def same_products(products, M, u, close=CLOSE):
    """Whether an operator multiplies as M^T M does; nothing is left of a first product, in parts of a batch neither."""
    expected = applied(M.mT @ M, u)
    for _ in range(2):
        for i in range(len(u)):
            given = u[i].flatten(1)
            assert relative(products.gram(given) * products.unit**2, expected[i]) < close
            assert torch.equal(given, u[i].flatten(1))
    part = products.restrict(torch.tensor([1]))
    assert relative(part.gram(u[0, 1:].flatten(1)) * products.unit**2, expected[0, 1:]) < close


@each
def test_cached_products(kind):
    for f, x, weights, J, u, w in maps(kind, n=11):
        same_products(AttentionJacobian(f, x, weights).operator(), symmetrised(J, x, weights), u)
        at = Linearization.of(f, x, weights)
        assert relative(at.jvp(u[0]).flatten(1), applied(J, u)[0]) < CLOSE
        assert relative(at.vjp(w[0]).flatten(1), applied(J.mT, w)[0]) < CLOSE


@each
def test_streamed_products(kind):
    """Tiles of one row, tiles that end short, just fit, or hold everything."""
    for f, x, weights, J, u, _ in maps(kind, n=11):
        for rows in (1, 4, 10, 11, None):
            same_products(StreamedGram(f, x, weights, rows=rows), symmetrised(J, x, weights), u)


@each
def test_row_sums_taken_off_entry_by_entry_give_the_same_products(kind, monkeypatch):
    """The way of nearly hard attention, on attention where autograd has all digits."""
    monkeypatch.setattr("lipnb.jacobian.linearization.NEAR_HARD", 0.0)
    for f, x, weights, J, u, w in maps(kind, n=11):
        closed, M = AttentionJacobian(f, x, weights), symmetrised(J, x, weights)
        assert closed.operator().near_hard
        assert relative(closed.jvp(u).flatten(-2), applied(J, u)) < CLOSE
        assert relative(closed.vjp(w).flatten(-2), applied(J.mT, w)) < CLOSE
        same_products(closed.operator(), M, u)
        same_products(StreamedGram(f, x, weights, rows=4), M, u, close=1e-9)  # of logits in the hundreds


@each
def test_the_constant_by_every_method(kind):
    for f, x, weights, J, *_ in itertools.islice(maps(kind, n=13), 0, None, 3):
        norm = torch.linalg.matrix_norm(symmetrised(J, x, weights), 2)
        for options in ({"memory": 2**30}, {"memory": 1}, {"method": "dense"}):
            lip = local_lipschitz(f, x, weights=weights, rtol=1e-8, **options)
            assert lip.converged.all() and relative(lip.value, norm) < 1e-8, options
            assert (lip.upper >= norm * (1 - 1e-12)).all()
        single = local_lipschitz(
            f.to(dtype=torch.float32), x.float(), weights=None if weights is None else weights.float()
        )
        assert relative(single.value, norm) < 1e-2
