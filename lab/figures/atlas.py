"""Figures of the growth atlas: the slopes of every layer's constant, and of what varies with it.

C0 is a trained model on its text, C3 shuffled text, C6 random weights.
"""

import matplotlib.pyplot as plt
import numpy as np

from lab.figures.style import named_among_marks

__all__ = ["mechanism", "slopes", "two_quantities"]

MAPS = "os^DvPX*h"  # markers of the models, in the order of the table
LOOKS = {"as read": ("C0", "o"), "shuffled": ("C3", "^"), "random weights": ("C6", "s")}


def slopes(table, claimed=0.25):
    """The overall slope of every layer, with its interval and both controls.

    Parameters
    ----------
    table : DataFrame
        One row for each layer and case: columns map, case, layer, slope, low, high.
    claimed : float
        A slope drawn as a line.

    Returns
    -------
    Figure
        `lab.figures.points` of it is the number of rows.
    """
    layers = table.groupby("map", sort=False).layer.max() + 1
    row_of = (layers.cumsum() - layers / 2 > layers.sum() * 0.6).astype(int)
    size = (6.6, 3.1 * (row_of.max() + 1))
    figure, axes = plt.subplots(row_of.max() + 1, 1, figsize=size, sharey=True, squeeze=False, layout="constrained")
    for row, ax in enumerate(axes.flat):
        first, ticks = 0.0, []
        for name in row_of.index[row_of == row]:
            some = table[table["map"] == name]
            for case, (colour, marker) in LOOKS.items():
                rows = some[some.case == case]
                place = first + rows.layer
                if case == "as read":
                    error = [rows.slope - rows.low, rows.high - rows.slope]
                    ax.errorbar(place, rows.slope, error, fmt=marker, color=colour, ms=4, lw=1, zorder=3)
                else:
                    ax.plot(place, rows.slope, marker, color=colour, mfc="none", ms=4)
            drop = "\n\n" * (len(ticks) % 2)  # labels of narrow columns alternate between two heights
            ticks.append((first + (layers[name] - 1) / 2, f"{drop}{name}\n{layers[name]} layers"))
            first += layers[name] + 2
            ax.axvline(first - 1.5, color="0.85", lw=0.8)
        for exponent, label, style in ((0.0, "0", "-"), (claimed, "1/4", "--"), (0.5, "1/2", ":")):
            ax.axhline(exponent, color="0.4", ls=style, lw=1)
            ax.annotate(label, (first - 1.2, exponent), va="center", color="0.3", annotation_clip=False)
        ax.set(xlim=(-1.2, first - 1.5), ylabel="slope in log-log axes")
        ax.set_xticks(*zip(*ticks, strict=True))
        ax.tick_params(axis="x", length=0, labelsize=9)
    shown = [case for case in LOOKS if (table.case == case).any()]
    handles = [
        plt.Line2D([], [], color=colour, marker=marker, ls="", mfc=colour if case == "as read" else "none")
        for case, (colour, marker) in LOOKS.items()
        if case in shown
    ]
    axes[0, 0].legend(handles, shown, ncols=3, fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def mechanism(rates, close, along):
    """Slope of the constant against slopes that predict it, a panel for each, one mark for each layer.

    Parameters
    ----------
    rates : DataFrame
        One row for each layer, from `lab.statistics.layer_growth.rates`: columns map, slope and those of `along`.
    close : float
        Half the height of the band around equality.
    along : dict
        Column of a predicting slope -> label below its panel.

    Returns
    -------
    Figure
        `lab.figures.points` of it is the number of rows, for each panel.

    Raises
    ------
    ValueError
        The table has more than nine models.
    """
    maps = list(dict.fromkeys(rates["map"]))
    if len(maps) > len(MAPS):
        raise ValueError(f"at most {len(MAPS)} models have a marker of their own, and these are {len(maps)}.")
    size = (6.2, 4.2 * len(along))
    figure, axes = plt.subplots(len(along), 1, figsize=size, sharex=True, sharey=True, layout="constrained")
    drawn = rates[[*along, "slope"]]
    ends = np.array([min(0.0, drawn.min().min()) - 0.03, max(0.5, drawn.max().max()) + 0.03])
    for ax, (column, label) in zip(np.atleast_1d(axes), along.items(), strict=True):
        ax.fill_between(ends, ends - close, ends + close, color="0.9", lw=0)
        ax.plot(ends, ends, color="0.4", lw=1)
        for place, (name, marker) in enumerate(zip(maps, MAPS, strict=False)):
            some = rates[rates["map"] == name]
            ax.plot(some[column], some.slope, marker, color=f"C{place}", ms=6, alpha=0.8, mew=0, label=name)
        ax.set(xlabel=label, xlim=ends, ylabel="slope of the constant")
        ax.tick_params(labelbottom=True)
        named_among_marks(ax)
    return figure


def two_quantities(rates, claimed, close):
    """Slope of the constant as defined against that of the released quantity, one mark for each layer.

    Parameters
    ----------
    rates : DataFrame
        One row for each layer, from `lab.statistics.layer_growth.rates`: columns map, slope, released.
    claimed, close : float
        The claimed slope, and half the width of the band around it along each axis.

    Returns
    -------
    Figure
        `lab.figures.points` of it is the number of rows.
    """
    figure, ax = plt.subplots(figsize=(6.2, 4.9), layout="constrained")
    low, high = (end(rates[["slope", "released"]].to_numpy()) for end in (np.min, np.max))
    ends = np.array([min(0.0, low) - 0.03, high + 0.03])
    for span in (ax.axvspan, ax.axhspan):
        span(claimed - close, claimed + close, color="0.5", alpha=0.15, lw=0)
    ax.plot(ends, ends, color="0.4", lw=1)
    for place, (name, some) in enumerate(rates.groupby("map", sort=False)):
        look = {"ms": 6, "alpha": 0.8, "mew": 0, "label": name, "color": f"C{place}" if place < 7 else "0.25"}
        ax.plot(some.slope, some.released, MAPS[place % len(MAPS)], **look)
    ax.set(xlabel="slope of the constant, as defined", ylabel="slope of the released quantity", xlim=ends, ylim=ends)
    named_among_marks(ax)
    return figure
