"""Local constants on real text, as defined and as released, against the number of tokens."""

import matplotlib.pyplot as plt

from lipnb.figures.style import log_ticks, panels
from lipnb.scaling import power_law

__all__ = ["figure_1", "jump", "layers", "rates"]

COLOURS = {"minilm unmasked": "#0072b2", "minilm masked": "#009e73", "gpt2-mini masked": "#d55e00",
           "gpt2 masked": "#000000"}
PANELS = (("minilm unmasked", 0, "encoder: MiniLM"), ("minilm masked", 3, "decoder: MiniLM"),
          ("gpt2 masked", 6, "random GPT-2"))


def _on(table, corpus):
    """Rows on one text, with the model and its mask in one name."""
    rows = table[table.corpus == corpus]
    return rows.assign(attention=rows.model + rows.masked.map({True: " masked", False: " unmasked"}))


def figure_1(table):
    """Constant of every window of Alice against its length, with what the released estimator reports beside it.

    Parameters
    ----------
    table : DataFrame
        ``real-text``: columns corpus, model, masked, layer, length, lipschitz, released.

    Returns
    -------
    Figure
    """
    alice = _on(table, "alice")
    axes = panels(3, rows=1, width=4.3, height=3.6)
    for ax, (name, layer, title) in zip(axes, PANELS, strict=True):
        rows = alice[(alice.attention == name) & (alice.layer == layer)]
        ax.plot(rows.length, rows.released, "x", ms=3, color="0.7", label="released")
        ax.plot(rows.length, rows.lipschitz, ".", ms=4, color="#0072b2", label="defined")
        n = rows.length.agg(["min", "max"])
        for values, look in ((rows.lipschitz, {"color": "#d55e00"}), (rows.released, {"color": "black", "ls": "--"})):
            fit = power_law(rows.length, values)
            ax.plot(n, fit(n), label=f"${fit.constant:.2f}\\,n^{{{fit.exponent:.2f}}}$", **look)
        ax.set(xscale="log", yscale="log", xlabel="tokens n", title=f"{title}, layer {layer}")
        low, high = ax.get_ylim()
        ax.set_ylim(top=high * (high / low) ** 0.35)
        ax.legend(ncols=2, fontsize=8, loc="upper left")
        log_ticks(ax.xaxis, 2, 98)
        log_ticks(ax.yaxis, low, high)
    axes[0].set_ylabel("constant, or what is reported")
    return axes[0].figure


def layers(table):
    """Constant against length on Alice in every layer of the trained maps, as small multiples.

    Parameters
    ----------
    table : DataFrame
        ``real-text``: columns corpus, model, masked, layer, length, lipschitz.

    Returns
    -------
    Figure
    """
    alice = _on(table, "alice")
    names = ["minilm unmasked", "minilm masked", "gpt2-mini masked"]
    figure, axes = plt.subplots(len(names), 6, figsize=(12, 6.4), sharex=True, sharey="row")
    for line, name in zip(axes, names, strict=True):
        for layer, ax in enumerate(line):
            rows = alice[(alice.attention == name) & (alice.layer == layer)]
            fit = power_law(rows.length, rows.lipschitz)
            ax.plot(rows.length, rows.lipschitz, ".", ms=1.5, color=COLOURS[name])
            ax.plot([2, 98], fit([2, 98]), color="black", lw=1)
            ax.set(xscale="log", yscale="log")
            ax.set_title(f"{layer}: {fit.exponent:.2f}", fontsize=9)
            log_ticks(ax.xaxis, 2, 98)
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
        ``real-text``: columns corpus, model, masked, layer, length, lipschitz, released.
    claimed : float
        The exponent of the claim, drawn as a line.

    Returns
    -------
    Figure
    """
    alice = _on(table, "alice")
    figure, ax = plt.subplots(figsize=(7.5, 4))
    looks = zip(COLOURS.items(), ("o", "s", "^", "D"), (-0.18, -0.06, 0.06, 0.18), strict=True)
    for (name, colour), marker, shift in looks:
        groups = alice[alice.attention == name].groupby("layer")
        fits = {layer: power_law(rows.length, rows.lipschitz) for layer, rows in groups}
        beside = [power_law(rows.length, rows.released).exponent for _, rows in groups]
        place, middle = [layer + shift for layer in fits], [fit.exponent for fit in fits.values()]
        error = [[fit.exponent - fit.low for fit in fits.values()], [fit.high - fit.exponent for fit in fits.values()]]
        ax.errorbar(place, middle, error, fmt=marker, color=colour, label=name)
        ax.plot(place, beside, marker, mfc="none", color=colour, alpha=0.6)
    for exponent, name, style in ((claimed, "1/4", "--"), (0.5, "1/2", ":")):
        ax.axhline(exponent, color="0.4", ls=style, lw=1)
        ax.annotate(name if exponent in (0.25, 0.5) else f"{exponent:g}", (6.35, exponent), va="bottom", color="0.3")
    ax.set(xlabel="layer", ylabel="fitted exponent of n", xlim=(-0.5, 6.6))
    ax.legend(ncols=2, fontsize=9, loc="lower right", title="full: defined, open: released")
    return figure


def jump(table, live=None, text=None):
    """Constant of MiniLM's first layer on AG_NEWS, beyond the length at which its training ended.

    Parameters
    ----------
    table : DataFrame
        ``real-text-news``: columns corpus, model, masked, layer, length, lipschitz.
    live : dict, optional
        Length -> a constant measured now, drawn beside the stored ones.
    text : str, optional
        On which text the live ones are.

    Returns
    -------
    Figure
    """
    news = table[(table.corpus == "ag_news") & (table.layer == 0)]
    figure, ax = plt.subplots(figsize=(6.5, 3.4))
    ax.plot(news.length, news.lipschitz, ".", color="#0072b2", label="AG_NEWS, stored")
    if live:
        ax.plot([*live], [*live.values()], "D-", color="#d55e00", ms=4, label=f"{text}, now")
    ax.axvline(128, color="0.4", ls="--", lw=1)
    ax.set(xlabel="tokens n", ylabel="local constant", ylim=(0, None))
    ax.legend(fontsize=9)
    return figure
