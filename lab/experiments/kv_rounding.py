"""Table of rounded caches: keys or values of one layer at a time in few bits, and the effect on the output.

Each row also holds quantities that might rank the layers: the layer's local constant, the size of the rounding error,
and the part of it that arrives at the end of the network.
"""

from functools import lru_cache
from typing import NamedTuple

import torch

from lab.experiments.loading import edition, load
from lab.experiments.table import by_window, table
from lipnb.lipschitz import local_lipschitz
from lipscan import corpora, models
from lipscan.models.hooks import capture
from lipscan.models.network import one_call

MODELS = ("gpt2-mini", "smollm2")
TEXTS = ("alice", "ag_news", "python_reference")
LENGTH, WINDOWS, BITS, RTOL = 128, 3, (3, 4), 1e-2
PART = 1 / 32  # part of a change whose effect on the end is taken as linear
KINDS = ("keys", "values")
ENDS = ("norm", "ln_f")  # names of the norm after the last layer in Llama and GPT-2
PLACE = ["model", "corpus", "layer"]  # identifies rows that are measured together
COMPARED = ("lipschitz", "error", "stream_change", "carried", "hidden", "kl")  # when a row is measured again


class Cache:
    """Cache that returns the given keys and values to attention, with one of the two rounded.

    `kind` ("keys", "values"): which are rounded. `bits`: bits of each number, see `rounded`. `error`, `size` (b,): norm
    of the rounding error, and of the rounded numbers, after a pass.
    """

    def __init__(self, kind, bits):
        self.kind, self.bits = kind, bits
        self.error = self.size = torch.tensor(())

    def update(self, keys, values, layer, *more):
        """Keys and values (b, heads, n, k) for attention to use; called by transformers."""
        old = keys if self.kind == "keys" else values
        new = rounded(old, self.bits)
        self.error, self.size = ((new - old).flatten(1).norm(dim=1), old.flatten(1).norm(dim=1))
        return (new, values) if self.kind == "keys" else (keys, new)


class Start(NamedTuple):
    """A network and its outputs on some windows, before anything is rounded.

    `ids` (b, n). `hidden` (b, n, d): last hidden states, final norm included. `logs` (b, n, vocabulary): logarithms of
    the probabilities of the next token.
    """

    model: models.Model
    ids: torch.Tensor
    read: list
    hidden: torch.Tensor
    logs: torch.Tensor


def rounded(x, bits):
    """Numbers rounded to 2 ** bits equal steps from the smallest to the largest of each vector, as a cache stores them.

    `x` (..., k): keys or values, one vector for each token and head. Returns (..., k).
    """
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    step = (high - low) / (2**bits - 1)
    return low + step * ((x - low) / torch.where(step > 0, step, 1)).round()


def by_token(change, x):
    """Relative change of each token, root mean square over the tokens: (b, n, d) and (b, n, d) to (b,).

    One token of a trained network can be a hundred times as long as the others and would dominate a norm of all tokens.
    """
    return (change.norm(dim=-1) / x.norm(dim=-1)).square().mean(-1).sqrt()


def loss(before, after):
    """Kullback-Leibler divergence in nats, mean over positions: (b, n, v) logarithms of probabilities to (b,).

    Each summand is p (q/p - 1 - log(q/p)), which is at least 0 and avoids cancellation.
    """
    gap = after - before
    return (before.exp() * (gap.expm1() - gap)).sum(-1).mean(-1)


def through(model, read, x, layer):
    """Last hidden states, (b, n, d), if `layer` receives x (b, n, d); after the last layer only the norm is applied."""
    for one in read[layer:]:
        x = one.whole(x)
    (norm,) = (getattr(model.module, name) for name in ENDS if hasattr(model.module, name))
    return norm(x)


def _logs(model, hidden):
    return (hidden @ model.module.get_input_embeddings().weight.T).log_softmax(-1)


@torch.no_grad()
def begin(model, ids):
    """The `Start` of a decoder on windows of token ids (b, n)."""
    read = models.readings(model, ids)
    hidden = through(model, read, read[0].stream, 0)
    return Start(model, ids, read, hidden, _logs(model, hidden))


@torch.no_grad()
def round_layer(start, layer, kind, bits):
    """Effects of rounding the keys or values of one layer.

    `kind` ("keys", "values"). Returns (b,): `error` and `relative_error` of the rounded numbers (norm of all tokens);
    `given_change` of the attention's output; `stream_change`, the relative change of the residual stream after the
    layer, `carried`, that of the last hidden states to first order, and `hidden`, the measured one (all three
    `by_token`); `kl` of the next token.
    """
    model, read = start.model, start.read
    cache = Cache(kind, bits)
    attention = model.architecture.receiver(model.module, layer, "heads+output")
    giver = model.architecture.giver(model.module, layer)

    def with_cache(call):
        return (call.args, {**call.kwargs, "past_key_values": cache}) if call.module is attention else None

    with capture(attention, giver, change=with_cache) as calls:
        after = read[layer].whole(read[layer].stream)
    before = _after(start, layer)
    hidden = through(model, read, after, layer + 1)
    little = through(model, read, before + PART * (after - before), layer + 1)
    return {
        "error": cache.error,
        "relative_error": cache.error / cache.size,
        "given_change": (one_call(calls, giver, 0).given - read[layer].given).flatten(1).norm(dim=1),
        "stream_change": by_token(after - before, before),
        "carried": by_token(little - start.hidden, start.hidden) / PART,
        "hidden": by_token(hidden - start.hidden, start.hidden),
        "kl": loss(start.logs, _logs(model, hidden)),
    }


def _after(start, layer):
    """The residual stream after a layer."""
    read = start.read
    return read[layer + 1].stream if layer + 1 < len(read) else read[layer].whole(read[layer].stream)


@torch.no_grad()
def _of_layer(start, layer, seed):
    """Quantities that do not depend on the rounding: constants, norms, and the gain of the layers above, (b,) each."""
    read, after = start.read[layer], _after(start, layer)
    f, x = start.model.attention(layer), read.received
    size, given = (y.flatten(1).norm(dim=1) for y in (x, read.given))
    value = local_lipschitz(f, x, rtol=RTOL).value
    noise = torch.randn(after.shape, generator=torch.Generator().manual_seed(seed), dtype=after.dtype)
    step = noise * (after.norm(dim=-1, keepdim=True) / noise.norm(dim=-1, keepdim=True))  # each token by its length
    little = through(start.model, start.read, after + PART**2 * step, layer + 1)
    return {
        "lipschitz": value,
        "relative": value * size / given,
        "received": size,
        "given": given,
        "residual": after.flatten(1).norm(dim=1),
        "residual_token": after.norm(dim=-1).median(-1).values,
        "gain_random": by_token(little - start.hidden, start.hidden) / PART**2,
    }


@lru_cache(maxsize=1)
def _start(name, corpus):
    model = load(name)
    ids = models.random_windows(model, corpora.read(corpus), LENGTH, WINDOWS)
    return begin(model, ids)


@table(
    "kv-rounding",
    "caches rounded one layer at a time, and what may rank the layers",
    over=lambda texts: [(name, corpus, i) for name in MODELS for corpus in texts for i in range(load(name).layers)],
    size=len(KINDS) * len(BITS) * WINDOWS,
    settings=lambda texts: (
        {"texts": {name: corpora.fingerprint(corpora.read(name)) for name in texts}}
        | {"models": MODELS, "length": LENGTH, "windows": WINDOWS, "bits": BITS, "part": PART, "rtol": RTOL}
        | {"dtype": "float32"}
    ),
    texts=TEXTS,
)
def layer_rows(model, corpus, layer):
    """Rows of one layer on the windows of a text: for each kind, number of bits and window."""
    start = _start(model, corpus)
    same, rows = _of_layer(start, layer, seed=layer), []
    for kind in KINDS:
        for bits in BITS:
            found = same | round_layer(start, layer, kind, bits)
            for ids, row in zip(start.ids, by_window(found), strict=True):
                rows.append({"text": edition(ids), "length": LENGTH, "kind": kind, "bits": bits} | row)
    return rows


def again(row):
    """A stored row measured again, for `lipscan.recording.remeasure`; None without its model or its text."""
    try:
        rows = layer_rows(*(row[name] for name in PLACE))
    except FileNotFoundError:
        return None
    keys = ("text", "window", "kind", "bits")
    same = [found for found in rows if all(found[key] == row[key] for key in keys)]
    return {key: same[0][key] for key in COMPARED} if same else None
