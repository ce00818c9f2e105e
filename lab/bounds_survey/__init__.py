"""The bounds survey: every published bound that we could reconstruct, and ours, with scopes and references.

`maps` are attentions outside the library, `formulas` bounds that only the book compares, `truth` norms of Jacobians
by autograd, `draws` inputs; `catalogue` joins them to `lipnb.bounds.catalogue`: an `Entry` for each bound, which
refuses other maps.
"""

from lab.bounds_survey.catalogue import ENTRIES, LEFT_OUT, Entry
from lab.bounds_survey.draws import KINDS, draw, rougher

__all__ = ["ENTRIES", "KINDS", "LEFT_OUT", "Entry", "draw", "rougher"]
