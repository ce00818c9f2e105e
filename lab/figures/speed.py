"""Figures of the speed and the convergence of solvers."""

from itertools import cycle

import matplotlib.pyplot as plt

from lab.figures.registry import figure

STEPS = {  # step of the table -> name on the bar, colour, hatch
    "released": ("released procedure", "0.6", ""),
    "closed form": ("products in closed form", "C4", "//"),
    "Lanczos": ("and Lanczos, certified", "C5", ".."),
    "batch": ("and ten windows at once", "C0", ""),
}
LAYERS = {
    "mini:0": "MiniLM,\nlayer 0",
    "mini:3": "MiniLM,\nlayer 3",
    "twin:0": "wide,\nlayers 0, 1",
    "twin:3": "wide,\nlayers 3, 4",
}


@figure(
    "solver-shares",
    page="70_solver_speed",
    tables=("bench-shares",),
    about="processor time of the solver after each of three changes, by layer",
)
def shares(table):
    """Processor time of each layer, as a share of the released procedure's, after each change; the factor on the bar.

    `table`: ``bench-shares``: columns layer, step, seconds.
    """
    seconds = table.pivot_table(index="layer", columns="step", values="seconds", aggfunc="sum", sort=False)
    ax = plt.subplots(figsize=(5.8, 5.2))[1]
    for place, layer in enumerate(seconds.index):
        whole = seconds.loc[layer, "released"]
        for row, (step, (name, colour, hatch)) in enumerate(STEPS.items()):
            part, y = seconds.loc[layer, step] / whole, 5 * place + row
            ax.barh(y, part, height=0.85, color=colour, hatch=hatch, edgecolor="white")
            said = f"{whole / seconds.loc[layer, step]:.1f}× as fast" if row else ""
            said = ", ".join(filter(None, (said, name if place == 0 else "")))
            ax.text(min(part, 0.99) + 0.015, y, said, va="center", fontsize=10, ha="left")
    ax.set_yticks([5 * place + 1.5 for place in range(len(seconds))], [LAYERS[layer] for layer in seconds.index])
    ax.set(
        xlabel="processor time, as a share of the released procedure's", xlim=(0, 1.5), xticks=[0, 0.25, 0.5, 0.75, 1]
    )
    ax.set_xticklabels(["0", "25 %", "50 %", "75 %", "100 %"])
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    return ax.figure


def closing(steps, values, uppers, power):
    """How the bounds of one Lanczos run close in on the constant, and how power iteration approaches it from below.

    `steps`: numbers of products. `values`, `uppers`: the value and the upper bound after each, over the constant.
    `power`: the value of power iteration from the same start, likewise.
    """
    near, far = plt.subplots(2, 1, figsize=(5.6, 6.0), sharex=True)[1]
    near.fill_between(steps, values, uppers, color="C0", alpha=0.15, lw=0)
    near.plot(steps, uppers, "--v", color="C1", label="certified upper bound")
    near.plot(steps, values, "-o", color="C0", label="Ritz value")
    near.plot(steps, power, ":s", color="0.5", label="power iteration")
    near.axhline(1, color="black", lw=0.8)
    near.set(ylabel="divided by the constant", ylim=(0.5, 1.5))
    near.legend(loc="lower right")
    for series, look in ((uppers - 1, "--vC1"), (1 - values, "-oC0"), (1 - power, ":s")):
        far.plot(steps, series.clip(1e-12), look, **({} if "C" in look else {"color": "0.5"}))
    far.set(yscale="log", ylabel="distance from the constant", xlabel="products with the Jacobian and its transpose")
    far.set_ylim(1e-8, 2)
    far.axhline(1e-4, color="black", lw=0.8)
    far.text(steps[0], 1.3e-4, "default tolerance", va="bottom", fontsize=10)
    return near.figure


def residuals(history, *, title=None):
    """Relative error of solvers against the number of products.

    `history`: columns `method`, `products` and `error` (relative, positive).
    """
    ax = plt.subplots()[1]
    # markers and colours have different periods, so that many methods still look different
    for (method, rows), marker in zip(history.groupby("method", sort=False), cycle("osD^vPX*"), strict=False):
        ax.plot(rows.products, rows.error, marker=marker, label=method)
    ax.set(yscale="log", xlabel="products with the Jacobian and its transpose", ylabel="relative error", title=title)
    ax.legend()
    return ax
