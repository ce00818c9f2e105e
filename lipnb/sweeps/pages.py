"""The executed notebooks of a sweep as pages to read in a browser, offline: ``index.html`` and one page for each point.

They hold no script and ask for nothing outside themselves. Texts and pictures of a notebook are shown; what else it
displays is in the notebook itself, to which each page leads.
"""

import re
from base64 import b64encode
from functools import lru_cache
from pathlib import Path

import jinja2
import nbformat

from lipnb.recording import write
from lipnb.sweeps.points import canonical

__all__ = ["index", "point"]

HERE = Path(__file__).parent
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
PICTURES = ("image/png", "image/jpeg", "image/svg+xml")
STATES = ("done", "failed", "running", "left", "stale", "damaged")


@lru_cache
def _template(name):
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = _shown
    return environment.get_template(name)


def point(folder, which, outcome):
    """Write the page of a point that ended, ``pages/POINT.html``.

    Parameters
    ----------
    folder : Path
        Of the sweep.
    which : Point
        The point.
    outcome : dict
        As `lipnb.sweeps.execution.execute` gives it.
    """
    cells = nbformat.reads(outcome["notebook"], as_version=4).cells
    page = _template("point.html").render(
        id=which.id,
        parameters=which.parameters,
        outcome=outcome,
        notebook=f"../{'notebooks' if outcome['ok'] else 'failed'}/{which.id}.ipynb",
        cells=[
            {"code": cell.cell_type == "code", "source": cell.source, "outputs": _outputs(cell)}
            for cell in cells
            if cell.source.strip()
        ],
    )
    path = folder / "pages" / f"{which.id}.html"
    path.parent.mkdir(exist_ok=True)
    write(path, page)


def index(now):
    """Write ``index.html``: a row for each point, with links to its page and to its notebook.

    Parameters
    ----------
    now : lipnb.sweeps.Status
        What is known of the sweep.
    """
    links = [
        {
            "page": _link(now, row, "pages", "html"),
            "notebook": _link(now, row, "failed") or _link(now, row, "notebooks"),
        }
        for row in now.points
    ]
    page = _template("index.html").render(
        title=Path(now.notebook).name,
        rows=[row | link for row, link in zip(now.points, links, strict=True)],
        counts={state: count for state in STATES if (count := now.count(state))},
        seconds=sum(now.seconds),
        parameters=list(dict.fromkeys(name for row in now.points for name in row["parameters"])),
        values=list(dict.fromkeys(name for row in now.points for name in row.get("values", {}))),
    )
    write(now.folder / "index.html", page)


def _link(now, row, part, ending="ipynb"):
    """A link to a file of a point, where there is that file."""
    link = f"{part}/{row['point']}.{ending}"
    return link if (now.folder / link).is_file() else None


def _outputs(cell):
    """Outputs of a cell: (kind, content) with kind "text", "error" or "picture"."""
    found = []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        picture = next((kind for kind in PICTURES if kind in data), None)
        if output.output_type == "stream":
            found.append(("text", _plain(output.text)))
        elif output.output_type == "error":
            found.append(("error", _plain("\n".join(output.traceback))))
        elif picture:
            found.append(("picture", _source(picture, data[picture])))
        elif "text/plain" in data:
            found.append(("text", _plain(data["text/plain"])))
    return found


def _source(kind, data):
    """A picture as an address that holds it; nbformat keeps SVG as text and others in base 64."""
    packed = b64encode(data.encode()).decode() if kind == "image/svg+xml" else re.sub(r"\s", "", data)
    return f"data:{kind};base64,{packed}"


def _plain(text):
    return COLOURS.sub("", text)


def _shown(value):
    """A value as a reader wants it: six digits."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else canonical(value)
