"""Upper bounds that a scan lists next to its measurements: columns of `lipnb.bounds.catalogue`."""

import math
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from lipnb.attention import Attention, Feature
from lipnb.bounds import HeadNorms, head_norms
from lipnb.bounds.catalogue import CATALOGUE, Case
from lipscan.models import OwnAttention

MOST_TERMS = 128  # tokens up to which `rotary_terms`, a norm for each token and head, is computed
FEW = {"rotary_terms": f" First window, up to {MOST_TERMS} tokens.", "rotary_upper": " First window."}
# one bound a column: if it has one for unmasked and one for masked attention, the first
_FIRST = {bound.column: bound for bound in reversed(CATALOGUE) if bound.column}
SCANNED = tuple(replace(bound, about=bound.about + FEW.get(column, "")) for column, bound in _FIRST.items())[::-1]
TITLES = {bound.column: bound.title for bound in SCANNED}
SOURCES = {
    "castin2024smooth": "Castin, Ablin and Peyré, How Smooth Is Attention?, 2024",
    "yudin2025attention": "Yudin et al., 2025",
    "kim2021lipschitz": "Kim, Papamakarios and Mnih, The Lipschitz Constant of Self-Attention, 2021",
    "ours": "this project",
}


def applicable(f):
    """Column -> the bound that holds for a map; and, for the other columns, column -> the reason why none holds."""
    found, reasons, no_heads = {}, {}, None
    if isinstance(f, OwnAttention):
        no_heads = (
            "needs the matrices of the attention; of this family lipnb runs the network's own module and reads none"
        )
    elif not isinstance(f, Attention):
        no_heads = "for attention, not for a block with residual and norm"
    for bound in CATALOGUE:
        if bound.column and (why := no_heads or bound.applies(f, layer=True)) is None:
            found[bound.column] = bound
        elif bound.column:
            reasons[bound.column] = why
    return found, {column: why for column, why in reasons.items() if column not in found}


def prepare(f: Callable) -> HeadNorms | None:
    """Norms of the heads of a map, which the bounds share for all inputs; None if the map has further features."""
    return head_norms(f) if isinstance(f, Attention) and {*f.more} <= {Feature.SHARED_KEYS} else None


def evaluate(f: Callable, prepared: HeadNorms | None, x: Tensor) -> dict[str, float]:
    """Base 10 logarithms of all bounds that hold for a map at tokens `x` of shape (n, d): column -> number."""
    case, found = Case(f, x, prepared=prepared), applicable(f)[0]
    if len(x) > MOST_TERMS:
        found.pop("rotary_terms", None)
    return {column: bound.log(case) / math.log(10) for column, bound in found.items()}
