"""Table of exact rates: gamma* and gamma for every head of trained models, and constants of 1e8 tokens."""

import math

import torch

from lab import results
from lab.experiments import adversarial
from lab.experiments.table import table
from lab.experiments.two_clusters import cluster_constants, head_of
from lab.statistics.head_rates import GPT2
from lipnb import Attention, bounds, local_lipschitz
from lipscan import models

LONG = 1e8  # number of tokens, realised by weights
MODELS = ("minilm", "gpt2-mini", "smollm2", GPT2)


def _attention(name, layer):
    """A layer with the keys repeated for each head; rotary heads are taken without rotation."""
    if name == GPT2:
        return adversarial.layer_of(name, True, "layer norm", layer).attention
    return models.load(name, dtype=torch.float64).attention(layer).expand_groups()


def _text_radii():
    """MiniLM's mean radii on text: (layer, head) -> radius, as on the page on Proposition 3.4."""
    stored = results.load("scaling-factor").query("model == 'minilm' and radius == 'text' and not masked")
    mean = stored.groupby(["layer", "head"])[["rate", "factor"]].mean()
    return (mean.factor / mean.rate) ** 0.5


def at_pair(A, n, R):
    """The constant at one token R y and n - 1 tokens R x, V = I: two weighted tokens in their span."""
    rate = bounds.mean_field_rate(A)
    x = R * torch.stack([rate.y, rate.x])
    span = torch.linalg.qr(torch.cat([x, x @ A.mT, x @ A]).mT).Q
    small = Attention.from_matrices(span.mT @ A @ span, torch.eye(span.shape[1], dtype=torch.float64))
    weights = torch.tensor([1, n - 1], dtype=torch.float64) / n
    return local_lipschitz(small, x @ span, weights=weights, method="dense").value.item()


def _layers():
    counts = {name: models.load(name, dtype=torch.float64).layers for name in MODELS if name != GPT2}
    counts[GPT2] = adversarial.layers_of(GPT2, True)
    return [(name, layer) for name in MODELS for layer in range(counts[name])]


@table(
    "exact-rates",
    "gamma* and gamma of every head of four trained models",
    over=_layers,
    size=12,
    settings={"long": LONG, "dtype": "float64"},
)
def rate_rows(model, layer):
    """A row for each head: its rates, and for MiniLM constants of `LONG` tokens with V = I at its radius on text.

    Returns head; norm of A; gamma, NaN without a real eigenvalue; lower and upper, the interval of gamma*; for MiniLM
    R, its mean radius on text, and the constants at the pair of gamma* and at the two clusters of Proposition 3.4.
    """
    attention, rows = _attention(model, layer), []
    radii = _text_radii() if model == "minilm" else {}
    for head in range(attention.heads):
        A = attention.scale * attention.key[head].double().mT @ attention.query[head].double()
        rate = bounds.mean_field_rate(A)
        try:
            gamma = head_of(attention, head).rate
        except ValueError:
            gamma = math.nan
        row = {"head": head, "norm": torch.linalg.matrix_norm(A, 2).item()}
        row |= {"gamma": gamma, "lower": rate.lower, "upper": rate.upper}
        R = radii.get((layer, head), math.nan)
        row |= {"R": R, "at pair": math.nan, "at clusters": math.nan}
        if not math.isnan(R):
            row["at pair"] = at_pair(A, LONG, R)
            row["at clusters"] = cluster_constants(head_of(attention, head), [LONG], R, identity=True).item()
        rows.append(row)
    return rows
