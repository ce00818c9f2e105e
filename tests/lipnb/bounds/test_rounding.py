"""Sums whose rounding no count covers are unknown, not wrong."""

import torch

from lipnb import Attention
from lipnb.bounds import nearby_upper
from lipnb.certified import certify


def test_sums_that_no_count_of_rounding_covers_are_unknown():
    x = torch.zeros(1, 2**20 + 1, dtype=torch.float64)
    x[0, 0] = 1
    f = Attention(*x.expand(3, 1, 1, -1))
    found = certify(f, x, columns=0)
    assert found.lower == 0 and found.upper == torch.inf
    assert nearby_upper(f, x, [1.0]).best.item() == torch.inf
    found = certify(Attention(*x[:, 1:].expand(3, 1, 1, -1)), x[:, 1:], columns=0)
    assert found.upper < torch.inf
