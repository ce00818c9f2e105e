"""Shared parts of the book's figures: the style, panels side by side, and a count of marks."""

import sys

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from lipscan.scanning.figures import STYLE

__all__ = ["house_style", "named_at_the_end", "panels", "points"]


def house_style():
    """Use the book's style for all following figures, and draw them into the page, whatever the machine's settings."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    backend = plt.get_backend().lower()
    # a kernel under MPLBACKEND=Agg draws into nothing; keep a backend that was chosen within the notebook
    if hasattr(shell, "kernel") and not any(word in backend for word in ("inline", "ipympl", "nbagg")):
        shell.run_line_magic("matplotlib", "inline")
    plt.style.use(["default", STYLE])  # ignore matplotlibrc


def panels(count, *, rows=1, width=3.6, height=3.3):
    """Axes side by side, `count` in each of `rows` rows, in one flat array."""
    return plt.subplots(rows, count, figsize=(width * count, height * rows), squeeze=False)[1].flatten()


def named_at_the_end(ax, apart):
    """Write the label of every line of `ax` right of the panel, at its end's height, `apart` points from the next."""
    ax.figure.draw_without_rendering()  # so that the layout, and with it every place on paper, is known
    lines = [line for line in ax.lines if not line.get_label().startswith("_")]
    ends = [(line.get_xdata()[-1], line.get_ydata()[-1]) for line in lines]
    own = ax.transData.transform(ends)[:, 1] * 72 / ax.figure.dpi
    order, places = np.argsort(own, kind="stable"), np.sort(own)
    for _ in range(100):  # two names that are too close give way, one up and one down
        close = np.maximum(apart - np.diff(places), 0) / 2
        places += np.append(0, close) - np.append(close, 0)
    look = {"xycoords": ax.get_yaxis_transform(), "textcoords": "offset points", "fontsize": 9, "va": "center"}
    for which, place in zip(order, places, strict=True):
        line, away = lines[which], (4, place - own[which])
        ax.annotate(line.get_label(), (1, ends[which][1]), away, color=line.get_color(), annotation_clip=False, **look)


def points(drawn):
    """Number of marks drawn: those of scatters and of lines with markers, without the ends of error bars.

    Parameters
    ----------
    drawn : Axes or Figure
        One panel, or all of them.

    Returns
    -------
    int
    """
    count = 0
    for ax in drawn.axes if isinstance(drawn, Figure) else [drawn]:
        count += sum(len(dots.get_offsets()) for dots in ax.collections if isinstance(dots, PathCollection))
        count += sum(len(line.get_xdata()) for line in ax.lines if line.get_marker() not in ("None", "", "_", "|"))
    return count
