"""The same map in other units has the same certificates."""

import pytest
import torch
from cases import random_case

from lipnb.certified import certify


@pytest.mark.parametrize("columns", [0, 12, None])
@pytest.mark.parametrize("power", [-20, -8, 20])
def test_one_map_in_other_units(columns, power):
    """Tokens in other units, the matrices in the inverse ones: the same Jacobian up to the units of the value."""
    case, unit = random_case(3, n=6), 10.0**power
    att, here = case.attention, certify(case.attention, case.x, columns=columns)
    scaled = att.replace(query=att.query / unit, key=att.key / unit, value=att.value / unit)
    there, heavy = certify(scaled, case.x * unit, columns=columns), att.replace(value=att.value * unit)
    assert torch.allclose(there.upper * unit, here.upper, rtol=1e-6)
    assert torch.allclose(there.lower * unit, here.lower, rtol=1e-3)
    assert torch.allclose(certify(heavy, case.x, columns=columns).upper / unit, here.upper, rtol=1e-6)


@pytest.mark.parametrize("power", [-1000, -500, 500, 1000])
def test_units_at_the_ends_of_float64(power):
    """Values so large or so small that products over- or underflow: still a bracket, or [0, inf]."""
    case, unit = random_case(3, n=4), 2.0**power
    att = case.attention.replace(query_bias=None, key_bias=None, value_bias=None, output_bias=None)
    one = certify(att, case.x[0])
    found = certify(att.replace(query=att.query / unit, key=att.key / unit), case.x[0] * unit)
    assert found.ratio < 1 + 1e-6 and torch.allclose(found.upper, one.upper, rtol=1e-6)
    heavy = certify(att.replace(value=att.value * unit), case.x[0])
    assert heavy.lower <= heavy.upper and (heavy.upper == torch.inf or torch.allclose(heavy.upper / unit, one.upper))
