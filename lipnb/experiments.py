"""Measurements over whole texts: windows of a corpus in, one row for each window out."""

import time

import pandas as pd
import torch
from tqdm.auto import tqdm

from lipnb import corpora, models, results
from lipnb.lipschitz import local_lipschitz

__all__ = ["TABLES", "make_table", "measurable", "measure", "remeasure"]

LENGTHS = tuple(range(2, 100, 2))
COUNT = 10
MINILM = {"name": "minilm"}
GPT2_RANDOM = {"name": "gpt2", "random": True, "seed": 0}

# the top row of Figure 1 (castin2024smooth), for the models that need no hub; a panel is what `models.load` takes,
# then the layer. The embedded table uses the embedded tokenizer, so that anyone can measure its rows again.
TABLES = {
    "real-text-embedded": ("python_reference", (
        ({**MINILM, "masked": False}, 0),
        ({**MINILM, "masked": True}, 3),
        ({**GPT2_RANDOM, "tokenizer": "minilm"}, 6),
    )),
    "real-text": ("alice", (
        ({**MINILM, "masked": False}, 0),
        ({**MINILM, "masked": True}, 3),
        ({**GPT2_RANDOM, "tokenizer": "gpt2"}, 6),
    )),
}
PRECISION = {"dtype": "float32", "device": "cpu"}  # of the stored tables
ATTENTION_ENTRIES = 2**27  # attention probabilities held at once: 512 MiB in float32


def _edition(token_ids):
    """Fingerprint of one window, so that a row is only compared with a measurement of the same tokens."""
    return corpora.fingerprint(" ".join(map(str, token_ids.tolist())))


def _rows(model, corpus, layer, length, tokens, object, rtol, seed):
    """Rows of all windows of one length."""
    f = model.attention(layer, object=object)
    rows = []
    at_once = max(1, ATTENTION_ENTRIES // (model.heads * length**2))
    for first in range(0, len(tokens), at_once):
        x = model.activations(tokens[first : first + at_once], layer, object=object)
        lip = local_lipschitz(f, x, rtol=rtol, seed=seed)
        norms = torch.linalg.vector_norm(x.double(), dim=-1)
        for i in range(len(x)):
            rows.append({
                "model": model.name, "weights": model.weights, "masked": model.masked,
                "tokenizer": model.tokenizer_name, "corpus": corpus, "text": _edition(tokens[first + i]),
                "layer": layer, "object": object,
                "length": length, "window": first + i, "radius": norms[i].max().item(),
                "mean_radius": norms[i].square().mean().sqrt().item(), "lipschitz": lip.value[i].item(),
                "residual": lip.residual[i].item(), "upper": lip.upper[i].item(),
                "steps": lip.steps[i].item(),
                "converged": lip.converged[i].item(),
            })
    return rows


def measure(model, corpus, layer, lengths, count, *, object="heads+output", rtol=1e-4, seed=0, record=None,
            progress=True):
    """Local Lipschitz constants of one layer on windows of a text.

    Parameters
    ----------
    model : lipnb.models.Model
        From `lipnb.models.load`.
    corpus : str
        Name or path of a text, as for `lipnb.corpora.read`.
    layer : int
        Layer, counted from 0.
    lengths : sequence of int
        Lengths n of the windows.
    count : int
        Windows for each length; they start at the beginning of the text for each length and never overlap.
    object : {"heads+output", "heads", "block"}
        What is measured, see `lipnb.models`.
    rtol, seed : float, int
        As for `lipnb.local_lipschitz`.
    record : lipnb.results.Recording, optional
        Where finished lengths are saved and found again.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    DataFrame
        One row for each window: model, weights, masked, tokenizer, corpus, text (fingerprint of the window), layer,
        object, length, window, radius (largest token norm), mean_radius (root mean square token norm), lipschitz (lower
        bound), residual, upper (upper bound with probability 1 - 1e-6), steps, converged.

    Raises
    ------
    ValueError, FileNotFoundError
        The sentences of `lipnb.models` and `lipnb.corpora`, before anything is measured.
    """
    token_ids = model.token_ids(corpora.read(corpus))
    lengths = list(lengths)
    if not lengths:
        raise ValueError("lengths is empty: give at least one length, for example (2, 4, 8).")
    model.attention(layer, object=object)  # a wrong layer or object is said before the first measurement
    for length in (min(lengths), max(lengths)):
        corpora.windows(token_ids, length, count)
    rows = []
    bar = tqdm(lengths, desc=f"{model.name} layer {layer} on {corpus}", unit="length", disable=not progress)
    for length in bar:
        unit = f"{model.name}/{model.weights}/{model.masked}/{model.tokenizer_name}/{corpus}/{layer}/{object}/{length}"
        found = record.rows(unit) if record else None
        if found is None:
            began = time.perf_counter()
            tokens = corpora.windows(token_ids, length, count)
            found = _rows(model, corpus, layer, length, tokens, object, rtol, seed)
            if record:
                record.add(unit, found, time.perf_counter() - began)
        rows.extend(found)
    return pd.DataFrame(rows)


def make_table(name, *, lengths=LENGTHS, count=COUNT, rtol=1e-4, seed=0, save_as=None, progress=True):
    """Measure every panel of a table and save it; a killed run continues where it was.

    Parameters
    ----------
    name : str
        A key of `TABLES`: "real-text-embedded" (always possible) or "real-text" (needs Alice and GPT-2's tokenizer).
    lengths, count : sequence of int, int
        As for `measure`.
    rtol, seed : float, int
        As for `lipnb.local_lipschitz`.
    save_as : str, optional
        Another name for the table.
    progress : bool
        Whether to show progress bars.

    Returns
    -------
    DataFrame
        The finished table, which is also saved in `lipnb.results.folder()`.
    """
    if name not in TABLES:
        raise ValueError(f"there is no table {name!r} to make: choose from {', '.join(TABLES)}.")
    corpus, panels = TABLES[name]
    edition = corpora.fingerprint(corpora.read(corpus))
    settings = {"corpus": corpus, "text": edition, "panels": panels, "lengths": list(lengths), "count": count,
                "rtol": rtol, "seed": seed, **PRECISION}
    with results.recording(save_as or name, settings) as record:
        # all models first: one that is not at hand is said before the first measurement
        for model, layer in [(_load(panel), layer) for panel, layer in panels]:
            measure(model, corpus, layer, lengths, count, rtol=rtol, seed=seed, record=record, progress=progress)
        return record.finish()


def _load(panel):
    """The model of a panel of `TABLES`, with the tokenizer that the panel names and no other."""
    options = {**panel, "dtype": getattr(torch, PRECISION["dtype"]), "device": PRECISION["device"]}
    return models.load(options.pop("name"), **options)


def measurable(*names):
    """The first of the tables `names` whose text and models are at hand here, and these models.

    Parameters
    ----------
    *names : str
        Keys of `TABLES`, in order of preference.

    Returns
    -------
    name : str
        The table that can be measured here.
    panels : list of lipnb.models.Model
        The model of each of its panels.

    Raises
    ------
    FileNotFoundError
        "none of the tables ... can be measured here".
    """
    for name in names:
        corpus, panels = TABLES[name]
        try:
            corpora.read(corpus)
            return name, [_load(panel) for panel, _ in panels]
        except FileNotFoundError:
            continue
    raise FileNotFoundError(f"none of the tables {', '.join(names)} can be measured here: add real-text-embedded.")


def remeasure(table, model, *, rows=4, seed=0, rtol=1e-4):
    """Measure a few random rows of a stored table again, live.

    Parameters
    ----------
    table : DataFrame
        From `measure` or `lipnb.results.load`.
    model : lipnb.models.Model
        The rows of this model, mask and tokenizer are candidates.
    rows : int
        How many rows.
    seed : int
        Seed of the choice.
    rtol : float
        As for `lipnb.local_lipschitz`.

    Returns
    -------
    DataFrame
        The chosen rows, with `again` (the constant measured now) and `difference` (relative).

    Raises
    ------
    ValueError
        "no row of this table was measured with ...", or "... is another edition ...": rows whose window has other
        tokens here are passed over, and it is said when none is left.
    """
    mine = table[(table.model == model.name) & (table.weights == model.weights) & (table.masked == model.masked)
                 & (table.tokenizer == model.tokenizer_name)]
    if mine.empty:
        raise ValueError(f"no row of this table was measured with {model.name} ({model.weights}, tokenizer "
                         f"{model.tokenizer_name}).")
    token_ids = {corpus: model.token_ids(corpora.read(corpus)) for corpus in mine.corpus.unique()}
    chosen = []
    for row in mine.sample(frac=1, random_state=seed).itertuples(index=False):
        tokens = corpora.windows(token_ids[row.corpus], row.length, row.window + 1)[row.window :]
        if _edition(tokens[0]) == row.text:
            x = model.activations(tokens, row.layer, object=row.object)
            again = local_lipschitz(model.attention(row.layer, object=row.object), x, rtol=rtol).value.item()
            chosen.append({**row._asdict(), "again": again, "difference": abs(again / row.lipschitz - 1)})
        if len(chosen) == rows:
            break
    if not chosen:
        raise ValueError(f"the text {mine.corpus.iloc[0]!r} here is another edition than the table's: no window is the "
                         "same, so no row can be compared.")
    return pd.DataFrame(chosen)
