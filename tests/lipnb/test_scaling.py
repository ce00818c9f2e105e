"""Powers of two: just above the largest entry, and exact to multiply with from the least to the largest number."""

import math

import pytest
import torch

from lipnb.scaling import LEAST, ZERO, exponent, power_of_two, powers_of_two, shifted, shifted_number


@pytest.mark.parametrize(("number", "power"), [(1.0, 1), (0.99, 0), (-5.0, 3), (2.0**-1074, -1073), (0.0, ZERO)])
def test_the_exponent_is_that_of_the_power_just_above(number, power):
    assert exponent(number) == exponent(torch.tensor([0.0, number], dtype=torch.float64)) == power
    assert power_of_two(torch.tensor([number], dtype=torch.float64)) == (1.0 if power == ZERO else 2.0**power)
    assert exponent(None) == exponent(torch.empty(0)) == ZERO


def test_of_each_number_the_power_stays_within_what_is_asked():
    sizes = torch.tensor([3.0, 1.0, 1e-300, 1e300, 0.0], dtype=torch.float64)
    found = powers_of_two(sizes, least=-10, most=20)
    assert found.tolist() == [4.0, 2.0, 2.0**-10, 2.0**20, 1.0]


def test_shifts_beyond_the_range_of_one_factor_are_exact():
    least = torch.tensor([2.0**-1074, -3 * 2.0**-1074], dtype=torch.float64)
    assert torch.equal(shifted(least, 2000), torch.tensor([2.0**926, -3 * 2.0**926], dtype=torch.float64))
    assert torch.equal(shifted(shifted(least, 2000), -2000), least)
    assert shifted_number(3 * 2.0**-1074, 2000) == 3 * 2.0**926 and shifted_number(1.0, 3 * LEAST) == 0.0
    assert shifted(torch.ones(1), 5000).item() == math.inf and shifted_number(-1.0, 5000) == -math.inf
