"""Plots of a comparison: local errors beside their floors, and the gains on the way to the end."""

import matplotlib.pyplot as plt

from lipscan.scanning.figures import LOOKS, MEASURED, SIZE, log_ticks

__all__ = ["errors", "gains", "shares"]

NAMES = {"layer": "layers", "attention": "attention halves", "mlp": "MLP halves"}


def errors(table, *, ax=None):
    """Local error of each layer and half over what it gives, beside its floor, logarithmic.

    Parameters
    ----------
    table : DataFrame
        The table `Drift.table`.
    ax : matplotlib Axes, optional
        Axes to draw on.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots(figsize=SIZE)[1]
    looks = zip(NAMES, ((MEASURED, "o"), *LOOKS[:2]), strict=True)
    for part, (colour, marker) in looks:
        rows = table[(table.part == part) & (table["size"] > 0)]
        if rows.empty:
            continue
        size = rows["size"]
        ax.fill_between(rows.layer, rows.floor_low / size, rows.floor_high / size, color=colour, alpha=0.22, lw=0)
        ax.plot(rows.layer, rows.floor / size, color=colour, ls="--", lw=1, label=f"floor of {NAMES[part]}")
        ax.plot(rows.layer, rows.error / size, color=colour, marker=marker, lw=1.4, label=f"error of {NAMES[part]}")
    return _by_layer(ax, table, "local error / output")


def gains(table, *, ax=None):
    """Gain of each layer's error from there to the end, of a random error and at worst, logarithmic."""
    ax = ax or plt.subplots(figsize=SIZE)[1]
    rows = table[table.part == "layer"]
    lines = {"gain": "this error", "gain_random": "a random error", "gain_worst": "at worst"}
    for (column, label), (colour, marker) in zip(lines.items(), ((MEASURED, "o"), LOOKS[2], LOOKS[0]), strict=True):
        if rows[column].notna().any():
            ax.plot(rows.layer, rows[column], color=colour, marker=marker, lw=1.4, label=label)
    return _by_layer(ax, rows, "gain from there to the end")


def shares(table, *, ax=None):
    """Share of each layer in the final difference; they add up to 1 where first order holds."""
    ax = ax or plt.subplots(figsize=SIZE)[1]
    rows = table[table.part == "layer"]
    ax.bar(rows.layer, rows.share, color=MEASURED)
    ax.set(xlabel="layer", ylabel="share of the final difference")
    ax.set_xticks(rows.layer[:: 1 + len(rows) // 12])
    return ax


def _by_layer(ax, rows, label):
    """Axes with a tick at each layer, or at some of many, and a logarithmic scale."""
    layers = sorted(rows[rows.part == "layer"].layer)
    ax.set(xlabel="layer", ylabel=label, yscale="log")
    ax.set_xticks(layers[:: 1 + len(layers) // 12])
    log_ticks(ax.yaxis, *ax.get_ylim())
    return ax
