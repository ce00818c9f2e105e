"""The tables behind Figures 4 to 6: what learned positions do to token norms and to the local constant."""

import torch
from torch.nn.functional import layer_norm

from lab.experiments.table import Table
from lipnb import corpora, models
from lipnb.lipschitz import local_lipschitz
from lipnb.recording import Unit

__all__ = ["TABLES", "VARIANTS", "variant"]

LENGTHS = (2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
VARIANTS = ("trained", "late", "constant", "removed")


def variant(model, name):
    """A model with its learned positions as they are, or not.

    Parameters
    ----------
    model : lipnb.models.Model
        With learned positions.
    name : {"trained", "constant", "removed"} or int
        As they are; all replaced by their mean; all zero. A whole number s moves them on: the first token has place s.

    Returns
    -------
    lipnb.models.Model
        The weights of everything else are those of `model`, which was trained with its own positions.
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


def _rows(model, name, text, tokens, rtol, seed):
    """Rows of all layers, for windows of one length."""
    n = tokens.shape[1]
    places = len(models.position_embeddings(model))
    changed = variant(model, places - n if name == "late" else name)
    rows = []
    for layer in range(model.layers):
        f, x = changed.attention(layer), changed.activations(tokens, layer)
        stream = changed.activations(tokens, layer, object="block")
        lip = local_lipschitz(f, x, rtol=rtol, seed=seed)
        for i in range(len(x)):
            rows.append(
                {
                    "model": model.name,
                    "weights": model.weights,
                    "corpus": text,
                    "positions": name,
                    "layer": layer,
                    "length": n,
                    "window": i,
                    "stream_radius": _rms(stream)[i].item(),
                    "mean_radius": _rms(x)[i].item(),
                    "radius": x[i].double().norm(dim=-1).max().item(),
                    "lipschitz": lip.value[i].item(),
                    "residual": lip.residual[i].item(),
                    "upper": lip.upper[i].item(),
                    "steps": lip.steps[i].item(),
                    "converged": lip.converged[i].item(),
                }
            )
    return rows


def _prepare(lengths, count, rtol, seed):
    corpus = "alice"
    model = models.load("gpt2-mini")
    token_ids = models.first_tokens(model, corpora.read(corpus), max(lengths) * count)
    corpora.windows(token_ids, max(lengths), count)
    settings = {
        "model": "gpt2-mini",
        "corpus": corpus,
        "text": corpora.fingerprint(corpora.read(corpus)),
        "positions": list(VARIANTS),
        "lengths": list(lengths),
        "count": count,
        "rtol": rtol,
        "seed": seed,
        "dtype": "float32",
    }

    def unit(name, length):
        def rows():
            return _rows(model, name, corpus, corpora.windows(token_ids, length, count), rtol, seed)

        return Unit(f"{name}/{length}", rows, count * model.layers)

    return settings, [unit(name, length) for name in VARIANTS for length in lengths]


def _norm_rows(name, weights, places):
    """Norm of each position embedding, and its distance to the next."""
    steps = (places[1:] - places[:-1]).norm(dim=1).tolist()
    return [
        {"model": name, "weights": weights, "place": i, "norm": norm, "step": step}
        for i, (norm, step) in enumerate(zip(places.norm(dim=1).tolist(), [*steps, None], strict=True))
    ]


def _prepare_norms():
    real = models.load_positions(models.gpt2_attention_folder())
    mini = models.position_embeddings(models.load("gpt2-mini")).double()

    def rows():
        return _norm_rows("gpt2", "pretrained", real) + _norm_rows("gpt2-mini", "trained here", mini)

    return {"models": ["gpt2", "gpt2-mini"]}, [Unit("all places", rows, len(real) + len(mini))]


def _alone(layer, places, n, rtol, seed):
    """The first attention of the real GPT-2 on LayerNorm of its position embeddings: no token, no lower layer."""
    x = layer_norm(places[:n], places.shape[1:], layer.gain, layer.shift, 1e-5)
    lip = local_lipschitz(layer.attention, x, rtol=rtol, seed=seed)
    return {
        "model": "gpt2",
        "weights": "pretrained",
        "layer": 0,
        "length": n,
        "stream_radius": _rms(places[:n]).item(),
        "mean_radius": _rms(x).item(),
        "lipschitz": lip.value.item(),
        "upper": lip.upper.item(),
        "converged": lip.converged.item(),
    }


def _prepare_alone(lengths, rtol, seed):
    folder = models.gpt2_attention_folder()
    places, first = models.load_positions(folder), models.load_attention(folder)[0]

    def unit(n):
        return Unit(str(n), lambda: [_alone(first, places, n, rtol, seed)], 1)

    settings = {"model": "gpt2", "lengths": list(lengths), "rtol": rtol, "seed": seed, "dtype": "float64"}
    return settings, [unit(n) for n in lengths]


TABLES = (
    Table("positions", _prepare, {"lengths": LENGTHS, "count": 10, "rtol": 1e-4, "seed": 0}),
    Table("position-norms", _prepare_norms),
    Table("positions-alone", _prepare_alone, {"lengths": (*LENGTHS, 768, 1024), "rtol": 1e-4, "seed": 0}),
)
