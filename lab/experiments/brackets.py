"""Tables of brackets: every layer of a model, both sides, beside the published bounds at the same input."""

import math
import time

import pandas as pd
import torch

from lab import results
from lipnb import corpora, models
from lipnb.bounds import general_upper, without_query_bias, yudin_upper
from lipnb.certified import certify

__all__ = ["TABLES", "inputs", "make_table", "measure", "published", "remeasure"]

# model, masked or not, lengths; text is Python's own reference, which is always at hand
TABLES = {"bracket-minilm": (("minilm", False), ("minilm", True)), "bracket-gpt2": (("gpt2", True),)}
LENGTHS = {"bracket-minilm": (16, 48), "bracket-gpt2": (32,)}
TEXT = "python_reference"


def inputs(model, masked, length, *, seed=0):
    """Attention and tokens of every layer of a model, float64.

    Parameters
    ----------
    model : {"minilm", "gpt2"}
        MiniLM reads a window of the language reference of Python. GPT-2's attention weights, from the folder
        ``LIPNB_DATA``, receive Gaussian noise shaped by their LayerNorm, for want of its other weights.
    masked : bool
        Whether MiniLM is causal; GPT-2 always is.
    length : int
        Tokens n.
    seed : int
        Seed of the noise.

    Yields
    ------
    int, Attention, Tensor
        Layer, its map, its tokens of shape (n, d).

    Raises
    ------
    FileNotFoundError
        "the attention weights of GPT-2 are not here: set LIPNB_DATA ...".
    """
    if model == "minilm":
        network = models.load(model, masked=masked, dtype=torch.float64)
        tokens = corpora.windows(models.first_tokens(network, corpora.read(TEXT), length), length, 1)
        for layer in range(network.layers):
            yield layer, network.attention(layer), network.activations(tokens, layer)[0]
        return
    for layer, (attention, gain, shift) in enumerate(models.load_attention(models.gpt2_attention_folder())):
        yield layer, attention, models.AttentionLayer(attention, gain, shift).noise(length, seed=seed + layer)


def published(attention, x):
    """The published upper bounds at an input, query biases absorbed: Thm 3.3 on its ball, and Yudin et al.

    Parameters
    ----------
    attention : Attention
        With its output projection.
    x : Tensor, shape (n, d)
        Tokens, float64.

    Returns
    -------
    dict
        `general` (the ball of the largest token norm), `yudin`; each the smallest over sizes of the added coordinate.
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
    """One row: the bracket at tokens `x` (n, d), what it is made of, and the published bounds."""
    began = time.perf_counter()
    found = certify(attention, x, columns=columns)
    seconds = time.perf_counter() - began
    closed = certify(attention, x, columns=0)
    row = {
        name: getattr(found, name).item()
        for name in ("lower", "upper", "exact", "query", "key", "value", "rounding", "columns")
    }
    return {
        **row,
        "closed_form": closed.upper.item(),
        **published(attention, x),
        "radius": torch.linalg.vector_norm(x, dim=-1).max().item(),
        "seconds": round(seconds, 1),
    }


def make_table(name, *, lengths=None, seed=0, save_as=None):
    """Bracket every layer of the models of a table and save it; a killed run continues where it was.

    Parameters
    ----------
    name : {"bracket-minilm", "bracket-gpt2"}
        Which table.
    lengths : sequence of int, optional
        Tokens n of the inputs; default those of `LENGTHS`.
    seed : int
        Seed of GPT-2's noise.
    save_as : str, optional
        Another name for the table.

    Returns
    -------
    DataFrame
        Model, masked, layer, length, and what `measure` gives.
    """
    if name not in TABLES:
        raise ValueError(f"there is no table {name!r} to make: choose from {', '.join(TABLES)}.")
    lengths = LENGTHS[name] if lengths is None else lengths
    settings = {
        "models": TABLES[name],
        "lengths": list(lengths),
        "seed": seed,
        "text": TEXT,
        "edition": corpora.fingerprint(corpora.read(TEXT)),
        "dtype": "float64",
        "device": "cpu",
    }
    with results.recording(save_as or name, settings) as record:
        for length in lengths:
            for model, masked in TABLES[name]:
                for layer, attention, x in inputs(model, masked, length, seed=seed):
                    unit = f"{model}/{masked}/{layer}/{length}"
                    if record.rows(unit) is None:
                        began = time.perf_counter()
                        place = {"model": model, "masked": masked, "layer": layer, "length": length}
                        record.add(unit, [{**place, **measure(attention, x)}], time.perf_counter() - began)
        return record.finish()


def remeasure(table, *, rows=2, seed=0):
    """A few random rows of a stored table again, columns aside: `lower_again`, `closed_form_again` beside the rest."""
    chosen = []
    for row in table.sample(rows, random_state=seed).to_dict("records"):
        for layer, attention, x in inputs(row["model"], row["masked"], row["length"]):
            if layer == row["layer"]:
                found = certify(attention, x, columns=0)
                again = {"lower_again": found.lower.item(), "closed_form_again": found.upper.item()}
                chosen.append({**row, **again})
    return pd.DataFrame(chosen)
