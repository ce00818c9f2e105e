"""Terms of one head: against blocks of its Jacobian, as a bound on both sides, and the table that holds them."""

import math
from functools import partial

import pytest
import torch

from lab.experiments.head_terms import head_terms, received
from lipnb import Attention, AttentionJacobian

norm = partial(torch.linalg.matrix_norm, ord=2)


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def some_head(seed, masked=False, rotary=False, k=4):
    """One head of width 5 with an output matrix, biases of queries and keys, and six tokens."""
    query, key, value = (drawn(1, k, 5, seed=10 * seed + i) for i in range(3))
    more = {"frequencies": torch.tensor([1.0, 0.3], dtype=torch.float64)[: k // 2]} if rotary else {}
    biases = {"query_bias": drawn(1, k, seed=seed + 500), "key_bias": drawn(1, k, seed=seed + 600)}
    f = Attention(query, key, value, drawn(1, 6, k, seed=seed + 300), masked=masked, **biases, **more)
    return f, drawn(6, 5, seed=seed + 400)


def blocks(f, x):
    """Jacobians of one head at x (n, d) by values, keys and queries alone, each (n, m, n, d), by autodiff."""
    parts = []
    for part in range(3):

        def alone(y, part=part):
            rows = [one if i == part else one.detach() for i, one in enumerate(f.project(y))]
            return f.combine(f.average(f.probabilities_of(*rows[:2]), rows[2]))

        parts.append(torch.autograd.functional.jacobian(alone, x))
    return parts[2], parts[1], parts[0]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("k", [4, 7])  # narrower and wider than the tokens
def test_terms_are_those_of_the_blocks(masked, k):
    f, x = some_head(1, masked=masked, k=k)
    value, key, query = blocks(f, x)
    found = head_terms(f, x[None])
    n = len(x)
    assert found["value"].item() == pytest.approx(norm(value.reshape(n * 6, -1)).item(), rel=1e-3)
    norms = norm(key.transpose(1, 2))
    assert found["key"].item() == pytest.approx(norm(norms).item(), rel=1e-3)
    own = torch.stack([query[i, :, i] for i in range(n)])
    assert found["query"].item() == pytest.approx(norm(own).amax().item(), rel=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_the_terms_bound_the_constant(seed):
    f, x = some_head(seed, masked=seed % 2 == 1, rotary=seed % 3 == 0)
    constant = norm(AttentionJacobian(f, x).dense())
    found = head_terms(f, x[None])
    assert constant <= (found["value"] + found["key"] + found["query"]).item() * (1 + 1e-3)


def test_with_rotary_positions_the_terms_lie_above_those_of_the_blocks():
    f, x = some_head(3, rotary=True)
    value, key, query = blocks(f, x)
    found = head_terms(f, x[None])
    assert found["key"] >= norm(norm(key.transpose(1, 2))) * (1 - 1e-3)
    own = torch.stack([query[i, :, i] for i in range(len(x))])
    assert found["query"] >= norm(own).amax() * (1 - 1e-9)


def test_each_term_is_reached_and_their_sum_nearly():
    """Tokens t and -t reach the term of the keys; many tokens that give one other half their attention, the sum."""
    one = torch.ones(1, 1, dtype=torch.float64)
    f, x = Attention.from_matrices(one, one), torch.tensor([[0.7], [-0.7]]).double()
    assert head_terms(f, x[None])["key"].item() == pytest.approx(norm(blocks(f, x)[1].view(2, 2)).item(), rel=1e-9)

    n, b = 400, 40.0
    x = torch.full((n, 1), b, dtype=torch.float64)
    x[0] += math.log(n - 1) / b
    found, constant = head_terms(f, x[None]), norm(AttentionJacobian(f, x).dense()).item()
    assert found["key"].item() > 2.5 * found["value"].item()
    assert 0.99 < constant / sum(found[name].item() for name in ("value", "key", "query")) <= 1


@pytest.mark.parametrize("seed", range(8))
def test_attention_received_is_on_both_sides_of_the_norm(seed):
    f, x = some_head(seed, masked=seed % 2 == 1, rotary=seed % 3 == 0)
    P = f.probabilities(x)
    found, square, columns = received(f, x[None]), norm(P).amax() ** 2, P.sum(-2)
    assert found["squares"] <= square * (1 + 1e-9) and square <= found["received"] * (1 + 1e-9)
    assert found["received"].item() == pytest.approx((P @ columns[..., None]).amax().item(), rel=1e-9)
    assert found["received"] <= columns.max() * (1 + 1e-9)


def test_attention_received_under_averages_over_the_past():
    """Three tokens without logits: the first, alone in its row, has the column sum 11/6, and is all that row sees."""
    zero = torch.zeros(2, 2).double()
    found = received(Attention.from_matrices(zero, torch.eye(2).double(), masked=True), drawn(1, 3, 2, seed=0))
    assert found["received"].item() == pytest.approx(11 / 6)
    assert found["squares"].item() == pytest.approx(1 + 1 / 4 + 1 / 9)
