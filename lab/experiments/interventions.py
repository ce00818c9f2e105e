r"""Interventions on trained attention layers: does the constant grow as :math:`\|P\|_2` does when attention is changed?

In the growth atlas the slope of a layer's constant follows that of its largest attention norm. Here attention is
changed, at the tokens that the layer receives on text, and both slopes are measured again. Each layer stays an
`Attention`, so that solver and certificates are those of the atlas. Two interventions are linear algebra rather than
evidence: uniform attention has the constant :math:`\|P\|_2 \|\sum_h W_O^{(h)} W_V^{(h)}\|_2`, whose slope is that of
:math:`\|P\|_2` (0 without a mask), so the gap that remains there is that of the layer as read.
"""

import math
from functools import partial

import pandas as pd
import torch
from torch import Tensor

from lab.experiments.atlas import RTOL, Condition, named, proved, windows_of
from lab.experiments.attention_summary import parts, popularity
from lab.experiments.loading import edition, load, place
from lab.experiments.positions import variant
from lab.experiments.table import SOLVE, by_window, table
from lab.statistics.growth import slope
from lipnb.attention import Attention
from lipscan import corpora, models
from lipscan.recording import Unit

MODELS = ({"name": "minilm", "masked": False}, {"name": "gpt2-mini"}, {"name": "stories260K"})
LENGTHS = (16, 32, 64, 128, 256)
AS_READ, DELETED, ONE_POSITION = "as read", "without the most attended", "one position"
FACTORS = {AS_READ: 1.0, "uniform": 0.0, "softer": 0.5, "sharper": 2.0}  # of the queries
INTERVENTIONS = (*FACTORS, DELETED, ONE_POSITION)
KEY = ["corpus", "model", "masked", "layer", "length", "window"]  # one window at one layer


def scaled(f: Attention, factor: float) -> Attention:
    """The layer with its queries multiplied by a factor, biases, norms and rotations included.

    `f`: has dot-product scores, with logits `f.scale` times query times key; the factor multiplies that scale.
    `factor`: 0 gives all visible tokens the same weight, unless relative positions or sinks add to the logits.
    """
    f.check_score("scaling of queries")
    return f.replace(scale=factor * f.scale)


def without_most_attended(f: Attention, x: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens without the one that gets the most attention, summed over rows and averaged over heads.

    `f`: the attention. `x` (b, n, d): tokens, two or more. Tokens after the deleted one move up by one position, which
    changes nothing if positions are added to the tokens; rotary or relative positions would change. Returns `rest`
    (b, n - 1, d); `place` (b,): position of the deleted token, from 0.
    """
    if not {"rotary positions", "relative positions"}.isdisjoint(f.more) or f.window is not None:
        raise ValueError("the layer knows places by itself, and deleting a token moves the others: leave it out.")
    place = f.probabilities(x).sum(-2).mean(-2).argmax(-1)
    keep = torch.arange(x.shape[-2], device=x.device) != place[:, None]
    return x[keep].view(len(x), -1, x.shape[-1]), place


def altered(name: str, f: Attention, x: Tensor) -> tuple[Attention, Tensor, Tensor]:
    """A layer and its tokens after an intervention.

    `name`: one of `INTERVENTIONS`. "one position" changes what layers receive (`lab.experiments.positions.variant`),
    and nothing here. `x` (b, n, d): tokens. Returns the layer; `x` (b, n, d) or (b, n - 1, d); `deleted` (b,): position
    of the deleted token, else NaN.
    """
    if name == DELETED:
        rest, place = without_most_attended(f, x)
        return f, rest, place.double()
    return scaled(f, FACTORS.get(name, 1.0)), x, torch.full((len(x),), math.nan, dtype=torch.float64)


def _measured(f, x, seed):
    """Columns of one layer at windows x (b, n, d), name -> Tensor (b,)."""
    pair, found = proved(f, x, seed)
    found |= popularity(f, x)
    mean_radius = x.double().square().sum(-1).mean(-1).sqrt()
    return found | {"mean_radius": mean_radius, "by_value": parts(f, x, pair)["by_value"]}


def of_model(model):
    """Interventions that a model allows: two of them need learned positions, added to the tokens."""
    return INTERVENTIONS if model.architecture.positions is not None else tuple(FACTORS)


def _rows(options, condition, length, seed):
    """Rows of all layers and interventions at the windows of one length."""
    model = load(**options)
    ids, rows = windows_of(model, condition, length, seed=seed), []
    own = models.readings(model, ids)
    for name in of_model(model):
        read = models.readings(variant(model, "constant"), ids) if name == ONE_POSITION else own
        for layer in range(model.layers):
            f, x, deleted = altered(name, model.attention(layer), read[layer].received)
            found = _measured(f, x, seed) | {"deleted": deleted}
            at = {"corpus": condition.corpus, "order": condition.order, **named(model, layer), "length": length}
            at |= {"intervention": name}
            rows += [at | {"text": edition(one)} | row for one, row in zip(ids, by_window(found), strict=True)]
    return rows


@table("interventions", "slopes of every layer after changes of its attention, in up to five ways", aside=SOLVE)
def _prepare(lengths=LENGTHS, count=6, seed=0):
    condition, described, work = Condition("alice", count=count), [], []
    for options in MODELS:
        options = {**options, "name": place(options["name"]), "dtype": "float32"}
        model = load(**options)
        described.append(model.describe())
        windows_of(model, condition, max(lengths), seed=seed)  # fail early if the text is missing or too short
        for length in lengths:
            size = count * model.layers * len(of_model(model))
            work.append(Unit(f"{model.name}/{length}", partial(_rows, options, condition, length, seed), size))
    settings = {
        "models": described,
        "interventions": list(INTERVENTIONS),
        "corpus": condition.corpus,
        "text": corpora.fingerprint(corpora.read(condition.corpus)),
        "lengths": list(lengths),
        "count": count,
        "rtol": RTOL,
        "seed": seed,
    }
    return settings, work


def changes(table):
    r"""Changes of the slopes of the constant and of :math:`\|P\|_2` by an intervention, window by window.

    Slopes are linear in logarithms, so the change of a slope is the slope of the quotient, changed over as read, at the
    same windows; its interval (`lab.statistics.growth.slope`) uses that the windows are the same.

    `table`: ``interventions``, or rows of it, including those as read. Returns one row for each model, mask, layer
    and intervention except "as read": slope and norm_slope (of constant and attention norm, changed); change, with its
    interval low to high, and norm_change, of these slopes; gap, change less norm_change, with its interval gap_low to
    gap_high. The slope as read enters all changes of a layer, so these are not independent.
    """
    columns, own = ["lipschitz", "attention_norm"], table[table.intervention == AS_READ]
    both = table[table.intervention != AS_READ].merge(
        own[KEY + columns], on=KEY, how="left", suffixes=("", "_as_read"), validate="many_to_one"
    )
    both["ratio"], both["norm_ratio"] = (both[column] / both[f"{column}_as_read"] for column in columns)
    both["beyond"] = both.ratio / both.norm_ratio
    found, series = [], ["model", "masked", "layer", "intervention"]
    for names, rows in both.groupby(series, sort=False):
        change, gap = slope(rows, "ratio"), slope(rows, "beyond")
        found.append(
            dict(zip(series, names, strict=True))
            | {"slope": slope(rows).slope, "norm_slope": slope(rows, "attention_norm").slope}
            | {"change": change.slope, "low": change.interval[0], "high": change.interval[1]}
            | {"norm_change": slope(rows, "norm_ratio").slope}
            | {"gap": gap.slope, "gap_low": gap.interval[0], "gap_high": gap.interval[1]}
        )
    return pd.DataFrame(found)


def agreement(found, by=("intervention", "model"), limits=(0.05, 0.1)):
    """Agreement between the change of one slope and that of the other.

    `found`: result of `changes`.
    `by`: columns whose values make one row; none for a single row.
    `limits`: gaps that count as agreement.
    Returns columns `by`, layers (pairs of layer and intervention), change and norm_change (medians), gap (median of its
      size), correlation (NaN for fewer than three pairs), sign (share in which both changes have the same sign), and
      for each limit "within ...", the share of gaps that are at most that large.
    """
    by, lines = list(by), []
    for names, rows in found.groupby(by, sort=False) if by else [((), found)]:
        size = rows.gap.abs()
        line = dict(zip(by, names, strict=True)) | {"layers": len(rows)}
        line |= {"change": rows.change.median(), "norm_change": rows.norm_change.median(), "gap": size.median()}
        line |= {"correlation": rows.change.corr(rows.norm_change) if len(rows) > 2 else math.nan}
        line |= {"sign": (rows.change * rows.norm_change > 0).mean()}
        lines.append(line | {f"within {limit:g}": (size <= limit + 1e-12).mean() for limit in limits})
    return pd.DataFrame(lines)
