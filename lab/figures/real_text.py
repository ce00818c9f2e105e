"""Local constants on real text, as defined and as released, against the number of tokens."""

import matplotlib.pyplot as plt
import numpy as np

from lab.power_laws import one_series, rate
from lipnb.scan.style import log_ticks, panels

__all__ = ["figure_1", "jump", "layers", "named", "rates"]

LOOKS = {
    "minilm unmasked": ("#0072b2", "o"),
    "minilm masked": ("#009e73", "s"),
    "gpt2-mini masked": ("#d55e00", "^"),
    "random gpt2 masked": ("#000000", "D"),
}
MORE = (("#cc79a7", "v"), ("#e69f00", "P"), ("#56b4e9", "X"))  # for tables that a reader made
PANELS = (
    ("minilm unmasked", 0, "encoder: MiniLM"),
    ("minilm masked", 3, "decoder: MiniLM"),
    ("random gpt2 masked", 6, "random GPT-2"),
)


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
        ax.plot(rows.length, rows.lipschitz, ".", ms=4, color="#0072b2", label="defined")
        n = rows.length.agg(["min", "max"])
        for column, look in (("lipschitz", {"color": "#d55e00"}), ("released", {"color": "black", "ls": "--"})):
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


def layers(table):
    """Constant against length on Alice in every layer of the trained maps, as small multiples.

    Parameters
    ----------
    table : DataFrame
        ``real-text``: columns corpus, model, weights, masked, layer, length, window, lipschitz.

    Returns
    -------
    Figure
        One panel a series, as `lab.power_laws.one_series`; one mark a row.
    """
    alice = _on(table[table.weights != "random"], "alice")
    looks = _looks(alice)
    columns = sorted(alice.layer.unique())
    figure, axes = plt.subplots(
        len(looks),
        len(columns),
        figsize=(2 * len(columns), 6.4 / 3 * len(looks)),
        sharex=True,
        sharey="row",
        squeeze=False,
    )
    for line, (name, (colour, _)) in zip(axes, looks.items(), strict=True):
        for layer, ax in zip(columns, line, strict=True):
            rows = alice[(alice.attention == name) & (alice.layer == layer)]
            if rows.empty:  # fewer layers than another model
                ax.set_visible(False)
                continue
            fit = rate(one_series(rows, f"{name}, layer {layer}"))
            ax.plot(rows.length, rows.lipschitz, ".", ms=1.5, color=colour)
            n = rows.length.agg(["min", "max"])
            ax.plot(n, fit(n), color="black", lw=1)
            ax.set(xscale="log", yscale="log")
            ax.set_title(f"{layer}: {fit.exponent:.2f}", fontsize=9)
            log_ticks(ax.xaxis, *n)
        line[0].set_ylabel(f"{name}\nlocal constant")
        log_ticks(line[0].yaxis, *line[0].get_ylim())
    for ax in axes[-1]:
        ax.set_xlabel("n")
    return figure


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
    ax.plot(news.length, news.lipschitz, ".", color="#0072b2", label="AG_NEWS, stored")
    if live:
        ax.plot([*live], [*live.values()], "D-", color="#d55e00", ms=4, label=f"{text}, now")
    ax.axvline(128, color="0.4", ls="--", lw=1)
    ax.set(xlabel="tokens n", ylabel="local constant", ylim=(0, None))
    ax.legend(fontsize=9)
    return figure
