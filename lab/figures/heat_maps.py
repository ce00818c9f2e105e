"""Heat maps: matrices and attention probabilities."""

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.colors import SymLogNorm


def matrix(values, *, ax=None, title=None, block=None, label=None):
    """A matrix as colours, symmetric about zero, with small entries kept visible.

    `values` (rows, columns): for example a Jacobian or attention probabilities. `title`: name of the matrix. `block`:
    rows and columns of a token, to draw the borders of the blocks. `label`: meaning of the colours.
    """
    ax = ax or plt.subplots()[1]
    values = np.asarray(values)
    top = np.abs(values).max() or 1.0
    colours = {"cmap": "RdBu_r", "norm": SymLogNorm(top / 50, vmin=-top, vmax=top)}
    bar = {"label": label, "shrink": 0.8}
    sns.heatmap(values, ax=ax, square=True, xticklabels=False, yticklabels=False, cbar_kws=bar, **colours)
    if block:
        look = {"color": "#404040", "linewidth": 0.5}
        ax.hlines(range(block[0], values.shape[0], block[0]), 0, values.shape[1], **look)
        ax.vlines(range(block[1], values.shape[1], block[1]), 0, values.shape[0], **look)
    ax.set_title(title)
    return ax


def probabilities(P, tokens, *, ax=None, title=None):
    """Attention probabilities as shades, with the tokens at the borders.

    `P` (n, n): row i is the attention of token i. `tokens`: labels of rows and columns. `title`: name of the head.
    """
    ax = ax or plt.subplots()[1]
    names = {"xticklabels": tokens, "yticklabels": tokens}
    sns.heatmap(np.asarray(P), ax=ax, cmap="Blues", vmin=0, vmax=1, square=True, cbar=False, **names)
    ax.tick_params("x", rotation=90, labelsize=8, length=0)
    ax.tick_params("y", rotation=0, labelsize=8, length=0)
    ax.set_title(title)
    return ax
