"""L2 attention of width one: its constant in the maximum norm, explicit inputs, and the ascent of Figure 2."""

import numpy as np
import pytest
import torch

from lab import results
from lab.experiments import l2_tightness
from lab.experiments.l2_tightness import ascended, largest_row, printed_witness, row_sum, uniform_starts, witness
from lipnb import Attention, bounds
from lipnb.jacobian import infinity_norm

ONE = torch.ones(1, 1, 1, dtype=torch.float64)


@pytest.mark.parametrize("n", [2, 3, 8, 30])
@pytest.mark.parametrize("spread", [0.2, 1, 4])
def test_rows_make_the_norm_and_stay_below_the_constant(n, spread):
    f = Attention.l2(ONE, ONE)
    x = spread * torch.randn(n, 1, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    others = torch.stack([torch.cat([x[:i], x[i + 1 :]])[:, 0] - x[i] for i in range(n)])
    exact = infinity_norm(f, x).item()
    assert abs(row_sum(others).max().item() / exact - 1) < 1e-10 and exact <= largest_row(n)


@pytest.mark.parametrize("n", [3, 5, 17, 201])
@pytest.mark.parametrize("masked", [False, True])
def test_odd_numbers_of_tokens_attain_it(n, masked):
    x = witness(n).flip(0)  # the token in the middle comes last, and sees all
    assert abs(infinity_norm(Attention.l2(ONE, ONE, masked=masked), x).item() / largest_row(n) - 1) < 1e-12
    assert x.sum().abs() < 1e-12 and x.shape == (n, 1)


@pytest.mark.parametrize("n", [2, 4, 10, 100])
def test_even_numbers_come_close(n):
    reached, x = infinity_norm(Attention.l2(ONE, ONE), witness(n)).item(), witness(n)
    assert largest_row(n) - (2 * x.max().item() / (n - 1)) ** 2 < reached < largest_row(n)


@pytest.mark.parametrize("n", [3, 9, 1001])
def test_the_printed_witness_is_within_two_of_the_bound(n):
    z = bounds.phi_inverse(n - 1)
    reached = row_sum(printed_witness(n)[1:, 0]).item()
    assert abs(reached - (4 * z + 2 / (1 + z) - 1)) < 1e-10
    assert 4 * z + 1 - 2 < reached < largest_row(n) < 4 * z + 1


def test_ascent_reaches_the_constant_and_is_repeated():
    start = uniform_starts(5, 20)
    values, x = ascended(start)
    assert abs(values.max().item() / largest_row(5) - 1) < 1e-5 and values.max() <= largest_row(5) * (1 + 1e-12)
    assert torch.equal(row_sum(x), values) and torch.equal(ascended(start)[0], values)
    table = results.load("l2-tightness")
    rows = l2_tightness.tightness_rows(3)
    stored = table[table.n == 3]
    assert np.allclose([row["reached"] for row in rows], stored.reached, rtol=1e-4)
    assert [row["start"] for row in rows] == list(stored.start)


def test_width_one_with_weights():
    """The constant is multiplied by the squared query weight and the other two."""
    n, (query, value, output) = 7, (torch.full((1, 1, 1), size, dtype=torch.float64) for size in (1.7, -0.4, 3.0))
    f = Attention.l2(query, value, output)
    reached = infinity_norm(f, witness(n) / 1.7).item()
    assert abs(reached / (1.7**2 * 0.4 * 3 * largest_row(n)) - 1) < 1e-12
