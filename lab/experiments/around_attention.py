"""Maps around attention: the sub-layer with its residual connection and norm, and networks of whole layers.

The released experiments on BERT measure the sub-layer (castin2024smooth). Post-norm (BERT, ALBERT): x to LN(x + f(x)),
and `inner` is x to x + f(x), before the norm. Pre-norm (all others): x to x + f(LN(x)), and `inner` is x to f(LN(x)),
without the residual connection. Windows are those of the atlas.
"""

import math
from functools import partial

import torch

from lab import released
from lab.experiments.atlas import LONGEST, Condition, lengths_of, named, windows_of
from lab.experiments.head_terms import MODELS
from lab.experiments.loading import edition, load, place
from lab.experiments.table import by_window, table
from lipnb import AttentionJacobian
from lipnb.lipschitz import local_lipschitz
from lipnb.spectral import lanczos, start_vectors
from lipscan import corpora, models
from lipscan.recording import Unit

__all__ = ["LENGTHS", "composed", "sublayer", "sublayers"]

TEXT, COUNT, WHOLE_COUNT = "alice", 2, 4  # windows of a length, for layers and for whole networks
RTOL = 1e-2  # windows differ by far more
NETWORKS = ({"name": "minilm", "masked": False}, {"name": "gpt2-mini"})
LENGTHS, WHOLE_LENGTHS = (8, 32, 128, 512), (8, 16, 32, 64, 128)
POST_NORM = (  # the layers built like BERT's, with every text that the atlas reads with them
    *((options, Condition(text)) for options, _ in MODELS[:2] for text in ("alice", "ag_news", "python_reference")),
    MODELS[6],
)
POST_LENGTHS = (8, 16, 32, 64, 128, 256, 512)


def sublayer(block, x, inner=False):
    """Products with the Jacobian of a sub-layer: attention in closed form, norms by automatic differentiation.

    Parameters
    ----------
    block : lipnb.models.Block
        The sub-layer.
    x : Tensor, shape (b, n, d)
        Input of the sub-layer.
    inner : bool
        Whether to omit the norm (post-norm), or the residual connection (pre-norm).

    Returns
    -------
    forward, backward : callable
        Products with the Jacobian and with its transpose, of shape (b, n, d).
    """
    y = block.norm(x) if block.pre_norm else x
    attention, out = AttentionJacobian(block.attention, y), block.attention(y)
    if not block.pre_norm:
        norm = (_same, _same) if inner else _derivative(block.norm, x + out)

        def back(w):
            w = norm[1](w)
            return w + attention.vjp(w)

        return lambda u: norm[0](u + attention.jvp(u)), back
    norm, after = _derivative(block.norm, x), (_same, _same) if block.after is None else _derivative(block.after, out)
    kept = 0.0 if inner else 1.0
    return (
        lambda u: kept * u + after[0](attention.jvp(norm[0](u))),
        lambda w: kept * w + norm[1](attention.vjp(after[1](w))),
    )


def _same(x):
    return x


def _derivative(f, x):
    pull = torch.func.vjp(f, x)[1]
    return lambda u: torch.func.jvp(f, (x,), (u,))[1], lambda w: pull(w)[0]


def _norm(products, shape, seed):
    """Spectral norms (b,) of maps of tokens (b, n, d) in float32, and whether they converged."""
    forward, backward = products
    start = start_vectors(shape[0], shape[1] * shape[2], seed=seed, dtype=torch.float32, device="cpu")
    found = lanczos(lambda u: backward(forward(u.view(shape))).flatten(1), start, rtol=RTOL)
    return found.value, found.converged


def composed(read):
    """Composition of the layers of a network, as a map of the first layer's input.

    Parameters
    ----------
    read : list of lipnb.models.Reading
        From `lipnb.models.readings`.

    Returns
    -------
    callable
        A map of tokens (b, n, d) to the same shape.
    """

    def layers(x):
        for one in read:
            x = one.whole(x)
        return x

    return layers


def _solved(f, x, seed):
    """Constant of one sequence (1, n, d), a number, and whether it converged."""
    found = local_lipschitz(f, x, rtol=RTOL, seed=seed)
    return found.value.item(), bool(found.converged.all())


def _rows(options, condition, length, seed, count=COUNT):
    """Rows of all layers at the first windows of one length."""
    model, rows = load(**options), []
    blocks = [model.attention(layer, "block") for layer in range(model.layers)]
    windows = windows_of(model, condition, length, seed=seed)[:count]
    for layer, read in enumerate(models.readings(model, windows)):
        block, x = blocks[layer], read.stream
        value, settled = _norm(sublayer(block, x), x.shape, seed)
        part, settled_too = _norm(sublayer(block, x, inner=True), x.shape, seed)
        rows_of = released.pulled_back(block, x).double().square().sum(-1)  # squared norms of the rows of J^T f
        found = {"lipschitz": value, "inner": part, "released": rows_of.sum(-1) ** 0.25}
        found |= {"largest": rows_of.amax(-1) / rows_of.sum(-1), "converged": settled & settled_too}
        found = by_window(found)
        at = {"corpus": condition.corpus, "order": condition.order, **named(model, layer), "object": "block"}
        at |= {"pre_norm": block.pre_norm, "length": length}
        rows += [at | {"text": edition(one)} | row for one, row in zip(windows, found, strict=True)]
    return rows


def _planned(rows, options, condition, lengths, size, seed):
    """Description of a model, and the units of a table with one unit for each length."""
    options = {**options, "name": place(options["name"]), "dtype": "float32"}
    model = load(**options)
    windows_of(model, condition, max(lengths), seed=seed)  # fail early if the text is missing or too short
    key = f"{model.name}/masked" if options.get("masked") else model.name
    units = [
        Unit(f"{key}/{condition.corpus}/{n}", partial(rows, options, condition, n, seed), size(model)) for n in lengths
    ]
    return model.describe(), units


def _settings(planned, lengths, count, seed):
    settings = {"models": [model for model, _ in planned], "lengths": list(lengths), "count": count, "rtol": RTOL}
    return settings | {"seed": seed}, [unit for _, units in planned for unit in units]


def sublayers(read, lengths=LENGTHS, seed=0, count=COUNT):
    """Settings and units of a table of the sub-layers of some models.

    Parameters
    ----------
    read : sequence of tuple
        For each model its options for `lipnb.models.load`, and the `Condition` that defines its inputs.
    lengths : sequence of int
        Tokens of a window; pictures have the nearest numbers of tokens that squares of patches give.
    seed : int
        Seed of windows and start vectors.
    count : int
        Most windows of a length, of those of the condition.
    """
    planned, editions = [], {}
    for options, condition in read:
        model = load(**{**options, "name": place(options["name"]), "dtype": "float32"})
        mine = [n for n in lengths if n <= model.longest]
        if model.architecture.reads != "input_ids":
            squares = lengths_of(model, LONGEST)
            mine = sorted({min(squares, key=lambda n, m=m: abs(math.log(n / m))) for m in lengths})
        rows = partial(_rows, count=count)
        planned.append(_planned(rows, options, condition, mine, lambda model: count * model.layers, seed))
        editions[condition.corpus] = edition(windows_of(model, condition, max(mine), seed=seed).flatten()[:4096])
    settings, units = _settings(planned, lengths, count, seed)
    return settings | {"read": editions}, units


@table("released-map", "the sub-layer with residual and norm, which the released code measures, in trained layers")
def _prepare(lengths=LENGTHS, seed=0):
    return sublayers(MODELS, lengths, seed)


@table(
    "sublayer-texts", "the sub-layers built like BERT's at all windows of the atlas, on three texts and on reactions"
)
def _prepare_texts(lengths=POST_LENGTHS, seed=0):
    return sublayers(POST_NORM, lengths, seed, count=POST_NORM[0][1].count)


def _network_rows(options, condition, length, seed):
    """Rows of a network at the windows of one length: the composition of its layers, and the product of their norms."""
    model, rows = load(**options), []
    for window, one in enumerate(windows_of(model, condition, length, seed=seed)[:WHOLE_COUNT]):
        read, product, settled = models.readings(model, one[None]), 1.0, True
        for layer in read:
            value, fine = _solved(layer.whole, layer.stream, seed)
            product, settled = product * value, settled and fine
        value, fine = _solved(composed(read), read[0].stream, seed)
        rows.append(
            {"corpus": condition.corpus, "model": model.name, "masked": model.masked, "length": length}
            | {"window": window, "text": edition(one), "lipschitz": value, "product": product}
            | {"converged": settled and fine}
        )
    return rows


@table("whole-networks", "networks of whole layers against the product of their layers, at 8 to 128 tokens")
def _prepare_networks(lengths=WHOLE_LENGTHS, seed=0):
    condition = Condition(TEXT)
    planned = [
        _planned(_network_rows, options, condition, lengths, lambda model: WHOLE_COUNT, seed) for options in NETWORKS
    ]
    settings, units = _settings(planned, lengths, WHOLE_COUNT, seed)
    return settings | {"corpus": TEXT, "text": corpora.fingerprint(corpora.read(TEXT))}, units
