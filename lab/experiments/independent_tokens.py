"""The table of the null model of growth: tokens drawn independently from what a layer receives on text."""

import torch

from lab.experiments.atlas import Condition, windows_of
from lab.experiments.loading import load
from lab.experiments.table import table
from lipnb import corpora, local_lipschitz

__all__ = ["LENGTHS", "POOL", "drawn_rows"]

MODEL, CORPUS = "minilm", "alice"
LENGTHS, DRAWS, RTOL = tuple(2**i for i in range(3, 12)), 4, 1e-2  # draws differ by far more
POOL = 8, 512  # windows, and tokens in each: what is drawn from


def _pool(model, layer, seed):
    """What a layer receives at all tokens of some long windows, in one row, (tokens, d)."""
    windows, length = POOL
    ids = windows_of(model, Condition(CORPUS), length, count=windows, seed=seed)
    return torch.cat([model.activations(some, layer).flatten(0, 1) for some in ids.split(2)])


@table(
    "independent-tokens",
    "the null model of growth: tokens drawn independently from what each layer of MiniLM receives",
    over=lambda: [(MODEL, layer) for layer in range(load(MODEL, masked=False, dtype="float32").layers)],
    size=len(LENGTHS) * DRAWS,
    settings=lambda: {
        **load(MODEL, masked=False, dtype="float32").describe(),
        **{"corpus": CORPUS, "text": corpora.fingerprint(corpora.read(CORPUS)), "pool": POOL},
        **{"lengths": LENGTHS, "draws": DRAWS, "rtol": RTOL},
    },
)
def drawn_rows(model, layer, *, seed=0):
    """Rows of one layer: the constant at independent tokens, for each length and draw, as `growth.slope` reads them."""
    network, rows = load(model, masked=False, dtype="float32"), []
    pool, f = _pool(network, layer, seed), network.attention(layer)
    for length in LENGTHS:
        for draw in range(DRAWS):
            generator = torch.Generator().manual_seed(10_000 * seed + 10 * length + draw)
            x = pool[torch.randint(len(pool), (length,), generator=generator)]
            found = local_lipschitz(f, x, rtol=RTOL, seed=seed)
            if not found.converged:
                found = local_lipschitz(f, x.double(), rtol=RTOL, seed=seed)
            rows.append(
                {"length": length, "window": draw, "lipschitz": found.value.item(), "converged": bool(found.converged)}
            )
    return rows
