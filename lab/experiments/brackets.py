"""Tables of brackets: every layer of a model, both sides, with the published bounds at the same input."""

import math
import time

import torch

from lab.experiments.loading import gpt2_attention, load
from lab.experiments.table import table
from lipnb.bounds import general_upper, without_query_bias, yudin_upper
from lipnb.certified import certify
from lipscan import corpora, models

# model, masked or not; the text is Python's language reference, which is always available
MODELS = {"bracket-minilm": (("minilm", False), ("minilm", True)), "bracket-gpt2": (("gpt2", True),)}
TEXT = "python_reference"


def layers_of(model, masked):
    """Number of layers of a model; FileNotFoundError if it is not available."""
    return len(gpt2_attention()) if model == "gpt2" else _minilm(masked).layers


def _minilm(masked):
    return load("minilm", masked=masked, dtype="float64")


def at(model, masked, layer, length, *, seed=0):
    """Attention and tokens of one layer of a model, float64.

    `model` ("minilm", "gpt2"): MiniLM reads a window of the language reference of Python. GPT-2's attention weights,
    from the folder ``LIPNB_DATA``, receive Gaussian noise shaped by their LayerNorm, as its other weights are missing.
    `masked`: whether MiniLM is causal; GPT-2 always is.
    `layer`: layer, from 0.
    `seed`: seed of the noise.
    Returns `Attention`: the map of the layer, and its tokens of shape (n, d).
    """
    if model == "gpt2":
        attention, gain, shift = gpt2_attention()[layer]
        return attention, models.AttentionLayer(attention, gain, shift).noise(length, seed=seed + layer)
    network = _minilm(masked)
    tokens = corpora.windows(models.first_tokens(network, corpora.read(TEXT), length), length, 1)
    return network.attention(layer), network.activations(tokens, layer)[0]


def inputs(model, masked, length, *, seed=0):
    """Generator over the layers: number, attention and tokens; see `at`."""
    for layer in range(layers_of(model, masked)):
        yield layer, *at(model, masked, layer, length, seed=seed)


def published(attention, x):
    """Published upper bounds at an input, query biases absorbed: Thm 3.3 on its ball, and Yudin et al.

    `attention`: with its output projection. `x` (n, d): tokens, float64. Returns `general` (on the ball of the largest
    token norm) and `yudin`; each is the smallest over sizes of the added coordinate.
    """
    radius = torch.linalg.vector_norm(x, dim=-1).max().item()
    best = {"general": math.inf, "yudin": math.inf}
    for share in (0.1, 0.3) if attention.query_bias is not None else (1,):
        f, tokens = without_query_bias(attention, x, share * max(radius, 1e-300))
        R = torch.linalg.vector_norm(tokens, dim=-1).max().item()
        A = f.scale * f.key.mT @ f.query
        V = f.value if f.output is None else f.output @ f.value
        heads = [general_upper(A[h], V[h], len(x), R) for h in range(f.heads)]
        best = {"general": min(best["general"], sum(heads)), "yudin": min(best["yudin"], yudin_upper(f, tokens).item())}
    return best


def measure(attention, x, *, columns=None):
    """One row: the bracket at tokens `x` (n, d), its components, and the published bounds."""
    began = time.perf_counter()
    found = certify(attention, x, columns=columns)
    seconds = time.perf_counter() - began
    closed = certify(attention, x, columns=0)
    row = {
        name.replace("columns_norm", "exact"): getattr(found, name).item()
        for name in ("lower", "upper", "columns_norm", "query", "key", "value", "rounding", "columns")
    }
    return {
        **row,
        "closed_form": closed.upper.item(),
        **published(attention, x),
        "radius": torch.linalg.vector_norm(x, dim=-1).max().item(),
        "seconds": round(seconds, 1),
    }


def _layers(name, lengths):
    return [(*which, layer, n) for n in lengths for which in MODELS[name] for layer in range(layers_of(*which))]


def _settings(name):
    edition = corpora.fingerprint(corpora.read(TEXT))
    return {"models": MODELS[name], "text": TEXT, "edition": edition, "dtype": "float64", "device": "cpu"}


@table(
    "bracket-minilm",
    "brackets of every layer of MiniLM, with and without mask",
    over=lambda lengths: _layers("bracket-minilm", lengths),
    settings=lambda: _settings("bracket-minilm"),
    aside=("rounding", "seconds"),
    lengths=(16, 48),
)
@table(
    "bracket-gpt2",
    "brackets of every layer of GPT-2",
    over=lambda lengths: _layers("bracket-gpt2", lengths),
    settings=lambda: _settings("bracket-gpt2"),
    aside=("rounding", "seconds"),
    lengths=(32,),
)
def layer_row(model, masked, layer, length, *, seed=0):
    """One row of the tables: `measure` at a layer."""
    return measure(*at(model, masked, layer, length, seed=seed))


def again(row):
    """Both ends of a row of a stored table, measured again without columns; for `lab.experiments.remeasure`."""
    found = certify(*at(row["model"], row["masked"], row["layer"], row["length"]), columns=0)
    return {"lower": found.lower.item(), "closed_form": found.upper.item()}
