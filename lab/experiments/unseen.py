"""Two models that no page was written with: their growth, their sub-layers, and the terms of their heads.

What is expected of them was written down first, in `unseen.toml`, and what the terms predict in
`unseen-predictions.csv`; the history of the repository has the order.
"""

from functools import partial

from lab.experiments.around_attention import sublayers
from lab.experiments.atlas import Condition, prepared
from lab.experiments.head_terms import NORM_RTOL, at_windows
from lab.experiments.table import SOLVE, table

LENGTHS, LONGEST = (8, 16, 32, 64, 128), 128
E5, L3 = {"name": "e5-small", "masked": False}, {"name": "minilm-l3", "masked": False}
TEXTS = tuple(Condition(corpus, longest=LONGEST) for corpus in ("alice", "ag_news"))
CONTROLS = tuple(TEXTS[0]._replace(count=4, **change) for change in ({"order": "shuffled"}, {"weights": "random"}))
READ = tuple((options, condition) for options in (E5, L3) for condition in TEXTS)

table(
    "unseen-atlas-e5-small",
    "the growth of multilingual-e5-small, 8 to 128 tokens, two texts and two controls",
    aside=SOLVE,
)(partial(prepared, E5, TEXTS + CONTROLS))
table(
    "unseen-atlas-minilm-l3", "the growth of paraphrase-MiniLM-L3-v2, on the same texts, with the controls", aside=SOLVE
)(partial(prepared, L3, TEXTS + CONTROLS))


@table("unseen-map", "the sub-layers of both models with residual and norm, at all windows of both texts")
def _prepare(lengths=LENGTHS, seed=0):
    return sublayers(READ, lengths, seed, count=TEXTS[0].count)


@table("unseen-head-terms", "terms of the heads of both models at the same windows")
def _prepare_terms(longest=LONGEST):
    settings, units = at_windows(longest, read_by=READ)
    return settings | {"queries_to": longest, "norm_rtol": NORM_RTOL}, units
