"""Tables of Figure 1's bottom row: adversarial tokens for each head of each available layer."""

import math
from functools import lru_cache
from typing import NamedTuple

from lab import released
from lab.experiments.loading import gpt2_attention, load
from lab.experiments.table import SOLVE, table
from lab.experiments.two_clusters import ball_bounds, cluster_constants, cluster_input, head_of
from lab.statistics.head_rates import FEW, GPT2, LENGTHS
from lipnb import bounds
from lipnb.attention import Attention
from lipnb.lipschitz import local_lipschitz
from lipscan import corpora, models

FAR = {False: (1000, 10**4, 10**5), True: (197, 397, 997)}  # beyond the figure, unmasked and masked
EXTRACTS, EXTRACT = 5, 98  # windows of text for the mean radius, and their tokens
RANDOM = {"seed": 320, "layer": 6, "R": 100.0}  # of the released experiment
PANELS = (
    ("minilm", False, "layer norm"),
    ("minilm", True, "layer norm"),
    ("minilm", False, "text"),
    ("minilm", True, "text"),
    (GPT2, True, "layer norm"),
    (GPT2, True, "R = 10"),
    ("gpt2", True, "R = 100"),
)
LAYER_PANELS = tuple(panel for panel in PANELS if panel[2] in ("layer norm", "R = 100"))


class Layer(NamedTuple):
    """The attention of a layer in float64, and the radius of the adversarial tokens."""

    attention: Attention
    R: float


def network_of(name, masked):
    """MiniLM or the random GPT-2 in float64; the last one is kept."""
    if name == "gpt2":
        return load("gpt2", random=True, seed=RANDOM["seed"], dtype="float64")
    return load(name, masked=masked, dtype="float64")


def layers_of(name, masked):
    """Number of layers of a model of `layer_of`; FileNotFoundError if it is not available."""
    return len(gpt2_attention()) if name == GPT2 else network_of(name, masked).layers


def norms_before(model):
    """The LayerNorm before each attention of a BERT, layer by layer."""
    network = model.module
    return [network.embeddings.LayerNorm, *(layer.output.LayerNorm for layer in network.encoder.layer)][:-1]


def mean_radius(model, layer):
    """Root mean square norm of the tokens that a layer receives on the first windows of Alice."""
    tokens = models.first_tokens(model, corpora.read("alice"), EXTRACT * EXTRACTS)
    tokens = corpora.windows(tokens, EXTRACT, EXTRACTS)
    return model.activations(tokens, layer).double().square().sum(-1).mean().sqrt().item()


@lru_cache(maxsize=8)
def layer_of(name, masked, at, layer):
    """A layer of one panel.

    `name` ("minilm", "gpt2-124m-attention", "gpt2"): MiniLM; the real attention weights of GPT-2; a random GPT-2.
    `masked`: whether it is masked; both GPT-2 are. `at` ("layer norm", "text", "R = 10", "R = 100"): the radius: the
    largest that its LayerNorm allows, the mean one on Alice, or a number. `layer`: index of the layer, from 0.
    """
    if name == GPT2:
        attention, gain, shift = gpt2_attention()[layer]
    else:
        model = network_of(name, masked)
        attention = model.attention(layer)
        if at == "text":
            return Layer(attention, mean_radius(model, layer))
        if at == "layer norm":
            gain, shift = norms_before(model)[layer].weight, norms_before(model)[layer].bias
    return Layer(attention, bounds.layer_norm_radius(gain, shift) if at == "layer norm" else float(at[4:]))


def worst_input(attention, head, n, R):
    """Adversarial tokens for one head of a layer with biases, shape (n, d).

    Of u and -u, which the theorem does not distinguish, the one for which the query bias increases the constant.
    """
    x = cluster_input(head_of(attention, head), n, R)
    if attention.query_bias is None:
        return x
    bias = attention.scale * attention.key[head].mT @ attention.query_bias[head]
    return x if (x[0] - x[-1]) @ bias >= 0 else -x


@lru_cache(maxsize=32)
def ball_upper(attention, n, R):
    """Lemma 3.8 with Thm E.3 for each head: an upper bound on a whole layer with biases, tokens of norm at most R."""
    norms = bounds.head_norms(attention)
    return math.exp(bounds.heads_on_ball(norms, n, R, attention.masked)["general"])


def units(panels):
    """The layers of some panels, as `layer_of` takes them; reports absent models before any work.

    `panels`: entries of `PANELS`.
    """
    found = []
    for panel in panels:
        if panel[0] == "gpt2":
            layers = [RANDOM["layer"]]
        else:
            layer_of(*panel, 0)
            layers = range(layers_of(*panel[:2]))
        found += [(*panel, layer) for layer in layers]
    return found


def _head_count(masked, lengths):
    return 11 * len({*FEW, *(() if masked else FAR[masked])}) + len({*FEW, *lengths, *FAR[masked]})


@table(
    "adversarial",
    "Figure 1, bottom row: adversarial tokens, each head on its own",
    over=lambda: units(PANELS),
    size=_head_count,
    settings={"panels": PANELS, "few": FEW, "far": [FAR[False], FAR[True]], "random": RANDOM, "dtype": "float64"}
    | {"extracts": [EXTRACTS, EXTRACT]},
)
def head_rows(model, masked, at, layer, *, lengths=LENGTHS):
    """Rows of the table `adversarial`: each head of a layer of `layer_of`, at its adversarial tokens."""
    attention, R = layer_of(model, masked, at, layer)
    heads = [head_of(attention, h) for h in range(attention.heads)]
    last = [cluster_constants(head, [max(FEW)], R).item() for head in heads]
    worst, rows, far = last.index(max(last)), [], FAR[masked]
    for h, head in enumerate(heads):
        mine = sorted({*FEW, *(lengths if h == worst else ()), *(far if h == worst or not masked else ())})
        own, plain = (cluster_constants(head, mine, R, identity=identity) for identity in (False, True))
        for n, constant, identity in zip(mine, own.tolist(), plain.tolist(), strict=True):
            lower, upper, sharp = ball_bounds(head, n, R)
            row = {"weights": _weights(model), "head": h, "R": R, "eigenvalue": head.eigenvalue, "rate": head.rate}
            row |= {"V_norm": head.V_norm, "length": n, "constant": constant, "identity": identity}
            rows.append(row | {"lower": lower, "upper": upper, "sharp": sharp})
    return rows


def _weights(name):
    return "random" if name == "gpt2" else "pretrained"


def layer_row(panel, layer, head, n, *, rtol=1e-4):
    """A whole layer at the adversarial tokens of one of its heads.

    `panel`: name, mask and radius, as for `layer_of`. `layer`, `head`, `n`: layer and head, from 0; number of tokens.
    `rtol`: as for `lipnb.local_lipschitz`. Returns the columns weights, head, R, length, lipschitz, residual, steps,
    converged, released, upper.
    """
    attention, R = layer_of(*panel, layer)
    x = worst_input(attention, head, n, R)
    lip = local_lipschitz(attention, x, rtol=rtol)
    return {
        "weights": _weights(panel[0]),
        "head": head,
        "R": R,
        "length": n,
        "lipschitz": lip.value.item(),
        "residual": lip.residual.item(),
        "steps": lip.steps.item(),
        "converged": lip.converged.item(),
        "released": released.reported(attention, x).item(),
        "upper": ball_upper(attention, n, R),
    }


@table(
    "adversarial-layers",
    "adversarial tokens, the whole layer, with the released quantity",
    over=lambda: units(LAYER_PANELS),
    size=lambda lengths: 12 + len({*lengths} - {max(FEW)}),
    settings={"panels": LAYER_PANELS, "few": FEW, "random": RANDOM, "dtype": "float64"},
    aside=SOLVE,
)
def layer_rows(model, masked, at, layer, *, lengths=LENGTHS, rtol=1e-4):
    """Rows of the table `adversarial-layers`: `layer_row` at each head, and at the worst head for each length."""
    panel = model, masked, at
    heads = range(layer_of(*panel, layer).attention.heads)
    rows = [layer_row(panel, layer, h, max(FEW), rtol=rtol) for h in heads]
    worst = max(rows, key=lambda row: row["lipschitz"])["head"]
    return rows + [layer_row(panel, layer, worst, n, rtol=rtol) for n in lengths if n != max(FEW)]
