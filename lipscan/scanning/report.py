"""Report of a scan: one HTML file that opens offline, with plots, tables, and words on how to read them."""

import os
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from lipscan import corpora, recording
from lipscan.scanning import figures, fmt, sentences
from lipscan.scanning.catalogue import SCANNED, SOURCES, TITLES
from lipscan.scanning.comparison import compare, compared, unpaired
from lipscan.scanning.summary import COLUMNS, TABLES, closest, first_window, measured

MOST = 12  # heads in the table of the report; all are in heads.csv
PLOTTED = ("yudin", "spread", "general", "rotary_terms", "rotary_upper")  # beside those that come closest somewhere
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


def write_report(
    found: Any, path: str | os.PathLike, against: Any = None, names: tuple[str, str] | None = None
) -> Path:
    """Write the report in one step, as `Scan.report`; `names` of the two scans compared are by default the models'."""
    path = Path(path)
    path = path / "report.html" if path.is_dir() else path
    with recording.kept(path):
        recording.write(path, html(found, against, names))
    return path


def html(found: Any, against: Any = None, names: tuple[str, str] | None = None) -> str:
    """The report as an HTML document without external references; names and texts in it are escaped."""
    summary, settings = found.summary, found.about["settings"]
    said, good = sentences.findings(found), measured(summary)
    named = {page for finding in said for page in finding.pages}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    words = (fmt.factor, fmt.many, fmt.short, fmt.small, fmt.times, fmt.up)
    environment.filters |= {one.__name__: one for one in words}
    environment.filters["linked"] = _linked
    there = [key for key in TITLES if f"over_{key}" in summary]
    routes = {part for route in summary.get("route", pd.Series(dtype=str)).dropna() for part in route.split(" + ")}
    tokens, by = _mapped(found.tokens)
    farthest = tokens.loc[tokens.groupby("layer")[by].idxmax()] if len(tokens) else tokens
    return environment.get_template("report.html").render(
        settings=settings,
        about=found.about,
        object=OBJECTS[settings["object"]],
        rows=_records(summary),
        there=there,
        titles=TITLES,
        catalogue=[(bound, _range(summary, bound.column)) for bound in SCANNED if bound.column in there],
        inapplicable=_inapplicable(settings, there),
        known=_there(summary, summary),
        files=[f"{name}.csv" for name in TABLES if not getattr(found, name, summary).empty],
        against=against and _against(found, against, names),
        routes=[(route, ROUTES.get(route, route)) for route in sorted(routes)],
        plots=_plots(found, good),
        heads=_records(found.heads.sort_values("lipschitz", ascending=False).head(MOST)),
        tokens=_records(farthest),
        moves=by == "moves",
        whole=_records(found.whole),
        columns=COLUMNS,
        answer=sentences.answer(found),
        findings=said,
        gaps=sentences.as_sentences(found.gaps),
        pages={page: title for page, title in sentences.PAGES.items() if page in named},
        ends=sentences.ENDS,
        top=sentences.roughest(good) if len(good) else None,
        skipped=sentences.skipped(found.about, summary),
        passed=int(summary.passed.sum()),
        text=_described(settings),
        weights=sentences.weights_of(settings),
        sources=SOURCES,
        vacuous=[TITLES[key] for key in there if summary[f"over_{key}"].min() > 3],
    )


def _mapped(tokens):
    """Rows of tokens shown in the map, and the column shown: how far they move others, or else the steepest change."""
    moving = sentences.moving(tokens)
    return (moving, "moves") if len(moving) else (sentences.steepest(tokens), "in_steepest")


def _records(table):
    """Rows as dictionaries, with None for missing values."""
    return table.astype(object).where(table.notna(), None).to_dict("records")


def _plots(found, good):
    """Plots as SVG, each with a caption."""
    plots: list[tuple[Markup, str]] = []
    firsts, several = first_window(found.table), found.about["settings"]["windows"] > 1
    where = " in the first window" * several

    def plot(caption, draw, *given, **options):
        plots.append((Markup(figures.in_report(draw, *given, **options)), caption))

    for n, rows in good.groupby("length"):
        near = {*closest(rows).title}
        bounds = {key: title for key, title in TITLES.items() if key in PLOTTED or title in near}
        here = firsts[firsts.length == n]
        bounded = _there(here, ["certified", *(f"log10_{key}" for key in bounds)])
        said = f"Every layer at {fmt.many(n, 'token')}: the measured constant{where}"
        said += f"{', with its range over windows' * several}{', and upper bounds on it' if bounded else ''}"
        plot(f"{said}, logarithmic scale.", figures.layers, here, bounds, title=f"{fmt.many(n, 'token')}")
    if good.length.nunique() > 1:
        plot("How the constant grows with the number of tokens, layer by layer.", figures.growth, good)
    if len(good):
        n = good.length.max()
        longest = good[good.length == n]
        said = f"Norms of the tokens that each layer receives, at {fmt.many(n, 'token')}"
        plot(f"{said}: bounds on a ball grow with the square of the largest.", figures.radii, longest)
        words = {"random": "random weights of the same shape", "shuffled": "the same tokens in random order"}
        here = firsts[firsts.length == n]
        named = " and ".join(words[name] for name in _there(here, words))
        said = f"Constants{where} at {fmt.many(n, 'token')}{named and f' beside {named}'}"
        plot(
            f"{said}; dashed: the relative constant, in units of token norms, so that layers compare.",
            figures.baselines,
            here,
        )
    if len(found.heads):
        n = found.heads.length.max()
        plot(
            f"Each head alone, with its part of the output matrix, at {fmt.many(n, 'token')}, logarithmic colours.",
            figures.heads,
            found.heads,
        )
    tokens, by = _mapped(found.tokens)
    if len(tokens):
        none = "; white: it moves none" * bool((tokens.moves == 0).any())  # the last one, under a mask
        said = f"How far each of {fmt.many(tokens.length.max(), 'token')} moves the outputs of the others"
        if by == "in_steepest":
            said = f"How much of each layer's steepest change lies on each of {fmt.many(tokens.length.max(), 'token')}"
        plot(f"{said}, over the most in its layer, logarithmic colours{none}.", figures.tokens, tokens, by=by)
    return plots


def _there(rows, names):
    """Names of the columns that are present and hold a number."""
    return [name for name in names if name in rows and rows[name].notna().any()]


def _range(summary, key):
    """Smallest and largest factor by which a bound is too high, as text."""
    over = summary[f"over_{key}"]
    return fmt.range_of(fmt.times(over.min()), fmt.times(over.max()))


def _inapplicable(settings, there):
    """Bounds that are missing: titles grouped by reason, with the reason."""
    groups: dict[str, list[str]] = {}
    for key, title in TITLES.items():
        if key not in there:
            groups.setdefault(settings["reasons"].get(key, "it could not be computed here"), []).append(title)
    return [(titles, reason) for reason, titles in groups.items()]


def _against(found, other, names):
    """Template variables of the section on a comparison."""
    table = compare(found, other)
    before, after = names or [scan.about["settings"]["model"] for scan in (found, other)]
    return {
        "before": before,
        "after": after,
        "rows": _records(table),
        "said": " ".join([*compared(table)[::-1], *unpaired(found, other)]),  # the factor comes first
        "plot": Markup(figures.in_report(figures.comparison, table, (before, after))),
        "caption": f"Every layer at {fmt.many(table.length.max(), 'token')}, before and after, logarithmic scale.",
    }


def _described(settings):
    """Name or description of the text that was read."""
    known = settings["text"] in corpora.NAMES
    return corpora.describe(settings["text"]).split(";")[0] if known else settings["text"]


def _linked(means):
    """Text of a finding, with page numbers as links into the list at the end."""
    return Markup(sentences.NUMBER.sub(r'(<a href="#page-\1">page&nbsp;\1</a>)', str(escape(means))))
