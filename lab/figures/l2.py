"""Figures of L2 attention against its bounds, and of the inverses that these bounds make possible."""

import numpy as np
from scipy.special import lambertw

from lab.figures.registry import figure
from lab.figures.style import panels


@figure(
    "l2-exponents",
    page="52_l2_attention",
    tables=("l2-bounds",),
    about="L2 attention over its bounds with two exponents",
    live="two tokens in width one",
)
def bound_exponents(table, sweep=None, example=None):
    """Measured over bound against the norm of the query matrix, for the exponents 2 and 4 of Theorem 3.2.

    `table`: ``l2-bounds``: columns kind, number, n, query, printed (exponent 2), two (exponent 4). `sweep`: two tokens
    in width one, for a second panel: columns query, largest (the constant), and one bound each in "e = 2" and "e = 4".
    `example`: a query norm and its constant, marked in the second panel.
    """
    axes = panels(1, rows=1 if sweep is None else 2, width=6.4, height=3.7)
    for ax in axes:
        ax.set(xscale="log", yscale="log", xlabel=r"norm of $W_Q$")
        ax.xaxis.set_major_formatter("{x:g}")
    top = table[table.n > 1].groupby(["kind", "number"])[["query", "printed", "two"]].max()
    for name, marker, color, place, label in (
        ("printed", "^", "C1", (1.6, 12), r"bound with $\Vert W_Q\Vert^2$"),
        ("two", "o", "C0", (36, 0.0017), r"bound with $\Vert W_Q\Vert^4$"),
    ):
        axes[0].scatter(top["query"], top[name], s=13, marker=marker, linewidths=0, alpha=0.75, color=color)
        axes[0].text(*place, label, color=color, ha="right")
    axes[0].axhline(1, color="black", lw=1, ls="--")
    axes[0].text(0.0095, 1.2, "above this line the bound fails", va="bottom")
    axes[0].set(title=f"{len(top)} maps, the largest ratio of each", ylabel="norm of the Jacobian / bound")
    axes[0].set(xlim=(0.008, 40), ylim=(1e-3, 60))
    axes[0].set_yticks([0.001, 0.01, 0.1, 1, 10], ["0.001", "0.01", "0.1", "1", "10"])
    if sweep is not None:
        for name, style, color, place, label in (
            ("e = 2", "--", "C1", (0.105, 1.6), r"bound with $\Vert W_Q\Vert^2$"),
            ("e = 4", "-.", "C0", (0.6, 40), r"bound with $\Vert W_Q\Vert^4$"),
            ("largest", "-", "black", (0.25, 0.02), "the constant"),
        ):
            axes[1].plot(sweep["query"], sweep[name], style, color=color)
            axes[1].text(*place, label, color=color)
        if example:
            axes[1].plot(*example, "v", color="black", ms=8)
            axes[1].annotate("equal tokens", example, (2, -17), textcoords="offset points")
        axes[1].set(title="two tokens of width one", ylabel="Lipschitz constant")
        axes[1].set_yticks([0.01, 0.1, 1, 10, 100], ["0.01", "0.1", "1", "10", "100"])
    return axes[0].figure


@figure(
    "l2-tightness",
    page="54_l2_tightness",
    tables=("l2-tightness",),
    about="ascents of the row sum, the bound and the constant",
)
def tightness(table):
    """Every ascent of the row sum, the bound and the constant, against the number of tokens.

    kim2021lipschitz, Figure 2; with the Lambert function the bound is 4 z + 1, z = W((n - 1) / e), and the constant
    1 + 4 W((n - 1) exp(-3/2)).

    `table`: ``l2-tightness``: columns n, start, reached.
    """

    def lambert(y):
        return np.real(lambertw(y))

    random = table[table.start != "witness"]
    n = np.unique(np.geomspace(2, 1001, 200).round())
    z, exact = lambert((n - 1) / np.e), 1 + 4 * lambert((n - 1) * np.exp(-1.5))
    explicit = 4 * z + 2 / (1 + z) - 1
    top = random.loc[random.groupby("n").reached.idxmax()]
    above, below = panels(1, rows=2, width=6.4, height=3.8)
    above.plot(n, 4 * z + 1, color="C0", ls="--")
    above.plot(n, exact, color="C2")
    below.axhline(2, color="C0", ls="--", lw=1.2)
    below.plot(n, 4 * z + 1 - exact, color="C2")
    below.plot(n, 4 * z + 1 - explicit, color="C3", ls="-.")
    for ax, rest in ((above, 0), (below, 1)):
        for rows, look in ((random, {"s": 14, "color": "0.65"}), (top, {"s": 24, "color": "C1"})):
            bound = 4 * lambert((rows.n - 1) / np.e) + 1
            ax.scatter(rows.n, rest * bound + (1 - 2 * rest) * rows.reached, linewidths=0, zorder=3, **look)
    labels = (
        (above, 60, 12.5, "bound, $4z + 1$", "C0", "right"),
        (above, 130, 8.8, r"constant, $1 + 4\lambda$", "C2", "left"),
        (above, 22, 4.2, "best of 50 starts (orange)", "C1", "left"),
        (above, 9, 1.6, "other starts (grey)", "0.4", "left"),
        (below, 1000, 2.06, "limit for many tokens", "C0", "right"),
        (below, 130, 1.28, "constant", "C2", "left"),
        (below, 22, 0.93, "best of 50 starts", "C1", "left"),
        (below, 70, 1.66, "first input", "C3", "right"),
        (below, 5.2, 1.72, "other starts", "0.4", "right"),
    )
    for ax, x, y, text, color, side in labels:
        ax.text(x, y, text, color=color, ha=side)
    above.set(ylabel="norm of the Jacobian, maximum norm", ylim=(0, 20))
    below.set(ylabel="bound − norm of the Jacobian", ylim=(0, 2.4))
    for ax in (above, below):
        ax.set(xscale="log", xlabel="tokens N")
        ax.set_xticks([2, 10, 100, 1000], ["2", "10", "100", "1,000"])
    return above.figure


@figure(
    "inversion-curves",
    page="52_l2_attention",
    tables=("inversion-curves",),
    about="error of the inverse against iterations",
)
def inversion(curves):
    """Error of the fixed-point inverse against iterations, for L2 attention and dot products.

    `curves`: ``inversion-curves``: columns layer, trained, input, c, k, error.
    """
    axes = panels(2, rows=2, width=3.4, height=2.9)
    shades = {0.5: "#b48ad0", 0.7: "#8247a8", 0.9: "#3f1163"}
    places = [(trained, layer) for trained in (0, 500) for layer in ("L2", "dot product")]
    for ax, (trained, layer) in zip(axes, places, strict=True):
        here = curves[(curves.layer == layer) & (curves.trained == trained)]
        for (given, c), one in here.groupby(["input", "c"]):
            style = "-" if given == "clusters" else "--"
            ax.plot(one.k, one.error.clip(lower=1e-17), color=shades[c], ls=style)
            if given == "clusters" and layer == "L2":
                ax.plot(one.k, c**one.k, color=shades[c], ls=":", lw=1.4)
        state = f"{trained} training steps" if trained else "untrained"
        ax.set(title=f"{layer}, {state}", yscale="log", ylim=(1e-17, 1e4), xlim=(0, 60), xlabel="iteration k")
        ax.set_yticks(10.0 ** np.arange(-16, 5, 4))
    for ax in axes[::2]:
        ax.set_ylabel("relative error")
    for place, text, c in (((59, 0.2), "theory, c = 0.9", 0.9), ((59, 8e-7), "0.7", 0.7), ((51, 1e-12), "0.5", 0.5)):
        axes[0].text(*place, text, color=shades[c], ha="right")
    for place, text, c in (
        ((2, 3e2), "clusters", 0.9),
        ((59, 6e-3), "words, c = 0.7", 0.7),
        ((34, 1e-12), "words, c = 0.5", 0.5),
    ):
        axes[1].text(*place, text, color=shades[c], ha="left" if c == 0.9 else "right")
    return axes[0].figure
