"""Drawings of one panel, of which pages and figures are made."""

from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import Normalize, SymLogNorm

from lab.power_laws import one_series
from lipnb.scan.style import NOT_CONVERGED, log_ticks, rate_line

__all__ = ["against_length", "head_map", "matrix", "probabilities", "residuals"]

ONE_RADIUS = 1.01  # radii closer than this factor are one radius


def against_length(table, fit=None, *, ax=None, title=None):
    """Local Lipschitz constant of each window against its length, in log-log axes, coloured by mean radius.

    A radius that is the same for all windows is written, not drawn as colours.

    Parameters
    ----------
    table : DataFrame
        Rows of one series, from `lab.experiments.measure`. Rows that did not converge are drawn grey, not dropped.
    fit : lab.power_laws.PowerLaw, optional
        Drawn as a line, with its exponent and interval.
    ax : matplotlib Axes, optional
        Where to draw.
    title : str, optional
        What the panel shows.

    Returns
    -------
    Axes
        `lab.figures.points` of it is the number of rows.

    Raises
    ------
    SeveralSeries
        "... needs the rows of one series ...", as `lab.power_laws.one_series`.
    """
    one_series(table, "constant against length")
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
    # markers and colours come round at different times, so that many methods still look different
    for (method, rows), marker in zip(history.groupby("method", sort=False), cycle("osD^vPX*"), strict=False):
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
