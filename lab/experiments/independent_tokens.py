"""Tables of the null models of growth: tokens drawn independently from a layer's inputs on text."""

import torch

from lab.experiments.atlas import Condition, windows_of
from lab.experiments.loading import load
from lab.experiments.table import SOLVE, solved, table
from lipnb import local_lipschitz
from lipscan import corpora

MODEL, CORPUS = "minilm", "alice"
LENGTHS, DRAWS, RTOL = tuple(2**i for i in range(3, 12)), 4, 1e-2  # draws differ by far more
BESIDE_SPECIAL, DRAWS_BESIDE = tuple(2**i for i in range(3, 10)), 8  # no text is longer than 512 tokens
POOL = 8, 512  # windows to draw from, and tokens in each


def _layers():
    return [(MODEL, layer) for layer in range(load(MODEL, masked=False, dtype="float32").layers)]


def _settings(**more):
    text = {"corpus": CORPUS, "text": corpora.fingerprint(corpora.read(CORPUS)), "pool": POOL}
    return load(MODEL, masked=False, dtype="float32").describe() | text | more | {"rtol": RTOL}


def _pool(model, layer, seed):
    """Inputs of a layer at all tokens of some long windows, (windows, tokens, d)."""
    windows, length = POOL
    ids = windows_of(model, Condition(CORPUS), length, count=windows, seed=seed)
    return torch.cat([model.activations(some, layer) for some in ids.split(2)])


def _solve(f, x, seed):
    found = local_lipschitz(f, x, rtol=RTOL, seed=seed)
    return found if found.converged else local_lipschitz(f, x.double(), rtol=RTOL, seed=seed)


def _measured(f, lengths, draws, sample, seed):
    """Rows as `growth.slope` reads them: the constant at the results of ``sample(length, generator)``."""
    rows = []
    for length in lengths:
        for draw in range(draws):
            generator = torch.Generator().manual_seed(10_000 * seed + 10 * length + draw)
            found = _solve(f, sample(length, generator), seed)
            rows.append(
                {"length": length, "window": draw, "lipschitz": found.value.item(), "converged": bool(found.converged)}
            )
    return rows


@table(
    "independent-tokens",
    "a null model of growth: tokens drawn independently from what each layer of MiniLM receives",
    over=_layers,
    size=len(LENGTHS) * DRAWS,
    settings=lambda: _settings(lengths=LENGTHS, draws=DRAWS),
)
def drawn_rows(model, layer, *, seed=0):
    """Rows of one layer: the constant at independent tokens, for each length and draw."""
    network = load(model, masked=False, dtype="float32")
    pool = _pool(network, layer, seed).flatten(0, 1)

    def sample(length, generator):
        return pool[torch.randint(len(pool), (length,), generator=generator)]

    return _measured(network.attention(layer), LENGTHS, DRAWS, sample, seed)


@table(
    "independent-beside-special",
    "the same, with the two special tokens that every text has kept at every length",
    over=_layers,
    size=len(BESIDE_SPECIAL) * DRAWS_BESIDE,
    settings=lambda: _settings(lengths=BESIDE_SPECIAL, draws=DRAWS_BESIDE),
)
def beside_special(model, layer, *, seed=0):
    """Rows of one layer: first and last token of one window of the pool, with independent tokens between them."""
    network = load(model, masked=False, dtype="float32")
    pool = _pool(network, layer, seed)
    between = pool[:, 1:-1].flatten(0, 1)

    def sample(length, generator):
        ends = pool[torch.randint(len(pool), (), generator=generator)][[0, -1]]
        return torch.cat([ends, between[torch.randint(len(between), (length - 2,), generator=generator)]])

    return _measured(network.attention(layer), BESIDE_SPECIAL, DRAWS_BESIDE, sample, seed)


@table(
    "independent-limit",
    "the constant at all tokens of the pool at once: what independent draws from it tend to",
    over=_layers,
    settings=lambda: _settings(),
    aside=SOLVE,
)
def pool_constant(model, layer, *, seed=0):
    """The row of one layer."""
    network = load(model, masked=False, dtype="float32")
    x = _pool(network, layer, seed).flatten(0, 1)
    row = solved(_solve(network.attention(layer), x, seed))
    return {"length": len(x)} | {name: value.item() if torch.is_tensor(value) else value for name, value in row.items()}
