"""Figures of rounded caches of keys and values: what ranks the layers, and why the constant does not.

C0 is rounded keys, C1 rounded values, C6 properties of a layer that do not depend on the rounding.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import gmean

from lab.figures.registry import figure
from lab.figures.style import named_at_the_end

KINDS = {"keys": ("C0", "o"), "values": ("C1", "s")}
PREDICTORS = {  # column -> label
    "lipschitz": "local constant",
    "relative": "relative constant",
    "error": "rounding error",
    "relative_error": "relative rounding error",
    "error_constant": "error × constant",
    "over_residual": "the same over the residual norm",
    "depth": "layer index",
    "by_residual": "1 / residual norm",
    "stream_change": "change of the residual stream",
    "carried_random": "that × gain, random direction",
    "carried": "that × gain, its own direction",
}
LABELS = {
    "lipschitz": "local constant",
    "stream_change": "relative change of the residual stream",
    "kl": "KL of the next token, nats",
}


def predicted(table):
    """The stored ``kv-rounding`` with every quantity of `PREDICTORS` that may rank the layers as a column.

    Adds `error_constant` (relative error times constant times norm of the tokens received: to first order the largest
    change of the output by a change of the tokens of that size), `over_residual` (that over the norm of the residual
    stream), `depth` (the layer, from 1), `by_residual` (one over that norm), `carried_random` (change of the stream
    times the gain of the layers above in a random direction).
    """
    error = table.relative_error * table.lipschitz * table.received
    more = {"error_constant": error, "over_residual": error / table.residual}
    more |= {"depth": table.layer + 1, "by_residual": 1 / table.residual}  # quantities without the constant
    return table.assign(**more, carried_random=table.stream_change * table.gain_random)


def by_layer(table, columns):
    """Geometric means over texts and windows: one row for each layer."""
    return table.groupby("layer")[list(columns)].agg(gmean)


@figure(
    "kv-rounding",
    page="72_kv_rounding",
    tables=("kv-rounding",),
    about="loss by rounding one layer's keys or values, against the constant and the change of the residual stream",
)
def ranks(table, bits=3, model="smollm2"):
    """Loss by rounding against the local constant, and against the change of the residual stream: one mark a layer.

    `table`: the stored ``kv-rounding``. `model`: the model whose layers are drawn.
    """
    table = table[(table.model == model) & (table.bits == bits)]
    figure, axes = plt.subplots(2, 1, figsize=(5.0, 6.4), layout="constrained")
    for ax, column in zip(axes, ("lipschitz", "stream_change"), strict=True):
        for kind, (colour, marker) in KINDS.items():
            rows = by_layer(table[table.kind == kind], [column, "kl"])
            ax.plot(rows[column], rows.kl, marker, color=colour, ms=6, alpha=0.85)
            least = rows.loc[rows[column].idxmin()]  # no mark stands right of it at its height
            ax.annotate(kind, (least[column], least.kl), (9, -3), textcoords="offset points", color=colour)
        ax.set(xscale="log", yscale="log", xlabel=LABELS[column], ylabel=LABELS["kl"])
    axes[1].set_xticks([0.01, 0.02, 0.05, 0.1], ["1 %", "2 %", "5 %", "10 %"])
    axes[1].minorticks_off()
    return figure


@figure(
    "kv-rounding-depth",
    page="72_kv_rounding",
    tables=("kv-rounding",),
    about="constants, norms of the residual stream and loss by rounding, layer by layer",
)
def depth(table, bits=3, model="smollm2"):
    """Local constant, norms of the residual stream and loss by rounding, layer by layer.

    `table`: the stored ``kv-rounding``. `model`: the model whose layers are drawn.
    """
    rows = table[(table.model == model) & (table.bits == bits)]
    figure, axes = plt.subplots(3, 1, figsize=(4.8, 7.2), sharex=True, layout="constrained")
    layers = by_layer(rows, ["lipschitz", "residual", "residual_token"])
    axes[0].plot(layers.lipschitz, "o-", color="C6", ms=4, label="_one")
    axes[0].set(ylabel="local constant")
    lines = (("residual", "D", "-", "all tokens"), ("residual_token", "v", "--", "median token"))
    for column, marker, dashes, label in lines:
        axes[1].plot(layers[column], marker, ls=dashes, color="C6", ms=4, label=label)
    axes[1].set(ylabel="norm of residual stream")
    for kind, (colour, marker) in KINDS.items():
        axes[2].plot(by_layer(rows[rows.kind == kind], ["kl"]).kl, marker, ls="-", color=colour, ms=4, label=kind)
    axes[2].set(ylabel="KL by rounding, nats", xlabel="layer")
    for ax in axes:
        ax.set(yscale="log", xlim=(-0.5, np.max(layers.index) + 0.5))
        ax.minorticks_off()
    for ax in axes[1:]:
        named_at_the_end(ax, 12)
    return figure
