"""What Hypothesis draws for the theorems on one head: matrices of every kind, tokens in a ball, masks, weights."""

from typing import NamedTuple

import torch
from cases import drawn
from hypothesis import settings
from hypothesis import strategies as st

quickly = settings(derandomize=True, deadline=None, max_examples=40, database=None)
seeds = st.integers(0, 10**6)
MATRICES = {
    "any": lambda M: M,
    "symmetric": lambda M: M + M.mT,
    "positive": lambda M: M @ M.mT,
    "skew": lambda M: M - M.mT,
    "rank one": lambda M: torch.outer(M[0], M[-1]),
    "nilpotent": lambda M: M.triu(1),
    "not normal": lambda M: (M * 10**M).triu(),
}


class Head(NamedTuple):
    """A of norm t or zero, V of three rows, tokens in the unit ball, one on its sphere, and weights of total one."""

    A: torch.Tensor
    V: torch.Tensor
    x: torch.Tensor
    weights: torch.Tensor
    c: torch.Tensor


@st.composite
def heads(draw, most=7):
    """One head and up to `most` tokens: anywhere in the ball, nearly alike, or of growing weight."""
    normal, d, n = drawn(draw(seeds)), draw(st.integers(1, 4)), draw(st.integers(1, most))
    t = draw(st.sampled_from([0.0, 0.01, 0.3, 1.0, 4.0, 12.0]))
    A = MATRICES[draw(st.sampled_from(sorted(MATRICES)))](normal(d, d))
    x = normal(n, d)
    if draw(st.booleans()):
        x = x[:1] + 1e-3 * x
    logs = t * normal(n) + draw(st.sampled_from([0, n])) * torch.linspace(0, t, n)
    return Head(
        t * A / torch.linalg.matrix_norm(A, 2).clamp_min(1e-9),
        normal(3, d),
        x / x.norm(dim=1).max(),
        logs.log_softmax(0).clamp_min(-2 * t - 3).softmax(0),
        10 ** draw(st.floats(-3, 3)) * normal(d),
    )
