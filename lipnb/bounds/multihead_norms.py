r"""Norms of the maps of heads, separately and jointly: side by side or one above the other, with weights.

For head h: :math:`M_h = W_O W_V`, :math:`a_h(x) = s W_K^\top (W_Q x + b_Q)` with linear part :math:`A_h`. With weights
:math:`w_h > 0` and :math:`|z_h| \le |b_h|`,

.. math:: \Big|\sum_h M_h z_h\Big|^2 \le \big\|[M_h / \sqrt{w_h}]_h\big\|^2 \sum_h w_h |b_h|^2 .

Any weights give a bound: those used approximately solve a convex problem.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.sparse.linalg import ArpackError, eigsh

from lipnb.attention import Attention
from lipnb.bounds.norms import log_sum
from lipnb.checks import as_double
from lipnb.spectral.upper_norms import gamma, largest_singular, triangle

STEPS = 12  # of the search for weights
DENSE = 64  # order up to which all eigenvalues are computed


class Region(NamedTuple):
    r"""A set :math:`\{\beta + G u : |u| \le 1\}` that contains all tokens: `centre`, shape (d,), and `map`, (d, d)."""

    centre: torch.Tensor
    map: torch.Tensor


class Sizes(NamedTuple):
    """Sizes that bound one row of the Jacobian; natural logarithms."""

    value: float  # of sum_h M_h v_h, for averages v_h of perturbations with joint norm at most 1
    key: float  # of the key term, before the factor 1 / sqrt(2) of two tokens
    query: float  # of sum_h M_h C_h A_h, C_h the covariances of attention
    spread: float  # of the difference of two logits of one row
    same: float  # of sum_h M_h: the value term if all heads attend alike
    pairs: float = math.inf  # of the key term too, but only together with the factor 1 / sqrt(2)


class Factors(NamedTuple):
    """Factors of the maps of heads on one region: few rows or columns, and the same norms."""

    outputs: torch.Tensor  # of M G, side by side, (h, m, r)
    above: torch.Tensor  # triangular factor of W_K^T, (h, k, k), for heads one above the other
    beside: torch.Tensor  # W_K^T itself, (h, d, k), for heads side by side
    slopes: tuple[torch.Tensor, torch.Tensor]  # queries at the centre, s (W_Q beta + b_Q), and s W_Q G
    queries: torch.Tensor  # of G^T A, one above the other, (h, r, d)
    covariance: torch.Tensor  # of M G G^T A without W_O and W_Q, (h, k, k), and its scale
    log_scale: float


def factors(att, region):
    """`Factors` of a float64 layer on a region."""
    query, key, s = att.query, att.key, abs(att.scale)
    at_centre = query @ region.centre
    if att.query_bias is not None:
        at_centre = at_centre + att.query_bias
    (unit, key_unit), logs = zip(*map(_of_size_one, (region.map, key)), strict=True)
    return Factors(
        outputs=att.output_matrices() @ triangle((att.value @ region.map).mT).mT,
        above=triangle(key.mT),
        beside=key.mT,
        slopes=(s * at_centre[..., None], s * query @ region.map),
        queries=triangle((key @ region.map).mT) @ (s * query),
        covariance=att.value @ unit @ (key_unit @ unit).mT,
        log_scale=2 * logs[0] + logs[1],
    )


def _of_size_one(part):
    """A tensor divided by its largest entry, and the logarithm of that entry."""
    size = part.abs().amax()
    return part / torch.where(size > 0, size, 1), size.log().item()


def wide(offset, spread, part):
    r"""Matrix :math:`[b / \sqrt{1 - p}, B / \sqrt p]`; its norm bounds :math:`|b + B u|`, :math:`|u| \le 1`, any p."""
    part = as_double("part", part).clamp(1e-12, 1 - 1e-12)
    return torch.cat([offset / (1 - part).sqrt(), spread / part.sqrt()], dim=-1)


def shares(offset, spread):
    """Two values of p for `wide`: optimal if b and B are largest in the same direction, and in orthogonal ones."""
    b, B = offset / (offset + spread).clamp_min(1e-300), spread / (offset + spread).clamp_min(1e-300)
    return B, B**2 / (B**2 + b**2).clamp_min(1e-300)


def least_wide(offset, spread):
    """`wide` of each head, (h, k, c), with the better of two shares."""
    parts = shares(largest_singular(offset), largest_singular(spread))
    first, second = (wide(offset, spread, part[:, None, None]) for part in parts)
    better = largest_singular(first) <= largest_singular(second)
    return torch.where(better[:, None, None], first, second)


def _least_norm(left, offset, spread):
    r"""Upper bounds on the largest :math:`|L (b + B u)|` over :math:`|u| \le 1`, heads in a batch."""
    parts = shares(largest_singular(left @ offset), largest_singular(left @ spread))
    return torch.stack([largest_singular(left @ wide(offset, spread, part[:, None, None])) for part in parts]).amin(0)


def sizes_of_heads(att: Attention, regions: list[Region]) -> list[Sizes]:
    """`Sizes` of each head, for tokens in the intersection of `regions`; a float64 map with dot-product scores."""
    value = largest_singular(att.output_matrices() @ triangle(att.value.mT).mT).log()
    outputs, slopes, queries, spreads = [], [], [], []
    for region in regions:
        of = factors(att, region)
        output = largest_singular(of.outputs).log()
        outputs.append(output)  # |M_h G|
        slopes.append(_least_norm(of.above, *of.slopes).log())  # sup |a_h(x)|
        # |M_h C_h A_h| <= (|M_h G| |G^T A_h| + |M_h G G^T A_h|) / 2
        query, query_log = _of_size_one(abs(att.scale) * att.query)
        small = triangle(att.output_matrices()) @ of.covariance @ triangle(query.mT).mT
        both = output + largest_singular(of.queries).log(), largest_singular(small).log() + of.log_scale + query_log
        queries.append(torch.logaddexp(*both) - math.log(2))
        keys = triangle((att.key @ region.map).mT)  # two logits of a row differ by at most 2 |G^T a_h(x)|
        size = keys.abs().amax().clamp_min(1e-300)  # their product with the slopes may overflow
        spreads.append(math.log(2) + _least_norm(keys / size, *of.slopes).log() + size.log())
    key = torch.stack(outputs).amin(0) + torch.stack(slopes).amin(0)
    query, spread = torch.stack(queries).amin(0), torch.stack(spreads).amin(0)
    each = torch.stack([value, key, query, spread, value], 1)
    return [Sizes(*row) for row in each.tolist()]


def sizes_of_layer(att: Attention, regions: list[Region]) -> Sizes:
    """`Sizes` of all heads jointly: the first three never above the sums over heads of `sizes_of_heads`."""
    alone = sizes_of_heads(att, regions)
    if att.heads == 1:
        return alone[0]
    made = [factors(att, region) for region in regions]
    slopes = [slopes_together(of) for of in made]
    # any weights give a bound: those balanced for the outputs and slopes of a region, stacked either way
    weights = [
        balanced(of.outputs, slope, dim)
        for of, pair in zip(made, slopes, strict=True)
        for dim, slope in enumerate(pair)
    ]
    sums = [_log_of_covariances(att, of) for of in made]
    keys, queries = zip(*(_key_and_query(made, slopes, sums, w) for w in weights), strict=True)
    return Sizes(
        value=value_of_layer(att, alone),
        key=min(*keys, log_sum(head.key for head in alone)),
        query=min(*queries, log_sum(head.query for head in alone)),
        spread=max(head.spread for head in alone),
        same=log_of_sum(att),
    )


def _log_of_covariances(att, of):
    r"""Logarithm of a bound on :math:`\|\sum_h M_h G G^\top A_h\|`, the query term if all heads share one pair."""
    query, query_log = _of_size_one(abs(att.scale) * att.query)
    joined = torch.cat([*att.output_matrices()], 1) @ (of.covariance @ query).flatten(0, 1)
    return largest_singular(joined).log().item() + of.log_scale + query_log


def _key_and_query(made, slopes, sums, w):
    r"""Logarithms of the key and query sizes of all heads with weights w: the least over the regions.

    For keys :math:`\|[M_h G / \sqrt{w_h}]_h\|\, \sup_x \|[\sqrt{w_h}\, a_h(x)]_h\|`; for queries half of the same with
    :math:`G^\top A_h` in place of the slopes, plus half of :math:`\|\sum_h M_h G G^\top A_h\|` (`sums`), where all
    belong to one region.
    """
    by_output = [together(of.outputs, 1 / w, 1) for of in made]
    by_slope = [together(slope, w, dim) for pair in slopes for dim, slope in enumerate(pair)]
    by_query = [together(of.queries, w, 0) for of in made]
    # rounding of the products in `sums` is relative to the other half, and covered with that of all scalars
    halves = (log_sum([one + two, three]) for one, two, three in zip(by_output, by_query, sums, strict=True))
    return min(by_output) + min(by_slope), min(halves) - math.log(2)


def balanced(left: torch.Tensor, right: torch.Tensor, dim: int) -> torch.Tensor:
    r"""Weights (h,) that make :math:`\|[L_h / \sqrt{w_h}]_h\|_2\, \|[\sqrt{w_h} S_h]_h\|_2` small.

    Blocks `left` (h, m, r) are side by side, `right` (h, a, b) one above the other (`dim` 0) or side by side (1). The
    logarithm is convex in :math:`\log w`; its gradient is half the difference of the squared parts of head h in the two
    top singular vectors. The start, :math:`w_h = |L_h| / |S_h|`, gives at most :math:`\sum_h |L_h| |S_h|`, and the
    answer is never worse.

    >>> eye = torch.eye(2).double()
    >>> balanced(eye[:, :, None], torch.tensor([1.0, 4.0]).double()[:, None, None] * eye[:, None], 0).tolist()
    [1.0, 0.25]
    """
    sizes = [largest_singular(blocks) for blocks in (left, right)]
    low = [torch.where(size > 0, size, size.max() * 1e-6 + 1e-300) for size in sizes]
    if not all(size.max() > 0 for size in sizes):
        return torch.ones_like(low[0])
    start = (low[0] / low[1]).log()
    if len(left) == 1:
        return start.exp()
    grams = [gram_of(left / sizes[0].max(), 1), gram_of(right / sizes[1].max(), dim)]
    tops = [None, None]

    def slope(logs):
        value, found = 0.0, np.zeros(len(logs))
        for which, (gram, sign) in enumerate(zip(grams, (-0.5, 0.5), strict=True)):
            scale = np.exp(sign * np.repeat(logs, len(gram) // len(logs)))
            top, tops[which] = top_pair(scale[:, None] * gram * scale, tops[which])
            value += 0.5 * math.log(top)
            found += sign * (tops[which] ** 2).reshape(len(logs), -1).sum(1)
        return value, found

    spread = start.max() - start.min()
    bounds = [(one - 20 - spread, one + 20 + spread) for one in start.tolist()]
    best = minimize(slope, start.numpy(), jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": STEPS})
    better = best.fun <= slope(start.numpy())[0]
    return torch.from_numpy(best.x).exp() if better else start.exp()


def gram_of(blocks, dim):
    """Gram matrix of the columns of blocks side by side (1), or of the rows of blocks one above the other (0)."""
    wide = torch.cat([*blocks], 1) if dim else torch.cat([*blocks.mT], 1)
    return (wide.mT @ wide).numpy()


def top_pair(gram, start):
    """Largest eigenvalue of a positive semidefinite matrix, and its eigenvector, to a few digits."""
    if len(gram) > DENSE:
        try:
            values, vectors = eigsh(gram, 1, v0=np.ones(len(gram)) if start is None else start, tol=1e-5)
            return max(values[0], 1e-300), vectors[:, 0]
        except ArpackError:
            pass
    # the whole spectrum: for the last pair only, LAPACK returned none in two of five layers with orthogonal blocks,
    # where the largest eigenvalues nearly coincide
    values, vectors = (part.numpy() for part in torch.linalg.eigh(torch.from_numpy(gram)))
    return max(values[-1], 1e-300), vectors[:, -1]


def log_of_sum(att):
    r"""Logarithm of a bound on :math:`|\sum_h M_h|`, the rounding of the sum included: heads may cancel."""
    output, value = torch.cat([*att.output_matrices()], 1), att.value.flatten(0, 1)
    lost = gamma(len(value)) * torch.linalg.matrix_norm(output) * torch.linalg.matrix_norm(value)
    return (largest_singular(output @ value) + lost).log().item()


def value_of_layer(att, alone):
    r"""Logarithm of a bound on :math:`\sum_h M_h v_h`.

    The :math:`v_h = \sum_j P^h_j \varepsilon_j` are averages of perturbations with joint norm 1. With
    :math:`w_h = |M_h|` the bound is :math:`(\sum_h w_h)^{1/2}` times the norm of :math:`[M_h / \sqrt{w_h}]_h`, stacked
    either way, and at most :math:`\sum_h |M_h|`.
    """
    sizes = torch.tensor([head.value for head in alone], dtype=torch.float64, device="cpu")
    there = sizes > -math.inf
    if not there.any():
        return -math.inf
    weights = 1 / sizes[there].exp()
    output, values = att.output_matrices()[there], att.value[there]
    beside = output @ triangle(values.mT).mT
    above = triangle(output) @ values
    half = 0.5 * sizes[there].logsumexp(0).item()
    return half + min(together(beside, weights, 1), together(above, weights, 0))


def slopes_together(of):
    """Slopes of all heads on a region, one above the other and side by side, each with the better of `shares`."""
    found = wide_slopes(of)
    above = min((of.above @ one for one in found), key=lambda blocks: together(blocks, None, 0))
    beside = min((of.beside @ triangle(one.mT).mT for one in found), key=lambda blocks: together(blocks, None, 1))
    return above, beside


def wide_slopes(of):
    """Queries of all heads on a region as maps of one vector of length at most 1, (h, k, d + 1), with both `shares`."""
    offset, spread = (
        torch.tensor(together(of.above @ part, None, 0), dtype=torch.float64, device="cpu").exp() for part in of.slopes
    )
    return [wide(*of.slopes, part) for part in shares(offset, spread)]


def together(blocks, weights, dim):
    r"""Logarithm of the norm of blocks :math:`\sqrt{w_h} B_h` one above the other (0) or side by side (1)."""
    if weights is not None:
        blocks = weights.sqrt()[:, None, None] * blocks
    return largest_singular(torch.cat([*blocks], dim)).log().item()
