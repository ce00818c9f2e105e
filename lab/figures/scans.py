"""Figures of stored scans: one panel below the other, each curve named at its end.

Blue is the trained model, with its certified bound dashed; each bound in closed form has one colour in both panels, and
baselines are grey.
"""

import numpy as np

from lab.figures.registry import figure
from lab.figures.style import panels
from lipscan.scanning.figures import log_ticks

MODEL = "C0"
TITLES = "SmolLM2, a decoder, on Alice", "DINOv2, a vision transformer, on pictures"
BOUNDS = {  # key -> colour, marker, label
    "general": ("C1", "^", "Castin, Thm 3.3"),
    "spread": ("C4", "D", "Castin, C.3"),
    "yudin": ("C3", "v", "Yudin, Thm 3"),
    "rotary_upper": ("C2", "s", "Thm 3.3 for rotary"),
    "rotary_terms": ("C6", "P", "three terms, rotary"),
}
BASELINES = {"shuffled": ("0.35", "x", "shuffled text"), "random": ("0.55", "s", "random weights")}
CLOSE_TO = 128  # tokens
APART = 13  # points between two labels


def first(table):
    """Rows of the first window at about 128 tokens, one for each layer, with `low` and `high` over all windows."""
    rows = table[table.length == min(table.length.unique(), key=lambda n: abs(n - CLOSE_TO))]
    rows = rows[rows.passed].sort_values(["layer", "window"])
    of_layer = rows.groupby("layer").lipschitz
    rows = rows.assign(low=of_layer.transform("min"), high=of_layer.transform("max"))
    return rows.drop_duplicates("layer").reset_index(drop=True)


def _curves(ax, rows, curves, ylabel):
    """Draw curves by layer, logarithmic, each named on the right: label -> (values, colour, marker, style)."""
    for values, colour, marker, style in curves.values():
        ax.plot(rows.layer, values, style, color=colour, marker=marker, lw=1.4, ms=4)
    last = len(rows) - 1
    ax.set(yscale="log", xlabel="layer", ylabel=ylabel, xlim=(-0.03 * last, 1.45 * last))
    ax.set_xticks(rows.layer[:: 1 + len(rows) // 8])
    ax.margins(y=0.08)
    log_ticks(ax.yaxis, *ax.get_ylim())
    low, high = np.log(ax.get_ylim())
    room = APART * (high - low) / (72 * ax.figure.get_figheight() / len(ax.figure.axes) * 0.72)
    place = -np.inf
    for label, (values, colour, *_) in sorted(curves.items(), key=lambda one: one[1][0].iloc[-1]):
        place = max(place + room, np.log(values.iloc[-1]))
        ax.text(1.05 * last, np.exp(place), label, color=colour, va="center", fontsize=10)


@figure(
    "scan-layers",
    page="05_scan_your_model",
    tables=("scan-smollm2", "scan-dinov2-small"),
    about="constants of the layers of two models, with certified and closed-form bounds",
)
def layers(*tables):
    """The constant of each layer with its certified bound, and the bounds in closed form that apply."""
    axes = panels(1, rows=2, width=6.0, height=3.6)
    for ax, table, title in zip(axes, tables, TITLES, strict=True):
        rows = first(table)
        curves = {"measured constant": (rows.lipschitz, MODEL, "o", "-")}
        curves |= {"certified bound": (rows.certified, MODEL, "_", "--")}
        for key, (colour, marker, label) in BOUNDS.items():
            if f"log10_{key}" in rows:
                curves[label] = (10 ** rows[f"log10_{key}"], colour, marker, "-")
        ax.fill_between(rows.layer, rows.certified_lower, rows.certified, color=MODEL, alpha=0.15, lw=0)
        ax.vlines(rows.layer, rows.low, rows.high, color=MODEL)
        _curves(ax, rows, curves, "constant, or bound on it")
        ax.set_title(title)
    return axes[0].figure


@figure(
    "scan-baselines",
    page="05_scan_your_model",
    tables=("scan-smollm2", "scan-dinov2-small"),
    about="constants of the layers of two models against random weights and shuffled text",
)
def baselines(*tables):
    """The constant of each layer, of random weights of its shape and, for text, of the same tokens in random order."""
    axes = panels(1, rows=2, width=6.0, height=2.6)
    for ax, table, title in zip(axes, tables, TITLES, strict=True):
        rows = first(table)
        curves = {"trained weights": (rows.lipschitz, MODEL, "o", "-")}
        for key, (colour, marker, label) in BASELINES.items():
            if key in rows and rows[key].notna().any():
                curves[label] = (rows[key], colour, marker, "-")
        _curves(ax, rows, curves, "local Lipschitz constant")
        ax.set_title(title)
    return axes[0].figure
