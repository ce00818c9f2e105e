"""Figure of token influence: block norms as a matrix, next to attention."""

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns

__all__ = ["maps"]


def maps(looks, norms, words):
    """Two matrices, one below the other: who looks at whom, and who moves whom.

    Parameters
    ----------
    looks, norms : array_like, shape (n, n)
        Attention, mean over heads, and norms of the blocks of the Jacobian; row i belongs to the token that looks or is
        moved.
    words : sequence of str
        The tokens.

    Returns
    -------
    Figure
    """
    figure, axes = plt.subplots(2, 1, figsize=(5.6, 8.4), layout="constrained")
    for ax, values, title in zip(axes, (looks, norms), ("attention, mean of heads", "norm of the block"), strict=True):
        values = np.asarray(values)
        bar = {"label": title}
        sns.heatmap(
            values, ax=ax, cmap="Blues", vmin=0, square=True, xticklabels=words, yticklabels=words, cbar_kws=bar
        )
        ax.tick_params("x", rotation=90, labelsize=9, length=0)
        ax.tick_params("y", rotation=0, labelsize=9, length=0)
    axes[0].set(xlabel="looks at", ylabel="token")
    axes[1].set(xlabel="is moved by", ylabel="token")
    return figure
