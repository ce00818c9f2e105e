"""Tables behind Figures 4 to 6: effect of learned positions on token norms and on the local constant."""

import itertools

import torch
from torch.nn.functional import layer_norm

from lab.experiments.loading import gpt2_attention, load
from lab.experiments.table import SOLVE, by_window, solved, table
from lipnb.lipschitz import local_lipschitz
from lipscan import corpora, models

LENGTHS = (2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
CORPUS = "alice"
VARIANTS = ("trained", "late", "constant", "removed")


def variant(model, name):
    """A model with its learned positions, or with changed ones.

    `name` ("trained", "constant", "removed"): unchanged; all replaced by their mean; all zero. An integer s shifts
    them: the first token has position s. Returns lipnb.models.Model with all other weights from `model`, which was
    trained with its own positions.
    """
    places = models.position_embeddings(model)
    if name == "trained":
        return model
    if name == "constant":
        return models.with_positions(model, places.mean(0).expand_as(places))
    if name == "removed":
        return models.with_positions(model, torch.zeros_like(places))
    return models.with_positions(model, places.roll(-name, 0))


def _rms(x):
    """Root mean square token norm of each sequence of a batch."""
    return x.double().square().sum(-1).mean(-1).sqrt()


def _read(lengths, count):
    """A text in tokens of gpt2-mini that is long enough."""
    token_ids = models.first_tokens(load("gpt2-mini"), corpora.read(CORPUS), max(lengths) * count)
    corpora.windows(token_ids, max(lengths), count)
    return token_ids


def _places(lengths, count):
    _read(lengths, count)  # report an absent text now
    return itertools.product(VARIANTS, lengths)


@table(
    "positions",
    "Figures 4 to 6: gpt2-mini with and without its learned positions",
    aside=SOLVE,
    over=_places,
    size=lambda count: count * load("gpt2-mini").layers,
    settings=lambda: (
        {"model": "gpt2-mini", "corpus": CORPUS, "text": corpora.fingerprint(corpora.read(CORPUS))}
        | {"positions": VARIANTS, "dtype": "float32"}
    ),
)
def variant_rows(positions, length, *, lengths=LENGTHS, count=10, rtol=1e-4, seed=0):
    """Rows of all layers of gpt2-mini with positions of one of `VARIANTS`, at the windows of one length."""
    tokens = corpora.windows(_read(lengths, count), length, count)
    return _rows(load("gpt2-mini"), positions, tokens, rtol, seed)


def _rows(model, name, tokens, rtol, seed):
    n, rows = tokens.shape[1], []
    places = len(models.position_embeddings(model))
    changed = variant(model, places - n if name == "late" else name)
    for layer in range(model.layers):
        f, x = changed.attention(layer), changed.activations(tokens, layer)
        found = {"stream_radius": _rms(changed.activations(tokens, layer, object="block")), "mean_radius": _rms(x)}
        found |= {"radius": x.double().norm(dim=-1).amax(-1), **solved(local_lipschitz(f, x, rtol=rtol, seed=seed))}
        at = {"model": model.name, "weights": model.weights, "corpus": CORPUS, "layer": layer}
        rows += [at | row for row in by_window(found)]
    return rows


@table(
    "positions-alone",
    "GPT-2's first attention on its learned positions alone",
    over=lambda lengths: lengths if gpt2_attention() else (),
    settings={"model": "gpt2", "dtype": "float64"},
    lengths=(*LENGTHS, 768, 1024),
)
def alone(length, *, rtol=1e-4, seed=0):
    """Row of the first attention of the real GPT-2 on LayerNorm of its position embeddings, without tokens."""
    places, first = models.load_positions(models.gpt2_attention_folder()), gpt2_attention()[0]
    x = layer_norm(places[:length], places.shape[1:], first.gain, first.shift, 1e-5)
    lip = local_lipschitz(first.attention, x, rtol=rtol, seed=seed)
    found = {"stream_radius": _rms(places[:length]), "mean_radius": _rms(x), "lipschitz": lip.value, "upper": lip.upper}
    found |= {"converged": lip.converged}
    return {"model": "gpt2", "weights": "pretrained", "layer": 0, **{name: one.item() for name, one in found.items()}}
