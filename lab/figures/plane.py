"""Shared parts of the pictures in `objects`: points in the plane, arrows, a window, names, and validation."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import FancyArrowPatch

TEXT = 11  # points: legible even if the figure is as narrow as a phone


def numbers(values, what, shape):
    """Finite float64 numbers of a shape, in which None matches any length."""
    detached = values.detach() if hasattr(values, "detach") else values
    found = np.asarray(detached, dtype=float)
    if found.ndim != len(shape) or any(want not in (None, got) for want, got in zip(shape, found.shape, strict=True)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{what} must have shape ({wanted}), got {found.shape}.")
    if not np.isfinite(found).all():
        raise ValueError(f"{what} must be finite to be drawn.")
    return found


def in_the_plane(values, what, plane=None, *, n=None):
    """Points in the plane: two coordinates of each; one-dimensional points lie on the first axis."""
    found = numbers(values, what, (n, None))
    if plane is not None:
        return found @ numbers(plane, "plane", (2, found.shape[1])).T
    return np.pad(found, ((0, 0), (0, max(0, 2 - found.shape[1]))))[:, :2]


def few_enough(n, most, what):
    if not 1 <= n <= most:
        raise ValueError(f"{what} draws 1 to {most} tokens, got {n}: choose some of them.")


def named(labels, n, symbol="x"):
    if labels is None:
        return [f"${symbol}_{{{i + 1}}}$" for i in range(n)]
    if len(labels) != n:
        raise ValueError(f"{n} tokens need {n} labels, got {len(labels)}.")
    return [str(label) for label in labels]


def probabilities(P, n=None):
    """Attention as a matrix whose rows are probabilities."""
    P = numbers(P, "attention", (n, n))
    if P.shape[0] != P.shape[1]:
        raise ValueError(f"attention must be square, got {P.shape}.")
    if (P < -1e-9).any() or np.abs(P.sum(1) - 1).max() > 1e-6:
        raise ValueError("each row of attention must be probabilities that add up to 1.")
    return P


def arrow(ax, start, end, *, color, width=1.8, bend=0.0, shrink=5.0, alpha=1.0, ahead=None):
    """Draw an arrow with a gap of `shrink` points at both ends, or of `ahead` points before its head."""
    look = {"arrowstyle": "-|>", "color": color, "linewidth": width, "alpha": alpha}
    curve = f"arc3,rad={bend}"
    free = {"shrinkA": shrink, "shrinkB": shrink if ahead is None else ahead}
    head = {"mutation_scale": 7 + 2.5 * width, "connectionstyle": curve} | free
    ax.add_patch(FancyArrowPatch(start, end, zorder=2, **look, **head))


def window(axes, *groups):
    """Set the same window for all axes, around all groups with a margin, and not flatter than three to five."""
    everything = np.concatenate(groups)
    low, high = everything.min(0), everything.max(0)
    span = np.maximum(high - low, 0.6 * (high - low).max() or 1.0)
    middle = (low + high) / 2
    for ax in axes:
        ax.set(xlim=middle[0] + span[0] * np.array([-0.72, 0.72]), aspect="equal", xticks=[], yticks=[])
        ax.set(ylim=middle[1] + span[1] * np.array([-0.72, 0.72]))
        ax.spines[:].set_visible(False)
        ax.grid(False)
    return span.max()


def write(ax, at, text, *, up=8.0, right=0.0, color="black", size=TEXT):
    halo = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6}
    place = {"textcoords": "offset points", "ha": "center", "va": "bottom" if up >= 0 else "top"}
    ax.annotate(text, at, (right, up), fontsize=size, color=color, bbox=halo, zorder=5, **place)


def side_by_side(panels):
    """One panel or two side by side, narrow enough for a phone."""
    size = (5.8, 3.3) if panels == 2 else (4.2, 3.6)
    figure, axes = plt.subplots(1, panels, figsize=size, squeeze=False)
    return figure, list(axes[0])
