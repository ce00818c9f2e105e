"""What attacks on the input of a layer achieve, beside the local constant."""

import numpy as np
from matplotlib.ticker import NullLocator

from lipnb.scanning.style import panels

__all__ = ["attacks", "ranks"]

ATTACKS = (
    ("random", "random", "C6", "x", ":"),
    ("singular", "singular vector", "C0", "o", "-"),
    ("aligned", "aligned", "C4", "s", "--"),
    ("pgd", "PGD", "C1", "D", "-"),
    ("one_token", "one token", "C2", "^", "-."),
    ("parting_pgd", "parting copies", "C3", "v", "--"),
)
BANDS = (
    ("bound_general", "Thm 3.3, summed over heads", "C1", "s", "-."),
    ("bound", "bound of this page", "C0", "o", "--"),
    ("pgd", "PGD", "C2", "D", "-"),
)


def attacks(table):
    """Change of the output over its first-order prediction, for each attack and bound, against the radius.

    Parameters
    ----------
    table : DataFrame
        ``robustness``: columns relative, epsilon, lipschitz, and one for each attack and bound.

    Returns
    -------
    Figure
    """
    axes = panels(2, width=4.6, height=4.4)
    for ax, lines in zip(axes, (ATTACKS, BANDS), strict=True):
        for place, (name, label, colour, marker, dashes) in enumerate(lines):
            rows = (table[name] / (table.lipschitz * table.epsilon)).groupby(table.relative)
            middle, low, high = rows.median(), rows.min(), rows.max()
            look = {"color": colour, "marker": marker, "ls": dashes, "ms": 5}
            beside = middle.index * 1.12 ** (place - (len(lines) - 1) / 2)
            ax.errorbar(beside, middle, [middle - low, high - middle], label=label, elinewidth=0.9, **look)
        ax.set(xscale="log", xlabel=r"relative radius $\epsilon$ / token norm")
        ax.legend(fontsize=9, loc="upper left")
    axes[0].axhline(1, color="0.5", lw=0.8)
    axes[0].set(ylabel=r"change of the output / ($\mathrm{Lip}_X\,\epsilon$)", ylim=(0, None))
    axes[1].set(yscale="log", ylim=(0.5, 1e6))
    return axes[0].figure


def ranks(table, radii=(0.1, 1.0)):
    """What the best attack on each input of MiniLM achieves against its local constant.

    Parameters
    ----------
    table : DataFrame
        ``robustness``: columns model, masked, layer, relative, epsilon, lipschitz, pgd, one_token.
    radii : sequence of float
        Relative radii of the panels.

    Returns
    -------
    Figure
    """
    trained = table[table.model == "minilm"]  # the random GPT-2 is left out, as the page says
    trained = trained.assign(worst=trained[["pgd", "one_token"]].max(axis=1) / trained.epsilon)
    axes = panels(len(radii), width=3.6, height=3.9)
    colours = ("C0", "C1", "C2", "C6")
    span = np.array([trained.lipschitz.min() * 0.8, trained.worst.max() * 1.25])
    ticks = [t for t in (1, 2, 5, 10, 20, 50) if span[0] < t < span[1]]
    for ax, radius in zip(axes, radii, strict=True):
        kinds = trained[np.isclose(trained.relative, radius)].groupby(["masked", "layer"])
        for ((masked, layer), dots), colour, marker in zip(kinds, colours, "o^sx", strict=True):
            name = f"layer {layer}, {'masked' if masked else 'unmasked'}"
            ax.plot(dots.lipschitz, dots.worst, marker, color=colour, label=name, alpha=0.8)
        ax.plot(span, span, color="0.5", lw=0.8)
        ax.set(xscale="log", yscale="log", xlim=span, ylim=span, aspect="equal")
        ax.set(title=f"relative radius {radius:g}", xlabel="local constant Lip$_X$")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_ticks(ticks, labels=map(str, ticks))
            axis.set_minor_locator(NullLocator())
    axes[0].set_ylabel(r"change by the best attack / $\epsilon$")
    figure = axes[0].figure
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9)
    return figure
