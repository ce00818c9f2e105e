"""The look of the book's figures, and what many of them need."""

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter

__all__ = ["NOT_CONVERGED", "STYLE", "house_style", "log_ticks", "panels", "points"]

STYLE = Path(__file__).with_name("house.mplstyle")
NOT_CONVERGED = "#b0b0b0"


def house_style():
    """Use the book's look for all figures that follow."""
    plt.style.use(STYLE)


def log_ticks(axis, low, high):
    """Plain numbers on a logarithmic axis that spans less than two decades: `axis` is an XAxis or YAxis."""
    if high / low < 100:
        steps = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if high / low < 5 else (1, 2, 5)
        candidates = [step * 10.0**e for e in range(-6, 7) for step in steps]
        axis.set_ticks([tick for tick in candidates if low / 1.05 <= tick <= high * 1.05])
        axis.set_major_formatter(ScalarFormatter())
        axis.set_minor_locator(NullLocator())


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
