"""The book's figures, drawn from tables. Nothing here runs a model or knows a path."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import Normalize, SymLogNorm
from matplotlib.ticker import NullLocator, ScalarFormatter

__all__ = ["against_length", "head_map", "house_style", "log_ticks", "matrix", "panels", "probabilities", "rate_line",
           "residuals", "speed_bars"]

STYLE = Path(__file__).with_name("house.mplstyle")
NOT_CONVERGED = "#b0b0b0"
ONE_RADIUS = 1.01  # radii closer than this factor are one radius


def house_style():
    """Use the book's look for all figures that follow."""
    plt.style.use(STYLE)


def log_ticks(axis, low, high):
    """Plain numbers on a logarithmic axis that spans less than two decades: `axis` is an XAxis or YAxis."""
    if high / low < 100:
        steps = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if high / low < 5 else (1, 2, 5)
        candidates = [step * 10.0**e for e in range(-6, 7) for step in steps]
        axis.set_ticks([tick for tick in candidates if low / 1.05 <= tick <= high * 1.05])
        axis.set_major_formatter(ScalarFormatter())
        axis.set_minor_locator(NullLocator())


def against_length(table, fit=None, *, ax=None, title=None):
    """Local Lipschitz constant of each window against its length, in log-log axes, coloured by mean radius.

    A radius that is the same for all windows is written, not drawn as colours.

    Parameters
    ----------
    table : DataFrame
        Rows of one panel, from `lipnb.experiments.measure`. Rows that did not converge are drawn grey, not dropped.
    fit : lipnb.scaling.PowerLaw, optional
        Drawn as a line, with its exponent and interval.
    ax : matplotlib Axes, optional
        Where to draw.
    title : str, optional
        What the panel shows.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots()[1]
    good = table[table.converged]
    smallest, largest = table.mean_radius.min(), table.mean_radius.max()
    colours = {"c": good.mean_radius, "norm": Normalize(smallest, largest)}
    one_radius = largest <= ONE_RADIUS * smallest
    dots = ax.scatter(good.length, good.lipschitz, s=9, linewidths=0, **({} if one_radius else colours))
    rest = table[~table.converged]
    if len(rest):
        ax.scatter(rest.length, rest.lipschitz, c=NOT_CONVERGED, s=11, marker="x", label="not converged")
    ax.set(xscale="log", yscale="log", xlabel="sequence length n", ylabel="local Lipschitz constant", title=title)
    log_ticks(ax.xaxis, table.length.min(), table.length.max())
    log_ticks(ax.yaxis, table.lipschitz.min(), table.lipschitz.max())
    if fit is not None:
        rate_line(ax, fit, (table.length.min(), table.length.max()))
    elif len(rest):
        ax.legend()
    if one_radius:
        place = {"xy": (0.97, 0.03), "xycoords": "axes fraction", "ha": "right"}
        ax.annotate(f"mean radius {largest:.1f} throughout", **place)
    else:
        ax.figure.colorbar(dots, ax=ax, label="mean radius", pad=0.02)
    return ax


def rate_line(ax, fit, span):
    """Draw a fitted power law over `span`, labelled with its exponent and interval."""
    x = np.geomspace(*span, 50)
    label = rf"${fit.constant:.3g}\,n^{{{fit.exponent:.3f}}}$  [{fit.low:.3f}, {fit.high:.3f}]"
    ax.plot(x, fit(x), color="#d55e00", label=label)
    ax.legend(loc="upper left", handlelength=1, borderaxespad=0.2)
    low, high = ax.get_ylim()
    ax.set_ylim(top=high * (high / low) ** 0.15)  # room for the legend above the dots


def panels(count, *, rows=1, width=3.6, height=3.3):
    """Axes side by side, `count` in each of `rows` rows, in one flat array."""
    return plt.subplots(rows, count, figsize=(width * count, height * rows), squeeze=False)[1].flatten()


def residuals(history, *, ax=None, title=None):
    """Relative error of solvers against products spent.

    Parameters
    ----------
    history : DataFrame
        Columns `method`, `products` and `error` (relative, positive).
    ax : matplotlib Axes, optional
        Where to draw.
    title : str, optional
        What is solved.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots()[1]
    for (method, rows), marker in zip(history.groupby("method", sort=False), "osD^v", strict=False):
        ax.plot(rows.products, rows.error, marker=marker, label=method)
    ax.set(yscale="log", xlabel="products with the Jacobian and its transpose", ylabel="relative error", title=title)
    ax.legend()
    return ax


def matrix(values, *, ax=None, title=None, block=None, label=None):
    """A matrix as colours, symmetric about zero, small entries kept visible.

    Parameters
    ----------
    values : array_like, shape (rows, columns)
        For example a Jacobian or attention probabilities.
    ax : matplotlib Axes, optional
        Where to draw.
    title : str, optional
        What the matrix is.
    block : tuple of int, optional
        Rows and columns of a token, to draw the borders of the blocks.
    label : str, optional
        What the colours mean.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots()[1]
    values = np.asarray(values)
    top = np.abs(values).max() or 1.0
    image = ax.imshow(values, cmap="RdBu_r", norm=SymLogNorm(top / 50, vmin=-top, vmax=top), aspect="equal")
    ax.grid(False)
    ax.set(title=title, xticks=[], yticks=[])
    if block:
        for row in range(block[0], values.shape[0], block[0]):
            ax.axhline(row - 0.5, color="#404040", linewidth=0.5)
        for column in range(block[1], values.shape[1], block[1]):
            ax.axvline(column - 0.5, color="#404040", linewidth=0.5)
    ax.figure.colorbar(image, ax=ax, label=label, shrink=0.8)
    return ax


def head_map(grid, *, ax=None, title=None, cmap="Blues", norm=None, text="{:.0f}", largest=False):
    """One number for each head of each layer, written on a shade.

    Parameters
    ----------
    grid : DataFrame
        Rows are layers, columns heads.
    ax : matplotlib Axes, optional
        Where to draw.
    title : str, optional
        What the numbers are.
    cmap, norm : optional
        Colours and their scale, as for `imshow`.
    text : str
        How a number is written.
    largest : bool
        Whether the largest number of each layer is bold.

    Returns
    -------
    AxesImage
        For a colour bar.
    """
    ax = ax or plt.subplots()[1]
    image = ax.imshow(grid, cmap=cmap, norm=norm, aspect="auto")
    for row, values in enumerate(grid.to_numpy()):
        for column, value in enumerate(values):
            dark = np.dot(image.to_rgba(value)[:3], (0.3, 0.59, 0.11)) < 0.55
            look = {"color": "white" if dark else "black", "ha": "center", "va": "center", "fontsize": 7.5}
            weight = "bold" if largest and value == values.max() else "normal"
            ax.text(column, row, text.format(value), weight=weight, **look)
    ax.grid(False)
    ax.set(title=title, xlabel="head", ylabel="layer")
    ax.set_xticks(range(grid.shape[1]), grid.columns)
    ax.set_yticks(range(grid.shape[0]), grid.index)
    return image


def probabilities(P, tokens, *, ax=None, title=None):
    """Attention probabilities as shades, with the tokens at the borders.

    Parameters
    ----------
    P : array_like, shape (n, n)
        Row i is how token i spreads its attention.
    tokens : sequence of str
        What to write at rows and columns.
    ax : matplotlib Axes, optional
        Where to draw.
    title : str, optional
        Which head this is.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots()[1]
    ax.imshow(np.asarray(P), cmap="Blues", vmin=0, vmax=1)
    ax.grid(False)
    ax.set_title(title)
    ax.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=8)
    ax.set_yticks(range(len(tokens)), tokens, fontsize=8)
    return ax


def speed_bars(table, *, ax=None, title=None):
    """How many times faster each method is than the first, and how often it is wrong.

    Parameters
    ----------
    table : DataFrame
        One row for each method: `method`, `ratio` with its `low` and `high`, `missed` of `count` inputs, and `error`,
        the largest relative one. Methods that missed none are drawn full, the others hatched and pale.
    ax : matplotlib Axes, optional
        Where to draw.
    title : str, optional
        What was measured.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots(figsize=(7.5, 0.6 + 0.5 * len(table)))[1]
    rows = table.reset_index(drop=True)
    for place, row in rows.iterrows():
        look = {"color": "#f0c9a8", "hatch": "///", "edgecolor": "#d55e00"} if row.missed else {"color": "#0072b2"}
        ax.barh(place, row.ratio, xerr=[[row.ratio - row.low], [row.high - row.ratio]], height=0.62,
                error_kw={"ecolor": "#404040", "capsize": 2}, **look)
        said = f"{row.missed} of {row['count']} wrong" + (f", up to {row.error:.0e}" if row.missed else "")
        ax.annotate(said, (row.high, place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=9)
    ax.set(yticks=range(len(rows)), yticklabels=rows.method, title=title, xlim=(0, 1.45 * rows.high.max()),
           xlabel=f"times as fast as: {rows.method[0]}")
    ax.grid(False, axis="y")
    ax.invert_yaxis()
    return ax
