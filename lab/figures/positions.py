"""gpt2-mini: how it was trained, and what its learned positions do."""

import matplotlib.pyplot as plt

from lab.figures.registry import figure
from lab.power_laws import one_series

__all__ = ["growth", "norms", "places", "training"]

VARIANTS = {"trained": ("C6", "o"), "late": ("C0", "s"), "constant": ("C1", "D"), "removed": ("C2", "^")}


BASELINES = {"unigram": ("C1", ":"), "bigram": ("C1", "--"), "kneser-ney 3": ("C4", "-."), "kneser-ney 4": ("C4", "-")}
NAMES = {"kneser-ney 3": "trigram, smoothed", "kneser-ney 4": "4-gram, smoothed"}
COMPARED = {"network": "gpt2-mini", "kneser-ney 4": NAMES["kneser-ney 4"], "kneser-ney 3": NAMES["kneser-ney 3"]}
COMPARED |= {"bigram": "bigram", "unigram": "unigram"}  # models of the table, in the order of their losses


@figure(
    "gpt2-mini-training",
    page="44_gpt2_positions",
    tables=("gpt2-mini-training", "gpt2-mini-baselines"),
    about="the loss of gpt2-mini while it was trained, and that of n-grams",
)
def training(curve, baselines):
    """The loss of gpt2-mini while it was trained, and what frequencies and n-grams reach on the same held-out text.

    Parameters
    ----------
    curve : DataFrame
        ``gpt2-mini-training``: columns tokens, training_loss, validation_loss.
    baselines : DataFrame
        ``gpt2-mini-baselines``: columns corpus, model, part, loss.

    Returns
    -------
    Figure
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
    "gpt2-mini-places",
    page="44_gpt2_positions",
    tables=("gpt2-mini-baselines",),
    about="loss by place in the window, of gpt2-mini and of n-grams",
)
def places(baselines):
    """Loss by place in the window, of gpt2-mini, of the same with few tokens before, and of smoothed 4-grams.

    Parameters
    ----------
    baselines : DataFrame
        ``gpt2-mini-baselines``: columns corpus, model, part, first, last, loss, error.

    Returns
    -------
    Figure
        One panel for each text; bars are two standard errors to each side.
    """
    shown = {"network": ("gpt2-mini", "black", "o"), "kneser-ney 4": (NAMES["kneser-ney 4"], "C4", "s")}
    shown["network, 64 tokens"] = ("gpt2-mini, last 64 tokens", "C0", "^")
    rows = baselines[baselines.part == "octave"]
    figure, axes = plt.subplots(1, rows.corpus.nunique(), figsize=(9.4, 3.7), sharey=True)
    ticks = rows[["first", "last"]].drop_duplicates()
    for ax, (corpus, here) in zip(axes, rows.groupby("corpus", sort=False), strict=True):
        for shift, (name, (label, colour, marker)) in zip((-0.08, 0, 0.08), shown.items(), strict=True):
            mine = here[here.model == name].reset_index()
            if name == "network, 64 tokens":  # before, it is the network
                mine = mine[mine["first"] >= 64]
            look = {"color": colour, "marker": marker, "ms": 5, "lw": 1.2, "label": label, "mfc": "none"}
            ax.errorbar(mine.index + shift, mine.loss, 2 * mine.error, **look)
        names = [f"{a}" if a == b else f"{a} to {b}" for a, b in ticks.itertuples(index=False)]
        ax.set_xticks(range(len(ticks)), names, rotation=45, ha="right", fontsize=9)
        ax.set(xlabel="place in the window, from 0", title={"held out": "held-out text", "alice": "Alice"}[corpus])
    axes[0].set_ylabel("loss, nats per token")
    axes[-1].legend(fontsize=9)
    return figure


@figure(
    "position-norms",
    page="44_gpt2_positions",
    tables=("position-norms",),
    about="norm of the learned position of each place",
)
def norms(table):
    """Norm of the learned position of each place.

    Parameters
    ----------
    table : DataFrame
        ``position-norms``: columns model, place, norm.

    Returns
    -------
    Figure
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
    page="44_gpt2_positions",
    tables=("positions",),
    about="constants and norms with positions as trained and changed",
)
def growth(table):
    """Constants and token norms of gpt2-mini against length, with its positions as trained and changed.

    Parameters
    ----------
    table : DataFrame
        ``positions``: columns positions, layer, length, lipschitz, mean_radius, stream_radius.

    Returns
    -------
    Figure
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
