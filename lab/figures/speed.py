"""How fast solvers are, and how wrong."""

from itertools import cycle

import matplotlib.pyplot as plt

from lab.figures.registry import figure

__all__ = ["residuals", "speed_bars", "workload"]


def speed_bars(table, *, ax=None, title=None):
    """How many times faster each method is than the first, and how often it is wrong.

    Parameters
    ----------
    table : DataFrame
        One row for each method: `method`, `ratio` with its `low` and `high`, `missed` of `count` inputs, and `error`,
        the largest relative one. Methods that missed none are drawn full, the others hatched and pale.
    ax : matplotlib Axes, optional
        Where to draw.
    title : str, optional
        What was measured.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots(figsize=(7.5, 0.6 + 0.5 * len(table)))[1]
    rows = table.reset_index(drop=True)
    for place, row in rows.iterrows():
        look = {"color": "#f0c9a8", "hatch": "///", "edgecolor": "C1"} if row.missed else {"color": "C0"}
        ax.barh(
            place,
            row.ratio,
            xerr=[[row.ratio - row.low], [row.high - row.ratio]],
            height=0.62,
            error_kw={"ecolor": "#404040", "capsize": 2},
            **look,
        )
        said = f"{row.missed} of {row['count']} wrong" + (f", up to {row.error:.0e}" if row.missed else "")
        ax.annotate(said, (row.high, place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=9)
    ax.set(
        yticks=range(len(rows)),
        yticklabels=rows.method,
        title=title,
        xlim=(0, 1.45 * rows.high.max()),
        xlabel=f"times as fast as: {rows.method[0]}",
    )
    ax.grid(False, axis="y")
    ax.invert_yaxis()
    return ax


@figure(
    "solver-speed",
    page="77_solver_speed",
    tables=("bench-workload",),
    about="how fast each method is, and how often wrong",
)
def workload(table, layers=("mini:0", "mini:3", "twin:0", "twin:3")):
    """How many times as fast as the released procedure, with its tangent fed back, each method is.

    Parameters
    ----------
    table : DataFrame
        ``bench-workload``: columns layer, method, seconds, fastest, slowest, missed, count, error; the released
        procedure is its first method. What version 0.2 solved in two precisions is left out.
    layers : sequence of str
        Layers that are summed.

    Returns
    -------
    Figure
    """
    sums = {name: "sum" for name in ("seconds", "fastest", "slowest", "missed", "count")}
    table = table[table.layer.isin(layers) & ~table.method.str.contains("mixed")]
    bars = table.groupby("method", sort=False).agg(sums | {"error": "max"})
    base = bars.seconds.iloc[0]
    bars = bars.assign(ratio=base / bars.seconds, low=base / bars.slowest, high=base / bars.fastest)
    return speed_bars(bars.reset_index()).figure


def residuals(history, *, ax=None, title=None):
    """Relative error of solvers against products spent.

    Parameters
    ----------
    history : DataFrame
        Columns `method`, `products` and `error` (relative, positive).
    ax : matplotlib Axes, optional
        Where to draw.
    title : str, optional
        What is solved.

    Returns
    -------
    Axes
    """
    ax = ax or plt.subplots()[1]
    # markers and colours come round at different times, so that many methods still look different
    for (method, rows), marker in zip(history.groupby("method", sort=False), cycle("osD^vPX*"), strict=False):
        ax.plot(rows.products, rows.error, marker=marker, label=method)
    ax.set(yscale="log", xlabel="products with the Jacobian and its transpose", ylabel="relative error", title=title)
    ax.legend()
    return ax
