"""Figure of small GPT-2 networks that differ in their positions: growth of their constants."""

import matplotlib.pyplot as plt

from lab.figures.registry import figure
from lab.statistics.layer_growth import rates

KINDS = {"learned": ("learned positions", "C6", "o"), "none": ("no positions", "C2", "^")}
KINDS |= {"rotary": ("rotary positions", "C0", "s")}


@figure(
    "twins",
    page="41_real_text",
    tables=("twins",),
    about="how the constant grows in twins with learned, no and rotary positions",
)
def slopes(table):
    """Slope of the constant in each layer of each network after training, and before it.

    `table`: ``twins``: columns row, positions, seed, step, layer, length, window, lipschitz. Returns `Figure`: one
    panel for each kind of positions, a line for each seed; grey before training.
    """
    found = rates(table[table.row == "layer"], along=(), key=["positions", "seed", "step", "layer"])
    figure, axes = plt.subplots(1, len(KINDS), figsize=(7.6, 2.8), sharey=True)
    for ax, (kind, (label, colour, marker)) in zip(axes, KINDS.items(), strict=True):
        here = found[found.positions == kind]
        for step, look in ((found.step.min(), {"color": "0.6", "lw": 0.9}), (found.step.max(), {"color": colour})):
            for _, rows in here[here.step == step].groupby("seed"):
                ax.plot(rows.layer, rows.slope, marker=marker, ms=4.5, mfc="none", **look)
        for level, name in ((0.25, "1/4"), (0.5, "1/2")):
            ax.axhline(level, color="0.4", ls=":", lw=1)
            if ax is axes[0]:
                ax.annotate(name, (0, level), (2, -11), textcoords="offset points", color="0.3", fontsize=9)
        ax.set(xlabel="layer", title=label, xticks=sorted(found.layer.unique()))
    axes[0].set_ylabel(f"slope, {found.shortest.min()} to {found.longest.max()} tokens")
    return figure
