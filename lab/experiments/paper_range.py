"""Attention alone at the lengths of the paper's texts, 2 to 98 tokens, in the models of the atlas that read texts.

The papers' windows carry no special tokens; ours do, so those of MiniLM begin at 4 tokens.
"""

from dataclasses import replace

from lab.experiments.atlas import Condition, prepared
from lab.experiments.head_terms import MODELS
from lab.experiments.table import SOLVE, table

LENGTHS = (4, 8, 16, 32, 64, 98)
NEWS = Condition("ag_news")  # a text of the paper
READ = tuple(  # of MiniLM, which is most like BERT, both texts
    (options, (condition, NEWS) if options["name"] == "minilm" else (condition,))
    for options, condition in MODELS
    if options["name"] != "dinov2-small"
)


@table(
    "paper-range",
    "attention alone at 4 to 98 tokens, the lengths of the paper, in the models that read texts",
    aside=SOLVE,
)
def _prepare(lengths=LENGTHS, seed=0):
    described, units = [], []
    for options, conditions in READ:
        mine, work = prepared(options, conditions, lengths, seed=seed)
        described.append(mine)
        title = f"{options['name']}/masked" if options.get("masked") else options["name"]
        units += [replace(unit, key=f"{title}/{unit.key}") for unit in work]
    return {"read": described, "lengths": list(lengths), "seed": seed}, units
