"""The linearization in float64: what it resolves is bracketed, and what it does not is said."""

import torch
from cases import random_case

from lipnb import Attention, local_lipschitz
from lipnb.certified import certify


def test_tokens_so_large_that_attention_is_hard():
    """At 1e20 every row picks itself by far: the map is the identity."""
    V = torch.eye(2, dtype=torch.float64)
    x = 1e20 * torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    found = certify(Attention.from_matrices(V, V), x)
    assert found.lower <= 1 <= found.upper < torch.inf
    found = certify(Attention.from_matrices(V, V), x / 1e17)  # 1e3: exp(-1e6) is zero already
    assert found.lower <= 1 <= found.upper and found.ratio < 1.01


def test_attention_that_float64_does_not_resolve_is_said():
    V, turn = torch.eye(2, dtype=torch.float64), torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    line = torch.tensor([[1.0], [2.0], [-0.5]], dtype=torch.float64)
    x = line * torch.tensor([1 / 3, 0.7], dtype=torch.float64)  # all logits are 0
    found = certify(Attention.from_matrices(turn, V), 1e12 * x)
    assert found.upper == torch.inf and found.lower == 0 and found.rounding == torch.inf


def test_float32_is_bracketed_in_float64():
    case = random_case(9, n=6, dtype=torch.float32)
    found = certify(case.attention, case.x, columns=0)
    exact = local_lipschitz(case.attention.to(dtype=torch.float64), case.x.double(), method="dense").value
    assert found.lower.dtype == torch.float64
    assert (found.lower <= exact).all() and (exact <= found.upper).all()
    assert (found.lower >= exact * (1 - 1e-4)).all()
