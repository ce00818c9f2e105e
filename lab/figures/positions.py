"""Figures of gpt2-mini: its training, and the effect of its learned positions."""

import matplotlib.pyplot as plt

from lab.figures.registry import figure
from lab.statistics.power_laws import one_series

VARIANTS = {"trained": ("C6", "o"), "late": ("C0", "s"), "constant": ("C1", "D"), "removed": ("C2", "^")}


BASELINES = {"unigram": ("C1", ":"), "bigram": ("C1", "--"), "kneser-ney 3": ("C4", "-."), "kneser-ney 4": ("C4", "-")}
NAMES = {"kneser-ney 3": "trigram, smoothed", "kneser-ney 4": "4-gram, smoothed"}


@figure(
    "gpt2-mini-training",
    page="45_gpt2_positions",
    tables=("gpt2-mini-training", "gpt2-mini-baselines"),
    about="the loss of gpt2-mini while it was trained, and that of n-grams",
)
def training(curve, baselines):
    """Loss of gpt2-mini during training, and that of frequencies and n-grams on the same held-out text.

    `curve`: ``gpt2-mini-training``: columns tokens, training_loss, validation_loss. `baselines`:
    ``gpt2-mini-baselines``: columns corpus, model, part, loss.
    """
    figure, ax = plt.subplots(figsize=(6.4, 3.6))
    ax.plot(curve.tokens / 1e6, curve.training_loss, color="0.6", label="training")
    ax.plot(curve.tokens / 1e6, curve.validation_loss, color="black", label="held out")
    rows = baselines[(baselines.part == "all") & (baselines.corpus == "held out")].set_index("model")
    for name, (colour, style) in BASELINES.items():
        ax.axhline(rows.loss[name], color=colour, ls=style, lw=1.2, label=NAMES.get(name, name))
    ax.set(xlabel="tokens read, millions", ylabel="loss, nats per token")
    ax.legend(fontsize=9, loc="center right", bbox_to_anchor=(1, 0.51))
    return figure


@figure(
    "position-norms",
    page="45_gpt2_positions",
    tables=("position-norms",),
    about="norm of the learned position of each place",
)
def norms(table):
    """Norm of the learned position embedding at each position.

    `table`: ``position-norms``: columns model, place, norm.
    """
    count = table.model.nunique()
    figure, axes = plt.subplots(1, count, figsize=(4.7 * count, 3.4), squeeze=False)
    axes = axes[0]
    for ax, (name, rows) in zip(axes, table.groupby("model", sort=False), strict=True):
        one_series(rows, f"positions of {name}")
        ax.plot(rows.place + 1, rows.norm, color="C0", lw=1.2)
        ax.set(xscale="log", yscale="log", xlabel="place", title=f"positions of {name}")
    axes[0].set_ylabel("norm")
    return figure


@figure(
    "positions",
    page="45_gpt2_positions",
    tables=("positions",),
    about="constants and norms with positions as trained and changed",
)
def growth(table):
    """Constants and token norms of gpt2-mini against length, with its positions as trained and changed.

    `table`: ``positions``: columns positions, layer, length, lipschitz, mean_radius, stream_radius.
    """
    if unknown := set(table.positions) - set(VARIANTS):
        raise ValueError(f"these positions have no look: {', '.join(sorted(unknown))}.")
    count = table.layer.nunique()
    figure, axes = plt.subplots(3, count, figsize=(1.9 * count, 7.6), sharex=True, squeeze=False, layout="constrained")
    lines = {"lipschitz": "local constant", "mean_radius": "token norm,\nreceived"}
    lines |= {"stream_radius": "token norm,\nbefore LayerNorm"}
    for line, (column, label) in zip(axes, lines.items(), strict=True):
        is_norm = column != "lipschitz"
        for layer, ax in zip(sorted(table.layer.unique()), line, strict=True):
            here = one_series(table[table.layer == layer], f"layer {layer}")
            for name, (colour, marker) in VARIANTS.items():
                mean = here[here.positions == name].groupby("length")[column].mean()
                ax.plot(mean.index, mean, marker, ls="-", ms=3, lw=1, color=colour, label=name)
            ax.set(xscale="log", ylim=(0, 1.25 * here[column].max()) if is_norm else (0.8, 400))
            ax.set_yscale("linear" if is_norm else "log")
            ax.tick_params(labelsize=12, labelleft=is_norm or layer == 0)
        line[0].set_ylabel(label, fontsize=13)
    for layer, ax in zip(sorted(table.layer.unique()), axes[0], strict=True):
        ax.set_title(f"layer {layer}", fontsize=13)
    for ax in axes[-1]:
        ax.set_xlabel("tokens n", fontsize=13)
    look = {"ncols": 4, "fontsize": 13, "title": "positions", "title_fontsize": 13}
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", **look)
    return figure
