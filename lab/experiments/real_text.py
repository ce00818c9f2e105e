"""The table that anyone can measure again: Figure 1's top row on the text that comes with Python."""

from functools import partial

from lab.experiments.loading import load
from lab.experiments.table import table
from lab.experiments.windows import units
from lipnb import corpora

__all__ = ["PRECISION", "embedded", "load_panel"]

LENGTHS, COUNT = tuple(range(2, 100, 2)), 10
PRECISION = {"dtype": "float32", "device": "cpu"}  # of the stored tables

MINILM = {"name": "minilm"}
GPT2_RANDOM = {"name": "gpt2", "random": True, "seed": 0}
# a panel is what `models.load` takes, and the layers measured
PANELS = (
    ({**MINILM, "masked": False}, (0,)),
    ({**MINILM, "masked": True}, (3,)),
    ({**GPT2_RANDOM, "tokenizer": "minilm"}, (6,)),
)


def load_panel(panel):
    """The model of a panel, with the tokenizer that the panel names and no other."""
    return load(**PRECISION, **panel)


@table("real-text-embedded", "Figure 1, top row, on the text that comes with Python")
def embedded(corpus="python_reference", panels=PANELS, lengths=LENGTHS, count=COUNT, rtol=1e-4, seed=0):
    """Settings and units; every model is loaded once here, so that an absent one is said first."""
    work, named = [], []
    for panel, layers in panels:
        model = load_panel(panel)
        named.append([{**panel, "name": model.name}, list(layers)])  # of a folder the name, never the path
        work += units(model, corpus, layers, lengths, count, rtol=rtol, seed=seed, again=partial(load_panel, panel))
    settings = {
        "corpus": corpus,
        "text": corpora.fingerprint(corpora.read(corpus)),
        "panels": named,
        "lengths": list(lengths),
        "count": count,
        "rtol": rtol,
        "seed": seed,
        **PRECISION,
    }
    return settings, work
