"""The growth atlas: the local constant of every layer against the number of tokens, on texts, pictures and controls.

Lengths are geometric. At each length the windows lie at random positions, disjoint, and drawn again for every length,
each between the special tokens of its model; windows of a picture are random squares. Controls: the same windows with
their tokens in random order, and random weights on the same windows.
"""

import math
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import interpolate

from lab import released
from lab.experiments.attention_summary import concentration, parts, popularity
from lab.experiments.loading import edition, load, place
from lab.experiments.table import SOLVE, by_window, solved, table
from lipnb import singular_pair
from lipnb.attention import Attention
from lipnb.certified import certify
from lipnb.lipschitz import local_lipschitz
from lipscan import corpora, models
from lipscan.models.demo.pictures import PICTURES, picture
from lipscan.recording import Unit
from lipscan.scanning.inputs import shuffled
from lipscan.scanning.measure import relative

__all__ = ["Condition", "crops", "lengths_of", "prepared", "windows_of"]

RTOL = 1e-3  # of a constant: far below the differences between windows
CERTIFIED = 32  # tokens up to which the first window of Alice is certified
SHORTEST, LONGEST = 8, 1024  # tokens of a text window
TOKENS = 2048  # most tokens at a length: fewer windows if they are long, but never fewer than three
LEAST = 3
LARGEST = 1370  # tokens of the first picture, those of its training
CONTROLS_TO = 512  # tokens up to which pictures, controls and all texts but Alice are measured
ENTRIES = 2**26  # attention probabilities held at once
SQUARES = (4, 6, 8, 11, 16, 22, 32, 37)  # patches on a side of a picture
SMALLEST = 0.5  # side of a random square, over the shorter side of its picture
ORDERS, WEIGHTS = ("text", "shuffled"), ("own", "random")


class Condition(NamedTuple):
    """Inputs and weights of a model in a part of the atlas.

    Attributes
    ----------
    corpus : str
        A text, or a picture.
    order : {"text", "shuffled"}
        Whether tokens (patches for a picture) keep their order or are shuffled.
    weights : {"own", "random"}
        The model's weights, or random ones from its family's initialisation.
    count : int
        Most windows of a length.
    longest : int
        Most tokens.
    """

    corpus: str
    order: str = "text"
    weights: str = "own"
    count: int = 8
    longest: int = LONGEST


def _texts(count, longest, rest):
    """Conditions of a language model: three texts, and two controls on the first of them."""
    return (
        Condition("alice", count=count, longest=longest),
        Condition("ag_news", count=rest, longest=min(longest, CONTROLS_TO)),
        Condition("python_reference", count=rest, longest=min(longest, CONTROLS_TO)),
        Condition("alice", order="shuffled", count=rest, longest=min(longest, CONTROLS_TO)),
        Condition("alice", weights="random", count=min(rest, 4), longest=min(longest, CONTROLS_TO)),
    )


REACTIONS = (
    Condition("reactions", longest=CONTROLS_TO),
    Condition("reactions", order="shuffled", longest=CONTROLS_TO),
    Condition("reactions", weights="random", count=4, longest=CONTROLS_TO),
)
IMAGES = (
    *(Condition(name, count=4, longest=CONTROLS_TO if i else LARGEST) for i, name in enumerate(PICTURES)),
    *(Condition(name, order="shuffled", count=3, longest=CONTROLS_TO) for name in PICTURES),
    *(Condition(name, weights="random", count=3, longest=CONTROLS_TO) for name in PICTURES),
)
SMALL = _texts(8, 512, 8)
FEW = tuple(Condition(corpus, count=4, longest=CONTROLS_TO) for corpus in ("alice", "ag_news"))


def lengths_of(model, longest=LONGEST):
    """Geometric lengths that a model reads: powers of two from 8, or squares of patches plus special tokens.

    Parameters
    ----------
    model : lipnb.models.Model
        From `lipnb.models.load`.
    longest : int
        Most tokens.

    Returns
    -------
    tuple of int

    Examples
    --------
    >>> from lipnb import models
    >>> lengths_of(models.load("minilm"), 100)
    (8, 16, 32, 64)
    """
    most = min(longest, model.longest)
    if model.architecture.reads == "input_ids":
        return tuple(2**i for i in range(int(math.log2(SHORTEST)), int(math.log2(most)) + 1))
    return tuple(n for n in (_tokens(model, side) for side in SQUARES) if n <= most)


def _tokens(model, side):
    """Number of tokens of a picture with `side` patches on a side."""
    config = model.module.config
    return side**2 + model.longest - (config.image_size // config.patch_size) ** 2


def crops(name, pixels, count, seed):
    """Random squares of a picture, resized; positions and sides uniform, sides at least half of the picture's.

    Parameters
    ----------
    name : str
        As for `lipnb.models.picture`.
    pixels : int
        Side of the result in pixels.
    count : int
        Number of squares.
    seed : int
        Seed of positions and sides.

    Returns
    -------
    Tensor, shape (count, 3, pixels, pixels)
        Normalised for DINOv2.

    Examples
    --------
    >>> crops("china", 56, 2, seed=0).shape
    torch.Size([2, 3, 56, 56])
    """
    whole = picture(name, 512)  # its largest central square
    draw, found = np.random.default_rng(seed), []
    for _ in range(count):
        side = int(draw.integers(int(SMALLEST * 512), 512, endpoint=True))
        top, left = draw.integers(0, 512 - side, endpoint=True, size=2)
        square = whole[..., top : top + side, left : left + side]
        found.append(interpolate(square, size=(pixels, pixels), mode="bicubic", antialias=True))
    return torch.cat(found)


def windows_of(model, condition, length, *, count=None, seed=0):
    """Windows of one length: token ids or pictures; each length has a different seed, and so other positions.

    Parameters
    ----------
    model : lipnb.models.Model
        Model that reads them.
    condition : Condition
        Inputs to read.
    length : int
        Tokens of a window, special ones included.
    count : int, optional
        Number of windows; default: as in the condition, but for long windows `TOKENS` tokens, or three windows.
    seed : int
        Seed of positions and orders.

    Returns
    -------
    LongTensor, shape (count, length), or Tensor, shape (count, c, pixels, pixels)

    Raises
    ------
    ValueError, FileNotFoundError
        A text or picture is missing or too short; see `lipnb.corpora` and `lipnb.models`.
    """
    count = count or min(condition.count, max(LEAST, TOKENS // length))
    draw = 1000 * seed + length
    if model.architecture.reads == "input_ids":
        ids = models.random_windows(model, corpora.read(condition.corpus), length, count, seed=draw)
        if condition.order == "shuffled":
            ends = tuple(map(len, models.special_tokens(model)))
            ids = torch.cat([shuffled(one[None], ends, draw + 7919 * i) for i, one in enumerate(ids)])
        return ids
    patch = model.module.config.patch_size
    side = next(side for side in SQUARES if _tokens(model, side) == length)
    pixels = crops(condition.corpus, side * patch, count, draw)
    if condition.order == "shuffled":
        for i, one in enumerate(pixels):
            order = torch.randperm(side**2, generator=torch.Generator().manual_seed(draw + 7919 * i))
            tiles = one.unfold(1, patch, patch).unfold(2, patch, patch).reshape(3, side**2, patch, patch)[:, order]
            tiles = tiles.view(3, side, side, patch, patch).permute(0, 1, 3, 2, 4)
            pixels[i] = tiles.reshape(3, side * patch, side * patch)
    return pixels


def named(model, layer):
    """Columns that identify a layer."""
    return {"model": model.name, "weights": model.weights, "masked": model.masked, "layer": layer} | {
        "object": "heads+output"
    }


def proved(f, x, seed):
    """Singular pair of a layer at windows x (b, n, d), and the columns lipschitz, residual, converged.

    If float32 is not enough for a proof, the solver continues in float64.
    """
    pair = singular_pair(f, x, rtol=RTOL, seed=seed)
    found = {"lipschitz": pair.value.clone(), "residual": pair.residual.clone(), "converged": pair.converged.clone()}
    for i in (~pair.converged).nonzero().flatten().tolist():
        again = solved(local_lipschitz(f, x[i], rtol=RTOL, seed=seed))
        for name, column in found.items():
            column[i] = again[name]
    return pair, found


def _layer_rows(f, x, *, certified, seed):
    """Rows of one layer at windows x (b, n, d)."""
    pair, columns = proved(f, x, seed)
    norms, y = torch.linalg.vector_norm(x.double(), dim=-1), f(x)
    found = concentration(pair) | columns
    found |= {
        "released": released.reported(f, x),
        "radius": norms.amax(-1),
        "mean_radius": norms.square().mean(-1).sqrt(),
    }
    if isinstance(f, Attention):
        found |= popularity(f, x) | parts(f, x, pair)
    rows = by_window(found)
    for i, row in enumerate(rows):
        row["relative"] = relative(row["lipschitz"], x[i], y[i])
        row["certified"] = math.nan
        if certified and i == 0 and isinstance(f, Attention):
            row["certified"] = certify(f, x[i], columns=0, rtol=1e-3, seed=seed).upper.item()
    return rows


def _rows(options, condition, length, seed):
    """Rows of all layers at the windows of one length."""
    model = load(**options)
    inputs = windows_of(model, condition, length, seed=seed)
    if condition.weights == "random":
        model = _twin(model, seed)
    rows, step = [], max(1, ENTRIES // (model.heads * length**2))
    for first in range(0, len(inputs), step):
        some = inputs[first : first + step]
        certified = first == 0 and length <= CERTIFIED and condition[:3] == Condition("alice")[:3]
        for layer, read in enumerate(models.readings(model, some)):
            found = _layer_rows(model.attention(layer), read.received, certified=certified, seed=seed)
            at = {"corpus": condition.corpus, "order": condition.order, **named(model, layer), "length": length}
            rows += [
                at | {"text": edition(ids)} | row | {"window": first + i}
                for i, (ids, row) in enumerate(zip(some, found, strict=True))
            ]
    return rows


_twins: dict = {}


def _twin(model, seed):
    """The model with random weights; only the last one is kept."""
    which = model.name, model.masked, seed
    if which not in _twins:
        _twins.clear()
        _twins[which] = models.random_twin(model, seed)
    return _twins[which]


def prepared(options, conditions, lengths=None, count=None, seed=0):
    """Settings and units; missing weights, texts or pictures are reported before anything is measured.

    Parameters
    ----------
    options : dict
        Options of the model for `lipnb.models.load`.
    conditions : sequence of Condition
        Conditions that define its inputs.
    lengths, count : sequence of int, int, optional
        Replace those of the model and the conditions.
    seed : int
        Seed of windows and start vectors.
    """
    options = {**options, "name": place(options["name"]), "dtype": "float32"}
    model, work, read = load(**options), [], {}
    for condition in conditions:
        if count is not None:
            condition = condition._replace(count=count)
        wanted = lengths_of(model, condition.longest)
        wanted = wanted if lengths is None else [n for n in lengths if n <= condition.longest]
        for n in (wanted[0], wanted[-1]):
            windows = windows_of(model, condition, n, seed=seed)
        read[condition.corpus] = edition(windows.flatten()[:4096])
        for n in wanted:
            key = "/".join(map(str, (*condition[:3], n)))
            size = len(windows_of(model, condition, n, seed=seed)) * model.layers
            work.append(Unit(key, partial(_rows, options, condition, n, seed), size))
    settings = {
        **model.describe(),
        "conditions": [list(condition) for condition in conditions],
        "lengths": None if lengths is None else list(lengths),
        "count": count,
        "read": read,
        "rtol": RTOL,
        "seed": seed,
    }
    return settings, work


table(
    "atlas-minilm",
    "the growth atlas: every layer of MiniLM, 8 to 512 tokens, three texts and two controls",
    aside=SOLVE,
)(partial(prepared, {"name": "minilm", "masked": False}, SMALL))
table("atlas-minilm-masked", "the growth atlas of MiniLM as a decoder", aside=SOLVE)(
    partial(prepared, {"name": "minilm", "masked": True}, SMALL)
)
table("atlas-gpt2-mini", "the growth atlas of gpt2-mini", aside=SOLVE)(partial(prepared, {"name": "gpt2-mini"}, SMALL))
table("atlas-stories260k", "the growth atlas of stories260K, of Llama type", aside=SOLVE)(
    partial(prepared, {"name": "stories260K"}, SMALL)
)
table("atlas-smollm2", "the growth atlas of SmolLM2, to 2,048 tokens on Alice", aside=SOLVE)(
    partial(prepared, {"name": "smollm2"}, _texts(6, 2048, 4))
)
table("atlas-gpt2-random", "the growth atlas of a random GPT-2, on two texts", aside=SOLVE)(
    partial(prepared, {"name": "gpt2", "random": True, "seed": 0, "tokenizer": "gpt2"}, FEW)
)
table("atlas-dinov2-small", "the growth atlas of DINOv2 on pictures, to 1,370 tokens", aside=SOLVE)(
    partial(prepared, {"name": "dinov2-small"}, IMAGES)
)
table(
    "atlas-albert", "the growth atlas of an ALBERT on reactions of chemistry: one attention at all depths", aside=SOLVE
)(partial(prepared, {"name": "rxnmapper-albert"}, REACTIONS))
