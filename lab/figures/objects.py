"""Pictures of tokens, attention, clusters, attacks, and atoms that separate.

Each function draws given numbers in the plane: the first two coordinates of the tokens, or those in a plane given by
the caller. Tokens are blue circles (C0), their moves are orange (C1), outputs are green squares (C2), attention is
grey.
"""

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns

from lab.figures.plane import (
    TEXT,
    arrow,
    few_enough,
    in_the_plane,
    named,
    numbers,
    probabilities,
    side_by_side,
    window,
    write,
)

__all__ = ["atoms", "attack", "attention_matrix", "clusters", "fan", "tokens_and_attention", "who_chooses"]

MOST, MOST_IN_A_LINE = 12, 24  # most tokens that can be distinguished in the plane, and on a line
FAINT = 0.02  # attention below this is not drawn
PUSHED = 26  # points left free between an attention arrow and a token that is pushed
GREY = "#b4b4b4"
BEFORE = {"color": "C0", "marker": "o"}
AFTER = {"color": "C1", "marker": "o"}
OUTPUT = {"color": "C2", "marker": "s"}


def _length(moves):
    return f"{np.linalg.norm(moves):.3g}"


def tokens_and_attention(x, attention, *, moved=None, outputs=None, labels=None, plane=None):
    """Tokens as points and attention as arrows, before and, if they are pushed, after.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Up to twelve tokens.
    attention : Attention or array_like, shape (n, n)
        One head, or its probabilities at x. An arrow goes from each token to those it attends to, with the probability
        as its width; probabilities below 0.02, and the attention of a token to itself, are not drawn.
    moved : array_like, shape (n, d), optional
        The tokens after a push. Adds arrows from x, and a second panel: the outputs and their moves, with x in light
        colour.
    outputs : pair of array_like, shape (n, m), optional
        The outputs at x and at `moved`, if `attention` is a matrix. A head computes them itself.
    labels : sequence of str, optional
        Names of the tokens.
    plane : array_like, shape (2, d), optional
        Rows that span the plane, for tokens and outputs. By default the first two coordinates.

    Returns
    -------
    Figure

    Raises
    ------
    ValueError
        The number of tokens is not from 1 to 12, `attention` has several heads, or outputs are needed and missing.
    """
    head = hasattr(attention, "probabilities")
    if head and moved is not None and outputs is None:
        outputs = attention(x), attention(moved)
    if head:
        attention = attention.probabilities(x)
        if len(attention) != 1:
            raise ValueError(f"one head is drawn at a time, and this attention has {len(attention)}.")
        attention = attention[0]
    start = in_the_plane(x, "x", plane)
    n = len(start)
    few_enough(n, MOST, "tokens_and_attention")
    P, names = probabilities(attention, n), named(labels, n)
    if moved is not None and outputs is None:
        raise ValueError("outputs are needed to draw a push: give a head of attention, or outputs=(before, after).")
    end = start if moved is None else in_the_plane(moved, "moved", plane, n=n)
    figure, axes = side_by_side(1 if moved is None else 2)
    shown = [start, end]
    if moved is not None:
        before, after = (in_the_plane(part, "outputs", plane, n=n) for part in outputs)
        shown += [before, after]
    window(axes, *shown)
    for i, j in zip(*np.nonzero(P > FAINT), strict=True):
        if i != j and not np.allclose(start[i], start[j]):
            look = {"color": GREY, "width": 0.4 + 2.6 * P[i, j], "bend": 0.18, "shrink": 7, "alpha": 0.7}
            ahead = 7 if np.allclose(start[j], end[j]) else PUSHED  # keep the head clear of the mark of a push
            arrow(axes[0], start[i], start[j], ahead=ahead, **look)
    if moved is None:
        axes[0].scatter(*start.T, s=70, zorder=4, **BEFORE)
        for at, name in zip(start, names, strict=True):
            write(axes[0], at, name)
        return figure
    axes[1].scatter(*start.T, s=70, zorder=1, alpha=0.2, linewidths=0, **BEFORE)
    _pushed(axes[0], start, end, names, f"input moves by {_length(end - start)}", BEFORE)
    _pushed(axes[1], before, after, named(labels, n, "f"), f"output moves by {_length(after - before)}", OUTPUT)
    return figure


def _pushed(ax, start, end, names, title, look):
    """Draw points, their positions after a push, and arrows between."""
    ax.scatter(*start.T, s=70, zorder=3, **look)
    gone = np.linalg.norm(end - start, axis=1) > 1e-9 * (1 + np.abs(start).max())
    for i, name in enumerate(names):
        if gone[i]:
            arrow(ax, start[i], end[i], color="C1", width=2.6, shrink=0)
        if name:
            write(ax, start[i], name, up=-8 if end[i, 1] > start[i, 1] and gone[i] else 8)
    ax.set_title(title, fontsize=TEXT, loc="center")


def attention_matrix(P, labels=None):
    """Attention as a matrix: row i is the attention of token i.

    Parameters
    ----------
    P : array_like, shape (n, n)
        Probabilities.
    labels : sequence of str, optional
        The tokens, for example words. At most 24 are written.

    Returns
    -------
    Figure

    Raises
    ------
    ValueError
        A row does not consist of probabilities, or the number of labels is not n.
    """
    P = probabilities(P)
    n = len(P)
    written = n <= MOST_IN_A_LINE
    names = named(labels, n) if written or labels is not None else []
    side = 3.6 if n <= 6 else 5.2
    figure, ax = plt.subplots(figsize=(side + 0.6, side))
    ticks = names if written else False
    entries = {"annot": True, "fmt": ".2f", "annot_kws": {"fontsize": TEXT}} if n <= 6 else {}
    bar = {"label": "attention", "shrink": 0.8}
    look = {"cmap": "Blues", "vmin": 0, "vmax": 1, "square": True, "cbar_kws": bar, "linewidths": 0.5 if written else 0}
    sns.heatmap(P, ax=ax, xticklabels=ticks, yticklabels=ticks, **look, **entries)
    ax.tick_params("x", rotation=60 if n > 6 else 0, labelsize=10, length=0)
    ax.tick_params("y", rotation=0, labelsize=10, length=0)
    ax.set(xlabel="attends to", ylabel="token")
    return figure


def _groups(start, by, scale, longest):
    """Groups of tokens that lie and move together: positions, mean moves, root mean squares of moves, counts."""
    groups, left = [], np.arange(len(start))
    while len(left):
        near = np.abs(start[left] - start[left[0]]).max(1) < 0.02 * scale
        alike = near & (np.linalg.norm(by[left] - by[left[0]], axis=1) <= 0.1 * longest)
        moves = by[left[alike]]
        size = np.sqrt((moves**2).sum(1).mean())
        groups.append((start[left[0]], moves.mean(0), size, int(alike.sum())))
        left = left[~alike]
    places, steps, sizes, counts = zip(*groups, strict=True)
    return np.array(places), np.array(steps), sizes, counts


def clusters(x, move, outputs=None, *, plane=None):
    """Groups of tokens, their sizes, and the direction that moves their outputs most.

    Tokens closer than a fiftieth of the picture that move alike are one mark with their count. All arrows of a figure
    have one scale, the longest a quarter of the window, and a label at each group tells how far one token of it
    moves.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens in up to twelve groups: two clusters, a fork, a star.
    move : array_like, shape (n, d)
        A displacement, for example the top right singular vector of the Jacobian, of length one.
    outputs : pair of array_like, shape (n, m), optional
        The outputs and their moves, for example J move. Drawn in a second panel, at the scale of the first.
    plane : array_like, shape (2, d), optional
        Rows that span the plane. By default the first two coordinates.

    Returns
    -------
    Figure

    Raises
    ------
    ValueError
        The number of groups is not from 1 to 12.
    """
    start = in_the_plane(x, "x", plane)
    n = len(start)
    parts = [(start, in_the_plane(move, "move", plane, n=n), BEFORE, "input moves by")]
    if outputs is not None:
        before, by = (in_the_plane(part, "outputs", plane, n=n) for part in outputs)
        parts.append((before, by, OUTPUT, "output moves by"))
    longest = max(np.linalg.norm(by, axis=1).max() for _, by, *_ in parts)
    span = np.ptp(np.concatenate([at for at, *_ in parts]), axis=0).max() or 1.0
    groups = [_groups(at, by, span, longest) for at, by, *_ in parts]
    for places, *_ in groups:
        if len(places) > MOST:
            raise ValueError(f"clusters draws 1 to {MOST} groups of equal tokens, got {len(places)}.")
    everything = np.concatenate([places for places, *_ in groups])
    unit = span / 4 / longest if longest > 0 else 0.0
    figure, axes = side_by_side(len(parts))
    window(axes, everything, *(places + unit * by for places, by, *_ in groups))
    for ax, group, (_, whole, look, title), thing in zip(axes, groups, parts, ("token", "output"), strict=False):
        _grouped(ax, group, look, thing, unit, longest)
        ax.set_title(f"{title} {_length(whole)}", fontsize=TEXT, loc="center")
    return figure


def _grouped(ax, group, look, thing, unit, longest):
    """Draw marks, with counts above and moves of a single token below; both on the far side of a steep arrow."""
    for at, step, size, count in zip(*group, strict=True):
        ax.scatter(*at, s=220 if count > 1 else 60, zorder=3, **look)
        far = np.linalg.norm(step) > 0.05 * longest
        if far:  # a shorter arrow would be a blot: only its length is written
            arrow(ax, at, at + unit * step, color="C1", width=2.2, shrink=0)
        upward, downward = (far and sign * step[1] > abs(step[0]) for sign in (1, -1))
        many = f"{count:,} {thing}{'s' * (count > 1)}".replace(",", "\u202f")
        write(ax, at, many, up=-11 if upward else 27 if downward else 11)
        length = f"{size:.2g}{' each' * (count > 1)}"
        write(ax, at, length, up=-27 if upward else 11 if downward else -11, color="#b34700")


def fan(weights, push, moves):
    """One token and the outputs that attend to it: one arrow in, many out.

    Parameters
    ----------
    weights : array_like, shape (m,)
        Attention of up to twelve others to the one token, as the width of a line.
    push : float
        Distance that the token moves: the arrow at it.
    moves : array_like, shape (m,)
        Distances that the outputs move: the arrows at the outputs, at the same scale.

    Returns
    -------
    Figure

    Raises
    ------
    ValueError
        The number of outputs is not from 1 to 12, or `moves` has the wrong shape.
    """
    weights = numbers(weights, "weights", (None,))
    few_enough(len(weights), MOST, "fan")
    moves = numbers(moves, "moves", (len(weights),))
    figure, ax = plt.subplots(figsize=(5.0, 3.4))
    lone, heights = np.array([0.0, 0.0]), np.linspace(1.6, -1.6, len(weights)) if len(weights) > 1 else np.zeros(1)
    outputs = np.stack([3.3 - 0.25 * heights**2, heights], axis=1)
    unit = np.array([0.9 / max(push, np.abs(moves).max()), 0.0])
    for at, weight, move in zip(outputs, weights, moves, strict=True):
        ax.plot(*np.stack([lone, at]).T, color=GREY, lw=0.4 + 2.2 * weight, zorder=1)
        arrow(ax, at, at + move * unit, color="C1", width=2.2, shrink=0)
    ax.scatter(*outputs.T, s=60, zorder=3, **OUTPUT)
    ax.scatter(*lone, s=110, zorder=3, **BEFORE)
    arrow(ax, lone, lone + push * unit, color="C1", width=3.0, shrink=0)
    write(ax, lone, f"one token\nmoves by {push:.2g}", up=22)
    total = np.linalg.norm(moves)
    title = f"each of {len(moves)} outputs moves by {np.abs(moves).mean():.3g}:\ntogether {total:.3g}"
    ax.annotate(title, (3.4, 1.95), ha="center", va="bottom", fontsize=TEXT)
    ax.set(xlim=(-0.9, 4.6), ylim=(-1.9, 2.7), xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    ax.grid(False)
    return figure


def who_chooses(P, labels=None):
    """Tokens on a line and arcs to those they attend to: to the left above it, to the right below.

    Parameters
    ----------
    P : array_like, shape (n, n)
        Probabilities, n up to 24. An arc has the probability as its width; below 0.02 it is not drawn. The attention of
        a token to itself is the area of its ring.
    labels : sequence of str, optional
        The tokens.

    Returns
    -------
    Figure

    Raises
    ------
    ValueError
        The number of tokens is not from 1 to 24; also as for `attention_matrix`.
    """
    P = probabilities(P)
    n = len(P)
    few_enough(n, MOST_IN_A_LINE, "who_chooses")
    names = named(labels, n)
    reach = max(1, max((abs(i - j) for i, j in zip(*np.nonzero(P > FAINT), strict=True)), default=1))
    forward = bool((np.triu(P, 1) > FAINT).any())
    figure, ax = plt.subplots(figsize=(6.0, 2.6 + 0.6 * forward))
    line = np.arange(n, dtype=float)
    for i, j in zip(*np.nonzero(P > FAINT), strict=True):
        if i != j:
            color = "C0" if j < i else "C1"
            arrow(ax, (i, 0), (j, 0), color=color, width=0.4 + 3.5 * P[i, j], bend=0.45, shrink=6, alpha=0.75)
    itself = np.diag(P)
    ax.scatter(line, 0 * line, s=30, color="black", zorder=4)
    own = itself > FAINT
    ax.scatter(line[own], 0 * line[own], s=40 + 700 * itself[own], facecolors="none", edgecolors="C2", linewidths=1.6)
    tall = 0.25 * reach + 0.6
    for at, name in zip(line, names, strict=True):
        turned = {"rotation": 60, "rotation_mode": "anchor", "ha": "right"} if labels is not None and n > 6 else {}
        place = {"textcoords": "offset points", "va": "top", "ha": "center", "fontsize": TEXT, "zorder": 5} | turned
        below = forward and labels is not None  # words would hide the arcs below the line
        halo = {} if below or not forward else {"bbox": {"facecolor": "white", "alpha": 0.85, "lw": 0, "pad": 0.8}}
        down = -4 if below else -18 if own.any() or not forward else -8
        ax.annotate(name, (at, -tall if below else 0), (0, down), **place, **halo)
    ax.set(xlim=(-0.7, n - 0.3), ylim=(-tall if forward else -0.55, tall), xticks=[], yticks=[])
    ax.text(0, 1, "attends to the left", transform=ax.transAxes, color="C0", fontsize=TEXT, va="top")
    if forward:
        ax.text(0, 0, "attends to the right", transform=ax.transAxes, color="C1", fontsize=TEXT, va="bottom")
    if own.any():
        ax.text(1, 1, "ring: itself", transform=ax.transAxes, color="C2", fontsize=TEXT, va="top", ha="right")
    ax.spines[:].set_visible(False)
    ax.grid(False)
    return figure


def attack(x, moves, labels=None, *, plane=None):
    """Moves of the tokens under an attack, in the plane and as lengths.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Up to 24 tokens.
    moves : array_like, shape (n, d)
        Displacements of the attack, drawn to scale.
    labels : sequence of str, optional
        The tokens; the four that move most are labelled at their points.
    plane : array_like, shape (2, d), optional
        Rows that span the plane of the left panel. By default the first two coordinates.

    Returns
    -------
    Figure
        The bars are the lengths of the moves in all coordinates, not only in the plane.

    Raises
    ------
    ValueError
        The number of tokens is not from 1 to 24.
    """
    start = in_the_plane(x, "x", plane)
    n = len(start)
    few_enough(n, MOST_IN_A_LINE, "attack")
    names = named(labels, n)
    by = in_the_plane(moves, "moves", plane, n=n)
    size = np.linalg.norm(numbers(moves, "moves", (n, None)), axis=1)
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.2, max(3.2, 0.24 * n + 0.8)), width_ratios=(1.2, 1))
    window([left], start, start + by)
    farthest = set(np.argsort(-size)[:4])
    _pushed(left, start, start + by, [name if i in farthest else "" for i, name in enumerate(names)], "", BEFORE)
    left.set_title("tokens and where they go", fontsize=TEXT, loc="center")
    sns.barplot(x=size, y=np.arange(n), orient="h", color="C1", ax=right)
    right.set_yticks(np.arange(n), names, fontsize=10)
    right.set(xlabel="size of its move", ylabel="")
    right.grid(False, axis="y")
    return figure


def atoms(before, after, weights, *, plane=None):
    """Atoms of a measure that move or split: areas are weights.

    Parameters
    ----------
    before, after : array_like, shape (m, d)
        Up to twelve pieces. Pieces at one position before are one atom; if their positions differ after, it has split.
    weights : array_like, shape (m,)
        Weights of the pieces, with sum one.
    plane : array_like, shape (2, d), optional
        Rows that span the plane. By default the first two coordinates.

    Returns
    -------
    Figure
        On a line, before above after; in the plane, both in one window.

    Raises
    ------
    ValueError
        The number of pieces is not from 1 to 12, or the weights are not positive with sum 1.
    """
    start = in_the_plane(before, "before", plane)
    m = len(start)
    few_enough(m, MOST, "atoms")
    end = in_the_plane(after, "after", plane, n=m)
    mass = numbers(weights, "weights", (m,))
    if (mass <= 0).any() or abs(mass.sum() - 1) > 1e-6:
        raise ValueError("weights must be positive and add up to 1.")
    flat = not (start[:, 1].any() or end[:, 1].any())
    span = np.ptp(np.concatenate([start, end])[:, 0]) or 1.0
    lift = np.array([0.0, 0.28 * span if flat else 0.0])
    figure, ax = plt.subplots(figsize=(5.4, 3.2))
    window([ax], start + lift, end - lift)
    rows = ((start + lift, BEFORE, "before"), (end - lift, AFTER, "after"))
    for points, look, name in rows:
        places, which = np.unique(np.round(points / span, 6), axis=0, return_inverse=True)
        total = np.bincount(which.ravel(), mass)
        ax.scatter(*(places * span).T, s=1800 * total, alpha=0.8, zorder=3, edgecolors="white", **look)
        for at, share in zip(places * span, total, strict=True):
            above = 4 + 0.5 * (1800 * share) ** 0.5
            write(ax, at, f"{share:.3g}", up=above if name == "before" else -above)
        if flat:
            ax.text(ax.get_xlim()[0], points[0, 1], name, color=look["color"], fontsize=TEXT, va="center")
    for at, to in zip(start + lift, end - lift, strict=True):
        if np.linalg.norm(to - at) > 1e-9 * span:
            arrow(ax, at, to, color=GREY, width=1.4, shrink=10)
    return figure
