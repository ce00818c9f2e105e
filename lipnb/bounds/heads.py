"""The bounds of one head, for all heads of an attention with its biases: what is the same at every input, once."""

import math

import torch

from lipnb.attention import Attention
from lipnb.bounds.castin import general, general_sharp
from lipnb.bounds.mean_field import log_masked, log_masked_sharp, log_mean_field, log_mean_field_sharp
from lipnb.bounds.norms import LEAST, HeadNorms, answer, log_of
from lipnb.bounds.one_input import column, enclosing_center, spread
from lipnb.bounds.rounding import largest_singular
from lipnb.bounds.yudin import attention_at, two_largest, yudin
from lipnb.checks import count, radius

__all__ = ["IN_USE", "heads_at_input", "heads_on_ball"]

# what a map may have that heads of the theorems have not, for what knows it all
IN_USE = (
    *("shared keys", "rotary positions", "normalised queries or keys"),
    *("capped logits", "relative positions", "sinks"),
)
ON_BALL = ("general", "general_sharp", "mean_field", "mean_field_sharp")


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
    >>> from lipnb.bounds import head_norms
    >>> f = Attention.from_matrices(torch.eye(2).double(), torch.eye(2).double())
    >>> logs = heads_on_ball(head_norms(f), 4, 1.0, False)
    >>> {name: round(log, 4) for name, log in logs.items()}
    {'general': 2.0716, 'general_sharp': 1.6094, 'mean_field': 3.3863, 'mean_field_sharp': 1.862}
    """
    n, R = count(n), radius(R)
    field, field_sharp = (log_masked, log_masked_sharp) if masked else (log_mean_field, log_mean_field_sharp)
    heads = []
    for A, V, W, WV, c in zip(*(norm.tolist() for norm in norms), strict=True):
        t, apart = A * R * R + c * R, max(W * V, LEAST) if W and V else 0.0
        if not all(map(math.isfinite, (t, c, apart))):
            heads.append([math.inf] * len(ON_BALL))
            continue
        on_sequences = general(A * R * R, t, apart, n), general_sharp(t, WV, n)
        on_measures = field(t, apart), field_sharp(t, WV)
        heads.append([*map(log_of, on_sequences), *(answer(value, log=True) for value in on_measures)])
    sums = torch.tensor(heads, dtype=torch.float64, device="cpu").logsumexp(0)
    return dict(zip(ON_BALL, sums.tolist(), strict=True))


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
    >>> from lipnb.bounds import head_norms
    >>> f = Attention.from_matrices(torch.eye(2).double(), torch.eye(2).double())
    >>> logs = heads_at_input(f, head_norms(f), torch.eye(2).double())
    >>> {name: round(log, 4) for name, log in logs.items()}
    {'spread': 1.4656, 'column': 1.0986, 'yudin': 0.5802}
    """
    attention = attention.expand_groups()
    attention.check_plain("this bound")
    att, x = attention.to(dtype=torch.float64), x.double()
    P, slopes = attention_at(att, x)
    R, n = torch.linalg.vector_norm(x, dim=-1).max(), len(x)
    r = torch.linalg.vector_norm(x - enclosing_center(x), dim=-1).max()
    reach = torch.linalg.vector_norm(slopes, dim=-1).amax(-1)
    t, tokens = norms.A * R**2, largest_singular(x)
    keys = tokens * norms.A if att.query_bias is None else largest_singular(slopes)
    found = {
        "spread": spread(norms.A, norms.WV, r, reach, n),
        "column": column(t, t + norms.c * R, norms.WV, P),
        "yudin": yudin(P, two_largest(P), tokens, norms.A, keys, norms.WV),
    }
    return {name: (bound.sum() * (1 + 1e-12)).log().item() for name, bound in found.items()}
