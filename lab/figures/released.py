"""Figure of the values that the released experiments report, and of the constant as defined."""

import numpy as np

from lab.figures.registry import figure
from lab.figures.style import named_at_the_end, panels
from lab.statistics.power_laws import one_series, rate

__all__ = ["two_quantities"]

LOOKS = {"released": ("released", "C1", "s"), "defined": ("lipschitz", "C0", "o")}


@figure(
    "released-code",
    page="46_released_code",
    tables=("released-text", "released-adversarial"),
    about="what the released loop reports, beside the constant",
)
def two_quantities(text, worst):
    """A random GPT-2 at random and at adversarial tokens: both quantities, and the curves that were published.

    Parameters
    ----------
    text : DataFrame
        The table ``released-text``: columns text, embedding, dropout, length, lipschitz, released.
    worst : DataFrame
        The table ``released-adversarial``: columns model, cut, length, lipschitz, released.

    Returns
    -------
    Figure
    """
    drawn = text[(text.embedding == "token 0 added") & ~text.dropout & (text.text == "random")]
    one_series(drawn, "random tokens", also=("text", "embedding", "dropout"))
    clusters = worst[worst.model == "gpt2, random"].set_index(["cut", "length"])
    above, below = panels(1, rows=2, width=6.4, height=3.6)
    n = np.geomspace(2, 98, 50)
    for name, (column, color, marker) in LOOKS.items():
        look = {"color": color, "marker": marker, "ms": 4, "markevery": 7, "lw": 1.8}
        above.scatter(drawn.length, drawn[column], s=6, color=color, lw=0, alpha=0.4)
        law = rate(drawn, column)
        above.plot(n, law(n), **look, label=rf"{name}: ${law.constant:.2f}\,n^{{{law.exponent:.2f}}}$")
        for cut, style in (("rows", "-"), ("columns", ":")):
            one_series(clusters.loc[cut], f"clusters, {cut}", also=("radius", "head"))
            below.plot(clusters.loc[cut][column], **look | {"markevery": 2}, ls=style, label=f"{name}, {cut}")
    above.plot(n, 0.445 * n**0.25, "k--", lw=1.2, label=r"drawn: $0.445\,n^{1/4}$")
    below.plot(n, 0.92 * n**0.5, "k--", lw=1.2, label=r"drawn: $0.92\sqrt{n}$")
    for ax, bottom, top in ((above, 0.1, 6), (below, 0.9, 60)):
        ax.set(xscale="log", yscale="log", xlabel="tokens n", ylim=(bottom, top))
        ax.set_xticks([2, 5, 10, 20, 50, 100], [2, 5, 10, 20, 50, 100])
        ax.minorticks_off()
    above.set_yticks([0.1, 0.2, 0.5, 1, 2, 5], [0.1, 0.2, 0.5, 1, 2, 5])
    below.set_yticks([1, 2, 5, 10, 20, 50], [1, 2, 5, 10, 20, 50])
    above.set(title="random tokens", ylabel="value at one input")
    below.set(title="adversarial tokens", ylabel="value at one input")
    for ax in (above, below):
        named_at_the_end(ax, apart=11)
    return above.figure
