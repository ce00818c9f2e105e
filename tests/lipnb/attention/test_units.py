"""The same map in other units has the same certificates."""

import torch
from cases import random_case

from lipnb import Attention
from lipnb.certified import certify


def test_one_map_in_other_units():
    """Tokens in other units, the matrices in the inverse ones: the same Jacobian up to the units of the value."""
    for columns in [0, 12, None]:
        for power in [-20, -8, 8, 20]:
            case, unit = random_case(3, n=6), 10.0**power
            att = case.attention
            scaled = att.replace(query=att.query / unit, key=att.key / unit, value=att.value / unit)
            here, there = certify(att, case.x, columns=columns), certify(scaled, case.x * unit, columns=columns)
            assert torch.allclose(there.upper * unit, here.upper, rtol=1e-6)
            assert torch.allclose(there.lower * unit, here.lower, rtol=1e-3)
            big = Attention(att.query, att.key, att.value * unit, att.output, masked=att.masked)
            plain = Attention(att.query, att.key, att.value, att.output, masked=att.masked)
            expected = certify(plain, case.x, columns=columns).upper
            assert torch.allclose(certify(big, case.x, columns=columns).upper / unit, expected, rtol=1e-6)


def test_units_at_the_ends_of_float64():
    """Values so large or so small that products over- or underflow: still a bracket, or [0, inf]."""
    for power in [-1000, -500, 500, 1000]:
        case, unit = random_case(3, n=4), 2.0**power
        att = case.attention
        plain = Attention(att.query, att.key, att.value, att.output, masked=att.masked)
        one = certify(plain, case.x[0])
        far = Attention(att.query / unit, att.key / unit, att.value, att.output, masked=att.masked)
        found = certify(far, case.x[0] * unit)
        assert found.ratio < 1 + 1e-6
        assert torch.allclose(found.upper, one.upper, rtol=1e-6)
        heavy = certify(Attention(att.query, att.key, att.value * unit, att.output, masked=att.masked), case.x[0])
        assert heavy.lower <= heavy.upper and (
            heavy.upper == torch.inf or torch.allclose(heavy.upper / unit, one.upper)
        )
