"""Upper bound on the local constant at an input: some directions exactly, by columns, the others by three terms.

Steps are those of the proof, and lines those of its rounding, in notebooks/62_certified_bracket.py.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lipnb.bounds.rounded_linearization import RoundedLinearization
from lipnb.bounds.rounding import MORE, TINY, RoundingErrors, orthogonality
from lipnb.bounds.term_bounds import Terms, bases, three_terms
from lipnb.checks import at_once
from lipnb.spectral.upper_norms import UNIT, gamma, largest_singular

WORK = 1e11  # floating point operations allowed for the exact columns of each sequence by default
MOST_COLUMNS = 1024


class Upper(NamedTuple):
    """An upper bound and its parts, as in `lipnb.Bracket`; `size` is a rough bound on the computed Jacobian."""

    upper: Tensor
    columns_norm: Tensor
    terms: Terms
    rounding: Tensor
    columns: int
    size: Tensor


def sizes_of_columns(attention, n, d, columns=None):
    """Candidates (r, s), numbers of token and feature directions taken exactly: r = 0 or 1, or (n, 0) for all."""
    if columns is None:
        m = attention.output_width
        product = 4 * attention.heads * n * n * (attention.key_width + attention.value_width) + 8 * n * d * m
        # product c + 2 n m c^2 = WORK
        columns = int(2 * WORK / (product + (product**2 + 8 * n * m * WORK) ** 0.5))
        columns = min(columns, MOST_COLUMNS)
        if columns < min(4 * n, d):  # so few are not worth their cost
            columns = 0
    if columns >= n * d:
        return [(n, 0)]
    return [(r, min(d, (columns - r * d) // (n - r))) for r in (0, 1) if r * d <= columns and r < n]


def upper_by_columns(at: RoundedLinearization, errors: RoundingErrors, sizes: list[tuple[int, int]]) -> Upper:
    """`Upper` for the best of these sizes (r, s), rounding included; `errors` must be resolved."""
    x = at.x
    S, Y = bases(at) if sizes != [(0, 0)] else (x[:, :0], x.T[:, :0])
    choices = [(S[:, :r], Y[:, :s]) for r, s in sizes]
    each = [three_terms(at, S, Y) for S, Y in choices]
    # the part from columns is never above the constant: choose by the other part
    best = min(range(len(each)), key=lambda i: sum(each[i]))
    terms, (S, Y) = each[best], choices[best]
    norm, columns, defect = _on_columns(at, S, Y)
    if 0 < columns < x.numel() and sum(closed := three_terms(at)) < torch.hypot(norm, sum(terms)):
        terms, norm, columns, defect, (S, Y) = closed, torch.zeros_like(norm), 0, 0.0, (x[:, :0], x.T[:, :0])
    sizes_of_heads, relative = errors.arithmetic()
    size = MORE * sizes_of_heads.sum()
    # line 6: each column errs by gamma A; the terms too, stretched by the removal of S and Y
    paths = columns**0.5 + (2 + 2 * S.shape[1] ** 0.5 + 2 * Y.shape[1] ** 0.5 if columns < x.numel() else 1)
    raised = torch.where(errors.raised(), sizes_of_heads, 0).sum()
    rounding = MORE * (errors.jacobian_error() + (relative * paths + 16 * defect) * size + raised + TINY)
    # step 1: |J|^2 <= |J on S (x) R^d and S-perp (x) Y|^2 + |J (E (x) F)|^2, as the two parts of the inputs are
    # orthogonal; step 2: the sum of the three terms
    upper = (torch.hypot(norm, sum(terms)) + rounding) * (1 + gamma(16))
    return Upper(upper, norm, terms, rounding, columns, size)


def _on_columns(at, S, Y):
    """Norm of the Jacobian on S (x) R^d and S-perp (x) Y, from columns; their number and lack of orthonormality."""
    n, d = at.x.shape
    new = {"dtype": S.dtype, "device": S.device}
    rest = torch.linalg.qr(S, mode="complete").Q[:, S.shape[1] :] if S.shape[1] else torch.eye(n, **new)
    basis = torch.cat(
        [
            torch.einsum("nr,cd->rcnd", S, torch.eye(d, **new)).flatten(0, 1),
            torch.einsum("nt,ds->tsnd", rest, Y).flatten(0, 1),
        ]
    )
    if not len(basis):
        return S.new_zeros(()), 0, 0.0
    step = at_once(at.heads * n * max(n, d // 4))
    images = torch.cat([at.jvp(u).flatten(1) for u in basis.split(step)])
    whole = torch.cat([S, rest], 1) if S.shape[1] else S
    return largest_singular(images), len(basis), orthogonality(whole) + orthogonality(Y) + 4 * UNIT
