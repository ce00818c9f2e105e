"""Figures of character language models with four kinds of attention: their training, and their trained layers."""

import matplotlib.pyplot as plt
import pandas as pd

from lab.figures.registry import figure
from lab.figures.style import named_at_the_end, panels

__all__ = ["constants", "longer", "losses", "stability"]

KINDS = {"dot": "C0", "l2-untied": "C4", "l2-tied": "C2", "contractive": "C1"}
WITHOUT = {"none": ("no attention", "0.45", "x"), "none-contractive": ("contractive, no attention", "0.6", "+")}


def _runs(table, part):
    """Evaluations, ends and layers (counted from 1) of the runs of a part."""
    runs = table[table.part == part].astype({"layers": int, "seed": int})
    curves, ends, layers = (runs[runs.row == row] for row in ("evaluation", "test", "layer"))
    return curves, ends, layers.assign(layer=layers.layer.astype(int) + 1)


def _frequencies(table, part):
    """Loss of frequencies, "unigram" or "bigram", nats per character."""
    return table[(table.row == "baseline") & (table.part == part)].nats.item()


def _controls(ax, ends):
    """Draw networks without attention: grey marks, and a thin line through the means."""
    for kind, (label, colour, mark) in WITHOUT.items():
        rows = ends[ends.attention == kind].sort_values("layers")
        middle = rows.groupby("layers").nats.mean()
        ax.plot(middle.index, middle, color=colour, ls="-.", lw=1)
        ax.plot(rows.layers, rows.nats, mark, ms=5, color=colour, label=label if len(rows) else None)


@figure(
    "language-model",
    page="56_language_model",
    tables=("language-model",),
    about="losses of several kinds of attention by depth, with curves",
)
def losses(table):
    """Test loss by depth, and learning curves of the deepest models.

    Parameters
    ----------
    table : DataFrame
        The table ``language-model``: columns part, row, attention, layers, seed, step, validation_loss, nats.

    Returns
    -------
    Figure
    """
    curves, ends, _ = _runs(table, "depth")
    bigram, deepest = _frequencies(table, "bigram"), ends.layers.max()
    mean = ends.groupby(["layers", "attention"]).nats.mean().unstack()
    above, below = panels(1, rows=2, width=6.4, height=3.3)
    for shift, (kind, colour) in zip((-0.09, -0.03, 0.03, 0.09), KINDS.items(), strict=True):
        rows = ends[ends.attention == kind]
        above.plot(rows.layers + shift, rows.nats, ".", ms=5, color=colour)
        above.plot(mean.index + shift, mean[kind], color=colour, lw=1.2, label=kind)
        rows = curves[(curves.attention == kind) & (curves.layers == deepest)]
        middle = rows.groupby("step").validation_loss.agg(["mean", "min", "max"])
        below.fill_between(middle.index, middle["min"], middle["max"], color=colour, alpha=0.2)
        below.plot(middle.index, middle["mean"], color=colour, lw=1.2, label=kind)
    _controls(above, ends)
    for kind, (label, colour, _) in WITHOUT.items():
        rows = curves[(curves.attention == kind) & (curves.layers == deepest)].groupby("step").validation_loss.mean()
        below.plot(rows, color=colour, ls="-." if kind == "none" else ":", label=label)
    above.set(xlabel="layers", ylabel="test loss, nats per character")
    above.set_xticks(list(mean.index))
    below.set(xlabel="steps", ylabel="validation loss, nats", title=f"{deepest} layers")
    for ax in (above, below):
        ax.axhline(bigram, color="0.3", ls=":", lw=1)
        said = {"xycoords": ax.get_yaxis_transform(), "textcoords": "offset points", "va": "top", "fontsize": 9}
        ax.annotate("the preceding character", (0.5, bigram), (0, -2), color="0.3", **said)
        named_at_the_end(ax, apart=11)
    return above.figure


@figure(
    "language-model-layers",
    page="56_language_model",
    tables=("language-model",),
    about="local constants of the trained layers, below their bounds",
)
def constants(table):
    """Local constants of the trained layers of the deepest models, with the bounds for all inputs.

    Parameters
    ----------
    table : DataFrame
        The table ``language-model``: columns part, row, attention, layers, layer, lipschitz, lowest, highest, bound.

    Returns
    -------
    Figure
    """
    layers = _runs(table, "depth")[2]
    deepest = layers.layers.max()
    figure, ax = plt.subplots(figsize=(6.6, 4.2))
    for shift, mark, (kind, colour) in zip((-0.15, -0.05, 0.05, 0.15), "os^D", KINDS.items(), strict=True):
        rows = layers[(layers.layers == deepest) & (layers.attention == kind)].groupby("layer")
        middle, low, high = rows.lipschitz.median(), rows.lowest.min(), rows.highest.max()
        place = middle.index + shift
        ax.vlines(place, low, high, color=colour)
        ax.plot(place, middle, mark, ms=5, label=kind, color=colour)
        if kind in ("l2-tied", "contractive"):
            ax.plot(place, rows.bound.median(), "_", ms=14, mew=2.5, color=colour, label=f"{kind}, bound")
    ax.set(yscale="log", xlabel="layer", ylabel="local Lipschitz constant")
    ax.set_xticks(range(1, deepest + 1))
    ax.set_yticks([0.01, 0.1, 1, 10, 100, 1000], ["0.01", "0.1", "1", "10", "100", "1,000"])
    ax.minorticks_off()
    named_at_the_end(ax, apart=11)
    return figure


@figure(
    "training-stability",
    page="57_training_stability",
    tables=("training-stability", "training-controls"),
    about="which kinds still train at a fixed rate, by depth",
)
def stability(table, controls):
    """Test loss by depth at fixed rates, which shows the kinds of attention that still train.

    Parameters
    ----------
    table : DataFrame
        The table ``training-stability``: columns part, row, attention, layers, seed, rate, nats.
    controls : DataFrame
        The table ``training-controls``: the same columns, at a smaller and a larger rate.

    Returns
    -------
    Figure
        The rate of `table` above, the other two below.
    """
    ends, unigram, bigram = _runs(table, "fixed")[1], _frequencies(table, "unigram"), _frequencies(table, "bigram")
    depths = sorted(set(ends.layers))
    rates = pd.concat([ends, _runs(controls, "rate")[1]])
    slow, main, fast = sorted(set(rates.rate))
    axes = plt.subplot_mosaic([[main, main], [slow, fast]], figsize=(6.8, 7), height_ratios=(1.25, 1))[1]
    for rate, at in rates.groupby("rate"):
        ax = axes[rate]
        for shift, (kind, colour) in zip((-0.3, -0.1, 0.1, 0.3), KINDS.items(), strict=True):
            rows = at[at.attention == kind].fillna({"nats": unigram})  # diverged
            middle = rows.groupby("layers").nats.mean()
            ax.plot(middle.index + shift, middle, color=colour, lw=1.1, label=kind)
            ax.plot(rows.layers + shift, rows.nats, ".", ms=5, color=colour)
        _controls(ax, at)
        fewest, most = at.groupby(["attention", "layers"]).seed.nunique().agg(["min", "max"])
        several = f"{fewest} to {most}" if fewest < most else str(most)
        ax.set(xlabel="layers", ylabel="test loss, nats", title=f"rate {rate:g}, {several} seed{'s' * (most > 1)}")
        ax.set_xticks(depths[::2], depths[::2])
        ax.set_ylim(rates.nats.min() - 0.05, unigram + 0.09)
        for level, name, line in ((unigram, "characters", ":"), (bigram, "bigram", "--")):
            ax.axhline(level, color="0.3", ls=line, lw=1)
            if rate == main:
                look = {"textcoords": "offset points", "va": "top", "fontsize": 9, "color": "0.3"}
                ax.annotate(name, (depths[0], level), (0, -2), **look)
    named_at_the_end(axes[main], apart=11)
    return axes[main].figure


@figure(
    "training-longer",
    page="57_training_stability",
    tables=("training-longer", "training-stability"),
    about="which kinds train in ten times as many steps, and when",
)
def longer(table, short):
    """Learning curves of long runs at each depth, and the step at which each run falls below the bigram.

    Parameters
    ----------
    table : DataFrame
        The table ``training-longer``: columns row, attention, layers, seed, step, validation_loss.
    short : DataFrame
        The table ``training-stability``: the loss of the bigram, and the number of steps of its runs.

    Returns
    -------
    Figure
        A line for each run, then a dot for each that falls below.
    """
    bigram, end = _frequencies(short, "bigram"), _runs(short, "fixed")[0].step.max()
    curves = table[table.row == "evaluation"]
    looks = KINDS | {kind: colour for kind, (_, colour, _) in WITHOUT.items()}
    labels = {kind: WITHOUT[kind][0] if kind in WITHOUT else kind for kind in looks}
    last, depths = curves.step.max(), sorted(curves.layers.unique())
    above = [f"{depth} layers" for depth in depths]
    axes = plt.subplot_mosaic([above, ["first"] * len(above)], figsize=(6.8, 6.6), height_ratios=(1.6, 1))[1]
    right = axes["first"]
    for name, depth in zip(above, depths, strict=True):
        ax = axes[name]
        for kind, colour in looks.items():
            at = curves[(curves.layers == depth) & (curves.attention == kind)]
            for seed, run in at.groupby("seed"):
                line = "-." if kind in WITHOUT else "-"
                label = None if seed else labels[kind]
                ax.plot(run.step, run.validation_loss, color=colour, lw=1.1, ls=line, label=label)
        ax.axhline(bigram, color="0.3", ls="--", lw=1)
        ax.axvline(end, color="0.3", ls=":", lw=1)
        ax.set(title=name, xlabel="steps", ylabel="validation loss, nats")
        ax.set_ylim(curves.validation_loss.min() - 0.05, 3.1)
    look = {"textcoords": "offset points", "fontsize": 9, "color": "0.3"}
    axes[above[0]].annotate("bigram", (last, bigram), (0, -3), ha="right", va="top", **look)
    axes[above[0]].annotate(f"{end:g} steps", (end, 2.95), (4, 0), **look)
    named_at_the_end(axes[above[-1]], apart=11)
    places = []
    for (depth, kind), at in curves[curves.validation_loss < bigram].groupby(["layers", "attention"]):
        places.append((depth, list(looks).index(kind), kind, at.groupby("seed").step.min()))
    places.sort(key=lambda one: one[:2])
    for place, (_, _, kind, steps) in enumerate(places):
        right.plot(steps, place + 0.22 * (steps.index - 1), "o", ms=5, color=looks[kind])
    right.axhline(sum(depth == depths[0] for depth, *_ in places) - 0.5, color="0.7", lw=0.8)
    right.set_yticks(range(len(places)), [f"{labels[kind]}, {depth} layers" for depth, _, kind, _ in places])
    right.invert_yaxis()
    right.axvline(end, color="0.3", ls=":", lw=1)
    right.set(xlim=(0, None), title="first evaluation below the bigram", xlabel="steps")
    return right.figure
