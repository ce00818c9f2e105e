"""The tables of worst inputs: each trained head, and each layer, between what is found and what is proved on a ball."""

from functools import partial

import torch

from lab.experiments import adversarial
from lab.experiments.scaling_factor import text_radii
from lab.experiments.table import Table
from lab.experiments.two_clusters import cluster_input, head_of
from lipnb import bounds, corpora, models
from lipnb.lipschitz import local_lipschitz
from lipnb.recording import Unit
from lipnb.worst_case import bulk_directions, forks, on_ball

__all__ = ["TABLES", "again", "bounded", "layer_at", "measure", "one_head"]

CORPUS, WINDOWS, LENGTH = "alice", adversarial.EXTRACTS, adversarial.EXTRACT
MODELS = (("minilm", False), ("gpt2-mini", True))


def one_head(layer, head):
    """One head of a layer alone, float64, with its query bias: what else it has changes no derivative.

    Parameters
    ----------
    layer : Attention
        Any heads, biases and mask; its output matrix is left out.
    head : int
        Which head, from 0.

    Returns
    -------
    Attention
    """
    alone = {name: getattr(layer, name)[head : head + 1] for name in ("query", "key", "value")}
    bias = None if layer.query_bias is None else layer.query_bias[head : head + 1]
    rest = {"output": None, "key_bias": None, "value_bias": None, "output_bias": None}
    return layer.replace(**alone, query_bias=bias, **rest).to(dtype=torch.float64)


def layer_at(name, masked, layer, *, length=LENGTH, windows=WINDOWS):
    """A trained layer, the radius of the ball, and the windows of text that give it.

    Parameters
    ----------
    name : {"minilm", "gpt2-mini"}
    masked : bool
        Whether it is masked.
    layer : int
        Which layer, from 0.
    length, windows : int
        Tokens of a window of Alice, and windows from its beginning.

    Returns
    -------
    Attention, float, Tensor of shape (windows, length, d)
        Float64. The radius is the longest token of the windows.

    Raises
    ------
    FileNotFoundError
        The sentences of `lipnb.models` and `lipnb.corpora`.
    """
    model = adversarial.network_of(name, masked)
    tokens = models.first_tokens(model, corpora.read(CORPUS), length * windows)
    x = model.activations(corpora.windows(tokens, length, windows), layer).double()
    R = text_radii(model, layer, corpus=CORPUS, extracts=windows, length=length)[1]
    return _attention_of(name, masked, layer), R, x


def measure(attention, clusters, n, R, windows, *, effort=1, seed=0):
    """One row: the constants of one map on text, at two clusters, at forks and at the roughest input found.

    Parameters
    ----------
    attention : Attention
        One head or a layer, float64.
    clusters : Tensor, shape (b, n, d)
        Inputs of two clusters; of these and their negatives the roughest counts, as biases tell them apart.
    n, R
        Tokens, and radius of the ball.
    windows : Tensor, shape (w, n, d)
        Tokens of a text.
    effort, seed
        As for `lipnb.worst_case.on_ball`.

    Returns
    -------
    dict
        length, R, text, heuristic, fork, ascended, kind.
    """
    few = forks(attention, n, R, bulk_directions(attention, pairs=8 if attention.heads == 1 else 4)).tokens()
    worst = on_ball(attention, n, R, seed=seed, effort=effort, progress=False)
    return {
        "length": n,
        "R": R,
        "text": local_lipschitz(attention, windows).value.max().item(),
        "heuristic": local_lipschitz(attention, torch.cat([clusters, -clusters])).value.max().item(),
        "fork": local_lipschitz(attention, few).value.max().item(),
        "ascended": worst.value,
        "kind": worst.kind,
    }


def bounded(table):
    """The finished table with the column `upper`, `lipnb.bounds.ball_upper` on the ball of each row: R as stored."""
    rows = table.to_dict("records")
    return table.assign(upper=[bounds.ball_upper(_map_of(row), row["length"], row["R"]) for row in rows])


def _map_of(row):
    """The head, or the layer, of a row."""
    attention = _attention_of(row["model"], row["masked"], row["layer"])
    return one_head(attention, row["head"]) if "head" in row else attention


def _attention_of(name, masked, layer):
    return adversarial.network_of(name, masked).attention(layer).to(dtype=torch.float64)


def _head_rows(name, masked, layer, effort, seed):
    attention, R, windows = layer_at(name, masked, layer)
    place = {"model": name, "masked": masked, "layer": layer}
    rows = []
    for h in range(attention.heads):
        clusters = cluster_input(head_of(attention, h), LENGTH, R)[None]
        one = measure(one_head(attention, h), clusters, LENGTH, R, windows, effort=effort, seed=seed)
        rows.append({**place, "head": h, **one})
    return rows


def _layer_row(name, masked, layer, effort, seed):
    attention, R, windows = layer_at(name, masked, layer)
    clusters = torch.stack([cluster_input(head_of(attention, h), LENGTH, R) for h in range(attention.heads)])
    place = {"model": name, "masked": masked, "layer": layer, "heads": attention.heads}
    return [{**place, **measure(attention, clusters, LENGTH, R, windows, effort=effort, seed=seed)}]


def again(row, *, effort=0):
    """Constants of a row of ``worst-inputs`` measured again, without the ascent; for `lipnb.recording.remeasure`."""
    attention, R, windows = layer_at(row["model"], row["masked"], row["layer"])
    clusters = cluster_input(head_of(attention, row["head"]), LENGTH, R)[None]
    one = one_head(attention, row["head"])
    found = measure(one, clusters, LENGTH, R, windows, effort=effort) | {"upper": bounds.ball_upper(one, LENGTH, R)}
    return {name: found[name] for name in ("text", "heuristic", "fork", "upper")}


def _prepare(rows, size, effort, seed):
    """Settings and units, one for each layer, of `size` rows each."""
    text = corpora.fingerprint(corpora.read(CORPUS))
    settings = {"models": MODELS, "corpus": CORPUS, "text": text, "windows": WINDOWS, "length": LENGTH}
    work = [
        Unit(f"{model}/{masked}/{layer}", partial(rows, model, masked, layer, effort, seed), size)
        for model, masked in MODELS
        for layer in range(adversarial.layers_of(model, masked))
    ]
    return {**settings, "effort": effort, "seed": seed, "dtype": "float64"}, work


def _table(name, rows, size):
    return Table(name, lambda effort, seed: _prepare(rows, size, effort, seed), {"effort": 1, "seed": 0}, bounded)


TABLES = (_table("worst-inputs", _head_rows, 12), _table("worst-layers", _layer_row, 1))
