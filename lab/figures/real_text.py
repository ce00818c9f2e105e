"""Figure of local constants on real text against the number of tokens."""

import matplotlib.pyplot as plt

from lab.figures.registry import figure
from lab.statistics.power_laws import one_series

__all__ = ["jump"]


@figure(
    "real-text-jump",
    page="43_why_it_grows",
    tables=("atlas-minilm",),
    about="MiniLM's first layer beyond the length of its training texts",
    live="windows of a text, measured now",
)
def jump(table, live=None, text="alice"):
    """Constant of MiniLM's first layer, unmasked, beyond the length at which its training ended.

    Parameters
    ----------
    table : DataFrame
        The table ``atlas-minilm``: columns corpus, order, weights, layer, length, lipschitz.
    live : dict, optional
        Length -> a constant measured now, drawn with the stored ones.
    text : str
        The text of both the stored and the live constants.

    Returns
    -------
    Figure
    """
    at = {"corpus": text, "order": "text", "weights": "pretrained", "layer": 0}
    rows = one_series(table[(table[list(at)] == list(at.values())).all(axis=1)], "the jump")
    figure, ax = plt.subplots(figsize=(6.5, 3.4))
    ax.plot(rows.length, rows.lipschitz, ".", color="C0", label="stored")
    if live:
        ax.plot([*live], [*live.values()], "D-", color="C1", ms=4, label="now, medians")
    ax.axvline(128, color="0.4", ls="--", lw=1)
    said = {"textcoords": "offset points", "ha": "right", "va": "top", "fontsize": 9, "color": "0.3"}
    ax.annotate("trained up to here", (128, 12), (-4, 0), **said)
    ax.set(xscale="log", xlabel="tokens n", ylabel="local constant", ylim=(0, None))
    ax.set_xticks(sorted(set(rows.length)), sorted(set(rows.length)))
    ax.minorticks_off()
    ax.legend(fontsize=9)
    return figure
