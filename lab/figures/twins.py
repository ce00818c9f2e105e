"""Figure of small GPT-2 networks that differ in their positions: growth of their constants."""

import matplotlib.pyplot as plt

from lab.figures.registry import figure
from lab.figures.style import named_at_the_end
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

    `table`: ``twins``: columns row, positions, seed, step, layer, length, window, lipschitz. Returns `Figure`: medians
    over seeds as lines, their range as bands; grey before training.
    """
    found = rates(table[table.row == "layer"], along=(), key=["positions", "seed", "step", "layer"])
    figure, ax = plt.subplots(figsize=(6.2, 3.2))
    first, last = (
        found[found.step == step].groupby(["positions", "layer"]).slope for step in found.step.agg(["min", "max"])
    )
    ax.plot(first.median().groupby("layer").median(), color="0.5", lw=1.2, label="before training")
    least, middle, most = last.min(), last.median(), last.max()
    for kind, (label, colour, marker) in KINDS.items():
        ax.fill_between(middle[kind].index, least[kind], most[kind], color=colour, alpha=0.15, lw=0)
        ax.plot(middle[kind], color=colour, marker=marker, ms=5, label=label)
    for level, name in ((0.25, "1/4"), (0.5, "1/2")):
        ax.axhline(level, color="0.4", ls=":", lw=1)
        ax.annotate(name, (0, level), (0, -11), textcoords="offset points", color="0.3", fontsize=9)
    ax.set(xlabel="layer", ylabel=f"slope, {found.shortest.min()} to {found.longest.max()} tokens")
    ax.set_xticks(sorted(found.layer.unique()))
    named_at_the_end(ax, apart=11)
    return figure
