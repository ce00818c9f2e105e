"""Upper bounds: against thousands of inputs, and as brackets of single ones."""

import matplotlib.pyplot as plt
import pandas as pd

from lipnb.scan.style import panels

__all__ = ["brackets", "worst_cases"]

KINDS = {"random": "C0", "degenerate": "#888888", "structured": "C4", "ascended": "C1"}
BOUNDS = {
    "general": ("Thm 3.3", "C1", "s"),
    "yudin": ("Yudin et al.", "C4", "^"),
    "closed_form": ("three terms", "C2", "D"),
}


def worst_cases(table):
    """Largest measured over bound, for every upper bound and kind of input.

    Parameters
    ----------
    table : DataFrame
        ``verify``: columns bound, masked, kind, worst, worst_hot.

    Returns
    -------
    Figure
    """
    if unknown := set(table.kind) - set(KINDS):
        raise ValueError(f"these kinds of input have no colour: {', '.join(sorted(unknown))}.")
    order = list(table.bound.unique())
    place = {name: i for i, name in enumerate(order)}
    figure, axes = plt.subplots(1, 2, figsize=(9.4, 1.1 + 0.39 * len(order)), sharey=True)
    for ax, column in zip(axes, ("worst", "worst_hot"), strict=True):
        for j, (kind, colour) in enumerate(KINDS.items()):
            for masked, size in ((False, 16), (True, 52)):
                rows = table[(table.kind == kind) & (table.masked == masked)]
                y = rows.bound.map(place) + 0.18 * (j - 1.5)
                look = {"s": size, "fc": "none" if masked else colour, "ec": colour}
                ax.scatter(rows[column], y, label=None if masked else kind, clip_on=False, zorder=3, **look)
        ax.hlines([i - 0.5 for i in range(1, len(order))], 0, 1, color="#dddddd", lw=0.6)
        ax.axvline(1, color="black", lw=1)
        ax.set(xlim=(0, 1), ylim=(len(order) - 0.5, -0.5))
        ax.grid(False, axis="y")
        ax.set_xlabel("largest measured / bound")
    axes[0].set_yticks(range(len(order)), [name.replace("_", " ") for name in order])
    axes[0].set_title("all inputs")
    axes[1].set_title("logits of one and more")
    axes[0].legend(loc="lower left", fontsize=9, handletextpad=0.1)
    return figure


def brackets(*tables):
    """The bracket of every layer, at the longest inputs, with published upper bounds above it.

    Parameters
    ----------
    *tables : DataFrame
        ``bracket-minilm``, ``bracket-gpt2``: columns model, masked, length, layer, lower, upper, closed_form, yudin,
        general.

    Returns
    -------
    Figure
    """
    stored = pd.concat(tables, ignore_index=True)
    longest = stored[stored.length == stored.groupby("model").length.transform("max")]
    groups = longest.groupby(["model", "masked"], sort=False)
    axes = panels(len(groups), width=3.7, height=3.9)
    for ax, ((model, masked), rows) in zip(axes, groups, strict=True):
        if not rows.layer.is_unique:
            raise ValueError(f"{model}: more than one row of a layer at n = {rows.length.iloc[0]}.")
        for name, (label, colour, marker) in BOUNDS.items():
            ax.plot(rows.layer, rows[name], color=colour, marker=marker, label=label)
        ax.fill_between(rows.layer, rows.lower, rows.upper, color="C0", alpha=0.55)
        ax.plot(rows.layer, rows.upper, color="C0", lw=1, label="bracket: lower, upper")
        ax.plot(rows.layer, rows.lower, color="C0", lw=1)
        title = f"{model}, {'masked' if masked else 'unmasked'}, n = {rows.length.iloc[0]}"
        ax.set(yscale="log", xlabel="layer", title=title, ylim=(1, 1e8))
        ax.set_xticks(rows.layer[:: 1 + len(rows) // 8])
    axes[0].set_ylabel("bound on the local constant")
    axes[0].legend(loc="upper center", ncols=2, fontsize=8)
    return axes[0].figure
