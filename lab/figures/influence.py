"""Which token moves which: block norms as a matrix or over a picture, a push of one token and what came of it.

C0 is what is pushed, or the shortest push; C1 what moves, or the longest one.
"""

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.ticker import LogLocator

__all__ = ["linear", "maps", "over_picture", "touched"]


def maps(looks, norms, words):
    """Two matrices side by side: who looks at whom, and who moves whom.

    Parameters
    ----------
    looks, norms : array_like, shape (n, n)
        Attention, mean over heads, and norms of the blocks of the Jacobian; row i looks or is moved.
    words : sequence of str
        The tokens.

    Returns
    -------
    Figure
    """
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 4.9), layout="constrained")
    for ax, values, title in zip(axes, (looks, norms), ("attention, mean of heads", "norm of the block"), strict=True):
        values = np.asarray(values)
        bar = {"shrink": 0.72, "label": title}
        sns.heatmap(
            values, ax=ax, cmap="Blues", vmin=0, square=True, xticklabels=words, yticklabels=words, cbar_kws=bar
        )
        ax.tick_params("x", rotation=90, labelsize=9, length=0)
        ax.tick_params("y", rotation=0, labelsize=9, length=0)
    axes[0].set(xlabel="looks at", ylabel="token")
    axes[1].set(xlabel="is moved by", ylabel="token")
    return figure


def linear(found):
    """What a push of one token was predicted to do, and what it did, for pushes of several lengths.

    Parameters
    ----------
    found : DataFrame
        Columns object, share (of the token's length), predicted, measured; one row for each token.

    Returns
    -------
    Figure
    """
    objects = list(dict.fromkeys(found.object))
    figure, axes = plt.subplots(1, len(objects), figsize=(4.3 * len(objects), 4.0), layout="constrained")
    for ax, name in zip(np.atleast_1d(axes), objects, strict=True):
        rows = found[found.object == name]
        shares = sorted(set(rows.share))
        for share, colour, marker in zip(shares, ("C0", "C2", "C1"), "osD", strict=False):
            some = rows[rows.share == share]
            ax.plot(some.predicted, some.measured, marker, color=colour, ms=5, alpha=0.8, label=f"{share:.0%}")
        ends = np.array([rows.predicted.min() / 1.2, rows.predicted.max() * 1.2])
        ax.plot(ends, ends, color="black", lw=0.8)
        ax.set(xscale="log", yscale="log", title=name, xlabel="predicted, |J u|", ylabel="measured, per unit of push")
        ax.set_xlim(ends)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter("{x:g}")
        ax.minorticks_off()
    handles = np.atleast_1d(axes)[0].get_legend_handles_labels()
    figure.legend(*handles, title="push, share of the token's length", loc="outside lower center", ncols=3)
    return figure


def touched(words, moving, moved):
    """How the top singular vectors lie on the tokens: what is pushed, and what moves.

    Parameters
    ----------
    words : sequence of str
        The tokens.
    moving, moved : array_like, shape (n,)
        Norms by token of the right and of the left singular vector.

    Returns
    -------
    Figure
    """
    figure, ax = plt.subplots(figsize=(7.6, 3.3), layout="constrained")
    places = np.arange(len(words))
    ax.bar(places - 0.2, moving, 0.4, color="C0", label="the worst push, by token")
    ax.bar(places + 0.2, moved, 0.4, color="C1", hatch="//", edgecolor="white", label="what it moves, by token")
    ax.set_xticks(places, words, rotation=90)
    ax.set(ylabel="norm (squares add up to 1)", ylim=(0, 1))
    ax.legend()
    return figure


def over_picture(image, table):
    """A picture, and over it the norms of the blocks from its patches to the class token, one panel a layer.

    Parameters
    ----------
    image : array_like, shape (height, width, 3)
        From 0 to 1.
    table : DataFrame
        The stored ``token-picture``.

    Returns
    -------
    Figure
    """
    image = np.asarray(image)
    layers = sorted(set(table.layer))
    figure, axes = plt.subplots(1, 1 + len(layers), figsize=(2.4 * (1 + len(layers)), 2.9), layout="constrained")
    height, width = image.shape[:2]
    for ax, layer in zip(axes, [None, *layers], strict=True):
        ax.imshow(image.mean(-1), cmap="gray", vmin=0, vmax=1.4)
        ax.set_axis_off()
        ax.set_title("the picture" if layer is None else f"layer {layer}", fontsize=10)
        if layer is not None:
            norms = table[table.layer == layer].pivot(index="row", columns="column", values="norm")
            shown = ax.imshow(norms, cmap="magma", alpha=0.65, extent=(0, width, height, 0), vmin=0)
            figure.colorbar(shown, ax=ax, orientation="horizontal", shrink=0.85, pad=0.03)
    return figure
