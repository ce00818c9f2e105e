"""Which token moves which: block norms as a matrix, the first token against the median one, a push and what came of it.

C0 is the trained model on a text, C1 its first token a special one, C3 shuffled text, C6 random weights.
"""

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.ticker import LogLocator

__all__ = ["against_median", "linear", "maps", "over_picture", "sinks", "touched"]

CASES = {  # weights, order, special -> how it is called and drawn
    "as read": ("trained", "text", "none", "C0", "o"),
    "special token before": ("trained", "text", "first", "C1", "D"),
    "shuffled": ("trained", "shuffled", "none", "C3", "^"),
    "random weights": ("random", "text", "none", "C6", "s"),
}
NAMES = {"minilm": "MiniLM", "gpt2-mini": "gpt2-mini, masked", "smollm2": "SmolLM2, masked"}


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


def against_median(table):
    """How many times harder the first token pushes, and is looked at, than the median one, by case and layer.

    Parameters
    ----------
    table : DataFrame
        The stored ``token-sinks``.

    Returns
    -------
    DataFrame
        Columns model, case, layer, push, look: geometric means over windows, or over the seeds of random weights.
    """
    rows = table.assign(
        weights=table.weights.str.split().str[0],
        push=np.log(table.first_push / table.median_push),
        look=np.log(table.first_look / table.median_look),
    )
    known = {case[:3]: name for name, case in CASES.items()}
    rows["case"] = [known.get(case) for case in zip(rows.weights, rows.order, rows.special, strict=True)]
    means = rows.dropna(subset="case").groupby(["model", "case", "layer"], as_index=False)[["push", "look"]].mean()
    return means.assign(push=np.exp(means.push), look=np.exp(means["look"]))


def sinks(table):
    """How many times harder than the median token the first one pushes the others, layer by layer, with controls.

    Parameters
    ----------
    table : DataFrame
        The stored ``token-sinks``.

    Returns
    -------
    Figure
    """
    means = against_median(table)
    models = [name for name in NAMES if name in set(means.model)]
    figure, axes = plt.subplots(1, len(models), figsize=(3.3 * len(models), 3.5), sharey=True, layout="constrained")
    for ax, model in zip(np.atleast_1d(axes), models, strict=True):
        for case, (*_, colour, marker) in CASES.items():
            rows = means[(means.model == model) & (means.case == case)]
            ax.plot(rows.layer, rows.push, marker, color=colour, ms=6, ls="-", lw=1, label=case)
        ax.axhline(1, color="black", lw=0.8)
        ax.set(yscale="log", xlabel="layer", title=NAMES[model])
        ax.set_yticks([0.5, 1, 2, 5, 10], ["½", "1", "2", "5", "10"])
        ax.minorticks_off()
    np.atleast_1d(axes)[0].set_ylabel("push of the first token\nover that of the median one")
    figure.legend(*np.atleast_1d(axes)[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
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
        ax.set(xscale="log", yscale="log", title=name, xlabel="predicted, |J u|", ylabel="measured", xlim=ends)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter("{x:g}")
        ax.minorticks_off()
        ax.legend(title="push, share of the token", loc="upper left")
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
