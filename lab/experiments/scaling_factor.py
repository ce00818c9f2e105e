"""Table of Figure 2: the length of the growth of each head, at the radii of text and of normalisation."""

import math

from scipy.optimize import minimize_scalar

from lab.experiments import adversarial
from lab.experiments.table import table
from lab.experiments.two_clusters import cluster_constants, head_of
from lab.statistics.head_rates import GPT2
from lipscan import corpora, models

CORPUS, EXTRACTS, EXTRACT = "alice", adversarial.EXTRACTS, adversarial.EXTRACT


def text_radii(model, layer, *, corpus=CORPUS, extracts=EXTRACTS, length=EXTRACT):
    """Root mean square norm of each extract, shape (extracts,), and the largest norm, in the input of a layer.

    `model`: from `lipnb.models.load`. `layer`: index from 0. `corpus`: as for `lipnb.corpora.read`. `extracts`,
    `length`: windows from the beginning of the text, and tokens in each.
    """
    tokens = corpora.windows(models.first_tokens(model, corpora.read(corpus), length * extracts), length, extracts)
    norms = model.activations(tokens, layer).double().norm(dim=-1)
    return norms.square().mean(-1).sqrt().tolist(), norms.max().item()


def mean_factors(table):
    """One row for each head and kind of radius: means over the extracts of the text.

    `table`: ``scaling-factor``. Returns model, masked, layer, head, radius, rate, eigenvalue, factor, and s, twice the
    factor.
    """
    keys = ["model", "masked", "layer", "head", "radius"]
    mean = table.groupby(keys, sort=False)[["rate", "eigenvalue", "factor"]].mean().reset_index()
    return mean.assign(s=2 * mean.factor)


def peak_factor(s):
    r"""Number of tokens at which two clusters stop gaining from more tokens: :math:`n = 1 + q\, e^s`.

    .. math:: q(s) = \frac{3 s + \sqrt{9 s^2 + 4 s + 4}}{2 (1 + s)}, \qquad 1 \le q < 3,

    maximises :math:`\sqrt{n - 1}\; p\, (1 + s (1 - p))` with :math:`p = 1 / (1 + (n - 1) e^{-s})`.

    `s`: :math:`2 \gamma R^2`, 0 or more. Ours; `lipnb.worst_case.two_diracs` takes the same gain with ``share=1/3`` as
    s grows.
    """
    return (3 * s + math.sqrt(9 * s * s + 4 * s + 4)) / (2 * (1 + s))


def growth_ends(head, R):
    """The number of tokens at which the measured constant with V = I is largest at the input of two clusters.

    Over real n, without a mask. `head`: from `lab.experiments.two_clusters.head_of`. Returns that number, and the
    constant there.
    """
    s = 2 * head.rate * R**2

    def constant(log_n):
        return cluster_constants(head, [math.exp(log_n)], R, identity=True).item()

    bounds = math.log(2), s + 6
    found = minimize_scalar(lambda log_n: -constant(log_n), bounds=bounds, options={"xatol": 1e-9, "maxiter": 60})
    return math.exp(found.x), -found.fun


def _layers():
    corpora.read(CORPUS)
    models_read = (("minilm", False), ("minilm", True), (GPT2, True))
    return [(*which, layer) for which in models_read for layer in range(adversarial.layers_of(*which))]


@table(
    "scaling-factor",
    "Figure 2: gamma R^2 of every head, on text and at the radius of its LayerNorm",
    over=_layers,
    size=lambda model, extracts: 12 * (1 if model == GPT2 else extracts + 2),
    settings=lambda: {"corpus": CORPUS, "text": corpora.fingerprint(corpora.read(CORPUS)), "dtype": "float64"},
)
def layer_rows(model, masked, layer, *, extracts=EXTRACTS, length=EXTRACT):
    """A row for each head of a layer, at the radius of its LayerNorm and, except for GPT-2, at those of the text."""
    attention, radius = adversarial.layer_of(model, masked, "layer norm", layer)
    radii = [("layer norm", -1, radius)]
    if model != GPT2:
        means, largest = text_radii(adversarial.network_of(model, masked), layer, extracts=extracts, length=length)
        radii += [("text", i, mean) for i, mean in enumerate(means)] + [("text, largest", -1, largest)]
    heads = [head_of(attention, h) for h in range(attention.heads)]
    return [
        {"head": h, "radius": kind, "extract": extract, "R": R, "eigenvalue": head.eigenvalue, "rate": head.rate}
        | {"factor": head.rate * R**2}
        for h, head in enumerate(heads)
        for kind, extract, R in radii
    ]
