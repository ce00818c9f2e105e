"""Shared parts of the book's figures: the style, panels side by side, and a count of marks."""

import sys

import matplotlib.pyplot as plt
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from lipscan.scanning.figures import STYLE

__all__ = ["house_style", "panels", "points"]


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
