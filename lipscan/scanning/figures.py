"""Plots of a scan, for a page or a report: every layer measured, certified and bounded."""

import math
import warnings
from io import StringIO
from itertools import cycle
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.ticker import (
    Formatter,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
    ScalarFormatter,
)

__all__ = ["baselines", "growth", "heads", "layers", "radii", "tokens"]

STYLE = Path(__file__).with_name("lipnb.mplstyle")
SIZE = (4.5, 3.7)  # one panel
WORDS = 64  # most words below a map of tokens
NOT_CONVERGED = "#b0b0b0"
MEASURED = "#1f83c4"
LOOKS = (("#d55e00", "s"), ("#e69f00", "^"), ("#009e73", "D"), ("#cc79a7", "v"), ("#56b4e9", "P"), ("#8c564b", "X"))
INK = "#1a2b3c"  # placeholder for the text colour around a plot


def log_ticks(axis, low, high):
    """Plain numbers on a logarithmic axis: 1, 10, 100, and steps between them if it spans less than two decades.

    Parameters
    ----------
    axis : matplotlib XAxis or YAxis
        The axis.
    low, high : float
        Limits of the axis.
    """
    axis.set_major_locator(LogLocator())
    written: Formatter = FuncFormatter(_plain)
    if high / low < 100:
        steps = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if high / low < 5 else (1, 2, 5)
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        candidates = [step * 10.0**decade for decade in decades for step in steps]
        ticks = [tick for tick in candidates if low / 1.05 <= tick <= high * 1.05]
        if len(ticks) < 3:  # so narrow that it is nearly linear
            ticks = [tick for tick in MaxNLocator(5).tick_values(low, high) if low <= tick <= high]
            written = ScalarFormatter()
        axis.set_ticks(ticks)
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(written)
    axis.set_minor_formatter(NullFormatter())


def _plain(value, place=None):
    """Label of a tick: 0.01, 25, 1,000, or a power of ten if that would have more than seven characters."""
    said = f"{value:,.6g}"
    if "e" not in said and len(said) <= 7:
        return said
    digits, exponent = f"{value:.2g}".split("e") if "e" in f"{value:.2g}" else f"{value:.1e}".split("e")
    return rf"$10^{{{int(exponent)}}}$" if float(digits) == 1 else rf"${digits} \times 10^{{{int(exponent)}}}$"


def _by_layer(ax, rows, ylabel="local Lipschitz constant", **look):
    """Axes with a tick at each layer, or at a selection of many; linear if nothing on them is positive."""
    if not np.isfinite(ax.dataLim.minposy):
        look.pop("yscale", None)
    ax.set(xlabel="layer", ylabel=ylabel, **look)
    ax.set_xticks(rows.layer[:: 1 + len(rows) // 12])
    if ax.get_yscale() == "log":
        log_ticks(ax.yaxis, *ax.get_ylim())
    return ax


def _apart(rows):
    """One row for each layer from the first to the last, so that lines and bands break at unmeasured layers."""
    return pd.DataFrame({"layer": range(rows.layer.min(), rows.layer.max() + 1)}).merge(rows, how="left", on="layer")


def layers(rows, bounds, *, ax=None, title=None):
    """Constant of each layer in the first window, its bounds and the usual growth, logarithmic; bars: all windows.

    Parameters
    ----------
    rows : DataFrame
        Rows of one length of `lipscan.scanning.summary.first_window`.
    bounds : dict
        Key of a bound -> its label.
    ax : matplotlib Axes, optional
        Axes to draw on.
    title : str, optional
        Title of the panel.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots(figsize=SIZE)[1]
    rest, rows = rows[~rows.converged.astype(bool)], _apart(rows)
    shown = {
        key: label for key, label in bounds.items() if f"log10_{key}" in rows and rows[f"log10_{key}"].notna().any()
    }
    for (key, label), (colour, marker) in zip(shown.items(), cycle(LOOKS), strict=False):
        ax.plot(rows.layer, 10 ** rows[f"log10_{key}"], color=colour, marker=marker, lw=1.2, label=label)
    if rows.certified.notna().any():
        proved, look = rows.certified.notna(), {"color": MEASURED, "alpha": 0.22}
        ax.fill_between(rows.layer, rows.certified_lower, rows.certified, where=proved, lw=0, **look)
        alone = rows[proved & ~proved.shift(1, fill_value=False) & ~proved.shift(-1, fill_value=False)]
        ax.vlines(alone.layer, alone.certified_lower, alone.certified, lw=7, **look)
        ax.plot(rows.layer, rows.certified, color=MEASURED, ls="--", marker="_", lw=1.2, label="certified upper bound")
    if "typical" in rows and rows.typical.notna().any():
        ax.plot(rows.layer, rows.typical, color=MEASURED, ls=":", marker=".", lw=1.2, label="a random small change")
    error = [rows.lipschitz - rows.low, rows.high - rows.lipschitz]
    ax.errorbar(rows.layer, rows.lipschitz, error, color=MEASURED, marker="o", capsize=2, lw=2, label="measured")
    ax.plot(rest.layer, rest.lipschitz, "x", color=NOT_CONVERGED, zorder=5)
    return _by_layer(ax, rows, yscale="log", title=title)


def growth(summary, *, ax=None):
    """Constant of each layer against the length, in log-log axes, with a line of slope one half."""
    ax = ax or plt.subplots(figsize=SIZE)[1]
    good = summary[summary.passed]
    found = sorted(good.layer.unique())
    for place, layer in enumerate(found):
        rows = good[good.layer == layer].sort_values("length")
        colour = plt.get_cmap("plasma")(0.25 + 0.65 * place / max(1, len(found) - 1))
        label = f"layer {layer}" if len(found) <= 8 or place % (1 + len(found) // 8) == 0 else None
        ax.plot(rows.length, rows.lipschitz, marker="o", color=colour, lw=1.4, label=label)
    lengths = np.array(sorted(good.length.unique()), dtype=float)
    slope = good.lipschitz[good.lipschitz > 0].min() * 0.8 * np.sqrt(lengths / lengths[0])
    ax.plot(lengths, slope, color=NOT_CONVERGED, ls=":", label="slope 1/2")
    ax.set(xscale="log", yscale="log", xlabel="tokens n", ylabel="local Lipschitz constant")
    ax.set_xticks(lengths, [f"{length:.0f}" for length in lengths])
    ax.minorticks_off()
    log_ticks(ax.yaxis, *ax.get_ylim())
    return ax


def radii(rows, *, ax=None, title=None):
    """Norms of the tokens that each layer's attention receives: root mean square and largest."""
    ax, rows = ax or plt.subplots(figsize=SIZE)[1], _apart(rows)
    ax.plot(rows.layer, rows.radius, color="#d55e00", marker="^", label="largest")
    ax.plot(rows.layer, rows.mean_radius, color="#009e73", marker="o", label="mean (root mean square)")
    top = 1.05 * rows.radius.max()  # equal norms would lie on the edge
    return _by_layer(ax, rows, "norm of a token", title=title, ylim=(0, top))


def baselines(rows, *, ax=None, title=None):
    """Constants of the layers, of random weights and of shuffled text, and relative constants.

    Parameters
    ----------
    rows : DataFrame
        Rows of one length of `lipscan.scanning.summary.first_window`: baselines belong to the first window.
    ax : matplotlib Axes, optional
        Axes to draw on.
    title : str, optional
        Title of the panel.

    Returns
    -------
    Axes
    """
    ax, rows = ax or plt.subplots(figsize=SIZE)[1], _apart(rows)
    ax.plot(rows.layer, rows.lipschitz, color=MEASURED, marker="o", lw=2, label="the model")
    others = (("random", "random weights"), ("shuffled", "shuffled text"))
    for (name, label), (colour, marker) in zip(others, LOOKS[:2], strict=True):
        if name in rows and rows[name].notna().any():
            ax.plot(rows.layer, rows[name], color=colour, marker=marker, lw=1.2, label=label)
    ax.plot(rows.layer, rows.relative, color=LOOKS[2][0], marker=".", ls="--", lw=1.2, label="relative constant")
    return _by_layer(ax, rows, yscale="log", title=title)


def comparison(table, names, *, ax=None):
    """Constants of two scans by layer, at the longest common length; `names` of the first and the second."""
    ax = ax or plt.subplots(figsize=SIZE)[1]
    rows = _apart(table[table.length == table.length.max()])
    for column, name, (colour, marker) in zip(("before", "after"), names, ((MEASURED, "o"), LOOKS[0]), strict=True):
        ax.plot(rows.layer, rows[column], color=colour, marker=marker, lw=1.6, label=f"{column}: {name}")
    return _by_layer(ax, rows, yscale="log")


def heads(table, *, ax=None):
    """Constant of each head alone: one row for each layer, one column for each head, logarithmic colours.

    Parameters
    ----------
    table : DataFrame
        The table `Scan.heads`.
    ax : matplotlib Axes, optional
        Axes to draw on.

    Returns
    -------
    Axes
    """
    return _map(
        table.pivot(index="layer", columns="head", values="lipschitz"), "head", "constant of the head alone", ax
    )


def tokens(table, *, by="moves", ax=None):
    """How far each token moves the others, relative to the largest in its layer: one row per layer, one column per
    token.

    With `by` = "in_steepest", the share of the steepest change on each token. The words are below, rotated; above
    `WORDS` tokens, only the words with the largest values in a layer.
    """
    grid = table.pivot(index="layer", columns="place", values=by)
    grid = grid.div(grid.max(axis=1), axis=0)
    if ax is None:
        height = min(2.4 + 0.26 * len(grid), 9)
        ax = plt.subplots(figsize=(min(max(4.5, 2 + 0.22 * grid.shape[1]), 10.5), height))[1]
    _map(grid, "token", "moves others (most: 1)" if by == "moves" else "in the steepest change (most: 1)", ax)
    words = table.drop_duplicates("place").set_index("place").written.sort_index()
    places, apart = range(len(words)), 1
    if len(words) > WORDS:  # the largest first, at least a label's width apart
        tops, apart = grid.max().sort_values(ascending=False, kind="stable").index[:WORDS], len(words) / WORDS
        places = [place for n, place in enumerate(tops) if all(abs(place - other) >= apart for other in tops[:n])]
    said = [_word(words.iloc[place]) for place in places]
    ax.set_xticks(places, said, rotation=90, fontsize=9, parse_math=False)
    return ax


def _word(written):
    """A token as text, shortened, without quotes unless nothing else is left."""
    bare = written[1:-1].strip() if written[0] == written[-1] and written[0] in "'\"" else written
    said = bare or written
    return said if len(said) <= 14 else f"{said[:13]}…"


def _map(grid, across, label, ax):
    """Colour map of numbers by layer, logarithmic; missing and non-positive values stay empty."""
    ax = ax or plt.subplots(figsize=SIZE)[1]
    values = grid.to_numpy(dtype=float)
    values = np.where(values > 0, values, np.nan)
    least, most = (np.nanquantile(values, q) if np.isfinite(values).any() else 1.0 for q in (0.02, 1.0))
    norm = LogNorm(vmin=min(least, most * 0.99), vmax=most)
    drawn = ax.pcolormesh(np.arange(values.shape[1] + 1) - 0.5, np.arange(len(values) + 1) - 0.5, values, norm=norm)
    bar = ax.figure.colorbar(drawn, ax=ax, shrink=0.8, label=label)
    log_ticks(bar.ax.yaxis, norm.vmin, norm.vmax)
    ax.set(xlabel=across, ylabel="layer")
    ax.set_yticks(np.arange(len(grid))[:: 1 + len(grid) // 12], grid.index[:: 1 + len(grid) // 12])
    ax.grid(False)
    return ax


def in_report(draw, *arguments, **options):
    """The drawing of a function in this module as an ``<svg>`` inside a page: in the page's text colour, no links.

    The same table gives the same text.
    """
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color")
    look = dict.fromkeys((*inked, "grid.color"), INK) | {"grid.alpha": 0.15, "savefig.transparent": True}
    look |= {"svg.fonttype": "none", "svg.hashsalt": draw.__name__}
    with plt.style.context([STYLE, look]), warnings.catch_warnings():
        # words stay text of the page, in the reader's fonts, which may have letters that ours lack
        warnings.filterwarnings("ignore", r"Glyph .* missing from")
        ax = draw(*arguments, **options)
        handles, labels = ax.get_legend_handles_labels()
        if handles:
            ax.figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=9)
        text = StringIO()
        ax.figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(ax.figure)
    drawn = text.getvalue()
    return drawn[drawn.index("<svg") :].replace(INK, "currentColor")
