"""The Jacobian's parts: digits of flat caps and far values, and the norm of the largest row in tiles."""

import math

import pytest
import torch
from cases import random_case, relative

from lipnb import Attention, local_lipschitz
from lipnb.jacobian import infinity_norm


def test_slopes_of_a_cap_keep_their_digits_where_it_is_flat():
    """Two tokens, logits 0 and -r c: the slope at the second is 1 / cosh(r)^2, which 1 - tanh^2 loses in float32."""
    r, one = 8.0, torch.ones(1, 1, 1)
    f = Attention(one, -one, one, scale=r, cap=1.0)
    _, bend = f.capped(torch.tensor([0.0, -r]))
    assert bend[1].item() == pytest.approx(math.cosh(r) ** -2, rel=1e-5) and bend[0] == 1
    assert f.capped(torch.tensor([1000.0]))[1] == 0


def tokens(seed, n, d, size=1.0):
    return size * torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_infinity_norm_in_tiles_and_its_gradient(monkeypatch):
    case = random_case(3, score="l2", n=7)
    whole = infinity_norm(case.attention, case.x)
    monkeypatch.setattr("lipnb.checks.TILE", 1)
    assert relative(infinity_norm(case.attention, case.x), whole) < 1e-14
    x = case.x[:1].clone().requires_grad_()
    infinity_norm(case.attention, x).sum().backward()
    step = tokens(5, *case.x.shape[1:])[None]
    ends = [infinity_norm(case.attention, case.x[:1] + sign * 1e-6 * step).item() for sign in (1, -1)]
    assert abs((ends[0] - ends[1]) / 2e-6 / (x.grad * step).sum().item() - 1) < 1e-5


def test_a_far_value_that_all_rows_weigh_little_is_weighed_right():
    x = (torch.randn(900, 3, generator=torch.Generator().manual_seed(0)) * 0.4).clamp(-1, 1)
    x[0] = torch.tensor([4.0, 4.0, 1e6])
    query, key = torch.tensor([[[1.0, -1, 0], [-1, 1, 0]]]), torch.tensor([[[1.0, 0, 0], [0, 1, 0]]])
    f = Attention(query, key, torch.tensor([[[0.0, 0, 1]]]), query_bias=torch.tensor([[-1.5, -1.5]]), scale=1.0)
    answer, exact = (local_lipschitz(f, x, rtol=1e-2, memory=memory) for memory in (1, 2**30))
    assert exact.route == "cached" and answer.value.item() == pytest.approx(exact.value.item(), rel=2e-2)
