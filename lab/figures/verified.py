"""Figures of upper bounds: against thousands of inputs, and as brackets of single inputs."""

import ast
from pathlib import Path

import pandas as pd

import lipnb
from lab.figures.registry import figure
from lab.figures.style import named_at_the_end, panels

__all__ = ["bound_titles", "brackets", "worst_cases"]

BOUNDS = {"general": ("C1", "s"), "yudin": ("C3", "^"), "closed_form": ("C2", "D")}


def bound_titles():
    """Titles in the catalogue of bounds by key, and by the names of rows of ``verify``: a dictionary.

    They are read from the catalogue's source, because figures are drawn on machines without torch.
    """
    text = (Path(lipnb.__file__).parent / "bounds" / "catalogue.py").read_text(encoding="utf-8")
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    rows = [[part.value for part in node.args[:3]] for node in calls if getattr(node.func, "id", "") == "Bound"]
    keys = {key: title for _, key, title in rows}
    names = {name: title for name, _, title in reversed(rows)}  # if two belong to one function, the first
    others = {"l2_upper_maximum": keys["l2_maximum"], "large_radius_upper": keys["large_radius"]}
    return keys | names | others | {"certify_no_column": f"{keys['three_terms']}, rounding included"}


@figure(
    "verification",
    page="71_verification",
    tables=("verify",),
    about="the worst of many inputs against each upper bound",
)
def worst_cases(table):
    """Largest measured over bound, for every upper bound: over all inputs, and over those far from uniform attention.

    Parameters
    ----------
    table : DataFrame
        The table ``verify``: columns bound, worst, worst_hot.

    Returns
    -------
    Figure
        Two marks for each bound.
    """
    worst = table.groupby("bound", sort=False)[["worst", "worst_hot"]].max()
    ax, place = panels(1, width=5.0, height=7.6)[0], range(len(worst))
    ax.hlines(place, worst.worst_hot, worst.worst, color="#cccccc", lw=1)
    ax.plot(worst.worst, place, "o", ms=9, mfc="none", color="C0", label="all inputs")
    ax.plot(worst.worst_hot, place, "D", ms=5, color="C1", label="logit range t ≥ 1 only")
    ax.axvline(1, color="black", lw=1, zorder=0)
    ax.set_yticks(place, [bound_titles()[name] for name in worst.index], fontsize=9)
    ax.set(xlim=(0, 1.03), ylim=(len(worst) - 0.5, -0.5), xlabel="largest measured / bound")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=9)
    return ax.figure


@figure(
    "brackets",
    page="62_certified_bracket",
    tables=("bracket-minilm", "bracket-gpt2"),
    about="certified brackets of every layer, below published bounds",
)
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
    axes = panels(1, rows=len(groups), width=4.8, height=2.5)
    words = bound_titles() | {"closed_form": bound_titles()["three_terms"]}
    for ax, ((model, masked), rows) in zip(axes, groups, strict=True):
        if not rows.layer.is_unique:
            raise ValueError(f"{model}: more than one row of a layer at n = {rows.length.iloc[0]}.")
        for name, (colour, marker) in BOUNDS.items():
            ax.plot(rows.layer, rows[name], color=colour, marker=marker, ms=4.5, label=words[name])
        ax.fill_between(rows.layer, rows.lower, rows.upper, color="C0", alpha=0.55)
        ax.plot(rows.layer, rows.upper, color="C0", lw=1)
        ax.plot(rows.layer, rows.lower, color="C0", lw=1, label="bracket")
        named = {"minilm": "MiniLM", "gpt2": "GPT-2"}.get(model, model)
        title = f"{named}, {'masked' if masked else 'unmasked'}, n = {rows.length.iloc[0]}"
        ax.set(yscale="log", ylim=(1, 1e8), title=title, xticks=rows.layer[:: 1 + len(rows) // 8])
        ax.set_yticks([1, 1e2, 1e4, 1e6, 1e8])
    axes[-1].set_xlabel("layer")
    axes[0].figure.supylabel("bound on the local constant")
    for ax in axes:
        named_at_the_end(ax, 12)
    return axes[0].figure
