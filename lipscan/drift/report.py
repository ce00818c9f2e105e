"""Report of a comparison: one HTML file that opens offline, with the verdict, plots and the table."""

import os
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from lipscan import recording, scanning
from lipscan.drift import figures
from lipscan.drift.words import COLUMNS, lead
from lipscan.scanning.figures import in_report
from lipscan.scanning.fmt import short

CAPTIONS = {
    "errors": "Local error of each layer and half, over what it gives (solid), beside the floor of the type (dashed; "
    "band: over kernels and windows), logarithmic. A layer far above its floor has a fault of its own.",
    "gains": "How much an error of each layer grows on the way to the last state, logarithmic.",
    "shares": "How much of the final difference comes from each layer.",
}


def write_report(found: Any, path: str | os.PathLike) -> Path:
    """Write the report in one step, as `Drift.report`."""
    path = Path(path)
    path = path / "report.html" if path.is_dir() else path
    with recording.kept(path):
        recording.write(path, html(found))
    return path


def html(found: Any) -> str:
    """The report as an HTML document without external references; names and texts in it are escaped."""
    folders = [Path(__file__).parent, Path(scanning.__file__).parent]  # its own layout, and the style of a scan's
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters["short"] = short
    table, about = found.table, found.about
    shown = [key for key in COLUMNS if table[key].notna().any()]
    plots = [
        (Markup(in_report(getattr(figures, name), table)), caption)
        for name, caption in CAPTIONS.items()
        if name == "errors" or table.share.notna().any()
    ]
    return environment.get_template("report.html").render(
        title=f"{about['model']} against {about.get('against') or about['dtype']}",
        lead=lead(about),
        about=about,
        verdict=found.verdict,
        closure=found.closure,
        highest=short(table.token_ratio.max()),
        difference=short(found.closure.difference),
        plots=plots,
        columns=shown,
        keys={key: COLUMNS[key] for key in shown},
        rows=table.assign(above=table.height > 1).to_dict("records"),
    )
