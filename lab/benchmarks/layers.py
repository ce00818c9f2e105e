r"""Layers and inputs for the benchmarks: real layers on real text, and a wide layer made of two of them.

``mini:L``        pretrained MiniLM, layer L (d = 384, 12 heads of width 32); ``mini:L:masked`` with the causal mask
``twin:L``        two pretrained MiniLM layers, L and L + 1, side by side and rotated (d = 768, 12 heads of width 64)
``gpt2r:L``       randomly initialised GPT-2, layer L, masked (d = 768, 12 heads of width 64)

MiniLM has 6 layers and so 5 twins, GPT-2 has 12; numbers start at 0.

A twin has the shape of a layer of BERT-base, whose weights need a download, with the spectrum of trained layers. In
the coordinates before the rotation Q its tokens are (x, y), of width 384 each, from different windows of the text;
head h has the queries, keys and values of head h of both layers concatenated, and the scale of one of them, so that
logits add; the output is (W_O, W_O') on the diagonal. With P_h = softmax(logits_h + logits'_h):

    twin(Q (x, y)) = Q (sum_h W_O P_h v_h + b_O,  sum_h W_O' P_h v'_h + b_O').
"""

import argparse
import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F

from lipnb import Attention
from lipscan import corpora, models

__all__ = ["FORMS", "Layer", "layer", "listed", "plain_forward", "rotation", "twin_attention", "wide_tokens"]

DEPTHS = {"mini": 6, "twin": 5, "gpt2r": 12}
FORMS = "mini:L, mini:L:masked, twin:L or gpt2r:L"
WIDE_WINDOW = 512  # MiniLM's positions: a longer input of `wide_tokens` consists of several windows


class Layer(NamedTuple):
    """A layer with the source of its inputs.

    Attributes
    ----------
    name : str
        As at the start of the module docstring.
    attention : Attention
        The map, with output projection and biases, float32.
    tokens : callable
        (n, count, skip=0) -> Tensor of shape (count, n, d), the tokens that the layer receives; windows as in
        Figure 1, after the first `skip` ones.
    """

    name: str
    attention: Attention
    tokens: Callable


@cache
def _minilm(masked=False):
    return models.load("minilm", masked=masked)


@cache
def _ids(model_of, corpus):
    return model_of().token_ids(corpora.read(corpus))


def _parts(name):
    """Family, number and mask of a layer, from its name; refuses unknown names."""
    found = re.fullmatch(r"(mini|twin|gpt2r):([0-9]{1,2})(:masked)?", name)
    if not found or (found[3] and found[1] != "mini") or int(found[2]) >= DEPTHS[found[1]]:
        depths = ", ".join(f"{family}:0 to {family}:{depth - 1}" for family, depth in DEPTHS.items())
        raise ValueError(f"a layer is {FORMS}, with {depths}; got {name!r}")
    return found[1], int(found[2]), bool(found[3])


def listed(text):
    """Names of layers, from comma-separated text, as argparse's `type`."""
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    try:
        for name in names:
            _parts(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return names


@cache
def layer(name, corpus="alice"):
    """The layer of a name, with inputs from a corpus.

    Parameters
    ----------
    name : str
        "mini:L", "mini:L:masked", "twin:L" or "gpt2r:L".
    corpus : str
        As for `lipnb.corpora.read`.

    Returns
    -------
    Layer
    """
    family, number, masked = _parts(name)
    ids = _ids(_minilm, corpus)  # MiniLM's tokenizer also serves the random model
    if family == "twin":
        twin = twin_attention(_minilm().attention(number), _minilm().attention(number + 1), rotation(2 * 384))
        return Layer(name, twin, lambda n, count, skip=0: _twin_tokens(number, _windows(ids, n, 2 * count, 2 * skip)))
    model = _minilm(masked) if family == "mini" else models.load("gpt2", random=True, seed=0)
    return Layer(
        name, model.attention(number), lambda n, count, skip=0: model.activations(_windows(ids, n, count, skip), number)
    )


def _windows(ids, n, count, skip=0):
    """The `count` windows of n tokens that follow the first `skip` ones."""
    return corpora.windows(ids, n, skip + count)[skip:]


def _twin_tokens(number, windows):
    """Inputs of a twin: the first half of the windows for one layer, the second half for the other, rotated."""
    first, second = windows.chunk(2)
    both = torch.cat([_minilm().activations(first, number), _minilm().activations(second, number + 1)], dim=-1)
    return (both.double() @ rotation(both.shape[-1]).T).float()


def wide_tokens(number, length, corpus="python_reference"):
    """One long input of ``twin:L``, shape (1, length, 768): windows of 512 tokens, one after another."""
    ids = _ids(_minilm, corpus)
    windows = _windows(ids, WIDE_WINDOW, 2 * -(-length // WIDE_WINDOW))
    return _twin_tokens(number, windows).flatten(0, 1)[None, :length].contiguous()


@cache
def rotation(width, seed=0):
    """A random orthogonal matrix, float64, shape (width, width)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))[0]


def twin_attention(first, second, turn):
    """Two attention layers side by side, logits added, in rotated coordinates.

    Parameters
    ----------
    first, second : Attention
        With the same number of heads, output projections and biases, and equal scales.
    turn : Tensor, shape (d + d', d + d'), float64
        Orthogonal matrix Q that rotates inputs and outputs.

    Returns
    -------
    Attention
        Has width d + d', heads of width k + k', and the dtype of `first`.
    """
    if (first.heads, first.scale, first.masked) != (second.heads, second.scale, second.masked):
        raise ValueError("the two layers need as many heads, the same scale and the same mask.")

    def diagonal(name):
        blocks = [(a.double(), b.double()) for a, b in zip(getattr(first, name), getattr(second, name), strict=True)]
        return torch.stack([torch.block_diag(*pair) for pair in blocks])

    def joined(name):
        return torch.cat([getattr(first, name), getattr(second, name)], dim=-1)

    inputs = {name: (diagonal(name) @ turn.T).to(first.dtype) for name in ("query", "key", "value")}
    biases = {f"{name}_bias": joined(f"{name}_bias") for name in ("query", "key", "value")}
    return Attention(
        **inputs,
        output=(turn @ diagonal("output")).to(first.dtype),
        **biases,
        output_bias=(turn @ joined("output_bias").double()).to(first.dtype),
        scale=first.scale,
        masked=first.masked,
    )


@lru_cache(maxsize=4)  # keep the time for stacking weights out of the answers
def plain_forward(attention):
    """The same map as model libraries write it: stacked linear layers, heads by reshaping, softmax.

    Parameters
    ----------
    attention : Attention
        Attention with an output projection.

    Returns
    -------
    callable
        A map from tokens (..., n, d) to tokens (..., n, m), differentiable by `torch.func`, without our checks.
    """

    def stacked(name):
        bias = getattr(attention, f"{name}_bias")
        return getattr(attention, name).flatten(0, 1).contiguous(), None if bias is None else bias.flatten()

    query, key, value = (stacked(name) for name in ("query", "key", "value"))
    output = attention.output.movedim(0, 1).flatten(1).contiguous()

    def heads(x, weight, bias):
        return F.linear(x, weight, bias).unflatten(-1, (attention.heads, -1)).transpose(-3, -2)

    def forward(x):
        logits = heads(x, *query) @ heads(x, *key).mT * attention.scale
        if attention.masked:
            later = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
            logits = logits.masked_fill(later, -torch.inf)
        mixed = (logits.softmax(-1) @ heads(x, *value)).transpose(-3, -2).flatten(-2)
        return F.linear(mixed, output, attention.output_bias)

    return forward
