"""Tables of worst inputs: for each trained head and each layer, the largest constant found and the proved bound.

For MiniLM and gpt2-mini tokens lie in the ball of the longest token of a text. For GPT-2 only the attention and the
LayerNorm before it are available, and tokens are anything that this LayerNorm can output: no text, but all texts.
"""

import math
from typing import NamedTuple

import torch

from lab.experiments import adversarial
from lab.experiments.loading import gpt2_attention
from lab.experiments.table import table
from lab.experiments.two_clusters import cluster_input, head_of
from lab.statistics.head_rates import GPT2
from lipnb import Attention, bounds
from lipnb.bounds.alignment import aligned_sizes
from lipnb.bounds.multihead_norms import Region, sizes_of_heads
from lipnb.lipschitz import local_lipschitz
from lipnb.worst_case import bulk_directions, forks, on_ball
from lipnb.worst_case.region import domain_of
from lipscan import corpora, models

CORPUS, WINDOWS, LENGTH = "alice", adversarial.EXTRACTS, adversarial.EXTRACT
MODELS = (("minilm", False), ("gpt2-mini", True))


class Place(NamedTuple):
    """A trained layer, and the set that contains its tokens.

    `attention`: float64. `R`: radius of the ball, or of the smallest one around the ellipsoid. `windows` (w, n, d):
    tokens of a text. `ellipsoid`: gain and shift of the LayerNorm before it, if only this restricts the tokens.
    """

    attention: Attention
    R: float
    windows: torch.Tensor | None
    ellipsoid: tuple[torch.Tensor, torch.Tensor] | None

    @property
    def bound(self):
        """The radius as an argument of `ball_upper` and `on_ball`: infinite with an ellipsoid."""
        return math.inf if self.ellipsoid else self.R

    def of_head(self, head):
        """One head of the layer, with the same set of tokens."""
        return self._replace(attention=one_head(self.attention, head))

    def upper(self, n):
        """`lipnb.bounds.ball_upper` for n tokens."""
        return bounds.ball_upper(self.attention, n, self.bound, ellipsoid=self.ellipsoid)


def one_head(layer, head):
    """One head of a layer, float64, with its query bias; its other parameters change no derivative.

    `layer`: any heads, biases and mask; its output matrix is left out. `head`: index from 0.
    """
    alone = {name: getattr(layer, name)[head : head + 1] for name in ("query", "key", "value")}
    bias = None if layer.query_bias is None else layer.query_bias[head : head + 1]
    rest = {"output": None, "key_bias": None, "value_bias": None, "output_bias": None}
    return layer.replace(**alone, query_bias=bias, **rest).to(dtype=torch.float64)


def layer_at(name, masked, layer, *, corpus=CORPUS):
    """A trained layer, the radius of the ball, and the windows of text that determine it.

    `name` ("minilm", "gpt2-mini"). `masked`: whether it is masked. `layer`: index from 0. `corpus`: the text, as for
    `lipnb.corpora.read`. The radius is the norm of the longest token in the first `WINDOWS` windows, which are returned
    with it, float64, shape (WINDOWS, LENGTH, d).
    """
    model = adversarial.network_of(name, masked)
    tokens = models.first_tokens(model, corpora.read(corpus), LENGTH * WINDOWS)
    x = model.activations(corpora.windows(tokens, LENGTH, WINDOWS), layer).double()
    R = x.norm(dim=-1).max().item()
    return _attention_of(name, masked, layer), R, x


def place_of(name, masked, layer):
    """The `Place` of a layer: from `layer_at`, or for GPT-2 the ellipsoid of its LayerNorm."""
    if name == GPT2:
        attention, gain, shift = gpt2_attention()[layer]
        ellipsoid = gain.double(), shift.double()
        return Place(attention.to(dtype=torch.float64), bounds.layer_norm_radius(*ellipsoid), None, ellipsoid)
    return Place(*layer_at(name, masked, layer), None)


def two_clusters_of(place, heads, n):
    r"""The paper's two clusters against some heads of a layer, in its ball or in that of the u of its ellipsoid.

    Returns (2 heads, n, d): with both signs, which biases distinguish.
    """
    domain = domain_of(place.attention, place.bound, place.ellipsoid)
    pulled = domain.pulled(place.attention)
    u = torch.stack([cluster_input(head_of(pulled, h), n, 1.0) for h in heads])
    return domain.tokens(torch.cat([u, -u]))


def measure(place, clusters, n, *, effort=1, seed=0):
    """One row: the constants of one map on text, at two clusters, at forks and at the roughest input found.

    `place`: one head or a layer. `clusters` (b, n, d): inputs of two clusters, of which the roughest counts. `effort`,
    `seed`: as for `lipnb.worst_case.on_ball`. Returns length, R, text (NaN without a text), heuristic, fork,
    ascended, kind.
    """
    attention, R, windows, ellipsoid = place
    domain = domain_of(attention, place.bound, ellipsoid)
    pulled = domain.pulled(attention)
    few = forks(pulled, n, 1.0, bulk_directions(pulled, pairs=8 if attention.heads == 1 else 4)).tokens()
    worst = on_ball(attention, n, place.bound, ellipsoid=ellipsoid, seed=seed, effort=effort, progress=False)
    return {
        "length": n,
        "R": R,
        "text": math.nan if windows is None else local_lipschitz(attention, windows).value.max().item(),
        "heuristic": local_lipschitz(attention, clusters).value.max().item(),
        "fork": local_lipschitz(attention, domain.tokens(few)).value.max().item(),
        "ascended": worst.value,
        "kind": worst.kind,
    }


def bounded(table):
    """The finished table with the column `upper`: `lipnb.bounds.ball_upper` on the set of tokens of each row."""
    rows = table.to_dict("records")
    return table.assign(upper=[_map_of(row).upper(row["length"]) for row in rows])


def own_terms(row):
    """Shares of the products of norms that the own matrices of a head leave: of its key and of its query term.

    `row`: of the tables of heads on a ball. The head and the ball are those of the row.
    """
    place = _map_of(row)
    ball = Region(torch.zeros(place.attention.width).double(), place.R * torch.eye(place.attention.width).double())
    entropy = torch.tensor([math.log(row["length"])]).double()
    (own,), (norms,) = aligned_sizes(place.attention, [ball], entropy), sizes_of_heads(place.attention, [ball])
    return {"key": math.exp(own[0] - norms.key), "query": math.exp(own[1] - norms.query)}


def _map_of(row):
    """The head, or the layer, of a row, with the stored ball."""
    name, masked, layer = row["model"], row["masked"], row["layer"]
    if name == GPT2:
        place = place_of(name, masked, layer)
    else:
        place = Place(_attention_of(name, masked, layer), row["R"], None, None)
    return place.of_head(row["head"]) if "head" in row else place


def _attention_of(name, masked, layer):
    return adversarial.network_of(name, masked).attention(layer).to(dtype=torch.float64)


def _layers(chosen):
    return [(*which, layer) for which in chosen for layer in range(adversarial.layers_of(*which))]


ON_TEXT = {
    "over": lambda: _layers(MODELS),
    "settings": lambda: (
        {"models": MODELS, "length": LENGTH, "corpus": CORPUS, "windows": WINDOWS, "dtype": "float64"}
        | {"text": corpora.fingerprint(corpora.read(CORPUS))}
    ),
    "join": bounded,
    "effort": 1,
}
# on three of these heads, layers 0, 5 and 11, the ascent added at most 0.9 % to the constant
OF_GPT2 = {
    "over": lambda: _layers([(GPT2, True)]),
    "settings": {"models": [(GPT2, True)], "length": LENGTH, "dtype": "float64"}
    | {"tokens": "what the LayerNorm before attention can make"},
    "join": bounded,
    "effort": 0,
}


@table(
    "worst-inputs",
    "the roughest input found for every trained head, beside text, two clusters and a proved bound",
    size=12,
    **ON_TEXT,
)
@table(
    "worst-gpt2",
    "the roughest input found for every head of GPT-2 on the ellipsoid of its LayerNorm",
    size=12,
    **OF_GPT2,
)
def head_rows(model, masked, layer, *, effort=1, seed=0):
    """`measure` at each head of a layer."""
    place, rows = place_of(model, masked, layer), []
    for h in range(place.attention.heads):
        clusters = two_clusters_of(place, [h], LENGTH)
        rows.append({"head": h, **measure(place.of_head(h), clusters, LENGTH, effort=effort, seed=seed)})
    return rows


@table("worst-layers", "the roughest input found for every whole layer", **ON_TEXT)
@table("worst-gpt2-layers", "the roughest input found for every whole layer of GPT-2", **OF_GPT2)
def layer_row(model, masked, layer, *, effort=1, seed=0):
    """`measure` at a layer."""
    place = place_of(model, masked, layer)
    heads = place.attention.heads
    clusters = two_clusters_of(place, range(heads), LENGTH)
    return {"heads": heads, **measure(place, clusters, LENGTH, effort=effort, seed=seed)}


def again(row):
    """Constants of a row of heads measured again, without the ascent; for `lipscan.recording.remeasure`."""
    place = place_of(row["model"], row["masked"], row["layer"])
    one = place.of_head(row["head"])
    found = measure(one, two_clusters_of(place, [row["head"]], LENGTH), LENGTH, effort=0)
    found["upper"] = one.upper(LENGTH)
    return {name: found[name] for name in ("text", "heuristic", "fork", "upper") if not math.isnan(found[name])}
