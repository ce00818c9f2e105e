"""gpt2-mini: how it was trained, and what its learned positions do."""

import matplotlib.pyplot as plt

from lab.power_laws import one_series

__all__ = ["growth", "norms", "training"]

VARIANTS = {"trained": ("C6", "o"), "late": ("C0", "s"), "constant": ("C1", "D"), "removed": ("C2", "^")}


def training(curve, baselines=None):
    """The loss of gpt2-mini while it was trained.

    Parameters
    ----------
    curve : DataFrame
        ``gpt2-mini-training``: columns tokens, training_loss, validation_loss.
    baselines : dict, optional
        Losses by frequency alone, "unigram" and "bigram", on the same held-out text.

    Returns
    -------
    Figure
    """
    figure, ax = plt.subplots(figsize=(6, 3.4))
    ax.plot(curve.tokens / 1e6, curve.training_loss, color="0.6", label="training")
    ax.plot(curve.tokens / 1e6, curve.validation_loss, color="black", label="held out")
    for name, style in (("unigram", ":"), ("bigram", "--")) if baselines else ():
        ax.axhline(baselines[name], color="C1", ls=style, label=f"{name} frequencies")
    ax.set(xlabel="tokens read, millions", ylabel="loss, nats per token")
    ax.legend(fontsize=9)
    return figure


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
    figure, axes = plt.subplots(3, count, figsize=(2 * count, 6.6), sharex=True, squeeze=False)
    lines = {"lipschitz": "local constant", "mean_radius": "radius after LN", "stream_radius": "radius before LN"}
    for line, (column, label) in zip(axes, lines.items(), strict=True):
        is_norm = column != "lipschitz"
        for layer, ax in zip(sorted(table.layer.unique()), line, strict=True):
            here = one_series(table[table.layer == layer], f"layer {layer}")
            for name, (colour, marker) in VARIANTS.items():
                mean = here[here.positions == name].groupby("length")[column].mean()
                ax.plot(mean.index, mean, marker, ls="-", ms=3, lw=1, color=colour, label=name)
            ax.set(xscale="log", ylim=(0, 1.25 * here[column].max()) if is_norm else (0.8, 400))
            ax.set_yscale("linear" if is_norm else "log")
            ax.tick_params(labelsize=8, labelleft=is_norm or layer == 0)
        line[0].set_ylabel(label)
    for layer, ax in zip(sorted(table.layer.unique()), axes[0], strict=True):
        ax.set_title(f"layer {layer}", fontsize=10)
    for ax in axes[-1]:
        ax.set_xlabel("n")
    axes[0][0].legend(fontsize=7)
    return figure
