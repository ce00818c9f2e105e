r"""What bounds one row of the Jacobian of heads as transformers have them: rotary, normalised, capped, with sinks.

With changes :math:`\dot q_i, \dot k_j` of queries and keys, row i moves, beside its values, by

.. math:: M \sum_j P_{ij}\, \kappa'_{ij}\, (x_j - m_i)\,
    \big( q_i^\top R_i^\top R_j\, \dot k_j + \dot q_i^\top R_i^\top R_j\, k_j \big), \qquad |\kappa'_{ij}| \le 1 .

Two facts hold for any probabilities P and numbers :math:`\tau_j`: for tokens :math:`\beta + G u`, :math:`|u| \le 1`,
the sum :math:`\sum_j P_{ij} (u_j - \bar u) \tau_j` is at most the root of :math:`\sum_j P_{ij} \tau_j^2`, and at most
:math:`1 / \sqrt 2` times that of the two largest :math:`\tau_j^2`. So the proofs for plain heads remain, but for what
they gain where all keys are read along one direction, and seen from their mean: turns, caps and sinks tell a constant
from none.
"""

import math
from typing import NamedTuple

import torch

from lipnb.attention import Attention
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
from lipnb.bounds.norms import log_sum, triangle
from lipnb.bounds.rotary import RotaryNorms
from lipnb.bounds.rounding import largest_singular

__all__ = ["range_of_relative", "sizes_in_use"]


class Side(NamedTuple):
    r"""Queries, or keys, of the heads on a region, before their places turn them.

    Attributes
    ----------
    moves : Tensor, shape (h, r, d)
        They change by this times the change of a token; where they are normalised, by no more than this.
    reach : Tensor, shape (h, k, c)
        Where they are: this times vectors of length at most 1.
    offset, spread : Tensor, shapes (h, k, 1) and (h, k, d)
        Where they are before they are normalised: offset + spread u, with one u of length at most 1 for all heads.
    """

    moves: torch.Tensor
    reach: torch.Tensor
    offset: torch.Tensor
    spread: torch.Tensor


def _side(att, name, region):
    """`Side` of the queries, with the scale, or of the keys."""
    matrix, bias, weight = (getattr(att, f"{name}{part}") for part in ("", "_bias", "_norm"))
    scale = abs(att.scale) if name == "query" else 1.0
    offset, spread = (matrix @ region.centre)[..., None], matrix @ region.map
    if bias is not None:
        offset = offset + bias[..., None]
    if weight is None:
        offset, spread = scale * offset, scale * spread
        return Side(scale * matrix, least_wide(offset, spread), offset, spread)
    size, eye = scale * weight.abs().amax(1)[:, None, None], torch.eye(att.key_width, dtype=torch.float64, device="cpu")
    if att.joint_norm:
        matrix, offset, spread = (part.flatten(0, 1).expand(att.heads, -1, -1) for part in (matrix, offset, spread))
    away, room, width = torch.linalg.vector_norm(offset, dim=1, keepdim=True), _norm(spread), matrix.shape[1]
    least, most = ((1 - 1e-12) * away - room).clamp_min(0), (1 + 1e-12) * away + room
    shortest = (least.square() / width + att.norm_eps).sqrt()
    if not (shortest > 0).all():
        raise ValueError(
            f"no bound holds with norm_eps=0 where the projection of a {name} may vanish: its direction jumps there. "
            "Give the norm_eps of the network."
        )
    # |N(y)| = |w o y| / sqrt(|y|^2 / k + eps) grows with |y|, and |DN(y)| <= max w / sqrt(|y|^2 / k + eps)
    longest = most / (most.square() / width + att.norm_eps).sqrt()
    return Side(size / shortest * matrix, size * longest * eye, offset, spread)


def _norm(matrices):
    return largest_singular(matrices)[:, None, None]


def _outputs(att, region):
    """M G, (h, m, c): what all tokens differ by in the outputs, and from 0, which is what a sink gives."""
    spread = att.value @ region.map
    if att.sinks is None:
        return att.output_matrices() @ triangle(spread.mT).mT
    offset = (att.value @ region.centre)[..., None]
    if att.value_bias is not None:
        offset = offset + att.value_bias[..., None]
    # 0 and c + L u lie at c / 2 + [L, c / 2] (u, 1) or (u, -1)
    return least_wide(att.output_matrices() @ offset / 2, att.output_matrices() @ spread)


def range_of_relative(att: Attention, n: int) -> torch.Tensor:
    """By how much what is added to the logits of a row by distance can differ, (h,), among n tokens."""
    if att.relative is None:
        return torch.zeros(att.heads, dtype=torch.float64, device="cpu")
    back = n - 1 if att.window is None else min(n, att.window) - 1
    width = att.relative.shape[1] // 2
    there = att.relative[:, width - min(back, width) : width + 1 + (0 if att.masked else min(back, width))]
    return there.amax(1) - there.amin(1)


def sizes_in_use(att: Attention, regions: list[Region], n: int) -> tuple[list[Sizes], Sizes]:
    """`Sizes` of each head alone and of all together, the tokens in all `regions`.

    Parameters
    ----------
    att : Attention
        Float64, dot products, each head with keys of its own; whatever else it has.
    regions : list of Region
        One or more.
    n : int
        Number of tokens.

    Returns
    -------
    list of Sizes, length h, and Sizes
        The key sizes are for a triangle inequality with the value sizes, not for the sum of their squares.

    Raises
    ------
    ValueError
        "no bound holds with norm_eps=0 where ...".
    """
    turns = RotaryNorms(att, n)
    outputs = [_outputs(att, region) for region in regions]
    sides = [(_side(att, "query", region), _side(att, "key", region)) for region in regions]
    output = torch.stack([largest_singular(one).log() for one in outputs]).amin(0)
    slope, change, differ = (
        torch.stack([meet(att, turns, query, key) for query, key in sides]).amin(0)
        for meet in (_log_slopes, _log_changes, _log_differences)
    )
    differ = (differ.clamp_max(700).exp() + range_of_relative(att, n)).log()
    value = largest_singular(att.output_matrices() @ triangle(att.value.mT).mT).log()
    rows = zip(value, output + slope, output + change, differ, value, strict=True)
    alone = [Sizes(*(size.item() for size in row)) for row in rows]
    return alone, _sizes_together(att, turns, outputs, sides, alone)


def _log_slopes(att, turns, query, key):
    r"""Logarithms of what bounds :math:`q_i^\top R_i^\top R_j \dot k_j` for changes of tokens of length 1, (h,)."""
    if att.key_norm is None:
        return turns.log_norms(key.moves, query.reach)
    return _apart(turns, key.moves, query.reach)


def _log_changes(att, turns, query, key):
    r"""The same of :math:`\dot q_i^\top R_i^\top R_j k_j`."""
    if att.query_norm is None:
        return turns.log_norms(key.reach, query.moves)
    return _apart(turns, key.reach, query.moves)


def _apart(turns, left, right):
    """Where one of them changes in a direction that is not known: the product of the norms."""
    return largest_singular(left).log() + largest_singular(right).log() + 2 * math.log(turns.gain)


def _log_differences(att, turns, query, key):
    """Logarithms of by how much logits of a row can differ before anything is added to them, (h,)."""
    logits = turns.log_norms(key.reach, query.reach)
    return math.log(2) + (logits if att.cap is None else logits.clamp_max(math.log(att.cap)))


def _sizes_together(att, turns, outputs, sides, alone):
    """`Sizes` of all heads together: the first three never more than the sums over heads."""
    if att.heads == 1:
        return alone[0]
    value = value_of_layer(att, alone)
    key, query = [log_sum(head.key for head in alone)], [log_sum(head.query for head in alone)]
    if att.query_norm is None and att.key_norm is None:
        for output, (asking, asked) in zip(outputs, sides, strict=True):
            key.append(_product(output, _slopes_together(turns, asking, asked)))
            query.append(_product(output, turns.bounding(asked.reach, asking.moves)))
    # where sinks take a part, heads do not attend alike
    same = value if att.sinks is not None else log_of_sum(att)
    return Sizes(value, min(key), min(query), max(head.spread for head in alone), same)


def _slopes_together(turns, query, key):
    """Slopes of all heads one above the other, as maps of one vector of length 1."""
    offset, spread = (
        torch.tensor(together(turns.bounding(key.moves, part), None, 0), dtype=torch.float64, device="cpu").exp()
        for part in (query.offset, query.spread)
    )
    found = [turns.bounding(key.moves, wide(query.offset, query.spread, part)) for part in shares(offset, spread)]
    return min(found, key=lambda blocks: together(blocks, None, 0))


def _product(output, blocks):
    """Logarithm of the norm of outputs side by side times that of blocks one above the other, with weights."""
    w = balanced(output, blocks, 0)
    return together(output, 1 / w, 1) + together(blocks, w, 0)
