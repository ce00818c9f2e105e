"""Measurements over whole texts: windows of a corpus in, one row for each window out."""

import pandas as pd
import torch
from tqdm import tqdm

from lab import released
from lab.experiments.loading import edition
from lab.experiments.table import by_window, solved
from lipnb import corpora, models
from lipnb.attention import Attention
from lipnb.lipschitz import local_lipschitz
from lipnb.recording import Unit

__all__ = ["again", "measure", "measured_with", "units"]

ATTENTION_ENTRIES = 2**27  # attention probabilities held at once: 512 MiB in float32


def _rows(model, corpus, layer, length, tokens, object, rtol, seed):
    """Rows of all windows of one length."""
    f = model.attention(layer, object=object)
    exact = f.to(dtype=torch.float64) if isinstance(f, Attention) else None
    rows = []
    at_once = max(1, ATTENTION_ENTRIES // (model.heads * length**2))
    for first in range(0, len(tokens), at_once):
        x = model.activations(tokens[first : first + at_once], layer, object=object)
        lip = local_lipschitz(f, x, rtol=rtol, seed=seed)
        # in float64, so that a row has the same digits wherever its tokens lie in memory
        reported = released.reported(f, x) if exact is None else released.reported(exact, x.double())
        norms = torch.linalg.vector_norm(x.double(), dim=-1)
        columns = {"radius": norms.amax(-1), "mean_radius": norms.square().mean(-1).sqrt(), **solved(lip)}
        at = {"model": model.name, "weights": model.weights, "masked": model.masked, "tokenizer": model.tokenizer_name}
        at |= {"corpus": corpus, "layer": layer, "object": object, "length": length}
        rows += [
            at | {"text": edition(tokens[first + i])} | row | {"window": first + i}
            for i, row in enumerate(by_window(columns | {"released": reported}))
        ]
    return rows


def units(model, corpus, layers, lengths, count, *, object="heads+output", rtol=1e-4, seed=0, again=None):
    """Units of work: all windows of some layers on one text, a unit for each layer and length.

    Parameters
    ----------
    model : lipnb.models.Model
        From `lipnb.models.load`.
    corpus, lengths, count, object, rtol, seed
        As for `measure`.
    layers : sequence of int
        Layers, counted from 0.
    again : callable, optional
        Gives the model when a unit is measured, so that not all models of a table are held at once.

    Returns
    -------
    list of lipnb.recording.Unit

    Raises
    ------
    ValueError, FileNotFoundError
        The sentences of `lipnb.models` and `lipnb.corpora`, before anything is measured.
    """
    text, lengths = corpora.read(corpus), list(lengths)
    if not lengths:
        raise ValueError("lengths is empty: give at least one length, for example (2, 4, 8).")
    token_ids = models.first_tokens(model, text, max(lengths) * count)
    for layer in layers:  # a wrong layer or object is said before the first measurement
        model.attention(layer, object=object)
    for length in (min(lengths), max(lengths)):
        corpora.windows(token_ids, length, count)
    again = again or (lambda: model)

    def unit(layer, length):
        def rows():
            tokens = corpora.windows(token_ids, length, count)
            return _rows(again(), corpus, layer, length, tokens, object, rtol, seed)

        parts = (model.name, model.weights, model.masked, model.tokenizer_name, corpus, layer, object, length)
        return Unit("/".join(map(str, parts)), rows, count)

    return [unit(layer, length) for layer in layers for length in lengths]


def measure(model, corpus, layer, lengths, count, *, object="heads+output", rtol=1e-4, seed=0, progress=True):
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
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    DataFrame
        One row for each window: model, weights, masked, tokenizer, corpus, text (fingerprint of the window), layer,
        object, length, window, radius (largest token norm), mean_radius (root mean square token norm), lipschitz (lower
        bound), residual, upper (upper bound with probability 1 - 1e-6), steps, converged, released (what the released
        experiments report instead, `lab.released.reported`).

    Raises
    ------
    ValueError, FileNotFoundError
        The sentences of `lipnb.models` and `lipnb.corpora`, before anything is measured.
    """
    work = units(model, corpus, (layer,), lengths, count, object=object, rtol=rtol, seed=seed)
    bar = tqdm(work, desc=f"{model.name} layer {layer} on {corpus}", unit="length", disable=not progress)
    return pd.DataFrame([row for unit in bar for row in unit.measure()])


def measured_with(table, model):
    """The rows of a table that were measured with this model, mask and tokenizer; ValueError where there are none."""
    mine = table[
        (table.model == model.name)
        & (table.weights == model.weights)
        & (table.masked == model.masked)
        & (table.tokenizer == model.tokenizer_name)
    ]
    if mine.empty:
        raise ValueError(
            f"no row of this table was measured with {model.name} ({model.weights}, tokenizer {model.tokenizer_name})."
        )
    return mine


def again(model, *, rtol=1e-4):
    """What `lab.experiments.remeasure` measures a row of this model by: the defined and the released quantity.

    Parameters
    ----------
    model : lipnb.models.Model
        That of the rows, see `measured_with`.
    rtol : float
        As for `lipnb.local_lipschitz`.

    Returns
    -------
    callable
        Of a row; None where the window of this length has other tokens here: another edition of the text.
    """

    def measured(row):
        length, window = row["length"], row["window"]
        token_ids = models.first_tokens(model, corpora.read(row["corpus"]), length * (window + 1))
        tokens = corpora.windows(token_ids, length, window + 1)[window:]
        if edition(tokens[0]) != row["text"]:
            return None
        x = model.activations(tokens, row["layer"], object=row["object"])
        f = model.attention(row["layer"], row["object"])
        return {"lipschitz": local_lipschitz(f, x, rtol=rtol).value.item(), "released": released.reported(f, x).item()}

    return measured
