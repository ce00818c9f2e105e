"""Report of a comparison: one HTML file that opens offline, with the verdict, plots and the table."""

import os
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from lipscan import recording, scanning
from lipscan.drift import figures
from lipscan.drift.terminal import texts
from lipscan.drift.words import COLUMNS, HEADINGS, lead
from lipscan.scanning.figures import in_report
from lipscan.scanning.fmt import short

CAPTIONS = {
    "errors": "Local error of each layer and half over the size of its output (solid), and the floor of the type "
    "(dashed; the band is over kernels and windows), on a logarithmic scale. A layer far above its floor has a fault.",
    "gains": "Factor by which an error of each layer grows on the way to the last layer, on a logarithmic scale.",
    "shares": "Share of the final difference that comes from each layer.",
}
KINDS = {"rounding": ("calm", "Rounding"), "cannot tell": ("unsure", "Cannot tell"), "bug": ("bad", "Not rounding")}
PARTS = {"mlp": "MLP"}


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
    shown = [heading for heading in HEADINGS if heading != "at worst" or table.gain_worst.notna().any()]
    look, word = KINDS[found.verdict.kind]
    plots = [
        (Markup(in_report(getattr(figures, name), table)), caption)
        for name, caption in CAPTIONS.items()
        if name == "errors" or table.share.notna().any()
    ]
    return environment.get_template("report.html").render(
        title=f"{about['model']} against {about.get('against') or about['dtype']}",
        lead=lead(about),
        about=about,
        look=look,
        word=word,
        verdict=found.verdict.sentence.removeprefix("not ").partition(": ")[2],
        closure=found.closure,
        highest=short(table.token_ratio.max()),
        difference=short(found.closure.difference),
        plots=plots,
        shown={heading: HEADINGS[heading] for heading in shown},
        columns=COLUMNS,
        parts=PARTS,
        texts=[texts(row) for row in table.itertuples()],
        rows=table.assign(above=table.height > 1).to_dict("records"),
    )
