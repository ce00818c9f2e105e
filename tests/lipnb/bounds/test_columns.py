"""Columns taken exactly: how many, and how they close the bracket."""

from pathlib import Path

import torch
from cases import random_case

from lipnb import Attention, local_lipschitz
from lipnb.bounds.columns import sizes_of_columns
from lipnb.certified import certify

ROOT = Path(__file__).parents[3]


def dense(case):
    return local_lipschitz(case.attention, case.x, weights=case.weights, method="dense").value


def test_more_columns_close_the_bracket():
    case = random_case(7, n=8)
    d = case.x.shape[-1]
    ratios = [certify(case.attention, case.x, columns=c).ratio.max() for c in (0, 3 * d, 6 * d, 8 * d)]
    assert ratios[0] > 1.2 and ratios[-1] < 1 + 1e-3
    found = certify(case.attention, case.x, columns=10**9)
    assert (found.columns == 8 * d).all() and (found.query == 0).all()
    assert torch.allclose(found.columns_norm, dense(case), rtol=1e-6)


def test_what_columns_are_by_default_is_what_the_readme_says():
    """Of a layer of MiniLM's sizes: a thousand at 32 tokens; at 256 none, as with columns=0."""
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert "about a thousand for these 32 tokens, none for 256, where `columns=0` changes nothing" in said
    f = Attention(*(torch.zeros(12, 32, 384) for _ in range(3)), torch.zeros(12, 384, 32))
    for n, most in ((32, 1024), (256, 0)):
        r, s = sizes_of_columns(f, n, 384, None)[0]
        assert 0.9 * most <= 384 * r + (n - r) * s <= most


def test_a_certificate_computes_the_columns_it_says():
    """Features of all tokens, or all features of one token first: no other choice, and never more than asked for."""
    for seed in range(0, 24, 3):
        case = random_case(seed, n=5)
        f, x = case.attention, case.x[0]
        n, d = x.shape
        for most in range(0, n * d, max(1, d // 2)):
            count = int(certify(f, x, columns=most).columns)
            assert count in {0, most // n * n, d + (n - 1) * ((most - d) // (n - 1))}, most
            assert count <= most
