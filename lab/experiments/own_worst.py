"""Table of whole layers at their own worst inputs: the largest constant over inputs against all heads, both signs.

Figure 1 of castin2024smooth follows inputs against one head. A layer sums all of its heads, so here every head is
attacked, with both signs, and the largest constant of the layer counts. The table adds forks, which need no
eigenvector, and as controls two clusters along random directions and windows of a text.
"""

import math
from functools import lru_cache

import torch

from lab.experiments import adversarial
from lab.experiments.table import table
from lab.experiments.two_clusters import cluster_input, head_of
from lab.statistics.head_rates import GPT2
from lipnb.lipschitz import local_lipschitz
from lipnb.worst_case import bulk_directions, forks
from lipscan import corpora, models

LENGTHS = (7, 12, 22, 47, 97)
CORPUS, WINDOWS, DRAWS = "alice", 5, 8
PANELS = adversarial.PANELS[:5] + adversarial.PANELS[6:]  # all panels that show whole layers


def random_clusters(d, n, R, draws, seed):
    """Two clusters along random directions, a lone token opposite to all others: Tensor (draws, n, d), float64."""
    u = torch.randn(draws, 1, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    factors = torch.full((n, 1), 1.0, dtype=torch.float64)
    factors[0] = -1
    return R * factors * u / u.norm(dim=-1, keepdim=True)


def of_layer(attention, n, R, *, rtol=1e-4, seed=0):
    """Largest constants of a whole layer at inputs of n tokens in the ball of radius R.

    `attention`: a layer with heads, biases and output matrix, float64.
    `rtol`, `seed`: as for `lipnb.local_lipschitz`; `seed` also draws the random directions.
    Returns clusters, the largest constant at `cluster_input` of any head, with both signs; its head and sign (1 or -1);
    other, the largest with the other sign; fork, the largest at forks; random, the largest along random
    directions.
    """
    own = torch.stack([cluster_input(head_of(attention, h), n, R) for h in range(attention.heads)])
    found = local_lipschitz(attention, torch.cat([own, -own]), rtol=rtol, seed=seed).value.view(2, -1)
    sign, head = divmod(found.argmax().item(), attention.heads)
    few = forks(attention, n, R, bulk_directions(attention, pairs=4), seed=seed).tokens()
    chance = random_clusters(attention.width, n, R, DRAWS, seed)
    return {
        "head": head,
        "sign": 1 - 2 * sign,
        "clusters": found.max().item(),
        "other": found[1 - sign].max().item(),
        "fork": local_lipschitz(attention, few, rtol=rtol, seed=seed).value.max().item(),
        "random": local_lipschitz(attention, chance, rtol=rtol, seed=seed).value.max().item(),
    }


@lru_cache(maxsize=64)
def _text(name, masked, layer, n):
    """Largest constant of a layer on windows of a text, for any radius; NaN for models without texts here."""
    if name in (GPT2, "gpt2"):
        return math.nan
    model = adversarial.network_of(name, masked)
    tokens = corpora.windows(models.first_tokens(model, corpora.read(CORPUS), n * WINDOWS), n, WINDOWS)
    return local_lipschitz(model.attention(layer), model.activations(tokens, layer)).value.max().item()


@table(
    "adversarial-worst",
    "whole layers at their own worst: any head, both signs, forks; random directions and text beside",
    over=lambda: adversarial.units(PANELS),
    size=lambda lengths: len(lengths),
    settings=lambda: (
        {"panels": PANELS, "corpus": corpora.fingerprint(corpora.read(CORPUS)), "windows": WINDOWS}
        | {"draws": DRAWS, "random": adversarial.RANDOM, "dtype": "float64"}
    ),
)
def layer_rows(model, masked, at, layer, *, lengths=LENGTHS, rtol=1e-4, seed=0):
    """Rows of the table: `of_layer` at each length, a text, and the bound on the ball."""
    attention, R = adversarial.layer_of(model, masked, at, layer)
    return [
        {
            "R": R,
            "length": n,
            **of_layer(attention, n, R, rtol=rtol, seed=seed),
            "text": _text(model, masked, layer, n),
            "upper": adversarial.ball_upper(attention, n, R),
        }
        for n in lengths
    ]
