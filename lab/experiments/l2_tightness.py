r"""Table of Figure 2 of kim2021lipschitz: L2 attention of width 1, its row sums maximised from random starts.

One head, all weights 1, one token at 0: by translation and permutation its row represents all rows, at a cost of O(n).
"""

import math

import torch
from scipy.special import lambertw

from lab.experiments.table import table
from lipnb import bounds
from lipnb.worst_case import adam, ascend

LENGTHS = (*range(2, 11), 12, 17, 24, 33, 48, 65, 101, 144, 201, 300, 401, 500, 701, 1000, 1001)


def row_sum(x):
    r"""Absolute row sum of the Jacobian at a token at 0 that sees itself and the tokens `x`.

    .. math::
        \sum_j |J_{0j}| = 1 + \sum_j P_j\, \big(4 x_j (x_j - m) - 2\big)_+, \qquad
        P_j = \frac{e^{-x_j^2}}{1 + \sum_l e^{-x_l^2}}, \quad m = \sum_j P_j x_j

    Proved in the book, page 54.

    `x` (..., n - 1): the other tokens, numbers. Gradients flow to them. Returns (...): a lower bound on the Lipschitz
    constant in the maximum norm.
    """
    weights = torch.exp(-x.square())
    P = weights / (1 + weights.sum(-1, keepdim=True))
    mean = (P * x).sum(-1, keepdim=True)
    return 1 + (P * (4 * x * (x - mean) - 2).clamp_min(0)).sum(-1)


def largest_row(n):
    r"""The largest row sum over all inputs: the Lipschitz constant in the maximum norm for odd n.

    .. math:: 1 + 4\, W_0\big((n - 1)\, e^{-3/2}\big)

    Ours, proved in the book, page 54. The theorem of kim2021lipschitz has :math:`e^{-1}` in place of
    :math:`e^{-3/2}`.

    Returns an upper bound for every n, attained by `witness` if n is odd.
    """
    return 1 + 4 * _excess(n)


def witness(n):
    r"""Tokens that attain `largest_row` if n is odd: one at 0, half of the others at each of :math:`\pm r`.

    .. math:: r = \sqrt{\tfrac 32 + W_0((n - 1)\, e^{-3/2})}

    `n`: number of tokens, at least 2. If it is even, one side has one token more. Returns (n, 1): float64.
    """
    return _clusters(n, math.sqrt(1.5 + _excess(n)))


def printed_witness(n):
    r"""As `witness`, with the radius of the key lemma, :math:`r = \sqrt{1 + \varphi^{-1}(n - 1)}`."""
    return _clusters(n, math.sqrt(1 + bounds.phi_inverse(n - 1)))


def _excess(n):
    return float(lambertw((n - 1) * math.exp(-1.5)).real)


def _clusters(n, radius):
    x = torch.full((n, 1), radius, dtype=torch.float64)
    x[0] = 0
    x[1 : 1 + (n - 1) // 2] *= -1
    return x


def uniform_starts(n, count, *, reach=3.0, seed=0):
    """Random positions of the other tokens, uniform on [-reach, reach], shape (count, n - 1), float64."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + n)
    return reach * (2 * torch.rand(count, n - 1, generator=generator, dtype=torch.float64) - 1)


def ascended(x, *, steps=600, rate=0.05):
    """Maximise `row_sum` by Adam with a cosine schedule of its rate, for each start separately.

    `x` (starts, n - 1): starting points. Returns `values` (starts,): the largest row sum on each path, lower bounds on
    the constant; `x` (starts, n - 1): its position.
    """
    (where,), best = ascend(row_sum, (x,), adam(rate, falling=steps), steps=steps)
    return best, where


@table(
    "l2-tightness",
    "Figure 2 of Kim et al.: row sums of L2 attention, ascended from 50 random starts",
    over=lambda lengths: lengths,
    size=lambda starts: starts + 1,
    settings={"dtype": "float64"},
    lengths=LENGTHS,
)
def tightness_rows(n, *, starts=50, reach=3.0, steps=600, rate=0.05, seed=0):
    """Rows of the table for one number of tokens: one for each random start, and one that starts at the witness.

    `starts`, `reach`, `seed`: as for `uniform_starts`. `steps`, `rate`: as for `ascended`. Returns n; start (a number,
    or "witness" for `printed_witness`); began and reached, row sums before and after; share, reached over
    `largest_row`; left and right, numbers of tokens that end below -1/2 and above 1/2.
    """
    begin = torch.cat([uniform_starts(n, starts, reach=reach, seed=seed), printed_witness(n)[1:, 0][None]])
    reached, x = ascended(begin, steps=steps, rate=rate)
    return [
        {
            "start": str(i) if i < starts else "witness",
            "began": before,
            "reached": after,
            "share": after / largest_row(n),
            "left": int((place < -0.5).sum()),
            "right": int((place > 0.5).sum()),
        }
        for i, (before, after, place) in enumerate(zip(row_sum(begin).tolist(), reached.tolist(), x, strict=True))
    ]
