"""The book's movable figures: two clusters, defined or released quantity, growth by model and layer, even forks."""

import matplotlib.pyplot as plt
import numpy as np
from bokeh.models import Arrow, NormalHead

from lab.figures.sliders import BLACK, BLUE, GREEN, ORANGE, Control, Feed, Movable, axes, rounded, source, tidy
from lab.statistics.growth import slope
from lab.statistics.power_laws import one_series, power_law
from lipscan.scanning.figures import log_ticks

__all__ = ["even_forks", "growth", "released", "two_clusters"]

DECADES = [1, 10, 100, 1000, 10_000, 100_000]
PLACES = ("lonely", "cluster", "cluster_out", "lonely_out")  # the marks of two clusters
MOVES = ("moves", "each moves", "each moves", "moves")
ROWS = [1, 1, 0.1, -0.75]  # heights of the marks
SHARES = {"x": [0.0] * 2, "y": [-0.28, -0.44]}  # places of the sentences about attention
SHORT = 0.08  # a move too short for an arrow
TICKS = [1, 2, 5, 10, 20, 50, 100]
LONG_TICKS = [8, 32, 128, 512, 2048]
WORDS = {"defined": "constant", "released": "reported"}


def _apart(values, factor):
    """Heights for labels on a logarithmic axis, moved up if two would overlap."""
    placed = {}
    for name, value in sorted(values.items(), key=lambda item: item[1]):
        placed[name] = max([value, *(height * factor for height in placed.values())])
    return [placed[name] for name in values]


def _exact(value):
    """An integer in full, with thin spaces."""
    return f"{int(value):,}".replace(",", "\u202f")


def _signed(value, digits=3):
    """A number with a typographic minus, but no sign before zero."""
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")


def two_clusters(table, *, start=(None, None)):
    """One token against n - 1 others: the input, its effect on the outputs, and the constant against its bound.

    Parameters
    ----------
    table : DataFrame
        From `lab.experiments.moving.two_clusters`: all n at all R.
    start : pair of float, optional
        The initial n and R, or the nearest in the table; 115 and 1.5 by default.

    Returns
    -------
    Movable
        Controls n and R. Data sources: tokens, curves, now, ends.
    """
    n, R = sorted(set(table.n)), sorted(set(table.R))
    if len(table) != len(n) * len(R):
        raise ValueError(f"every n is needed at every R, {len(n) * len(R)} rows, got {len(table)}.")
    at = [
        int(np.abs(np.asarray(all_) - (one or usual)).argmin())
        for all_, one, usual in zip((n, R), start, (115, 1.5), strict=True)
    ]
    rows = table.set_index(["n", "R"]).sort_index()
    each = [[rows.loc[m, r] for r in R] for m in n]
    curves = [rows.xs(r, level="R") for r in R]
    tokens = Feed("tokens", ("n", "R"), [[_tokens(row) for row in line] for line in each])
    drawn = Feed("curves", ("R",), [{"constant": rounded(c.constant), "bound": rounded(c.bound)} for c in curves])
    now = [
        [{"n": [m] * 2, "y": rounded((row.constant, row.bound))} for row in line]
        for m, line in zip(n, each, strict=True)
    ]
    says = [
        [_two_clusters_says(m, r, row) for r, row in zip(R, line, strict=True)] for m, line in zip(n, each, strict=True)
    ]
    ends = [
        _apart({"bound": c.bound.iloc[-1], "root": n[-1] ** 0.5, "constant": c.constant.iloc[-1]}, 2.2) for c in curves
    ]
    arrows = Feed("arrows", ("n", "R"), [[_arrows(row) for row in line] for line in each])
    feeds = [
        tokens,
        arrows,
        drawn,
        Feed("now", ("n", "R"), now),
        Feed("ends", ("R",), [{"y": rounded(y)} for y in ends]),
    ]
    feeds.append(Feed("says", ("n", "R"), says))
    first = [feed.frames[at[0]][at[1]] for feed in (tokens, arrows)]
    static = {"y": ROWS, "look": ["circle"] * 2 + ["square"] * 2, "color": [BLUE] * 2 + [GREEN] * 2}
    marks = source("tokens", static | {"size": [11, 20, 18, 9]} | first[0])
    left = _line_of_tokens(marks, source("arrows", first[1]), 1.05 * _reach(table))
    both = source("curves", {"n": n, "root": rounded(np.sqrt(n))} | drawn.frames[at[1]])
    top = 1.6 * table.bound.max()
    right = axes(
        "number of tokens n",
        "",
        xticks=DECADES[1::2],
        yticks=DECADES,
        x_range=(n[0] / 1.3, n[-1] * 40),
        y_range=(0.6, top),
    )
    right.line("n", "bound", source=both, line_color=ORANGE, line_width=2, line_dash="dashed")
    right.line("n", "root", source=both, line_color=BLACK, line_width=1.5, line_dash="dotted")
    right.line("n", "constant", source=both, line_color=BLUE, line_width=3)
    marks = {"marker": ["circle", "diamond"], "color": [BLUE, ORANGE]}
    look = {"marker": "marker", "color": "color", "size": 12, "line_color": "white"}
    right.scatter("n", "y", source=source("now", marks | now[at[0]][at[1]]), **look)
    names = {"text": ["bound", "√n", "constant"], "color": [ORANGE, BLACK, BLUE], "n": [1.25 * n[-1]] * 3}
    written = {"text_color": "color", "text_font_size": "13px", "text_baseline": "middle"}
    right.text("n", "y", "text", source=source("ends", names | feeds[4].frames[at[1]]), **written)
    controls = [
        Control("n", "number of tokens n =", [_exact(m) for m in n], at[0]),
        Control("R", "radius R =", [tidy(r) for r in R], at[1]),
    ]
    alt = (
        "Left: one token at -R and n - 1 tokens at R, and their outputs below. Right, on log-log axes, for R = "
        f"{tidy(R[at[1]])}: the local constant rises with n and then falls, below the bound of Theorem 3.3."
    )
    still = _two_clusters_still(each[at[0]][at[1]], curves[at[1]], n, n[at[0]], R[at[1]])
    return Movable("two-clusters", [left, right], controls, feeds, still, alt)


def _reach(table):
    """Largest distance of a mark from the middle."""
    return max((table[name] + by * table[f"{name}_move"]).abs().max() for name in PLACES for by in (0, 1)) + 0.4


def _tokens(row):
    """The four marks of the left plot: positions, counts and lengths of the moves."""
    others = _exact(row.name[0] - 1)
    count = ["1 token", f"{others} tokens", f"their {others} outputs", "its output"]
    each = [f"{word} {abs(row[f'{name}_move']):.2g}" for word, name in zip(MOVES, PLACES, strict=True)]
    return {"x": rounded([row[name] for name in PLACES]), "count": count, "each": each}


def _arrows(row):
    """End points of the moves that are long enough to be seen."""
    far = [(name, y) for name, y in zip(PLACES, ROWS, strict=True) if abs(row[f"{name}_move"]) > SHORT]
    start, by = [row[name] for name, _ in far], [row[f"{name}_move"] for name, _ in far]
    return {"x": rounded(start), "end": rounded(np.add(start, by)), "y": [y for _, y in far]}


def _two_clusters_says(n, R, row):
    return (
        f"n = {_exact(n)}, R = {tidy(R)}: the local constant is {tidy(row.constant)}, the bound of Theorem 3.3 is "
        f"{tidy(row.bound)}, and √n is {tidy(row.root)}. Each of the {_exact(n - 1)} tokens on the right gives the one "
        f"on the left {100 * row.attention:.2g} % of its attention."
    )


def _line_of_tokens(marks, arrows, reach):
    """Plot with tokens above and outputs below; an arrow is the move of each when the whole input moves by one."""
    plot = axes("", "", log=False, x_range=(-reach, reach), y_range=(-1.3, 1.7))
    plot.axis.visible = False
    plot.grid.visible = False
    plot.scatter("x", "y", source=marks, marker="look", color="color", size="size")
    head = NormalHead(size=9, fill_color=ORANGE, line_color=ORANGE)
    ends = {"x_start": "x", "y_start": "y", "x_end": "end", "y_end": "y"}
    plot.add_layout(Arrow(end=head, source=arrows, line_color=ORANGE, line_width=2.5, **ends))
    written = {"source": marks, "text_align": "center", "text_font_size": "13px"}
    plot.text("x", "y", "count", y_offset=-12, **written)
    plot.text("x", "y", "each", y_offset=26, text_color="#b34700", **written)
    heads = {"text_font_size": "13px", "text_color": "#404040", "text_font_style": "italic"}
    plot.text([-reach], [1.52], ["tokens, pushed by 1 in all"], **heads)
    plot.text([-reach], [0.46], ["outputs"], **heads)
    return plot


def _two_clusters_still(row, curve, all_n, n, R):
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 3.3))
    shown, arrows = _tokens(row), _arrows(row)
    looks = (("C0", "o", 60), ("C0", "o", 200), ("C2", "s", 180), ("C2", "s", 50))
    for i, (color, marker, size) in enumerate(looks):
        at, text = (shown["x"][i], ROWS[i]), {"textcoords": "offset points", "ha": "center", "fontsize": 10}
        left.scatter(*at, s=size, color=color, marker=marker, zorder=3)
        left.annotate(shown["count"][i], at, (0, 11), **text)
        left.annotate(shown["each"][i], at, (0, -20), color="#b34700", **text)
    for start, end, y in zip(arrows["x"], arrows["end"], arrows["y"], strict=True):
        left.annotate("", (end, y), (start, y), arrowprops={"arrowstyle": "-|>", "color": "C1", "lw": 2})
    left.set(ylim=(-1.3, 1.6), xlim=(-2.2 * R, 2.2 * R))
    left.axis("off")
    right.plot(all_n, curve.bound, "--", color="C1", label="bound (Theorem 3.3)")
    right.plot(all_n, np.sqrt(all_n), ":", color="C6", label=r"$\sqrt{n}$")
    right.plot(all_n, curve.constant, color="C0", lw=2.4, label="local constant")
    right.plot(n, row.constant, "o", color="C0", ms=8)
    right.plot(n, row.bound, "D", color="C1", ms=7)
    right.set(xscale="log", yscale="log", xlabel="number of tokens n", title=f"n = {n}, R = {R:g}")
    right.legend(loc="upper left", fontsize=9)
    return figure


def released(table):
    """The constant as defined and the value that the released estimator reports, from uniform to sharp attention.

    Parameters
    ----------
    table : DataFrame
        From `lab.experiments.moving.from_uniform_to_sharp`.

    Returns
    -------
    Movable
        One control, the logit range. Data sources: points, laws, now. In text and labels "defined" is the constant,
        "released" the value that the code reports.
    """
    t = sorted(set(table.logit_range))
    rows = [table[table.logit_range == one].sort_values(["n", "draw"]) for one in t]
    names = ("defined", "released")
    fits = [{name: power_law(r.n, r[name], clusters=(r.draw, r.n)) for name in names} for r in rows]
    n = sorted(set(table.n))
    span = [n[0], n[-1]]
    frames = [{name: rounded(r[name]) for name in names} | {"n": [*map(int, r.n)]} for r in rows]
    laws = [{"n": span} | {name: rounded(fit[name](span)) for name in names} for fit in fits]
    now = [{"t": [place] * 2, "y": rounded([fit[name].exponent for name in names])} for place, fit in enumerate(fits)]
    says = [_released_says(one, r, fit) for one, r, fit in zip(t, rows, fits, strict=True)]
    feeds = [
        Feed("points", ("t",), frames),
        Feed("laws", ("t",), laws),
        Feed("now", ("t",), now),
        Feed("says", ("t",), says),
    ]
    values = table[[*names]].to_numpy()
    left = axes(
        "number of tokens n",
        "",
        xticks=n,
        yticks=TICKS,
        x_range=(n[0] / 1.3, n[-1] * 1.3),
        y_range=(0.8 * values.min(), 1.3 * values.max()),
    )
    dots, lines = source("points", frames[0]), source("laws", laws[0])
    for name, color, marker in (("defined", BLUE, "circle"), ("released", ORANGE, "square")):
        left.line("n", name, source=lines, line_color=color, line_width=2)
        left.scatter("n", name, source=dots, marker=marker, size=7, color=color, alpha=0.3)
    for name, color, mark, place in (("defined", BLUE, "●", 0.95), ("released", ORANGE, "■", 0.78)):
        at = {"x": [n[0] / 1.2], "y": [place * 1.3 * values.max()], "text": [f"{mark} {WORDS[name]}"]}
        left.text(**at, text_color=color, text_font_size="13px", text_baseline="top")
    right = axes(
        "logit range, uniform to sharp",
        "exponent of n",
        xticks=[*range(len(t))],
        yticks=[0, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6],
        log=False,
        x_range=(-0.4, len(t) - 0.6),
        y_range=(-0.05, 0.62),
    )
    right.xaxis[0].major_label_overrides = {place: tidy(one) for place, one in enumerate(t)}
    right.line([-0.4, len(t) - 0.6], [0.25, 0.25], line_color=BLACK, line_dash="dotted", line_width=1.5)
    places = [*range(len(t))]
    for name, color, marker in (("defined", BLUE, "circle"), ("released", ORANGE, "square")):
        y = rounded([fit[name].exponent for fit in fits])
        right.line(places, y, line_color=color, line_width=1.5)
        right.scatter(places, y, marker=marker, size=6, color=color)
        low, high = (rounded(getattr(fit[name], end) for fit in fits) for end in ("low", "high"))
        right.segment(places, low, places, high, line_color=color, line_width=1.5)
        right.text([0.1], [y[0] + 0.02], [WORDS[name]], text_color=color, text_font_size="13px")
    marks = source("now", {"marker": ["circle", "square"], "color": [BLUE, ORANGE]} | now[0])
    right.scatter("t", "y", source=marks, marker="marker", color="color", size=14, line_color="black")
    control = Control("t", "logit range t =", [f"{tidy(one)}{' (uniform)' * (one == 0)}" for one in t])
    alt = (
        "Left: at uniform attention the constant as defined is level in the number of tokens, and the released "
        "quantity rises like the fourth root of n. Right: fitted exponents of both for a rising logit range."
    )
    still = _released_still(rows[0], fits, names, t, span)
    return Movable("released", [left, right], [control], feeds, still, alt)


def _released_says(t, rows, fit):
    largest = rows[rows.n == rows.n.max()].largest.mean()
    parts = (
        f"{WORDS[name]} {_signed(law.exponent, 2)} [{_signed(law.low, 2)}, {_signed(law.high, 2)}]"
        for name, law in fit.items()
    )
    low, high = rows.n.min(), rows.n.max()
    return (
        f"Logit range {tidy(t)}: exponents {', '.join(parts)} over n = {low} to {high} and "
        f"{rows.draw.nunique()} draws, with 95 % intervals. "
        f"At n = {high} the largest attention that a token gives is {tidy(largest)} on average."
    )


def _released_still(rows, fits, names, t, span):
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 3.1))
    for name, color, marker in zip(names, ("C0", "C1"), "os", strict=True):
        left.scatter(rows.n, rows[name], s=22, color=color, marker=marker, alpha=0.3)
        said = f"{WORDS[name]}, exponent {abs(fits[0][name].exponent):.2f}"
        left.plot(span, fits[0][name](span), color=color, label=said)
        middle = [fit[name].exponent for fit in fits]
        ends = [[abs(getattr(fit[name], end) - fit[name].exponent) for fit in fits] for end in ("low", "high")]
        right.errorbar(range(len(fits)), middle, ends, color=color, marker=marker, label=WORDS[name])
    right.axhline(0.25, color="C6", ls=":")
    left.set(xscale="log", yscale="log", xlabel="number of tokens n", title="uniform attention")
    left.set_xticks(sorted(set(rows.n)), sorted(set(rows.n)))
    left.set_yticks([0.5, 1, 2, 5], [0.5, 1, 2, 5])
    left.minorticks_off()
    left.legend(fontsize=9)
    right.set(xlabel="logit range", ylabel="exponent of n")
    right.set_xticks(range(len(t)), [f"{one:g}" for one in t])
    right.legend(fontsize=9)
    return figure


def growth(table):
    """Constants of one layer against the number of tokens, with the fitted slope; the reader chooses model and layer.

    Parameters
    ----------
    table : DataFrame
        Rows of the growth atlas on one text for each map, from `lab.statistics.layer_growth.named`: columns map, layer,
        length, window, lipschitz and those of `lab.statistics.power_laws.SERIES`.

    Returns
    -------
    Movable
        Controls model and layer. Data sources: points, law.
    """
    maps = [*dict.fromkeys(table["map"])]
    layers = [sorted(set(table[table["map"] == name].layer)) for name in maps]
    points, laws, says = [], [], []
    for name, numbers in zip(maps, layers, strict=True):
        chosen = [table[(table["map"] == name) & (table.layer == layer)].sort_values("length") for layer in numbers]
        fits = [slope(one_series(one, "a curve of the movable figure")) for one in chosen]
        points.append([{"n": [*map(int, one.length)], "y": rounded(one.lipschitz, 3)} for one in chosen])
        laws.append([_law(one, fit) for one, fit in zip(chosen, fits, strict=True)])
        said = zip(numbers, chosen, fits, strict=True)
        says.append([_growth_says(name, layer, one, fit) for layer, one, fit in said])
    by = ("model", "layer")
    feeds = [Feed("points", by, points), Feed("law", by, laws), Feed("says", by, says)]
    low, top = table.lipschitz.min(), table.lipschitz.max()
    ticks = [10.0**power for power in range(-3, 7)]
    plot = axes(
        "number of tokens n",
        "local Lipschitz constant",
        xticks=LONG_TICKS,
        yticks=[tick for tick in ticks if low / 1.2 < tick < 1.2 * top],
        x_range=(table.length.min() / 1.15, table.length.max() * 1.15),
        y_range=(low / 1.2, 1.2 * top),
        height=360,
    )
    plot.scatter("n", "y", source=source("points", points[0][0]), size=6, color=BLUE, alpha=0.55)
    plot.line("n", "y", source=source("law", laws[0][0]), line_color=ORANGE, line_width=2.5)
    controls = [
        Control("model", "model", maps, choice=True),
        Control("layer", "layer", [[*map(str, numbers)] for numbers in layers], under="model"),
    ]
    alt = (
        f"Local Lipschitz constant of {maps[0]}, layer {layers[0][0]}, against the number of tokens: a dot for each "
        "window, and the line of the fitted slope."
    )
    return Movable("growth", [plot], controls, feeds, _growth_still(points[0][0], laws[0][0], says[0][0]), alt)


def _law(rows, fit):
    """End points of the fitted line through the mean of the logarithms, with equal weights for all lengths."""
    means = np.log2(rows.lipschitz).groupby(rows.length).mean()
    n = np.array([means.index.min(), means.index.max()])
    y = 2.0 ** (means.mean() + fit.slope * (np.log2(n) - np.log2(means.index.to_numpy(dtype=float)).mean()))
    return {"n": [*map(int, n)], "y": rounded(y)}


def _growth_says(name, layer, rows, fit):
    curve = "not told from a power law" if fit.curve == "power law" else fit.curve
    return (
        f"{name}, layer {layer}: slope {_signed(fit.slope, 2)}, 95 % interval {_signed(fit.interval[0], 2)} to "
        f"{_signed(fit.interval[1], 2)}; {curve}, over n = {rows.length.min()} to {rows.length.max()} "
        f"({len(rows)} windows)."
    )


def _growth_still(points, law, says):
    figure, ax = plt.subplots(figsize=(5.6, 3.6))
    ax.scatter(points["n"], points["y"], s=10, color="C0", alpha=0.5)
    ax.plot(law["n"], law["y"], color="C1", lw=2.4)
    ax.set(xscale="log", yscale="log", xlabel="number of tokens n", ylabel="local Lipschitz constant")
    ax.set_title(says.partition(";")[0].replace(", 95 %", ",\n95 %"), fontsize=10.5)
    for axis, values in ((ax.xaxis, points["n"]), (ax.yaxis, points["y"])):
        log_ticks(axis, min(values), max(values))
    return figure


def even_forks(table):
    """Even forks in the plane of w and f, and their constant over the exact bound as the bulk moves along f.

    Parameters
    ----------
    table : DataFrame
        From `lab.experiments.moving.even_forks`: all n at all t and all b.

    Returns
    -------
    Movable
        Controls n, t and b. Data sources: places, shares, curve, now.
    """
    n, t, b = (sorted(set(table[name])) for name in ("n", "t", "b"))
    if len(table) != len(n) * len(t) * len(b):
        raise ValueError(f"every b is needed at every n and t, {len(n) * len(t) * len(b)} rows, got {len(table)}.")
    rows = table.assign(ratio=table.constant / table.bound).set_index(["n", "t", "b"]).sort_index()
    each = [[[rows.loc[m, one, by] for by in b] for one in t] for m in n]
    at = [len(n) - 1, int(np.abs(np.log(t) - np.log(100)).argmin())]
    at.append(int(rows.loc[n[at[0]], t[at[1]]].ratio.argmax()))
    tokens = Feed("places", ("b",), [_even_fork(by) for by in b])
    shares = Feed("shares", ("n", "t", "b"), [[[_shares(row) for row in line] for line in part] for part in each])
    curve = Feed(
        "curve", ("n", "t"), [[{"ratio": rounded([row.ratio for row in line])} for line in part] for part in each]
    )
    now = [[[{"b": [float(by)], "y": rounded([row.ratio])} for by, row in zip(b, line, strict=True)] for line in part]
           for part in each]  # fmt: skip
    says = [[[_even_forks_says(*row.name, row) for row in line] for line in part] for part in each]
    feeds = [tokens, shares, curve, Feed("now", ("n", "t", "b"), now), Feed("says", ("n", "t", "b"), says)]
    first = [feeds[0].frames[at[2]], shares.frames[at[0]][at[1]][at[2]]]
    left = _even_forks_tokens(
        source("places", {"color": [BLUE] * 2 + [GREEN]} | first[0]), source("shares", first[1] | SHARES)
    )
    right = axes(
        "b, how far the others are along f", "constant over the exact bound",
        xticks=[0.01, 0.03, 0.1, 0.3, 1], yticks=[0.2, 0.4, 0.6, 0.8, 1], x_axis_type="log", log=False,
        x_range=(b[0] / 1.2, 1.2), y_range=(0, 1.08),
    )  # fmt: skip
    right.line([b[0] / 1.2, 1.2], [1, 1], line_color=BLACK, line_dash="dotted", line_width=1.5)
    lines = source("curve", {"b": [*map(float, b)]} | curve.frames[at[0]][at[1]])
    right.line("b", "ratio", source=lines, line_color=BLUE, line_width=3)
    right.scatter("b", "y", source=source("now", now[at[0]][at[1]][at[2]]), size=12, color=BLUE, line_color="white")
    controls = [
        Control("n", "number of tokens n =", [_exact(m) for m in n], at[0]),
        Control("t", "logit range t =", [tidy(one) for one in t], at[1]),
        Control("b", "component b =", [tidy(by) for by in b], at[2]),
    ]
    alt = (
        "Left: two tokens at opposite ends of the horizontal axis w, slightly raised along f, and the others above the "
        "right one, with the attention that they give. Right: the constant over the bound against b, with one peak."
    )
    chosen = each[at[0]][at[1]]
    return Movable("even-forks", [left, right], controls, feeds, _even_forks_still(chosen, at[2]), alt)


def _even_fork(b):
    """The three places of an even fork."""
    up = [b / 4, b / 4, b]
    side = [sign * (1 - y * y) ** 0.5 for sign, y in zip((1, -1, 1), up, strict=True)]
    return {"x": rounded(side), "y": rounded(up)}


def _percent(share):
    return f"{100 * share:.3g} %"


def _shares(row):
    """What each of the others, and each prong, gives to one prong."""
    said = (("each of the others", row.others), ("each prong", row.prongs))
    return {"text": [f"{who} gives each prong {_percent(share)}" for who, share in said]}


def _even_forks_says(n, t, b, row):
    return (
        f"n = {_exact(n)}, t = {tidy(t)}, b = {tidy(b)}: the constant is {tidy(row.constant)}, {tidy(row.ratio, 4)} of "
        f"the exact bound."
    )


def _even_forks_tokens(tokens, shares):
    """Plot of the plane of w and f."""
    plot = axes(
        "along w",
        "along f",
        log=False,
        xticks=[-1, 0, 1],
        yticks=[0, 0.5, 1],
        x_range=(-1.3, 1.3),
        y_range=(-0.55, 1.2),
    )
    angle = np.linspace(0, np.pi, 60)
    plot.line(np.cos(angle), np.sin(angle), line_color="#b4b4b4")
    plot.scatter("x", "y", source=tokens, color="color", size=13, line_color="white")
    written = {"text_align": "center", "text_font_size": "13px", "text_baseline": "middle"}
    plot.text("x", "y", "text", source=shares, **written)
    for y, word, color in ((0.6, "● prongs", BLUE), (0.44, "● the others", GREEN)):
        plot.text([0.0], [y], [word], text_color=color, **written)
    return plot


def _even_forks_still(rows, place):
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 3.1))
    n, t, b = rows[place].name
    angle, at = np.linspace(0, np.pi, 60), _even_fork(b)
    left.plot(np.cos(angle), np.sin(angle), color="#b4b4b4", lw=1)
    left.scatter(at["x"][:2], at["y"][:2], s=55, color="C0", zorder=3, label="prongs")
    left.scatter(at["x"][2:], at["y"][2:], s=55, color="C2", zorder=3, marker="s", label=f"{int(n) - 2} others")
    for y, text in zip((-0.22, -0.4), _shares(rows[place])["text"], strict=True):
        left.text(0, y, text, ha="center", va="center", fontsize=9)
    left.set(xlabel="along w", ylabel="along f", xlim=(-1.3, 1.3), ylim=(-0.55, 1.25), xticks=[-1, 0, 1], yticks=[0, 1])
    left.legend(fontsize=9, loc="center", bbox_to_anchor=(0.45, 0.5))
    right.plot([row.name[2] for row in rows], [row.ratio for row in rows], color="C0", lw=2.4)
    right.plot(b, rows[place].ratio, "o", color="C0", ms=8)
    right.axhline(1, color="C6", ls=":")
    right.set(
        xscale="log",
        xlabel="b",
        ylabel="constant over the exact bound",
        title=f"n = {int(n)}, t = {t:g}",
        ylim=(0, 1.08),
    )
    right.set_xticks([0.01, 0.1, 1], [0.01, 0.1, 1])
    return figure
