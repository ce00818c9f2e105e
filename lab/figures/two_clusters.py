"""Figure of the end of the constant's growth at two clusters: predicted and measured lengths."""

import matplotlib.pyplot as plt
import numpy as np


def growth_ends(curves):
    """Constants of heads at two clusters, up to the end of their growth and beyond.

    `curves`: at most six: name of the head -> lengths, constants, the length up to which growth is guaranteed, and the
    length and constant of the peak.
    """
    colours = ("C0", "C1", "C2", "C3", "C4", "C5")
    if len(curves) > len(colours):
        raise ValueError(f"at most {len(colours)} heads have a look of their own, and these are {len(curves)}.")
    figure, ax = plt.subplots(figsize=(6.4, 4.4))
    for place, (name, (n, constants, promised, peak)) in enumerate(curves.items()):
        colour, style = colours[place], ("-", "--", "-.")[place % 3]
        ax.plot(n, constants, style, color=colour)
        end = {"textcoords": "offset points", "color": colour, "fontsize": 9, "va": "center"}
        ax.annotate(name, (n[-1], constants[-1]), (5, 0), **end)
        at = np.exp(np.interp(np.log(promised), np.log(n), np.log(constants)))
        ax.plot(promised, at, "v", color=colour, mec="black", ms=9)
        ax.plot(*peak, "*", color=colour, mec="black", ms=12)
    ax.set(xscale="log", yscale="log", xlabel="tokens n", ylabel="local Lipschitz constant")
    ax.plot([], [], "v", color="white", mec="black", label=r"promised length $1 + e^{2\gamma R^2}$")
    ax.plot([], [], "*", color="white", mec="black", ms=9, label="end of the growth")
    ax.set_xlim(right=1e4 * max(n[-1] for n, *_ in curves.values()))  # for the names
    ax.legend(fontsize=9, loc="upper left")
    return figure
