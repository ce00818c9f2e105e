"""The cached products: parts of a batch, threads, answers that stay, and where a solve starts."""

import copy
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from cases import normal, parts_of_a_map, random_case, relative

from lipnb import Attention, AttentionJacobian, local_lipschitz, singular_pair
from lipnb.jacobian.cached import CachedGram


def test_part_of_a_batch_gives_the_same_products():
    for weighted in [False, True]:
        case = random_case(4, n=7)
        x = normal(5, 7, case.x.shape[-1])
        weights = torch.rand(5, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
        products = AttentionJacobian(case.attention, x, weights if weighted else None).operator()
        u = normal(5, x[0].numel(), seed=2)
        whole = products.gram(u).clone()
        for chosen in ([0, 1, 2, 3, 4], [1, 2, 4], [4], [0, 3], [2]):  # each of the original, after another was used
            index = torch.tensor(chosen)
            assert relative(products.restrict(index).gram(u[index]), whole[index]) < 1e-13
        again = products.restrict(torch.tensor([1, 3, 4])).restrict(torch.tensor([0, 2]))
        assert relative(again.gram(u[[1, 4]]), whole[[1, 4]]) < 1e-13
        assert relative(products.gram(u), whole) < 1e-13


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


def test_likely_is_the_top_vector_where_attention_is_uniform():
    """With A = 0 the Jacobian is the mean, times the values: its top pair is known, and `likely` must be it."""
    for output in [False, True]:
        for weighted in [False, True]:
            for shared in [1, 2]:
                n, d, h, k, v = 5, 12, 4, 3, 3
                draw = torch.Generator().manual_seed(3)
                value = torch.randn(h // shared, v, d, generator=draw, dtype=torch.float64)
                value[..., 0] *= 40  # one direction stands out
                mix = torch.randn(h, 6, v, generator=draw, dtype=torch.float64) if output else None
                zero = torch.zeros(h, k, d, dtype=torch.float64)
                attention = Attention(zero, zero[: h // shared], value, mix)
                x = torch.randn(2, n, d, generator=draw, dtype=torch.float64)
                weights = torch.rand(2, n, generator=draw, dtype=torch.float64) + 0.1 if weighted else None
                jacobian = AttentionJacobian(attention, x, weights)
                dense = jacobian.dense()
                if weighted:
                    root = weights.sqrt()
                    rows = root.repeat_interleave(dense.shape[-2] // n, dim=1)
                    dense = rows[..., None] * dense / root.repeat_interleave(d, dim=1)[:, None]
                top = torch.linalg.svd(dense)[2][:, 0]
                likely = jacobian.operator().heuristic_start()
                assert torch.allclose(likely.norm(dim=1), torch.ones(2, dtype=torch.float64))
                assert ((top * likely).sum(1).abs() > 1 - 1e-6).all()
                # float32 reads it too, and half of the start stays random
                estimate = local_lipschitz(attention, x, weights=weights, confidence=None)
                certified = local_lipschitz(attention, x, weights=weights)
                assert (
                    torch.allclose(estimate.value, certified.value, rtol=1e-4)
                    and (estimate.steps < certified.steps).all()
                )


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
