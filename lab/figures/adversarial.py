"""Figures of heads and layers at adversarial tokens, and of the length of their growth."""

import matplotlib.pyplot as plt
import numpy as np

from lab.figures.registry import figure
from lab.statistics import head_rates as grown
from lab.statistics.head_rates import GPT2

__all__ = ["OWN", "own_worst", "scaling_factors"]

OWN = {
    "followed": "one head\nfollowed",
    "clusters": "two\nclusters",
    "random": "random\nclusters",
    "fork": "fork",
    "text": "text",
}


@figure(
    "scaling-factor",
    page="42_adversarial_inputs",
    tables=("scaling-factor",),
    about="2 gamma R^2 of all heads, the logarithm of their promised lengths",
)
def scaling_factors(table):
    r"""Distribution of :math:`2 \gamma R^2` over heads: growth is guaranteed for about its exponential many tokens.

    Parameters
    ----------
    table : DataFrame
        The table ``scaling-factor``: columns model, masked, radius, layer, head, factor.

    Returns
    -------
    Figure
        Dotted: the logarithm of the number of positions of the model, less one.
    """
    maps = (
        ("minilm", False, "text", 512, "MiniLM on text"),
        ("minilm", False, "layer norm", 512, "MiniLM, largest radius of its LayerNorm"),
        (GPT2, True, "layer norm", 1024, "GPT-2, largest radius of its LayerNorm"),
    )
    figure, axes = plt.subplots(3, 1, figsize=(6.4, 5.4), sharex=True, layout="constrained")
    bins = np.geomspace(4, 8000, 34)
    for ax, (*place, positions, title) in zip(axes, maps, strict=True):
        rows = table[(table[["model", "masked", "radius"]] == place).all(axis=1)]
        ax.hist(2 * rows.groupby(["layer", "head"]).factor.mean(), bins=bins, color="C0")
        ax.axvline(np.log(positions - 1), color="0.3", ls=":", lw=1.2)
        ax.set_title(title, fontsize=11)
        ax.set(xscale="log", ylabel="heads")
    ax.set_xlabel(r"$2\gamma R^2$")
    ax.set_xticks([5, 10, 100, 1000], [5, 10, 100, 1000])
    ax.minorticks_off()
    return figure


@figure(
    "adversarial-own",
    page="42_adversarial_inputs",
    tables=("adversarial-worst", "adversarial-layers"),
    about="how whole layers grow at their own worst inputs, and at controls",
)
def own_worst(own, layers):
    """Slope of every whole layer at its own worst inputs, and those of controls.

    Parameters
    ----------
    own : DataFrame
        The table ``adversarial-worst``: columns clusters, fork, random, text.
    layers : DataFrame
        The table ``adversarial-layers``: columns head, length, lipschitz.

    Returns
    -------
    Figure
        One panel for each model and radius; hollow marks are masked.
    """
    slopes = grown.own_slopes(own, layers)
    panels = (("minilm", "layer norm", "MiniLM, radius of LayerNorm"), ("minilm", "text", "MiniLM, mean norm on text"))
    panels += ((GPT2, "layer norm", "GPT-2, radius of LayerNorm"),)
    figure, axes = plt.subplots(3, 1, figsize=(6.4, 7.6), sharex=True, sharey=True, layout="constrained")
    for ax, (model, at, title) in zip(axes, panels, strict=True):
        rows = slopes[(slopes.model == model) & (slopes["at"] == at)]
        for i, kind in enumerate(OWN):
            for masked, of_mask in rows[rows.kind == kind].groupby("masked"):
                centred = (of_mask.layer - of_mask.layer.mean()) / max(1, of_mask.layer.max())
                look = {"mfc": "white" if masked else f"C{i}", "mec": f"C{i}"}
                ax.plot(i + 0.3 * centred + 0.16 * (masked - 0.5), of_mask.slope, "o", ms=4.5, **look)
        ax.axhline(0.5, color="0.4", ls=":", lw=1.2)
        ax.annotate("1/2", (len(OWN) - 0.55, 0.5), (0, 3), textcoords="offset points", fontsize=9, color="0.3")
        ax.set(title=title, ylabel="slope of the constant", xlim=(-0.5, len(OWN) - 0.3))
    axes[-1].set_xticks(range(len(OWN)), OWN.values())
    return figure
