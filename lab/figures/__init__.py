"""The book's figures, drawn from tables. Nothing here runs a model or imports torch.

`FIGURES` lists those that need stored tables only, and `redraw` draws them into files. Each is a function of a module
named after its subject, which its page calls too; the rest are panels of which pages make their own. Colours are named
C0 to C6, by their place in `lipnb/scanning/lipnb.mplstyle`: they are set there alone, and what each stands for at the
head of a module.
"""

from importlib import import_module

from lab.figures import (
    adversarial,
    atlas,
    influence,
    interventions,
    kv_rounding,
    l2,
    objects,
    positions,
    real_text,
    released,
    robustness,
    speed,
    token_sinks,
    training,
    twins,
    two_clusters,
    verified,
    worst_inputs,
    zoo,
)
from lab.figures.book import FORMATS, draw, redraw
from lab.figures.heat_maps import head_map, matrix, probabilities
from lab.figures.registry import FIGURES, BookFigure
from lab.figures.speed import residuals, speed_bars
from lab.figures.style import house_style, panels, points
from lab.figures.tables import ShownTable, table
from lipnb.scanning import figures as scan
from lipnb.scanning.figures import STYLE

__all__ = [
    "FIGURES",
    "FORMATS",
    "STYLE",
    "BookFigure",
    "ShownTable",
    "adversarial",
    "atlas",
    "draw",
    "head_map",
    "house_style",
    "influence",
    "interventions",
    "kv_rounding",
    "l2",
    "matrix",
    "movable",
    "objects",
    "panels",
    "points",
    "positions",
    "probabilities",
    "real_text",
    "redraw",
    "released",
    "residuals",
    "robustness",
    "scan",
    "speed",
    "speed_bars",
    "table",
    "token_sinks",
    "training",
    "twins",
    "two_clusters",
    "verified",
    "worst_inputs",
    "zoo",
]


def __getattr__(name):
    """The movable figures, imported by the pages that show one: bokeh takes seconds."""
    if name != "movable":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("lab.figures.movable")
