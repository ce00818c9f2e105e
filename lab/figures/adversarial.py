"""Heads and layers at adversarial tokens, and how long the growth there lasts."""

import matplotlib.pyplot as plt
from matplotlib.colors import LogNorm

from lab import head_rates as grown
from lab.figures.heat_maps import head_map
from lab.figures.registry import figure
from lab.head_rates import GPT2, HEAD, PANEL
from lab.power_laws import one_series

__all__ = ["OWN", "own_worst", "scaling_factors", "worst_heads"]

OWN = {
    "followed": "one head\nfollowed",
    "clusters": "two\nclusters",
    "random": "random\nclusters",
    "fork": "fork",
    "text": "text",
}
SHOWN = (
    ("minilm", False, "layer norm", 0, "MiniLM, layer 0"),
    ("gpt2", True, "R = 100", 6, "random GPT-2, layer 6"),
    (GPT2, True, "layer norm", 11, "GPT-2, layer 11"),
    ("minilm", False, "text", 0, "MiniLM, layer 0, mean norm on text"),
)


@figure(
    "adversarial-heads",
    page="42_adversarial_inputs",
    tables=("adversarial", "adversarial-layers"),
    about="one head of a layer under attack, between its bounds",
)
def worst_heads(alone, layers):
    """One head of a layer under attack, alone and in its layer, against the number of tokens.

    Parameters
    ----------
    alone : DataFrame
        ``adversarial``: heads alone, columns constant (own V), identity (V = I), lower, upper, sharp, R,
        eigenvalue, V_norm.
    layers : DataFrame
        ``adversarial-layers``: columns head, length, lipschitz.

    Returns
    -------
    Figure
    """
    full = alone.groupby(HEAD).filter(lambda rows: len(rows) > 20)  # heads at every length, not at a few
    full = grown.attending(full)
    figure, axes = plt.subplots(2, 2, figsize=(9.4, 8.2))
    for ax, (*place, title) in zip(axes.flat, SHOWN, strict=True):
        own, both = (rows[(rows[[*PANEL, "layer"]] == place).all(axis=1)] for rows in (full, layers))
        own = one_series(own, title, also=("at", "head"))
        n, last = own.length, own[own.length == 97].iloc[0]
        ax.plot(n, own.upper, "--", color="C1", label="Theorem 3.3")
        ax.plot(n, own.sharp, "-.", color="C3", label="tighter bound (ours)")
        both = grown.one_head(both).sort_values("length")
        both = one_series(both, f"{title}, whole layer", also=("at", "head"))
        ax.plot(both.length, both.lipschitz, "s", color="C4", label="whole layer")
        ax.plot(n, own.constant, "o", color="C0", ms=5.5, label="head, own $V$")
        ax.plot(n, own.V_norm * own.N**0.5, color="C0", lw=1, label=r"its law, $\|V\|_2 \sqrt{N}$")
        ax.plot(n, own.identity, "o", mfc="white", mec="C2", label="head, $V = I$")
        ax.plot(n, own.lower, ":", color="C2", lw=2, label="Proposition 3.4, $V = I$")
        ax.set(xscale="log", yscale="log", xlabel="tokens n", ylabel="local constant")
        ax.set_title(f"{title}, head {last['head']}, R = {last.R:.1f}")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9.5)
    return figure


@figure(
    "scaling-factor",
    page="42_adversarial_inputs",
    tables=("scaling-factor",),
    about="2 gamma R^2 of every head, the logarithm of its window",
)
def scaling_factors(table):
    r""":math:`2 \gamma R^2` of every head: the growth lasts for as many tokens as its exponential.

    Parameters
    ----------
    table : DataFrame
        ``scaling-factor``: columns model, masked, radius, layer, head, factor.

    Returns
    -------
    Figure
    """
    maps = (
        ("minilm", False, "text", "MiniLM on text"),
        ("minilm", False, "layer norm", "MiniLM, largest radius of its LayerNorm"),
        (GPT2, True, "layer norm", "GPT-2, largest radius of its LayerNorm"),
    )
    figure, axes = plt.subplots(2, 2, figsize=(8.8, 6.8), gridspec_kw={"height_ratios": [1, 1.8]})
    for ax, (*place, title) in zip(axes.flat[:3], maps, strict=True):
        rows = table[(table[["model", "masked", "radius"]] == place).all(axis=1)]
        grid = 2 * rows.pivot_table(index="layer", columns="head", values="factor")
        image = head_map(grid, ax=ax, title=title, norm=LogNorm(4, 8000))
    axes[1, 1].axis("off")
    figure.colorbar(image, ax=axes[1, 1], location="left", fraction=0.3, label=r"$2\gamma R^2$")
    return figure


@figure(
    "adversarial-own",
    page="42_adversarial_inputs",
    tables=("adversarial-worst", "adversarial-layers"),
    about="how whole layers grow at their own worst inputs, and at controls",
)
def own_worst(own, layers):
    """Slope of every whole layer at its own worst inputs, beside those of controls.

    Parameters
    ----------
    own : DataFrame
        ``adversarial-worst``: columns clusters, fork, random, text.
    layers : DataFrame
        ``adversarial-layers``: columns head, length, lipschitz.

    Returns
    -------
    Figure
        One panel for each model and radius; hollow marks are masked.
    """
    slopes = grown.own_slopes(own, layers)
    panels = (("minilm", "layer norm", "MiniLM, radius of LayerNorm"), ("minilm", "text", "MiniLM, mean norm on text"))
    panels += ((GPT2, "layer norm", "GPT-2, radius of LayerNorm"),)
    figure, axes = plt.subplots(1, 3, figsize=(10.4, 4.2), sharey=True, layout="constrained")
    for ax, (model, at, title) in zip(axes, panels, strict=True):
        rows = slopes[(slopes.model == model) & (slopes["at"] == at)]
        for i, kind in enumerate(OWN):
            for masked, of_mask in rows[rows.kind == kind].groupby("masked"):
                shift = (of_mask.layer - of_mask.layer.mean()) * 0.3 / max(1, of_mask.layer.max()) + 0.16 * (
                    masked - 0.5
                )
                look = {"mfc": "white" if masked else f"C{i}", "mec": f"C{i}"}
                ax.plot(i + shift, of_mask.slope, "o", ms=4.5, **look)
        ax.axhline(0.5, color="0.4", ls=":", lw=1.2)
        ax.set_xticks(range(len(OWN)), OWN.values(), fontsize=10, rotation=90)
        ax.set_title(title, fontsize=11)
    axes[0].set_ylabel("slope of the constant", fontsize=11)
    return figure
