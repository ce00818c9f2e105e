"""Table of the inverse figure of kim2021lipschitz: reconstruction error against iterations, L2 and dot products."""

import math
from functools import partial

import torch

from lab.experiments.inversion import denoising_batch, fit
from lab.experiments.table import table
from lab.invertible import ContractiveAttention, DotProductAttention, Residual
from lipnb.jacobian import infinity_norm
from lipnb.lipschitz import local_lipschitz

LAYERS = {
    "L2": partial(ContractiveAttention, p=2),
    "L2, sharper": partial(ContractiveAttention, p=2, bound="sharp"),
    "L2, maximum norm": partial(ContractiveAttention, p=math.inf),
    "dot product": DotProductAttention,
}
FACTORS = (0.5, 0.7, 0.9)


def make_layer(name, width=64, heads=8, *, seed=0):
    """A layer of `LAYERS` with weights drawn from a seed, float64."""
    return LAYERS[name](width, heads, seed=seed, dtype=torch.float64)


def cluster_tokens(layer, n, radius):
    r"""A token at 0 and two clusters of norm `radius` on both sides of it, where dot-product attention is steep.

    The direction is the one in which the first token reacts most to its own query: the right singular vector of
    :math:`W_O (W_V u)\, (W_K u)^\top W_Q`, found by alternation over heads.

    `layer`: its weights determine the direction. `radius`: norm of the tokens of the clusters. Returns (n, d).
    """
    with torch.no_grad():
        f = layer.attention(n)
        generator = torch.Generator().manual_seed(0)
        u = torch.nn.functional.normalize(torch.randn(256, layer.width, generator=generator, dtype=layer.dtype), dim=-1)
        values, keys = (torch.einsum("hkd,ud->uhk", matrix, u) for matrix in (f.value, f.key))
        gains = torch.einsum("hmv,uhv,uhk,hkd->umd", f.output, values, keys, f.query)
        u = u[torch.linalg.matrix_norm(gains, 2).argmax()]
    side = torch.ones(n, 1, dtype=layer.dtype)
    side[0], side[1 : 1 + (n - 1) // 2] = 0, -1
    return radius * side * u


def inputs(layer, words, n, *, seed=0):
    """Sequences by name: "words" as in training, shape (4, n, d), and "clusters" of radius 24, shape (1, n, d)."""
    noisy, _ = denoising_batch(words, n, torch.Generator().manual_seed(1_000_003 + seed))
    return {"words": noisy[0], "clusters": cluster_tokens(layer, n, 24.0)[None]}


def curve(layer, x, c, steps=60):
    """Largest relative error over a batch of sequences, at iterations 0 to `steps`, in the norm of the layer."""
    with torch.no_grad():
        y = x + c * layer(x)
        z, errors = y, []
        for k in range(steps + 1):
            if k:
                z = y - c * layer(z)
            error = torch.linalg.vector_norm(z - x, layer.p, dim=(-2, -1))
            errors.append((error / torch.linalg.vector_norm(x, layer.p, dim=(-2, -1))).max().item())
    return errors


@table(
    "inversion-curves",
    "reconstruction error against iterations, L2 attention and dot products",
    over=lambda steps: [(name, trained) for trained in (0, steps) for name in LAYERS],
    size=2 * len(FACTORS) * 61,
    settings={"dtype": "float64"},
    steps=500,
)
def curve_rows(layer, trained, *, width=64, heads=8, n=64, rate=1e-2, seed=0):
    """Rows of the table for one layer of `LAYERS`, as drawn (`trained` = 0) or after that many steps.

    Returns layer, trained, loss (of the last steps), input, constant (largest local one of f over the inputs, in the
    norm of the layer), c, k (iterations), error (largest, relative).
    """
    made = make_layer(layer, width, heads, seed=seed)
    words = torch.randn(1, 8, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    loss = math.nan
    if trained:
        loss = fit([Residual(made, 0.9)], words, n, steps=trained, rate=rate, seed=seed)[-20:].mean().item()
    rows = []
    for given, x in inputs(made, words, n, seed=seed).items():
        with torch.no_grad():
            f = made.attention(n)
            constant = (local_lipschitz(f, x).value if made.p == 2 else infinity_norm(f, x)).max().item()
        rows += [
            {"loss": loss, "input": given, "constant": constant, "c": c, "k": k, "error": error}
            for c in FACTORS
            for k, error in enumerate(curve(made, x, c))
        ]
    return rows
