"""The tables of Figure 1's top row: real text, by layer of each model at hand."""

from functools import partial

from lab.experiments.loading import load
from lab.experiments.table import Table
from lab.experiments.windows import units
from lipnb import corpora

__all__ = ["PRECISION", "TABLES", "load_panel", "measurable"]

SHORT = tuple(range(2, 100, 2))
LONG = tuple(range(2, 503, 10))
COUNT = 10
PRECISION = {"dtype": "float32", "device": "cpu"}  # of the stored tables

MINILM = {"name": "minilm"}
GPT2_RANDOM = {"name": "gpt2", "random": True, "seed": 0}
GPT2_MINI = {"name": "gpt2-mini"}
# a panel is what `models.load` takes, and the layers measured
MAIN = (({**MINILM, "masked": False}, (0,)), ({**MINILM, "masked": True}, (3,)))
LAYERS = (({**MINILM, "masked": False}, range(6)), ({**MINILM, "masked": True}, range(6)), (GPT2_MINI, range(6)))


def load_panel(panel):
    """The model of a panel, with the tokenizer that the panel names and no other."""
    return load(**PRECISION, **panel)


def _prepare(corpus, panels, lengths, count, rtol, seed):
    """Settings and units of one table; every model is loaded once here, so that an absent one is said first."""
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


def _table(name, corpus, panels, lengths):
    options = {"lengths": lengths, "count": COUNT, "rtol": 1e-4, "seed": 0}
    return Table(name, partial(_prepare, corpus, panels), options)


# The embedded table uses the embedded tokenizer, so that anyone can measure its rows again.
TABLES = (
    _table("real-text-embedded", "python_reference", (*MAIN, ({**GPT2_RANDOM, "tokenizer": "minilm"}, (6,))), SHORT),
    _table("real-text", "alice", (*LAYERS, ({**GPT2_RANDOM, "tokenizer": "gpt2"}, (6,))), SHORT),
    _table("real-text-news", "ag_news", (*MAIN, (GPT2_MINI, (3,)), ({**GPT2_RANDOM, "tokenizer": "gpt2"}, (6,))), LONG),
)


def measurable(*names):
    """The first of the tables `names` whose text and models are at hand here, and these models.

    Parameters
    ----------
    *names : str
        Names of tables on real text, in order of preference.

    Returns
    -------
    name, corpus : str
        The table that can be measured here, and its text.
    panels : list of lipnb.models.Model
        The models of its panels.

    Raises
    ------
    FileNotFoundError
        "none of the tables ... can be measured here".
    """
    tables = {table.name: table.prepare.args for table in TABLES}
    for name in names:
        corpus, panels = tables[name]
        try:
            corpora.read(corpus)
            return name, corpus, [load_panel(panel) for panel, _ in panels]
        except FileNotFoundError:
            continue
    raise FileNotFoundError(f"none of the tables {', '.join(names)} can be measured here: add real-text-embedded.")
