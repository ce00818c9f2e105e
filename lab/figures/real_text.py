"""Local constants on real text, as defined and as released, against the number of tokens."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import Normalize

from lab.power_laws import one_series, rate
from lipnb.scanning.style import NOT_CONVERGED, log_ticks, panels, rate_line

__all__ = ["against_length", "figure_1", "jump", "named", "rates"]

LOOKS = {
    "minilm unmasked": ("C0", "o"),
    "minilm masked": ("C2", "s"),
    "gpt2-mini masked": ("C1", "^"),
    "random gpt2 masked": ("C6", "D"),
}
MORE = (("C3", "v"), ("C4", "P"), ("C5", "X"))  # for tables that a reader made
PANELS = (
    ("minilm unmasked", 0, "encoder: MiniLM"),
    ("minilm masked", 3, "decoder: MiniLM"),
    ("random gpt2 masked", 6, "random GPT-2"),
)
ONE_RADIUS = 1.01  # radii closer than this factor are one radius


def named(table):
    """The table with a column `attention`: the model with its mask, and whether its weights are random."""
    start = table.weights.eq("random").map({True: "random ", False: ""})
    return table.assign(attention=start + table.model + table.masked.map({True: " masked", False: " unmasked"}))


def _on(table, corpus):
    """Rows on one text, with their names."""
    return named(table[table.corpus == corpus])


def _looks(rows):
    """Colour and marker of each attention there is; those of the book first."""
    found = [*filter(set(rows.attention).__contains__, LOOKS), *sorted(set(rows.attention) - set(LOOKS))]
    if len(found) > len(LOOKS) + len(MORE):
        raise ValueError(
            f"at most {len(LOOKS) + len(MORE)} models have a look of their own, and these are "
            f"{len(found)}: {', '.join(found)}."
        )
    more = iter(MORE)
    return {name: LOOKS[name] if name in LOOKS else next(more) for name in found}


def figure_1(table):
    """Constant of every window of Alice against its length, with what the released estimator reports beside it.

    Parameters
    ----------
    table : DataFrame
        ``real-text``: columns corpus, model, weights, masked, layer, length, window, lipschitz, released.

    Returns
    -------
    Figure
        One panel a series, as `lab.power_laws.one_series`; `lab.figures.points` counts two marks a row.
    """
    alice = _on(table, "alice")
    axes = panels(3, rows=1, width=4.3, height=3.6)
    for ax, (name, layer, title) in zip(axes, PANELS, strict=True):
        rows = one_series(alice[(alice.attention == name) & (alice.layer == layer)], title)
        ax.plot(rows.length, rows.released, "x", ms=3, color="0.7", label="released")
        ax.plot(rows.length, rows.lipschitz, ".", ms=4, color="C0", label="defined")
        n = rows.length.agg(["min", "max"])
        for column, look in (("lipschitz", {"color": "C1"}), ("released", {"color": "black", "ls": "--"})):
            fit = rate(rows, column)
            ax.plot(n, fit(n), label=f"${fit.constant:.2f}\\,n^{{{fit.exponent:.2f}}}$", **look)
        ax.set(xscale="log", yscale="log", xlabel="tokens n", title=f"{title}, layer {layer}")
        low, high = ax.get_ylim()
        ax.set_ylim(top=high * (high / low) ** 0.35)
        ax.legend(ncols=2, fontsize=8, loc="upper left")
        log_ticks(ax.xaxis, *n)
        log_ticks(ax.yaxis, low, high)
    axes[0].set_ylabel("constant, or what is reported")
    return axes[0].figure


def rates(table, claimed=0.25):
    """Fitted exponent of every layer on Alice, as defined with its interval, and as released.

    Parameters
    ----------
    table : DataFrame
        ``real-text``: columns corpus, model, weights, masked, layer, length, window, lipschitz, released.
    claimed : float
        The exponent of the claim, drawn as a line.

    Returns
    -------
    Figure
        Every series on Alice is in it, as two marks: full for the constant, open for what is released.
    """
    alice = _on(table, "alice")
    figure, ax = plt.subplots(figsize=(7.5, 4))
    looks = _looks(alice)
    shifts = np.linspace(-0.18, 0.18, len(looks)) if len(looks) > 1 else [0.0]
    last = alice.layer.max()
    for (name, (colour, marker)), shift in zip(looks.items(), shifts, strict=True):
        groups = [*alice[alice.attention == name].groupby("layer")]
        fits = {layer: rate(rows) for layer, rows in groups}
        beside = [rate(rows, "released").exponent for _, rows in groups]
        place, middle = [layer + shift for layer in fits], [fit.exponent for fit in fits.values()]
        error = [[fit.exponent - fit.low for fit in fits.values()], [fit.high - fit.exponent for fit in fits.values()]]
        ax.errorbar(place, middle, error, fmt=marker, color=colour, label=name)
        ax.plot(place, beside, marker, mfc="none", color=colour, alpha=0.6)
    for exponent, name, style in ((claimed, "1/4", "--"), (0.5, "1/2", ":")):
        ax.axhline(exponent, color="0.4", ls=style, lw=1)
        place = (last + 0.35, exponent)
        ax.annotate(name if exponent in (0.25, 0.5) else f"{exponent:g}", place, va="bottom", color="0.3")
    ax.set(xlabel="layer", ylabel="fitted exponent of n", xlim=(-0.5, last + 0.6))
    ax.legend(ncols=2, fontsize=9, loc="lower right", title="full: defined, open: released")
    return figure


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
