"""Every published bound that could be rebuilt, and ours: what each is for, where it holds, what it is held against.

`maps` are attentions that the library does not know, `formulas` bounds that only the book compares, `truth` norms of
Jacobians by autograd, `draws` inputs; `catalogue` joins them to `lipnb.bounds.catalogue`: an `Entry` for each bound,
which refuses other maps.
"""

from lab.bounds_survey.catalogue import ENTRIES, LEFT_OUT, Entry
from lab.bounds_survey.draws import KINDS, draw, rougher

__all__ = ["ENTRIES", "KINDS", "LEFT_OUT", "Entry", "draw", "rougher"]
