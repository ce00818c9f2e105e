"""Table that anyone can measure again: Figure 1's top row on the text that ships with Python."""

import torch

from lab import released
from lab.experiments.loading import edition, load
from lab.experiments.table import SOLVE, by_window, solved, table
from lipnb.lipschitz import local_lipschitz
from lipscan import corpora, models

PRECISION = {"dtype": "float32", "device": "cpu"}  # of the stored table
MINILM = {"name": "minilm"}
GPT2_RANDOM = {"name": "gpt2", "random": True, "seed": 0}
# a panel has the arguments of `models.load`, and the measured layers
PANELS = (
    ({**MINILM, "masked": False}, (0,)),
    ({**MINILM, "masked": True}, (3,)),
    ({**GPT2_RANDOM, "tokenizer": "minilm"}, (6,)),
)


def _model(name, masked):
    (panel,) = (one for one, _ in PANELS if (one["name"], one.get("masked", True)) == (name, masked))
    return load(**PRECISION, **panel)


def _windows(model, corpus, length, count):
    """Token ids (count, length): windows from the beginning of a text for each length, without overlap."""
    return corpora.windows(models.first_tokens(model, corpora.read(corpus), length * count), length, count)


def _places(corpus, lengths, count):
    """Model, mask, layer and length of each unit; reports absent models and absent or short texts."""
    if not lengths:
        raise ValueError("lengths is empty: give at least one length, for example (2, 4, 8).")
    for panel, layers in PANELS:
        model = _model(panel["name"], panel.get("masked", True))
        _windows(model, corpus, max(lengths), count)
        yield from ((model.name, model.masked, layer, n) for layer in layers for n in lengths)


@table(
    "real-text-embedded",
    "Figure 1, top row, on the text that comes with Python",
    aside=SOLVE,
    over=_places,
    size=lambda count: count,
    settings=lambda corpus: {"text": corpora.fingerprint(corpora.read(corpus)), "panels": PANELS, **PRECISION},
    lengths=tuple(range(2, 100, 2)),
)
def length_rows(model, masked, layer, length, *, corpus="python_reference", count=10, rtol=1e-4, seed=0):
    """Rows of one layer at the windows of one length.

    For each window: weights, tokenizer, corpus, text (fingerprint of the window), object, window, radius (largest token
    norm), mean_radius (root mean square token norm), lipschitz (lower bound), residual, upper (upper bound with
    probability 1 - 1e-6), steps, converged, released (what the released experiments report instead).
    """
    network = _model(model, masked)
    tokens = _windows(network, corpus, length, count)
    f, x = network.attention(layer), network.activations(tokens, layer)
    norms = torch.linalg.vector_norm(x.double(), dim=-1)
    columns = {"radius": norms.amax(-1), "mean_radius": norms.square().mean(-1).sqrt()}
    columns |= solved(local_lipschitz(f, x, rtol=rtol, seed=seed))
    # in float64, so that a row has the same digits whatever the memory alignment of its tokens
    columns |= {"released": released.reported(f.to(dtype=torch.float64), x.double())}
    at = {"weights": network.weights, "tokenizer": network.tokenizer_name, "corpus": corpus, "object": "heads+output"}
    return [at | {"text": edition(ids)} | row for ids, row in zip(tokens, by_window(columns), strict=True)]
