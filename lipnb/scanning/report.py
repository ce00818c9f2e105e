"""A scan as one HTML file that opens offline: plots, tables, and words on how to read them."""

import os
from pathlib import Path

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from lipnb import corpora, recording
from lipnb.scanning import figures
from lipnb.scanning.catalogue import SCANNED, SOURCES
from lipnb.scanning.columns import COLUMNS
from lipnb.scanning.comparing import Comparison, compared
from lipnb.scanning.folder import Scan
from lipnb.scanning.gaps import as_sentences
from lipnb.scanning.summary import ENDS, TITLES, measured, range_of, rounded_up, skipped, times
from lipnb.scanning.verdict import NUMBER, PAGES, as_written, figures_of, roughest, verdicts

__all__ = ["PLOTTED", "html", "write"]

HERE = Path(__file__).parent
MOST = 12  # heads in the table of the report; all are in heads.csv
PLOTTED = ("yudin", "spread", "general", "rotary_terms", "rotary_upper")  # those of measures are too far away
SOME = ("over_random", "over_shuffled", "column", "relative")  # columns that not every scan has
OBJECTS = {
    "heads+output": "multi-head attention with its output projection",
    "heads": "the concatenated heads, before the output projection",
    "block": "the attention sub-layer with its residual connection and norm",
}
ROUTES = {
    "dense": "the dense Jacobian",
    "cached": "closed-form products with the Jacobian",
    "streamed": "closed-form products, row by row",
    "autodiff": "automatic differentiation",
}


def html(found: Scan, against: Comparison | None = None) -> str:
    """The report of a scan.

    Parameters
    ----------
    found : lipnb.scanning.Scan
        From `lipnb.scan` or `lipnb.scanning.load`.
    against : Comparison, optional
        With another scan, of which this one is the first: a section of its own, with a plot and a table.

    Returns
    -------
    str
        A whole HTML document that asks for nothing outside itself. Names and texts in it are escaped.
    """
    summary, settings = found.summary, found.about["settings"]
    said, good = verdicts(found), measured(summary)
    named = {page for finding in said for page in finding.pages}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "figures": figures_of,
        "linked": _linked,
        "number": _number,
        "times": times,
        "small": _small,
        "short": _short,
        "up": rounded_up,
    }
    there = [key for key in TITLES if f"over_{key}" in summary]
    routes = sorted(
        {part for route in summary.get("route", pd.Series(dtype=str)).dropna() for part in route.split(" + ")}
    )
    return environment.get_template("report.html").render(
        settings=settings,
        about=found.about,
        object=OBJECTS[settings["object"]],
        rows=summary.astype(object).where(summary.notna(), None).to_dict("records"),
        there=there,
        titles=TITLES,
        catalogue=[(bound, _range(summary, bound.column)) for bound in SCANNED if bound.column in there],
        inapplicable=_inapplicable(settings, there),
        known={name for name in SOME if name in summary and summary[name].notna().any()},
        against=against,
        compared=[] if against is None else compared(against.table),
        versus=None if against is None else _versus(against),
        routes=[(route, ROUTES.get(route, route)) for route in routes],
        plots=_plots(summary) + _close_plots(found),
        heads=found.heads.sort_values("lipschitz", ascending=False).head(MOST).to_dict("records"),
        tokens=_most_moving(found.tokens),
        whole=found.whole.astype(object).where(found.whole.notna(), None).to_dict("records"),
        columns=COLUMNS,
        verdicts=said,
        gaps=as_sentences(found.gaps),
        pages={page: title for page, title in PAGES.items() if page in named},
        ends=ENDS,
        top=roughest(good) if len(good) else None,
        skipped=skipped(found.about, summary),
        passed=int(summary.passed.sum()),
        certified="certified" in summary and bool(summary.certified.notna().any()),
        text=_described(settings),
        sources=SOURCES,
        vacuous=[TITLES[key] for key in there if summary[f"over_{key}"].mean() > 3],
    )


def write(found: Scan, path: str | os.PathLike, against: Comparison | None = None) -> Path:
    """Write the report to a file in one step, ``report.html`` of a folder that exists; gives its path."""
    path = Path(path)
    path = path / "report.html" if path.is_dir() else path
    with recording.kept(path):
        recording.write(path, html(found, against))
    return path


def _plots(summary):
    """Plots as SVG, each with a caption."""
    good, plots = measured(summary), []
    if good.empty:
        return plots
    for length, rows in good.groupby("length"):
        drawn = figures.in_report(figures.layers, rows, {key: TITLES[key] for key in PLOTTED}, title=f"{length} tokens")
        plots.append(
            (
                Markup(drawn),
                f"Every layer at {length} tokens: the measured constant with its range over windows"
                f"{', and upper bounds on it' if _bounded(rows) else ''}, logarithmic scale.",
            )
        )
    if good.length.nunique() > 1:
        plots.append(
            (
                Markup(figures.in_report(figures.growth, good)),
                "How the constant grows with the number of tokens, layer by layer.",
            )
        )
    longest = good[good.length == good.length.max()]
    plots.append(
        (
            Markup(figures.in_report(figures.radii, longest)),
            f"Norms of the tokens that each layer receives, at {good.length.max()} tokens: bounds on a ball grow "
            "with the square of the largest.",
        )
    )
    return plots


def _close_plots(found):
    """Baselines, heads and tokens as SVG, each with a caption."""
    good, plots = measured(found.summary), []
    if len(good):
        longest = good[good.length == good.length.max()]
        plots.append(
            (
                Markup(figures.in_report(figures.baselines, longest)),
                f"Constants at {good.length.max()} tokens{_beside(longest)}; dashed: in units of token norms, so that "
                "layers compare.",
            )
        )
    if len(found.heads):
        plots.append(
            (
                Markup(figures.in_report(figures.heads, found.heads)),
                f"Each head alone, with its part of the output matrix, at {found.heads.length.max()} tokens.",
            )
        )
    if len(found.tokens):
        plots.append(
            (
                Markup(figures.in_report(figures.tokens, found.tokens)),
                f"How far each of {found.tokens.length.max()} tokens moves the outputs of the others, over the most in "
                "its layer.",
            )
        )
    return plots


def _most_moving(tokens):
    """The token of each layer that moves the others most."""
    if tokens.empty:
        return []
    return as_written(tokens).loc[tokens.groupby("layer").moves.idxmax()].to_dict("records")


def _range(summary, key):
    """Smallest and largest factor by which a bound is too high, as text."""
    over = summary[f"over_{key}"]
    return range_of(times(over.min()), times(over.max()))


def _inapplicable(settings, there):
    """Why the other bounds are not there: titles of those of one reason, and the reason."""
    groups: dict[str, list[str]] = {}
    for key, title in TITLES.items():
        if key not in there:
            groups.setdefault(settings["reasons"].get(key, "it could not be computed here"), []).append(title)
    return [(titles, reason) for reason, titles in groups.items()]


def _bounded(rows):
    """Whether any upper bound is drawn beside the constants."""
    columns = ["certified", *(f"over_{key}" for key in PLOTTED)]
    return any(name in rows and rows[name].notna().any() for name in columns)


def _beside(rows):
    """Which baselines there are, in words."""
    words = {"over_random": "random weights of the same shape", "over_shuffled": "the same tokens in random order"}
    named = [said for name, said in words.items() if name in rows and rows[name].notna().any()]
    return f" beside {' and '.join(named)}" if named else ""


def _versus(against):
    """The plot of a comparison as SVG, with its caption."""
    names, table = (against.before, against.after), against.table
    drawn = figures.in_report(figures.comparison, table, names)
    return Markup(drawn), f"Every layer at {table.length.max()} tokens, before and after, logarithmic scale."


def _described(settings):
    """What was read, in words."""
    known = settings["text"] in corpora.NAMES
    return corpora.describe(settings["text"]).split(";")[0] if known else settings["text"]


def _linked(means):
    """What a finding means, with the numbers of pages as links into the list at the end."""
    return Markup(NUMBER.sub(r'(<a href="#page-\1">page&nbsp;\1</a>)', str(escape(means))))


def _number(value):
    return "" if pd.isna(value) else f"{value:.4g}"


def _short(value):
    return "" if pd.isna(value) else f"{value:.3g}"


def _small(value):
    return "" if pd.isna(value) else "0" if value == 0 else f"{value:.0e}"
