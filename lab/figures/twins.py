"""Twins of a small GPT-2 that differ in their positions: how their constants grow, and when in training."""

import matplotlib.pyplot as plt

from lab.figures.positions import BASELINES, NAMES
from lab.figures.registry import figure
from lab.layer_growth import rates

__all__ = ["NETWORK", "slopes", "while_training"]

KINDS = {"learned": ("learned positions", "C6", "o"), "none": ("no positions", "C2", "^")}
KINDS |= {"rotary": ("rotary positions", "C0", "s")}
NETWORK = ["positions", "seed", "step"]  # one network at one checkpoint


@figure(
    "twins",
    page="47_trained_without",
    tables=("twins",),
    about="how the constant grows in twins with learned, no and rotary positions",
)
def slopes(table):
    """Slope of the constant in each layer of each twin after training, and before it.

    Parameters
    ----------
    table : DataFrame
        ``twins``: columns row, positions, seed, step, layer, length, window, lipschitz.

    Returns
    -------
    Figure
        One panel for each kind of positions, a line for each seed; grey before training.
    """
    found = rates(table[table.row == "layer"], along=(), key=[*NETWORK, "layer"])
    figure, axes = plt.subplots(1, len(KINDS), figsize=(9.4, 3.4), sharey=True)
    for ax, (kind, (label, colour, marker)) in zip(axes, KINDS.items(), strict=True):
        here = found[found.positions == kind]
        for step, look in ((found.step.min(), {"color": "0.6", "lw": 0.9}), (found.step.max(), {"color": colour})):
            for _, rows in here[here.step == step].groupby("seed"):
                ax.plot(rows.layer, rows.slope, marker=marker, ms=4.5, mfc="none", **look)
        for level, name in ((0.25, "1/4"), (0.5, "1/2")):
            ax.axhline(level, color="0.4", ls=":", lw=1)
            if ax is axes[0]:
                ax.annotate(name, (0, level), (2, 3), textcoords="offset points", color="0.3", fontsize=9)
        ax.set(xlabel="layer", title=label, xticks=sorted(found.layer.unique()))
    axes[0].set_ylabel(f"slope, {found.shortest.min()} to {found.longest.max()} tokens")
    return figure


@figure(
    "twins-while-training",
    page="47_trained_without",
    tables=("twins",),
    about="the same growth at checkpoints of training, and the losses",
)
def while_training(table):
    """Median slope over the layers of each twin, and its held-out loss, against the steps of training.

    Parameters
    ----------
    table : DataFrame
        ``twins``: as for `slopes`, and loss.

    Returns
    -------
    Figure
    """
    found = rates(table[table.row == "layer"], along=(), key=[*NETWORK, "layer"])
    losses = table[table.row == "loss"]
    baselines = table[table.row == "baseline"].set_index("positions").loss
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.6))
    for kind, (label, colour, marker) in KINDS.items():
        for ax, rows, column in ((left, found, "slope"), (right, losses, "loss")):
            for i, (_, one) in enumerate(rows[rows.positions == kind].groupby("seed")):
                line = one.groupby("step")[column].median()
                ax.plot(line, color=colour, marker=marker, ms=4.5, mfc="none", lw=1.1, label=None if i else label)
    left.set(xlabel="steps of training", ylabel="slope, median over layers", ylim=(0, None))
    left.legend(fontsize=9)
    for name, loss in baselines.items():
        colour, style = BASELINES[name]
        right.axhline(loss, color=colour, ls=style, lw=1.2, label=NAMES.get(name, name))
    right.set(xlabel="steps of training", ylabel="held-out loss, nats per token")
    right.legend(fontsize=9)
    return figure
