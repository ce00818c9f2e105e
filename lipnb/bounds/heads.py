"""The bounds of one head, for all heads of an attention with its biases: what is the same at every input, once."""

import math
from typing import NamedTuple

import torch

from lipnb.attention import Attention
from lipnb.bounds.castin import biased_upper, general_upper, general_upper_sharp, multi_head_upper
from lipnb.bounds.mean_field import (
    masked_mean_field_upper,
    masked_mean_field_upper_sharp,
    mean_field_upper,
    mean_field_upper_sharp,
)
from lipnb.bounds.one_input import enclosing_center
from lipnb.bounds.rounding import largest_singular
from lipnb.bounds.units import with_own_keys

__all__ = ["IN_USE", "HeadNorms", "head_norms", "heads_at_input", "heads_on_ball"]

# what a map may have that heads of the theorems have not, for what knows it all
IN_USE = (
    *("shared keys", "rotary positions", "normalised queries or keys"),
    *("capped logits", "relative positions", "sinks"),
)
LEAST = 1e-300  # what the norm of a product counts at least: entries that underflow are smaller


class HeadNorms(NamedTuple):
    r"""Spectral norms of the maps of each head; the bounds know the heads by these alone.

    Attributes
    ----------
    A : Tensor, shape (h,)
        :math:`\|A\|_2`, :math:`A = s W_K^\top W_Q`.
    V, W, WV : Tensor, shape (h,)
        :math:`\|W_V\|_2`, :math:`\|W_O\|_2` (1 for heads side by side) and :math:`\|W_O W_V\|_2`.
    c : Tensor, shape (h,)
        :math:`|c|`, :math:`c = s W_K^\top b_Q`; 0 without query biases.
    """

    A: torch.Tensor
    V: torch.Tensor
    W: torch.Tensor
    WV: torch.Tensor
    c: torch.Tensor


def head_norms(attention: Attention) -> HeadNorms:
    """`HeadNorms` of an `Attention` with dot products; float64, up to rounding.

    Examples
    --------
    >>> f = Attention.from_matrices(torch.eye(2).double(), torch.eye(2).double())
    >>> [round(norm.item(), 6) for norm in head_norms(f)]
    [1.0, 1.0, 1.0, 1.0, 0.0]
    """
    attention = with_own_keys(attention)
    attention.check_plain("this bound")
    att = attention.to(dtype=torch.float64)

    def factor(matrix):  # |M y| = |R y|
        return torch.linalg.qr(matrix, mode="r").R

    def product(left, right, scale=1.0):  # of what does not vanish: never below `LEAST`, to which it may underflow
        there = (left != 0).any(-1).any(-1) & (right != 0).any(-1).any(-1) & (scale != 0)
        norm = scale * largest_singular(left @ right.mT)
        return torch.where(there, norm.clamp_min(LEAST), norm)

    key, query, value = (factor(matrix.mT) for matrix in (att.key, att.query, att.value))
    V = largest_singular(value)
    W, WV = torch.ones_like(V), V
    if att.output is not None:
        output = factor(att.output)
        W, WV = largest_singular(output), product(output, value)
    c = torch.zeros_like(V)
    if att.query_bias is not None:
        c = product(key, att.query_bias[:, None], abs(att.scale))
    return HeadNorms(product(key, query, abs(att.scale)), V, W, WV, c)


def heads_on_ball(norms: HeadNorms, n: int, R: float, masked: bool) -> dict[str, float]:
    r"""Bounds on all sequences of n tokens in the ball of radius R, heads summed by Lemma 3.8; natural logarithms.

    Parameters
    ----------
    norms : HeadNorms
        From `head_norms`.
    n, R
        As for `lipnb.bounds.general_upper`.
    masked : bool
        Whether the heads are causal.

    Returns
    -------
    dict
        `general`: Thm 3.3 (masked 4.3), with query biases E.3; `general_sharp`: its sharper form, ours, :math:`W_O W_V`
        together; `mean_field`: Thm 3.5, or masked the corrected 4.4 with p = 2; `mean_field_sharp`: ours, either with
        half the exponent. With a mask these two are for heads that see the whole past, without a window.

    Notes
    -----
    castin2024smooth. A query bias adds :math:`|c| R` to the logits t: the proofs of the sharper and of the mean-field
    bounds then hold with :math:`\|A\| R^2 + |c| R` in place of t.

    Examples
    --------
    >>> f = Attention.from_matrices(torch.eye(2).double(), torch.eye(2).double())
    >>> logs = heads_on_ball(head_norms(f), 4, 1.0, False)
    >>> {name: round(log, 4) for name, log in logs.items()}
    {'general': 2.0716, 'general_sharp': 1.6094, 'mean_field': 3.3863, 'mean_field_sharp': 1.862}
    """
    one = torch.ones(1, 1, dtype=torch.float64, device="cpu")
    mean_field = masked_mean_field_upper if masked else mean_field_upper
    mean_field_sharp = masked_mean_field_upper_sharp if masked else mean_field_upper_sharp
    found: dict[str, list] = {"general": [], "general_sharp": [], "mean_field": [], "mean_field_sharp": []}
    for A, V, W, WV, c in zip(*(norm.tolist() for norm in norms), strict=True):
        t, apart = A * R * R + c * R, max(W * V, LEAST) if W and V else 0.0
        if not all(map(math.isfinite, (t, c, apart))):
            for values in found.values():
                values.append(math.inf)
            continue
        printed = general_upper(A * one, V * one, n, R) if c == 0 else biased_upper(A * one, V * one, n, R, c * one[0])
        found["general"].append(multi_head_upper(W * one[None], [printed]))
        found["general_sharp"].append(general_upper_sharp(t * one, WV * one, n, 1.0))  # knows A and R by t alone
        found["mean_field"].append(mean_field(t * one, apart * one, 1.0, log=True))
        found["mean_field_sharp"].append(mean_field_sharp(t * one, WV * one, 1.0, log=True))
    logs = {
        name: [math.log(value) if value > 0 else -math.inf for value in values] if "general" in name else values
        for name, values in found.items()
    }
    return {
        name: torch.tensor(values, dtype=torch.float64, device="cpu").logsumexp(0).item()
        for name, values in logs.items()
    }


@torch.no_grad()
def heads_at_input(attention: Attention, norms: HeadNorms, x: torch.Tensor) -> dict[str, float]:
    r"""Bounds at one input, heads summed; natural logarithms.

    Parameters
    ----------
    attention : Attention
        Any heads, biases and mask.
    norms : HeadNorms
        From `head_norms`.
    x : Tensor, shape (n, d)
        Tokens.

    Returns
    -------
    dict
        `spread`: Thm C.3 as its proof gives it; `column`: ours, from the largest column sum of P; `yudin`: Thm 3 of
        yudin2025attention; see `lipnb.bounds.spread_upper`, `column_upper` and `yudin_upper`. Upper bounds up to the
        rounding of the logits.

    Notes
    -----
    A query bias enters these proofs in one place: the key term has :math:`A x_i + c` for :math:`A x_i`. So `spread`
    takes :math:`\max_i |A x_i + c|`, `column` :math:`|c| R` more, and `yudin` counts half of :math:`\|X\|_2 \|A\|_2`,
    that of the key term, as :math:`\|(A x_i + c)_i\|_2`.

    Examples
    --------
    >>> f = Attention.from_matrices(torch.eye(2).double(), torch.eye(2).double())
    >>> logs = heads_at_input(f, head_norms(f), torch.eye(2).double())
    >>> {name: round(log, 4) for name, log in logs.items()}
    {'spread': 1.4656, 'column': 1.0986, 'yudin': 0.5802}
    """
    attention = with_own_keys(attention)
    attention.check_plain("this bound")
    att, x = attention.to(dtype=torch.float64), x.double()
    query, key, _ = att.project(x)
    P = att.probabilities_of(query, key)
    R, n = torch.linalg.vector_norm(x, dim=-1).max(), len(x)
    r = torch.linalg.vector_norm(x - enclosing_center(x), dim=-1).max()
    slopes = torch.linalg.qr(att.key.mT, mode="r").R.mT  # |W_K^T q| = |R q|
    reach = torch.linalg.vector_norm(query @ slopes, dim=-1).amax(-1)  # |A x_i + c|
    spread = 3**0.5 * norms.WV * (norms.A**2 * r**4 + n * (4 * reach**2 * r**2 + 1)).sqrt()
    root = P.sum(-2).amax(-1).sqrt()
    column = norms.WV * (norms.A * R**2 + root * (1 + norms.A * R**2 + norms.c * R))
    top = P.topk(min(2, n), dim=-1).values
    second = top[..., 1] if n > 1 else torch.zeros_like(top[..., 0])
    g = (top[..., 0] * (1 - top[..., 0] + second)).amax(-1)
    tokens = largest_singular(x)
    keys = tokens * norms.A if att.query_bias is None else largest_singular(query @ slopes)
    yudin = norms.WV * (largest_singular(P) + g * tokens * (tokens * norms.A + keys))
    return {
        name: (bound.sum() * (1 + 1e-12)).log().item()
        for name, bound in (("spread", spread), ("column", column), ("yudin", yudin))
    }
