"""Report of a scan: one HTML file that opens offline, with plots, tables, and words on how to read them."""

import os
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from lipscan import corpora, recording
from lipscan.scanning import figures, fmt
from lipscan.scanning.catalogue import SCANNED, SOURCES, TITLES
from lipscan.scanning.comparison import compare, compared, unpaired
from lipscan.scanning.findings import findings, gaps, left_out, moving, roughest, steepest, still, weights_of
from lipscan.scanning.summary import COLUMNS, TABLES, closest, first_window, measured
from lipscan.scanning.words import ENDS, PAGES, QUESTIONS, TABLE

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

CAPTIONS = {
    "layers": "Every layer at length {length}, logarithmic scale: the measured constant of the first window, its range "
    "over windows, and the upper bounds that are known.",
    "growth": "How the constant grows with the number of tokens, layer by layer.",
    "radii": "Norms of the tokens that each layer receives, at length {length}: bounds on a ball grow with the square "
    "of the largest.",
    "baselines": "Constants of the first window at length {length}, next to their baselines; dashed: the relative "
    "constant, in units of token norms, by which layers compare.",
    "heads": "Each head alone, with its part of the output matrix, at length {length}, logarithmic colours.",
    "moves": "How far each token moves the outputs of the others at length {length}, relative to the largest in its "
    "layer; "
    "logarithmic colours, empty where it moves none.",
    "in_steepest": "How much of each layer's steepest change lies on each token at length {length}, relative to the "
    "largest in its layer; logarithmic colours.",
    "against": "Every layer at length {length}, before and after, logarithmic scale.",
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
    said, good = findings(found), measured(summary)
    answers = [(question, [one for one in said if one.section == section]) for section, question in QUESTIONS.items()]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    words = (fmt.factor, fmt.short, fmt.small, fmt.times, fmt.up)
    environment.filters |= {one.__name__: one for one in words}
    there = [key for key in TITLES if f"over_{key}" in summary and summary[f"over_{key}"].notna().any()]
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
        answer=[(question, here) for question, here in answers if here],
        findings=[one for one in said if one.section == "details"],
        gaps=gaps(found.gaps),
        pages={page: title for page, title in PAGES.items() if page in {one.page for one in said}},
        ends=ENDS,
        keys={name: words.replace("x ", "× ") if words.startswith("x ") else words for name, words in TABLE.items()},
        top=roughest(good) if len(good) and not still(good) else None,
        skipped=left_out(found.about, summary),
        passed=int(summary.passed.sum()),
        text=_described(settings),
        weights=weights_of(settings),
        sources=SOURCES,
        vacuous=[TITLES[key] for key in there if summary[f"over_{key}"].min() > 3],
    )


def _mapped(tokens):
    """Rows of tokens shown in the map, and the column shown: how far they move others, or else the steepest change."""
    rows = moving(tokens)
    return (rows, "moves") if len(rows) else (steepest(tokens), "in_steepest")


def _records(table):
    """Rows as dictionaries, with None for missing values."""
    return table.astype(object).where(table.notna(), None).to_dict("records")


def _plots(found, good):
    """Plots as SVG, each with a caption."""
    plots: list[tuple[Markup, str]] = []
    firsts = first_window(found.table)

    def plot(caption, draw, *given, **options):
        length = given[0].length.max()
        plots.append((Markup(figures.in_report(draw, *given, **options)), caption.format(length=length)))

    if still(good):  # nothing to draw on a logarithmic axis
        n = good.length.max()
        plot(CAPTIONS["radii"], figures.radii, good[good.length == n])
        return plots
    for n, rows in good.groupby("length"):
        near = {*closest(rows).title}
        bounds = {key: title for key, title in TITLES.items() if key in PLOTTED or title in near}
        plot(CAPTIONS["layers"], figures.layers, firsts[firsts.length == n], bounds, title=f"length {n}")
    if good.length.nunique() > 1:
        plot(CAPTIONS["growth"], figures.growth, good)
    if len(good):
        n = good.length.max()
        plot(CAPTIONS["radii"], figures.radii, good[good.length == n])
        plot(CAPTIONS["baselines"], figures.baselines, firsts[firsts.length == n])
    if len(found.heads):
        plot(CAPTIONS["heads"], figures.heads, found.heads)
    tokens, by = _mapped(found.tokens)
    if len(tokens):
        plot(CAPTIONS[by], figures.tokens, tokens, by=by)
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
        "said": " ".join(map(str, [*compared(table), *unpaired(found, other)])),
        "plot": Markup(figures.in_report(figures.comparison, table, (before, after))),
        "caption": CAPTIONS["against"].format(length=table.length.max()),
    }


def _described(settings):
    """Name or description of the text that was read."""
    known = settings["text"] in corpora.NAMES
    return corpora.describe(settings["text"]).split(";")[0] if known else settings["text"]
