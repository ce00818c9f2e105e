"""Shared parts of the book's figures: the style, panels side by side, and a count of marks."""

import sys
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from lipscan.scanning.figures import STYLE

__all__ = ["house_style", "named_among_marks", "named_at_the_end", "panels", "points"]


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


def named_among_marks(ax):
    """Write the label of every series of `ax` next to one of its marks, where the name covers the fewest others."""
    series = [line for line in ax.lines if not line.get_label().startswith("_")]
    to_unit = (ax.transData - ax.transAxes).transform
    marks = [to_unit(line.get_xydata()) for line in series]
    taken, wide = np.concatenate(marks), 0.0172 * 6.2 / ax.figure.get_figwidth()
    for line, own in zip(series, marks, strict=True):
        found = []
        for (at, place), side in product(zip(own, line.get_xydata().tolist(), strict=True), (1, -1)):
            across = at[0] + side * (0.015 + wide * len(line.get_label()) * np.linspace(0, 1, 12))
            name = np.stack([across, np.full(12, at[1])], axis=1)
            hidden = (abs(taken[:, None] - name) < (0.012, 0.022)).all(-1).any(1).sum()
            crowd = (np.abs(taken - at).sum(1) < 0.1).sum()
            found.append((not 0 < across[-1] < 1, hidden, crowd, place, side, name))
        *_, place, side, name = min(found, key=lambda one: one[:3])
        taken = np.concatenate([taken, name])
        said = {"xytext": (6 * side, 0), "textcoords": "offset points", "ha": "left" if side > 0 else "right"}
        look = {"color": line.get_color(), "fontsize": 9, "fontweight": "bold", "va": "center"}
        ax.annotate(line.get_label(), place, **said, **look)


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
