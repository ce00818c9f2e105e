"""Local constants on real text against the number of tokens."""

import matplotlib.pyplot as plt
from matplotlib.colors import Normalize

from lab.power_laws import one_series
from lipnb.scanning.style import NOT_CONVERGED, log_ticks, rate_line

__all__ = ["against_length", "jump", "named"]

ONE_RADIUS = 1.01  # radii closer than this factor are one radius


def named(table):
    """The table with a column `attention`: the model with its mask, and whether its weights are random."""
    start = table.weights.eq("random").map({True: "random ", False: ""})
    return table.assign(attention=start + table.model + table.masked.map({True: " masked", False: " unmasked"}))


def _on(table, corpus):
    """Rows on one text, with their names."""
    return named(table[table.corpus == corpus])


def jump(table, live=None, text=None):
    """Constant of MiniLM's first layer, unmasked, on AG_NEWS, beyond the length at which its training ended.

    Parameters
    ----------
    table : DataFrame
        ``real-text-news``: columns corpus, model, weights, masked, layer, length, lipschitz.
    live : dict, optional
        Length -> a constant measured now, drawn beside the stored ones.
    text : str, optional
        On which text the live ones are.

    Returns
    -------
    Figure
    """
    news = _on(table, "ag_news")
    news = one_series(news[(news.attention == "minilm unmasked") & (news.layer == 0)], "the jump")
    figure, ax = plt.subplots(figsize=(6.5, 3.4))
    ax.plot(news.length, news.lipschitz, ".", color="C0", label="AG_NEWS, stored")
    if live:
        ax.plot([*live], [*live.values()], "D-", color="C1", ms=4, label=f"{text}, now")
    ax.axvline(128, color="0.4", ls="--", lw=1)
    ax.set(xlabel="tokens n", ylabel="local constant", ylim=(0, None))
    ax.legend(fontsize=9)
    return figure


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
