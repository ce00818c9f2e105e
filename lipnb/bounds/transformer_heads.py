r"""Sizes of one row of the Jacobian for heads with rotary positions, norms, capped logits and sinks.

With changes :math:`\dot q_i, \dot k_j` of queries and keys, row i moves, in addition to its value term, by

.. math:: M \sum_j P_{ij}\, \kappa'_{ij}\, (x_j - m_i)\,
    \big( q_i^\top R_i^\top R_j\, \dot k_j + \dot q_i^\top R_i^\top R_j\, k_j \big), \qquad |\kappa'_{ij}| \le 1 .

Two facts hold for any probabilities P and numbers :math:`\tau_j`: for tokens :math:`\beta + G u`, :math:`|u| \le 1`,
the sum :math:`\sum_j P_{ij} (u_j - \bar u) \tau_j` is at most the root of :math:`\sum_j P_{ij} \tau_j^2`, and at most
:math:`1 / \sqrt 2` times that of the two largest :math:`\tau_j^2`. So the proofs for plain heads still hold, except for
the gain when all keys are read along one direction and measured from their mean. Rotations, caps and sinks are not
invariant to adding a constant, so that gain is lost.
"""

import math
from typing import NamedTuple

import torch

from lipnb.attention import Attention, Feature
from lipnb.bounds.multihead_norms import (
    Region,
    Sizes,
    balanced,
    least_wide,
    log_of_sum,
    shares,
    together,
    value_of_layer,
    wide,
)
from lipnb.bounds.norms import log_sum
from lipnb.bounds.rotary import RotaryNorms
from lipnb.spectral.upper_norms import largest_singular, triangle


class Projection(NamedTuple):
    """Queries (scale folded in), or keys, of the heads for tokens in a region, before rotation."""

    change: torch.Tensor  # map of changes of the token, (h, r, d); for normalised rows a bound on it
    reach: torch.Tensor  # the rows are this times vectors of length at most 1, (h, k, c)
    offset: torch.Tensor  # before norms the rows are offset + spread u, (h, k, 1) and (h, k, d),
    spread: torch.Tensor  # with one u of length at most 1 for all heads


def _projection(att, name, region):
    """`Projection` of "query" or "key"."""
    matrix, bias, weight = (getattr(att, f"{name}{part}") for part in ("", "_bias", "_norm"))
    scale = abs(att.scale) if name == "query" else 1.0
    # W (beta + G u) + b = offset + spread u
    offset, spread = (matrix @ region.centre)[..., None], matrix @ region.map
    if bias is not None:
        offset = offset + bias[..., None]
    if weight is None:
        offset, spread = scale * offset, scale * spread
        return Projection(scale * matrix, least_wide(offset, spread), offset, spread)
    largest = scale * weight.abs().amax(1)[:, None, None]  # max |w|
    eye = torch.eye(att.key_width, dtype=torch.float64, device="cpu")
    if att.joint_norm:  # one mean square: the rows of all heads count as one row
        matrix, offset, spread = (part.flatten(0, 1).expand(att.heads, -1, -1) for part in (matrix, offset, spread))
    width = matrix.shape[1]
    # |offset| - |spread| <= |y| <= |offset| + |spread|
    offset_norm, spread_norm = torch.linalg.vector_norm(offset, dim=1, keepdim=True), _norm(spread)
    least, most = ((1 - 1e-12) * offset_norm - spread_norm).clamp_min(0), (1 + 1e-12) * offset_norm + spread_norm
    least_root = (least.square() / width + att.norm_eps).sqrt()  # sqrt(|y|^2 / k + eps), at least
    if not (least_root > 0).all():
        raise ValueError(
            f"no bound holds with norm_eps=0 where the projection of a {name} may vanish: its direction jumps there. "
            "Give the norm_eps of the network."
        )
    # |N(y)| = |w o y| / sqrt(|y|^2 / k + eps) grows with |y|, and |DN(y)| <= max w / sqrt(|y|^2 / k + eps)
    longest = most / (most.square() / width + att.norm_eps).sqrt()
    return Projection(largest / least_root * matrix, largest * longest * eye, offset, spread)


def _norm(matrices):
    return largest_singular(matrices)[:, None, None]


def _outputs(att, region):
    """M G, (h, m, c): range of the values of all tokens in the outputs; with sinks 0, the value of a sink, included."""
    spread = att.value @ region.map
    if att.sinks is None:
        return att.output_matrices() @ triangle(spread.mT).mT
    offset = (att.value @ region.centre)[..., None]
    if att.value_bias is not None:
        offset = offset + att.value_bias[..., None]
    # 0 and c + L u lie at c / 2 + [L, c / 2] (u, 1) or (u, -1)
    return least_wide(att.output_matrices() @ offset / 2, att.output_matrices() @ spread)


def range_of_relative(att: Attention, n: int) -> torch.Tensor:
    """Range, (h,), of the relative positions added to the logits of a row, among n tokens."""
    if Feature.RELATIVE not in att.more:
        return torch.zeros(att.heads, dtype=torch.float64, device="cpu")
    farthest = min(n if att.window is None else min(n, att.window), att.bias_reach + 1) - 1
    biases = att.bias_at(torch.arange(-farthest, 1 if att.masked else farthest + 1, device=att.device))
    return biases.amax(1) - biases.amin(1)


def sizes_of_features(att: Attention, regions: list[Region], n: int) -> tuple[list[Sizes], Sizes]:
    """`Sizes` of each head, (h,), and of all jointly, for n tokens in the intersection of `regions`.

    Expects float64, dot-product scores and expanded keys; any other feature is allowed. The key sizes are for a
    triangle inequality with the value sizes, not for the sum of their squares. Raises ValueError if ``norm_eps=0`` and
    a normalised row may vanish.
    """
    turns = RotaryNorms(att, n)
    outputs = [_outputs(att, region) for region in regions]
    projections = [(_projection(att, "query", region), _projection(att, "key", region)) for region in regions]

    def least(log_norms):
        """The least of these logarithms over the regions, (h,)."""
        return torch.stack([log_norms(att, turns, query, key) for query, key in projections]).amin(0)

    value = largest_singular(att.output_matrices() @ triangle(att.value.mT).mT).log()  # |M|
    output = torch.stack([largest_singular(one).log() for one in outputs]).amin(0)  # |M G|
    key, query = output + least(_log_key_term), output + least(_log_query_term)
    spread = (least(_log_differences).clamp_max(700).exp() + range_of_relative(att, n)).log()
    each = torch.stack([value, key, query, spread, value], 1).tolist()
    alone = [Sizes(value=v, key=k, query=q, spread=s, same=same) for v, k, q, s, same in each]
    return alone, _sizes_together(att, turns, outputs, projections, alone)


def _log_key_term(att, turns, query, key):
    r"""Logarithms (h,) of bounds on :math:`q_i^\top R_i^\top R_j \dot k_j`, for changes of tokens of length 1."""
    if att.key_norm is None:
        return turns.log_norms(key.change, query.reach)
    return _log_product(turns, key.change, query.reach)


def _log_query_term(att, turns, query, key):
    r"""Logarithms (h,) of bounds on :math:`\dot q_i^\top R_i^\top R_j k_j`, for changes of tokens of length 1."""
    if att.query_norm is None:
        return turns.log_norms(key.reach, query.change)
    return _log_product(turns, key.reach, query.change)


def _log_product(turns, left, right):
    """Logarithms of products of norms, if one factor has an unknown direction: |R_i^T R_j| <= g^2."""
    return largest_singular(left).log() + largest_singular(right).log() + 2 * math.log(turns.gain)


def _log_differences(att, turns, query, key):
    """Logarithms (h,) of bounds on the difference of logits of a row before added terms: twice the largest."""
    logits = turns.log_norms(key.reach, query.reach)
    return math.log(2) + (logits if att.cap is None else logits.clamp_max(math.log(att.cap)))


def _sizes_together(att, turns, outputs, projections, alone):
    """`Sizes` of all heads jointly: the first three never above the sums over heads."""
    if att.heads == 1:
        return alone[0]
    value = value_of_layer(att, alone)
    key, query = [log_sum(head.key for head in alone)], [log_sum(head.query for head in alone)]
    if att.query_norm is None and att.key_norm is None:
        for output, (queries, keys) in zip(outputs, projections, strict=True):
            key.append(_log_weighted_product(output, _slopes_together(turns, queries, keys)))
            query.append(_log_weighted_product(output, turns.bounding(keys.reach, queries.change)))
    return Sizes(
        value=value,
        key=min(key),
        query=min(query),
        spread=max(head.spread for head in alone),
        same=value if att.sinks is not None else log_of_sum(att),  # with sinks heads do not attend alike
    )


def _slopes_together(turns, query, key):
    """Slopes of all heads, one above the other, as maps of one vector of length at most 1."""
    offset, spread = (
        torch.tensor(together(turns.bounding(key.change, part), None, 0), dtype=torch.float64, device="cpu").exp()
        for part in (query.offset, query.spread)
    )
    found = [turns.bounding(key.change, wide(query.offset, query.spread, part)) for part in shares(offset, spread)]
    return min(found, key=lambda blocks: together(blocks, None, 0))


def _log_weighted_product(output, blocks):
    r"""Logarithm of :math:`\|[M_h / \sqrt{w_h}]_h\|\, \|[\sqrt{w_h} B_h]_h\|`, blocks one above the other."""
    w = balanced(output, blocks, 0)
    return together(output, 1 / w, 1) + together(blocks, w, 0)
