"""The tables of Figure 1's bottom row: adversarial tokens against each head of each layer at hand."""

import math
from functools import lru_cache
from typing import NamedTuple

import pandas as pd
import torch

from lab import released
from lab.experiments.loading import gpt2_attention, load
from lab.experiments.table import Table
from lab.experiments.two_clusters import ball_bounds, cluster_constants, cluster_input, head_of
from lab.power_laws import power_law
from lipnb import bounds, corpora, models
from lipnb.attention import Attention
from lipnb.lipschitz import local_lipschitz
from lipnb.recording import Unit

__all__ = [
    "GPT2",
    "HEAD",
    "PANEL",
    "TABLES",
    "Layer",
    "ball_upper",
    "head_rates",
    "layer_of",
    "layer_rates",
    "layer_row",
    "layers_of",
    "mean_radius",
    "network_of",
    "norms_before",
    "worst_input",
    "worst_of_layer",
    "worst_rates",
]

LENGTHS = tuple(range(2, 98, 5))  # of Figure 1
FEW = (2, 7, 22, 47, 97)  # for every head; all lengths for the worst one of a layer
FAR = {False: (1000, 10**4, 10**5), True: (197, 397, 997)}  # beyond the figure, unmasked and masked
EXTRACTS, EXTRACT = 5, 98  # windows of text that give the mean radius, and their tokens
GPT2 = "gpt2-124m-attention"
PANEL = ["model", "masked", "at"]  # one model in one ball
HEAD = [*PANEL, "layer", "head"]  # one series
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


class Layer(NamedTuple):
    """The attention of a layer in float64, and the radius at which it is attacked."""

    attention: Attention
    R: float


def network_of(name, masked):
    """MiniLM or the random GPT-2 in float64; the last one is kept."""
    if name == "gpt2":
        return load("gpt2", random=True, seed=RANDOM["seed"], dtype="float64")
    return load(name, masked=masked, dtype="float64")


def layers_of(name, masked):
    """How many layers a model of `layer_of` has; FileNotFoundError where it is not at hand."""
    return len(gpt2_attention()) if name == GPT2 else network_of(name, masked).layers


def norms_before(model):
    """The LayerNorm that each attention of a BERT reads from, layer by layer."""
    network = model.network
    return [network.embeddings.LayerNorm, *(layer.output.LayerNorm for layer in network.encoder.layer)][:-1]


def mean_radius(model, layer, *, corpus="alice", extracts=EXTRACTS, length=EXTRACT):
    """Root mean square norm of the tokens that a layer receives on the first windows of a text."""
    tokens = corpora.windows(models.first_tokens(model, corpora.read(corpus), length * extracts), length, extracts)
    return model.activations(tokens, layer).double().square().sum(-1).mean().sqrt().item()


@lru_cache(maxsize=8)
def layer_of(name, masked, at, layer):
    """A layer of one panel.

    Parameters
    ----------
    name : {"minilm", "gpt2-124m-attention", "gpt2"}
        MiniLM; the real attention weights of GPT-2; a random GPT-2.
    masked : bool
        Whether it is masked; both GPT-2 are.
    at : {"layer norm", "text", "R = 10", "R = 100"}
        The radius: the largest that its LayerNorm allows, the mean one on Alice, or a number.
    layer : int
        Which layer, from 0.

    Returns
    -------
    Layer

    Raises
    ------
    FileNotFoundError
        "the attention weights of GPT-2 are not at hand ...", or the sentence of `lipnb.corpora.read`.
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
    """The adversarial tokens for one head of a layer with biases, shape (n, d).

    Of u and -u, which the theorem does not tell apart, the one for which the query bias helps.
    """
    x = cluster_input(head_of(attention, head), n, R)
    if attention.query_bias is None:
        return x
    bias = attention.scale * attention.key[head].mT @ attention.query_bias[head]
    return x if (x[0] - x[-1]) @ bias >= 0 else -x


def worst_of_layer(attention, n, R):
    """Largest local constant of a layer over the tokens built against each of its heads, with both signs."""
    x = torch.stack([cluster_input(head_of(attention, h), n, R) for h in range(attention.heads)])
    return local_lipschitz(attention, torch.cat([x, -x])).value.max().item()


@lru_cache(maxsize=32)
def ball_upper(attention, n, R):
    """Lemma 3.8 with Thm E.3 for each head: an upper bound on a whole layer with biases, tokens of norm at most R."""
    norms = bounds.head_norms(attention)
    return math.exp(bounds.heads_on_ball(norms, n, R, attention.masked)["general"])


def head_rates(alone):
    """Growth of every head at two clusters, from n = 7 to 97.

    Parameters
    ----------
    alone : DataFrame
        ``adversarial``.

    Returns
    -------
    DataFrame
        `HEAD`, s (2 gamma R^2), exponent against the number N of tokens that attend to the lonely one, constant at
        n = 97, saturated (that constant over ||V|| sqrt(N)), half (whether the exponent is within 0.02 of one half).
    """
    rows = []
    for key, head in _attending(alone[alone.length.isin(FEW[1:])]).groupby(HEAD, sort=False):
        last = head[head.length == FEW[-1]].iloc[0]
        exponent = power_law(head.N, head.constant).exponent
        rows.append([*key, last.s, exponent, last.constant, last.constant / (last.V_norm * last.N**0.5)])
    heads = pd.DataFrame(rows, columns=[*HEAD, "s", "exponent", "constant", "saturated"])
    return heads.assign(half=(heads.exponent - 0.5).abs() < 0.02)


def worst_rates(alone):
    """The head of each panel with the largest constant at n = 97, and its exponents.

    Parameters
    ----------
    alone : DataFrame
        ``adversarial``.

    Returns
    -------
    DataFrame
        `HEAD`, R, s, constant at n = 97; exponents "in n" and "in N" over the lengths of Figure 1, and "n > 96" over
        those from 97 on; Theorem 3.3 and its tighter form over that constant, "upper" and "sharp".
    """
    rows = []
    full = _attending(alone).groupby(HEAD).filter(lambda head: len(head) > len(LENGTHS))
    for key, head in full.groupby(HEAD, sort=False):
        drawn, far = head[head.length <= FEW[-1]], head[head.length >= FEW[-1]]
        last = drawn[drawn.length == FEW[-1]].iloc[0]
        pairs = ((drawn.length, drawn), (drawn.N, drawn), (far.length, far))
        slopes = [power_law(n, at.constant).exponent for n, at in pairs]
        rows.append([*key, last.R, last.s, last.constant, *slopes, *(last[["upper", "sharp"]] / last.constant)])
    columns = ["R", "s", "constant", "in n", "in N", "n > 96", "upper", "sharp"]
    each = pd.DataFrame(rows, columns=[*HEAD, *columns])
    return each.loc[each.groupby(PANEL, sort=False)["constant"].idxmax()]


def layer_rates(layers):
    """Growth of every whole layer, at the tokens of the head that makes it roughest.

    Parameters
    ----------
    layers : DataFrame
        ``adversarial-layers``.

    Returns
    -------
    DataFrame
        `HEAD`, exponents of the constant ("as defined") and of the released quantity ("released") over the lengths of
        Figure 1, and the least ratio of its bound to its constant ("below").
    """
    rows = []
    for key, layer in layers.groupby([*PANEL, "layer"], sort=False):
        head = layer["head"].value_counts().idxmax()
        own = layer[layer["head"] == head]
        two = [power_law(own.length, own[column]).exponent for column in ("lipschitz", "released")]
        rows.append([*key, head, *two, (own.upper / own.lipschitz).min()])
    return pd.DataFrame(rows, columns=[*HEAD, "as defined", "released", "below"])


def _attending(alone):
    """How many tokens N attend to the lonely one, and the logarithm s of the window."""
    attending = alone.length - ((alone.eigenvalue < 0) & ~alone.masked)
    return alone.assign(N=attending, s=2 * alone.rate * alone.R**2)


def _name(panel, layer):
    name, masked, at = panel
    return {
        "model": name,
        "weights": "random" if name == "gpt2" else "pretrained",
        "masked": masked,
        "at": at,
        "layer": layer,
    }


def _head_rows(panel, layer, few, lengths, far):
    attention, R = layer_of(*panel, layer)
    heads = [head_of(attention, h) for h in range(attention.heads)]
    last = [cluster_constants(head, [max(few)], R).item() for head in heads]
    worst, rows = last.index(max(last)), []
    for h, head in enumerate(heads):
        mine = sorted({*few, *(lengths if h == worst else ()), *(far if h == worst or not panel[1] else ())})
        own, plain = (cluster_constants(head, mine, R, identity=identity) for identity in (False, True))
        for n, constant, identity in zip(mine, own.tolist(), plain.tolist(), strict=True):
            lower, upper, sharp = ball_bounds(head, n, R)
            rows.append(
                {
                    **_name(panel, layer),
                    "head": h,
                    "R": R,
                    "eigenvalue": head.eigenvalue,
                    "rate": head.rate,
                    "V_norm": head.V_norm,
                    "length": n,
                    "constant": constant,
                    "identity": identity,
                    "lower": lower,
                    "upper": upper,
                    "sharp": sharp,
                }
            )
    return rows


def layer_row(panel, layer, head, n, *, rtol=1e-4):
    """Row of the table `adversarial-layers`: a whole layer at the tokens that are adversarial for one of its heads.

    Parameters
    ----------
    panel : tuple
        Name, mask and radius, as for `layer_of`.
    layer, head, n : int
        Layer and head, from 0; number of tokens.
    rtol : float
        As for `lipnb.local_lipschitz`.

    Returns
    -------
    dict
        What is measured, and the columns lipschitz, residual, steps, converged, released, upper.
    """
    attention, R = layer_of(*panel, layer)
    x = worst_input(attention, head, n, R)
    lip = local_lipschitz(attention, x, rtol=rtol)
    return {
        **_name(panel, layer),
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


def _layer_rows(panel, layer, few, lengths, rtol):
    heads = range(layer_of(*panel, layer).attention.heads)
    rows = [layer_row(panel, layer, h, max(few), rtol=rtol) for h in heads]
    worst = max(rows, key=lambda row: row["lipschitz"])["head"]
    return rows + [layer_row(panel, layer, worst, n, rtol=rtol) for n in lengths if n != max(few)]


def _units(panels, rows, count, **options):
    """A unit for each layer; what is absent is said here. `count` rows with these options, for 12 heads."""
    work = []
    for panel in panels:
        if panel[0] == "gpt2":
            layers = [RANDOM["layer"]]
        else:
            layer_of(*panel, 0)
            layers = range(layers_of(*panel[:2]))
        for layer in layers:
            mine = {name: value[panel[1]] if isinstance(value, dict) else value for name, value in options.items()}
            work.append(
                Unit(
                    "/".join(map(str, (*panel, layer))),
                    lambda panel=panel, layer=layer, mine=mine: rows(panel, layer, **mine),
                    count(panel[1]),
                )
            )
    return work


def _heads(lengths):
    settings = {
        "panels": PANELS,
        "few": FEW,
        "lengths": lengths,
        "far": [FAR[False], FAR[True]],
        "random": RANDOM,
        "extracts": [EXTRACTS, EXTRACT],
        "dtype": "float64",
    }

    def count(masked):
        return 11 * len({*FEW, *(() if masked else FAR[masked])}) + len({*FEW, *lengths, *FAR[masked]})

    return settings, _units(PANELS, _head_rows, count, few=FEW, lengths=lengths, far=FAR)


def _layers(lengths, rtol):
    panels = tuple(panel for panel in PANELS if panel[2] in ("layer norm", "R = 100"))
    settings = {"panels": panels, "few": FEW, "lengths": lengths, "rtol": rtol, "random": RANDOM, "dtype": "float64"}
    return settings, _units(
        panels, _layer_rows, lambda _: 12 + len({*lengths} - {max(FEW)}), few=FEW, lengths=lengths, rtol=rtol
    )


TABLES = (
    Table("adversarial", _heads, {"lengths": LENGTHS}),
    Table("adversarial-layers", _layers, {"lengths": LENGTHS, "rtol": 1e-4}),
)
