"""What many of the book's figures need: the look, panels side by side, and how many marks there are."""

import sys

import matplotlib.pyplot as plt
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from lipscan.scanning.figures import STYLE

__all__ = ["house_style", "panels", "points"]


def house_style():
    """Use the book's look for all figures that follow, and draw them into the page, whatever this machine prefers."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    backend = plt.get_backend().lower()
    # a kernel under MPLBACKEND=Agg draws into nothing; a backend that was chosen within the notebook stays
    if hasattr(shell, "kernel") and not any(word in backend for word in ("inline", "ipympl", "nbagg")):
        shell.run_line_magic("matplotlib", "inline")
    plt.style.use(["default", STYLE])  # and nothing of a matplotlibrc


def panels(count, *, rows=1, width=3.6, height=3.3):
    """Axes side by side, `count` in each of `rows` rows, in one flat array."""
    return plt.subplots(rows, count, figsize=(width * count, height * rows), squeeze=False)[1].flatten()


def points(drawn):
    """How many marks are drawn: those of scatters and of lines with markers, less the ends of error bars.

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
