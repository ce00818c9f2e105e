"""The bound with query biases: above what is measured, the bound without biases at zero, and needed."""

import math

import pytest
import torch
from cases import normals
from hypothesis import given, settings
from hypothesis import strategies as st

from lipnb import Attention, bounds, local_lipschitz

EYE = torch.eye(2, dtype=torch.float64)


def biased(A, V, c, masked=False):
    """One head with logits (A x_i + c) . x_j."""
    return Attention(
        A[None], torch.eye(len(A), dtype=A.dtype)[None], V[None], query_bias=c[None], scale=1.0, masked=masked
    )


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 7),
    d=st.integers(1, 4),
    heat=st.floats(-3, 2),
    push=st.floats(-3, 3),
    masked=st.booleans(),
)
def test_the_biased_bound_is_never_below_the_constant(seed, n, d, heat, push, masked):
    A, V, x, c = normals(seed, (d, d), (3, d), (n, d), (d,))
    A, c = 10**heat * A, 10**push * c
    R = x.norm(dim=1).max().item()
    norm = local_lipschitz(biased(A, V, c, masked), x, method="dense").value.item()
    assert norm <= bounds.biased_upper(A, V, n, R, c) * (1 + 1e-9)
    assert bounds.biased_upper(A, V, n, R, 0 * c) == pytest.approx(bounds.general_upper(A, V, n, R), rel=1e-12)
    assert bounds.biased_upper(A, V, n, R, c) >= bounds.general_upper(A, V, n, R)


def test_without_its_term_the_bias_breaks_the_general_bound():
    x, zero = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64), 0 * EYE
    for push in (10.0, 1000.0):
        c = torch.tensor([0.0, push], dtype=torch.float64)
        norm = local_lipschitz(biased(zero, EYE, c), x, method="dense").value.item()
        assert norm == pytest.approx(math.hypot(1, push), rel=1e-9)  # uniform attention, one slope of size push
        assert norm > 4 * bounds.general_upper(zero, EYE, 2, 1.0)
        assert norm <= bounds.biased_upper(zero, EYE, 2, 1.0, c)


def test_a_wrong_bias_is_said():
    for c in [torch.zeros(3), torch.tensor([0.0, torch.nan]), torch.zeros(2, 1)]:
        with pytest.raises(ValueError, match=r"c must have shape \(d,\) = \(2,\)"):
            bounds.biased_upper(EYE, EYE, 3, 1.0, c)
