"""Figures of trained heads and layers between texts, the worst input found and the bound on the ball; phone width."""

import matplotlib.pyplot as plt
import numpy as np

# column: colour, marker, label
KINDS = {
    "text": ("C2", "o", "text"),
    "heuristic": ("C1", "s", "two clusters (paper)"),
    "fork": ("C0", "^", "fork"),
    "ascended": ("C3", "x", ""),  # label given by the caller
}


def between(panels, *, thing="heads", found="fork, then ascent"):
    """Each head or layer: its constant on text, at two clusters, at forks, after an ascent, and the upper bound.

    `panels`: title -> DataFrame with columns text, heuristic, fork, ascended and upper; sorted here by ascended.
    `thing`: name of a row, for the axis. `found`: contents of the column ascended, for the legend.
    """
    figure, axes = plt.subplots(len(panels), 1, figsize=(5.0, 0.8 + 3 * len(panels)), squeeze=False)
    for ax, (title, table) in zip(axes[:, 0], panels.items(), strict=True):
        table, places = table.sort_values("ascended"), np.arange(1, len(table) + 1)
        ax.plot(places, table.upper, color="black", lw=1.2, drawstyle="steps-mid", label="upper bound (proved)")
        for column, (colour, marker, label) in KINDS.items():
            if table[column].isna().all():
                continue
            label = found if column == "ascended" else label
            size = 4.5 if column != "ascended" else 4
            ax.plot(places, table[column], marker, color=colour, ms=size, label=label, mec=colour, alpha=0.9)
        ax.set(yscale="log", xlabel=f"{thing}, sorted", ylabel="Lipschitz constant")
        ax.set_title(f"{title}: {len(table)} {thing}")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
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
        ax.axhline(worst[layer], color="black", lw=1.2, ls="--", label="worst input found")
        one = repeats[repeats.layer == layer]
        ax.plot(one.changed, one.greedy, "-^", color="C0", ms=3.5, label="one word, then chosen")
        ax.plot(rows.changed, rows.greedy, "-o", color="C3", ms=3.5, label="text, chosen words")
        ax.plot(rows.changed, rows.random, "-s", color="0.55", ms=3, label="text, random words")
        ax.set(yscale="log", title=f"layer {layer}")
    figure.supxlabel("changed words")
    figure.supylabel("local Lipschitz constant")
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure
