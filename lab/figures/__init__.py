"""The book's figures, drawn from tables. No module here runs a model or imports torch.

`FIGURES` lists those that need only stored tables, each registered by the decorator `figure` where it is drawn, and
`redraw` draws them into files. Each is a function of a module named after its subject, which its page also calls; the
others are panels from which pages compose figures. Colours are named C0 to C6, by their position in
`lipscan/scanning/lipnb.mplstyle`, where alone they are set; the head of a module explains what each represents.
"""

from importlib import import_module
from pkgutil import iter_modules

from lab.figures import registry
from lab.figures.book import FORMATS, draw, redraw
from lab.figures.heat_maps import matrix, probabilities
from lab.figures.registry import BookFigure
from lab.figures.speed import residuals
from lab.figures.style import house_style, named_at_the_end, panels, points
from lab.figures.tables import ShownTable, table
from lipscan.scanning import figures as scan
from lipscan.scanning.figures import STYLE

__all__ = [
    "FIGURES",
    "FORMATS",
    "STYLE",
    "BookFigure",
    "ShownTable",
    "draw",
    "house_style",
    "matrix",
    "named_at_the_end",
    "panels",
    "points",
    "probabilities",
    "redraw",
    "residuals",
    "scan",
    "table",
]

LATER = ("movable", "sliders")  # imported only by the pages that show one, because bokeh takes seconds
for _module in iter_modules(__path__):
    if _module.name not in LATER:
        import_module(f"{__name__}.{_module.name}")
FIGURES = dict(sorted(registry.FIGURES.items(), key=lambda one: one[1].page))


def __getattr__(name):
    """Import the movable figures on first use."""
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
