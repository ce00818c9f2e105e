"""Figures of L2 attention against its bounds, and of the inverses that these bounds make possible."""

import matplotlib.pyplot as plt
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
    in width one, for a second panel: columns query, largest (the constant), and one bound each in "e = 2", "e = 4" and
    "tighter". `example`: a query norm and its constant, marked in the second panel.
    """
    axes = panels(1 if sweep is None else 2, width=4.5, height=4.0)
    look = {"s": 11, "linewidths": 0, "alpha": 0.75}
    top = table[table.n > 1].groupby(["kind", "number"])[["query", "printed", "two"]].max()
    axes[0].scatter(top["query"], top.printed, color="C1", label="e = 2", **look)
    axes[0].scatter(top["query"], top.two, color="C0", label="e = 4", **look)
    axes[0].axhline(1, color="black", lw=1, ls="--")
    axes[0].set(ylabel="largest measured / bound", title=f"{len(top)} maps")
    axes[0].set(xlim=(0.008, 40), ylim=(1e-3, 60))
    if sweep is not None:
        styles = {"e = 2": ("-", "C1"), "e = 4": ("-", "C0"), "tighter": ("--", "C2")}
        for name, (style, color) in styles.items():
            axes[1].plot(sweep["query"], sweep[name], style, color=color, label=name)
        axes[1].plot(sweep["query"], sweep.largest, color="black", label="the constant")
        if example:
            axes[1].plot(*example, "v", color="black", ms=8, label=rf"$W_Q = {example[0]:g}$, equal tokens")
        axes[1].set(title="two tokens in width one", ylabel="Lipschitz constant")
    for ax in axes:
        ax.set(xscale="log", yscale="log", xlabel=r"norm of $W_Q$")
        ax.xaxis.set_major_formatter("{x:g}")
        ax.legend(fontsize=9, loc="upper left")
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
    dots = {"s": 14, "color": "#b0b0b0", "linewidths": 0}
    best = {"marker": "o", "ls": "", "color": "C1", "ms": 5}
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.8, 4.6))
    left.plot(n, 4 * z + 1, color="C0", ls="--", label="bound, $4z + 1$")
    left.plot(n, exact, color="C2", label=r"constant, $1 + 4\lambda$")
    left.scatter(random.n, random.reached, label="50 starts each", **dots)
    left.plot(top.n, top.reached, label="best of 50", **best)
    left.set(ylabel="norm of the Jacobian, maximum norm", ylim=(0, 20))
    right.axhline(2, color="C0", ls="--", lw=1.2)
    right.plot(n, 4 * z + 1 - exact, color="C2")
    right.plot(n, 4 * z + 1 - explicit, color="C3", ls="-.", label="first input")
    for rows, look, draw in ((random, dots, right.scatter), (top, best, right.plot)):
        draw(rows.n, 4 * lambert((rows.n - 1) / np.e) + 1 - rows.reached, **look)
    right.set(ylabel="how far below the bound", ylim=(0, 2.6))
    for ax in (left, right):
        ax.set(xscale="log", xlabel="tokens N")
        ax.legend(loc="upper left" if ax is left else "lower right", fontsize=9)
    return figure


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
    axes = panels(2, rows=2, width=4.7, height=3.5)
    colours = {0.5: "C2", 0.7: "C4", 0.9: "C0"}
    places = [(trained, layer) for trained in (0, 500) for layer in ("L2", "dot product")]
    for ax, (trained, layer) in zip(axes, places, strict=True):
        here = curves[(curves.layer == layer) & (curves.trained == trained)]
        for (given, c), one in here.groupby(["input", "c"]):
            style = "-" if given == "clusters" else "--"
            ax.plot(one.k, one.error.clip(lower=1e-17), color=colours[c], ls=style)
            if given == "clusters" and layer == "L2":
                ax.plot(one.k, c**one.k, color=colours[c], ls=":", lw=1.4)
        state = f"after {trained} training steps" if trained else "untrained"
        ax.set(title=f"{layer}, {state}", yscale="log", ylim=(1e-17, 1e4), xlim=(0, 60))
        ax.set(xlabel="iteration k", ylabel="relative error", yticks=10.0 ** np.arange(-16, 5, 4))
    for c, colour in colours.items():
        axes[0].plot([], [], color=colour, label=f"c = {c}")
    for style, label in (("-", "clusters"), ("--", "words"), (":", r"theory, $c^k$")):
        axes[0].plot([], [], color="#404040", ls=style, label=label)
    figure = axes[0].figure
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=9.5)
    return figure
