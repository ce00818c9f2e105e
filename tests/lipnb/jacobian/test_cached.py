"""The cached products: parts of a batch, threads, answers that stay, and where a solve starts."""

import copy
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from cases import drawn, normal, parts_of_a_map, random_case, relative, weighted

from lipnb import Attention, AttentionJacobian, local_lipschitz, singular_pair
from lipnb.jacobian.cached import CachedGram
from lipnb.jacobian.streamed import StreamedGram


@pytest.mark.parametrize("kind", ["cached", "streamed"])
@pytest.mark.parametrize("seed", [4, 5, 10])
def test_part_of_a_batch_gives_the_same_products(seed, kind):
    f, x, weights = random_case(seed, n=7)
    x = torch.cat([x, x.flip(1), x[:1] + 1])
    weights = None if weights is None else torch.cat([weights, weights.flip(1), weights[:1] ** 2])
    made = AttentionJacobian(f, x, weights).operator() if kind == "cached" else StreamedGram(f, x, weights, rows=4)
    u = normal(5, x[0].numel(), seed=2)
    whole = made.gram(u).clone()
    for chosen in ([0, 1, 2, 3, 4], [1, 2, 4], [4], [0, 3], [2]):  # each of the original, after another was used
        index = torch.tensor(chosen)
        assert relative(made.restrict(index).gram(u[index]), whole[index]) < 1e-13
    again = made.restrict(torch.tensor([1, 3, 4])).restrict(torch.tensor([0, 2]))
    assert relative(again.gram(u[[1, 4]]), whole[[1, 4]]) < 1e-13 and relative(made.gram(u), whole) < 1e-13


def test_answers_of_jvp_vjp_and_gram_are_not_overwritten():
    for seed in (3, 4, 5):  # without and with output matrices, with weights
        case = random_case(seed, n=5)
        jacobian = AttentionJacobian(case.attention, case.x, case.weights)
        for name, width in (
            ("jvp", case.x.shape[-1]),
            ("vjp", case.attention.output_width),
            ("gram", case.x.shape[-1]),
        ):
            first, other = (normal(2, 5, width, seed=s) for s in (1, 2))
            answer = getattr(jacobian, name)(first)
            kept, given = answer.clone(), first.clone()
            jacobian.gram(case.x), getattr(jacobian, name)(other)
            assert torch.equal(answer, kept) and torch.equal(first, given), name


def test_heads_that_cancel_keep_what_is_left():
    """Two heads that differ by the factor -(1 + left) of their outputs: `left` times the constant of one of them."""
    for left in [1e-4, 1e-8]:
        query, key, value = (normal(1, 2, 20, seed=seed).expand(2, -1, -1) for seed in (1, 2, 3))
        output, x = normal(1, 20, 2, seed=4), normal(30, 20, seed=5)
        one = Attention(query[:1], key[:1], value[:1], output)
        both = Attention(query, key, value, torch.cat([output, -(1 + left) * output]))
        constant = left * local_lipschitz(one, x, rtol=1e-10).value
        found = local_lipschitz(both, x)
        assert found.converged and found.value <= constant * (1 + 1e-6) <= found.upper * (1 + 2e-6)
        pair = singular_pair(both, x)
        assert relative(AttentionJacobian(both, x).jvp(pair.input).norm(), pair.value) < 1e-3


@pytest.mark.parametrize("output", [False, True])
@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("shared", [1, 2])
def test_likely_is_the_top_vector_where_attention_is_uniform(shared, heavy, output):
    """With A = 0 the Jacobian is the mean, times the values: its top pair is known, and `likely` must be it."""
    draw, zero = drawn(3), torch.zeros(4, 3, 12, dtype=torch.float64)
    value = draw(4 // shared, 3, 12)
    value[..., 0] *= 40  # one direction stands out
    f, x = Attention(zero, zero[: 4 // shared], value, draw(4, 6, 3) if output else None), draw(2, 5, 12)
    weights = draw(2, 5).exp() if heavy else None
    J = AttentionJacobian(f, x, weights)
    top = torch.linalg.svd(weighted(J.dense(), x, weights))[2][:, 0]
    likely = J.operator().heuristic_start()
    assert torch.allclose(likely.norm(dim=1), torch.ones(2, dtype=torch.float64))
    assert ((top * likely).sum(1).abs() > 1 - 1e-6).all()
    # float32 reads it too, and half of the start stays random
    estimate = local_lipschitz(f, x, weights=weights, confidence=None)
    certified = local_lipschitz(f, x, weights=weights)
    assert torch.allclose(estimate.value, certified.value, rtol=1e-4) and (estimate.steps < certified.steps).all()


def test_many_threads_multiply_with_one_jacobian(monkeypatch):
    """Its products share buffers; here each product lets the others run between its two halves."""
    given, x = parts_of_a_map()
    J, us = AttentionJacobian(Attention(**given), x), [normal(20, 4, seed=seed) for seed in range(6)]
    products = [lambda u: J.jvp(u), lambda u: J.gram(u), lambda u: J.vjp(J.jvp(u))]
    expected = [torch.cat([product(u) for product in products], -1) for u in us]
    inner = CachedGram.join
    monkeypatch.setattr(CachedGram, "join", lambda self, heads: time.sleep(0.002) or inner(self, heads))
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda u: torch.cat([product(u) for product in products], -1), us))
    assert all(map(torch.equal, found, expected))
    for again in (pickle.loads(pickle.dumps(J)), copy.copy(J), copy.deepcopy(J)):
        assert torch.equal(again.gram(x), J.gram(x)) and again._products is not J._products
