"""Figures of the bounds survey: bounds of one layer against the length, and of one head at its worst inputs.

One colour a source: C1 Castin et al., C3 Yudin et al., C2 ours at one input, C0 ours on a ball, black the truth.
Dashed lines hold on a ball, dotted ones on measures. Along lengths and radii one bound of each kind is drawn.
"""

import textwrap

import matplotlib.pyplot as plt
import numpy as np

from lab.figures.registry import figure
from lab.figures.style import named_at_the_end
from lab.figures.verified import bound_titles

# key: colour, line, marker
LINES = {
    "mean_field_sharp": ("C0", ":", "v"),
    "general": ("C1", "--", "s"),
    "ball_upper": ("C0", "--", "P"),
    "general_sharp": ("C0", "--", "o"),
    "spread": ("C1", "-", "D"),
    "yudin": ("C3", "-", "^"),
    "column": ("C2", "-", "X"),
    "three_terms": ("C2", "-", "o"),
}
OVER = {  # drawn over the constant, with a short name
    "mean_field_sharp": "3.5, tighter",
    "general": "Thm 3.3",
    "ball_upper": "on a ball",
    "spread": "C.3",
    "yudin": "Yudin",
    "three_terms": "three terms",
}
APART = 0.19  # distance between lines of labels, in decades
LONGEST = 16  # letters of such a line
WORST = 1e5  # bound over constant at which the panels end


def medians(table):
    """Medians over windows of the measured constant and of each bound, by length.

    `table`: rows of ``bounds-survey-text`` of one layer: columns masked, layer, length, window, truth, bound,
    log10. Returns index length; columns truth and the keys of the bounds, in plain numbers, infinite beyond float64.
    """
    if len(table[["masked", "layer"]].drop_duplicates()) != 1:
        raise ValueError("the table must hold rows of one layer, masked or not: select them first.")
    exponents = table.pivot_table(index="length", columns="bound", values="log10", aggfunc="median")
    found = 10.0 ** exponents.clip(upper=300)
    found.insert(0, "truth", table.groupby("length").truth.median())
    return found


@figure(
    "bounds-survey-text",
    page="67_every_bound",
    tables=("bounds-survey-text",),
    about="all bounds of one layer of MiniLM against the length of its text",
)
def at_text(table, *, layer=3, masked=False, top=1e6):
    """All bounds of one trained layer against the length of its text, with the constant, in log-log axes.

    `table`: ``bounds-survey-text``, as for `medians`. `layer`, `masked`: the layer to draw. `top`: upper end of the
    figure; a bound above it is named in the corner.
    """
    found = medians(table[(table.layer == layer) & (table.masked == masked)])
    ax = plt.subplots(figsize=(5.0, 6.2))[1]
    named = bound_titles()
    shown = [key for key in LINES if key in found and found[key].min() <= top]
    for key in shown:
        colour, line, marker = LINES[key]
        ax.plot(found.index, found[key], ls=line, marker=marker, color=colour, lw=1.4)
    ax.fill_between(found.index, found.truth, found.three_terms, color="C2", alpha=0.15, lw=0)
    ax.plot(found.index, found.truth, "k-", marker=".", lw=2.4)
    labels = [(found[key].iloc[-1], named[key], LINES[key][0]) for key in shown]
    labels.append((found.truth.iloc[-1], "the constant", "k"))
    above = 0.0  # end of the last label, in decades
    for value, words, colour in sorted(labels):
        lines = textwrap.wrap(words, LONGEST)
        place = max(np.log10(value), above + APART * len(lines) / 2)
        above = place + APART * len(lines) / 2
        at = found.index[-1] * 1.4, 10**place
        ax.text(*at, "\n".join(lines), va="center", color=colour, linespacing=1)
        leader = {"arrowstyle": "-", "color": colour, "lw": 0.8, "shrinkA": 3, "shrinkB": 4}
        ax.annotate("", (found.index[-1], value), at, annotation_clip=False, arrowprops=leader)
    beyond = [named[key] for key in LINES if key in found and found[key].min() > top]
    if beyond:
        ax.set_title(f"beyond this figure: {', '.join(beyond)}")
    ax.set(xscale="log", yscale="log", xlabel="tokens n", ylabel="Lipschitz constant and bounds")
    ax.set(xlim=(found.index[0] * 0.93, found.index[-1] * 1.05), ylim=(found.truth.min() / 2, top))
    ax.set_xticks(found.index, [f"{n}" for n in found.index])
    ax.minorticks_off()
    return ax.figure


@figure(
    "bounds-survey-growth",
    page="67_every_bound",
    tables=("bounds-survey-growth",),
    about="bounds of one head over its constant, by length and radius",
)
def at_worst(table):
    """Bounds over the constant of one head, along the length and along the logit range, at forks and random tokens.

    `table`: ``bounds-survey-growth``: columns along, n, t, input, truth, bound, log10.
    """
    figure, grid = plt.subplots(2, 2, figsize=(4.8, 6.8), sharey=True, sharex="col")
    table = table.assign(over=10.0 ** table.log10.clip(upper=300) / table.truth)
    for axes, given in zip(grid, ("fork", "random"), strict=True):
        for ax, along, place in zip(axes, ("along n", "along R"), ("n", "t"), strict=True):
            rows = table[(table.along == along) & (table.input == given)]
            for key, label in OVER.items():
                colour, line, marker = LINES[key]
                one = rows[rows.bound == key].sort_values(place)
                one = one[one.over < WORST]
                ax.plot(one[place], one.over, ls=line, marker=marker, color=colour, lw=1.3, ms=4, label=label)
            ax.axhline(1, color="black", lw=1)
            ax.set(xscale="log", yscale="log", ylim=(0.7, WORST))
            fixed = f"t = {rows.t.iloc[0]:g}" if place == "n" else f"n = {rows.n.iloc[0]}"
            ax.set_title(f"{'fork' if given == 'fork' else 'random'}, {fixed}")
        axes[0].set_ylabel("bound / constant")
    for ax, place in zip(grid[-1], ("tokens n", "logit range t"), strict=True):
        ax.set_xlabel(place)
    for ax in grid[:, 1]:
        named_at_the_end(ax, 12)
    return figure
