"""Figures of trained heads and layers between texts, the worst input found and the bound on the ball; phone width."""

import matplotlib.pyplot as plt
import numpy as np

from lab.figures.style import named_at_the_end

# column: colour, marker, label
KINDS = {"text": ("C2", "o", "text"), "heuristic": ("C1", "s", "two clusters"), "ascended": ("C0", "x", "worst found")}
APART = 1.01  # a fork is drawn where the constant found is larger by more


def between(panels, *, thing="heads"):
    """Each head or layer: its constant on text, at two clusters, at the worst input found, and the upper bound.

    A fork is drawn only where its constant differs from the largest one found. Heads are sorted by that, layers stand
    at their number.

    `panels`: title -> DataFrame with columns text, heuristic, fork, ascended, upper, and layer for layers.
    `thing`: name of a row, for the axis.
    """
    figure, axes = plt.subplots(len(panels), 1, figsize=(4.8, 0.3 + 2.8 * len(panels)), squeeze=False)
    for ax, (title, table) in zip(axes[:, 0], panels.items(), strict=True):
        of_layers = thing == "layers"
        table = table.sort_values("layer" if of_layers else "ascended")
        places = table.layer.to_numpy() if of_layers else np.arange(1, len(table) + 1)
        ax.plot(places, table.upper, color="black", lw=1.2, drawstyle="steps-mid", label="proved bound")
        for column, (colour, marker, label) in KINDS.items():
            if not table[column].isna().all():
                ax.plot(places, table[column], marker, color=colour, ms=4.5, label=label)
        lower = (table.ascended > APART * table.fork).to_numpy()
        if lower.any():
            ax.plot(places[lower], table.fork[lower], "^", color="C3", mfc="none", ms=5, label="_fork")
            last = places[lower][-1], table.fork[lower].iloc[-1]
            ax.annotate("fork", last, (5, -9), textcoords="offset points", color="C3", fontsize=9)
        ax.set(yscale="log", xlabel="layer" if of_layers else f"{thing}, sorted", ylabel="Lipschitz constant")
        ax.set_title(f"{title}: {len(table)} {thing}")
        if of_layers:
            ax.set_xticks(places)
    for ax in axes[:, 0]:
        named_at_the_end(ax, 13)
    return figure


def one_axis(rows):
    """Numbers of one head, and of other maps, on one logarithmic axis, each with its name and its value.

    `rows`: name of the map -> {label of the number -> number}. The last two numbers are proved, and drawn as a wall.
    """
    figure, axes = plt.subplots(len(rows), 1, figsize=(5.2, 1.75 * len(rows)), sharex=True, squeeze=False)
    values = [value for numbers in rows.values() for value in numbers.values()]
    for ax, (title, numbers) in zip(axes[:, 0], rows.items(), strict=True):
        for place, (name, value) in enumerate(numbers.items()):
            proved = place >= len(numbers) - 2
            ax.plot(value, 0, "|" if proved else "o", color="C1" if proved else "C0", ms=26 if proved else 9, mew=3)
            said = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
            ha = {2: "right", 4: "left"}.get(place, "center")
            away = {"right": 8, "left": -8, "center": 0}[ha], (16, -16)[place % 2]
            look = {"textcoords": "offset points", "ha": ha, "va": ("bottom", "top")[place % 2], "fontsize": 10}
            ax.annotate(f"{name}\n{said}", (value, 0), away, **look)
        ax.axhline(0, color="0.8", lw=1, zorder=0)
        ax.set(xscale="log", ylim=(-1, 1), yticks=[], xlim=(min(values) / 6, max(values) * 15))
        ax.set_title(title, loc="left", fontsize=11)
        ax.spines["left"].set_visible(False)
        ax.grid(False)
    ticks = 10.0 ** np.arange(np.ceil(np.log10(min(values) / 6)), np.log10(max(values)) + 0.3)
    ax.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
    ax.minorticks_off()
    ax.set_xlabel("factor by which a push is amplified")
    return figure


def words(table, repeats, worst):
    """Each layer: its constant against the number of changed words, below the worst input found.

    `table`: ``worst-words``: columns layer, changed, greedy, random. `repeats`: ``worst-repeats``: columns layer,
    changed, greedy. `worst`: the largest constant found for each layer, by layer.
    """
    layers = table.groupby("layer")
    figure, axes = plt.subplots(-(-len(layers) // 2), 2, figsize=(5.0, 6.2), sharex=True, sharey=True)
    for ax, (layer, rows) in zip(axes.flat, layers, strict=True):
        ax.axhline(worst[layer], color="C0", lw=1.2, ls="--")
        one = repeats[repeats.layer == layer]
        ax.plot(one.changed, one.greedy, "-^", color="C3", ms=3.5)
        ax.plot(rows.changed, rows.greedy, "-o", color="C2", ms=3.5)
        ax.plot(rows.changed, rows.random, "-s", color="0.45", ms=3)
        ax.set(yscale="log", title=f"layer {layer}")
    end, few = (part[part.layer == part.layer.min()].iloc[-1] for part in (table, repeats))
    ax, above, below = axes.flat[0], {"va": "bottom", "ha": "right"}, {"va": "top", "ha": "right"}
    ax.set_ylim(bottom=ax.get_ylim()[0] / 2)  # space for the last of the names
    for said, x, y, colour, look in (
        ("worst input found", end.changed, worst[end.layer], "C0", below),
        ("one word repeated", few.changed, few.greedy, "C3", {"va": "bottom", "ha": "left"}),
        ("chosen words", end.changed, end.greedy, "C2", above),
        ("random words", end.changed, end.random, "0.45", below),
    ):
        away = 0, 3 if look["va"] == "bottom" else -3
        ax.annotate(said, (x, y), away, textcoords="offset points", color=colour, fontsize=9, **look)
    figure.supxlabel("changed words")
    figure.supylabel("local Lipschitz constant")
    return figure
