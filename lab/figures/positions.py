"""Figures of gpt2-mini: its training, and the norms of its learned positions."""

import matplotlib.pyplot as plt

from lab.figures.registry import figure
from lab.statistics.power_laws import one_series

BASELINES = {"unigram": ("C1", ":"), "bigram": ("C1", "--"), "kneser-ney 3": ("C4", "-."), "kneser-ney 4": ("C4", "-")}
NAMES = {"kneser-ney 3": "trigram, smoothed", "kneser-ney 4": "4-gram, smoothed"}


@figure(
    "gpt2-mini-training",
    page="41_real_text",
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
    page="41_real_text",
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
