"""Figure of interventions on attention: change of the slope of the constant against that of the attention norm."""

import matplotlib.pyplot as plt
import numpy as np

from lab.figures.style import named_among_marks

__all__ = ["LOOKS", "changes"]

LOOKS = {  # intervention -> colour, marker
    "uniform": ("C0", "o"),
    "softer": ("C2", "v"),
    "sharper": ("C3", "^"),
    "without the most attended": ("C1", "s"),
    "one position": ("C6", "D"),
}


def changes(found, close=0.05):
    """Change of the slope of the constant against that of its predictor, one mark for each layer.

    Parameters
    ----------
    found : DataFrame
        From `lab.experiments.interventions.changes`: columns intervention, norm_change, change.
    close : float
        Half the height of the band around equality.

    Returns
    -------
    Figure
        `lab.figures.points` of it is the number of rows.

    Raises
    ------
    ValueError
        An intervention has no entry in `LOOKS`.
    """
    if unknown := set(found.intervention) - set(LOOKS):
        raise ValueError(f"these interventions have no look: {', '.join(sorted(unknown))}; give each one in LOOKS.")
    figure, ax = plt.subplots(figsize=(6.2, 5), layout="constrained")
    reach = max(found.norm_change.abs().max(), 0.1)
    ends = np.array([-reach, reach]) * 1.08
    ax.fill_between(ends, ends - close, ends + close, color="0.9", lw=0)
    ax.plot(ends, ends, color="0.4", lw=1)
    ax.annotate("equal", (ends[1], ends[1]), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
    for place in (ax.axhline, ax.axvline):
        place(0, color="0.7", lw=0.6, zorder=0)
    for name, (colour, marker) in LOOKS.items():
        some = found[found.intervention == name]
        if len(some):
            ax.plot(some.norm_change, some.change, marker, color=colour, ms=6, alpha=0.8, mew=0, label=name)
    ax.set(
        xlabel=r"change of the slope of largest $F$ plus largest $\|S\|$", ylabel="change of the slope of the constant"
    )
    ax.set_xlim(*ends)
    named_among_marks(ax)
    return figure
