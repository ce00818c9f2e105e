"""Figures with controls: computed numbers, bokeh plots, plain HTML controls, and a still picture as a fallback.

A control selects stored numbers, nothing is computed: `book/_static/movable.js` writes the selected numbers into the
data sources of the plots. The still picture is shown if that script does not run: Jupyter, print, PDF.
"""

import html
import io
import json
import re
from base64 import b64encode
from typing import NamedTuple

import matplotlib.pyplot as plt
from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, FixedTicker
from bokeh.plotting import figure
from PIL import Image

# the house colours C0, C1, C2, C6, because bokeh does not know their names
BLUE, ORANGE, GREEN, BLACK = "#0072b2", "#d55e00", "#009e73", "#000000"
MOST = 200_000  # characters of data in one figure


class Control(NamedTuple):
    """A slider or a list of choices.

    `label`: what a reader chooses. `values`: labels of its positions; one list for each position of the control
    `under`, if given. `start`: the initial position. `choice`: whether it is a list of choices instead of a slider.
    `under`: an earlier control that determines the values.
    """

    name: str
    label: str
    values: list
    start: int = 0
    choice: bool = False
    under: str | None = None


class Feed(NamedTuple):
    """Columns of one data source, for each position of some controls.

    `source`: name of the data source; "says" is the sentence below the plots. `frames`: nested lists in the order of
    `by`; at the innermost level columns, name -> list, or the sentence.
    """

    source: str
    by: tuple
    frames: list


class Movable:
    """Plots, controls and data, with a still picture as a fallback.

    `name`: identifies the figure. `plots`: at most two stand side by side. `still`: the same at the start; closed here.
    `alt`: the still picture in words.
    """

    def __init__(self, name, plots, controls, feeds, still, alt):
        self.name, self.controls, self.feeds, self.alt = name, controls, feeds, alt
        self.plots = [_numbered(json_item(plot), f"{name}-{place}") for place, plot in enumerate(plots)]
        parts = {"controls": [control._asdict() for control in controls]}
        parts |= {"feeds": [feed._asdict() for feed in feeds], "plots": self.plots}
        self.data = json.dumps(parts, separators=(",", ":"), ensure_ascii=False)
        if len(self.data) > MOST:
            raise ValueError(f"the data of a movable figure have at most {MOST} characters, got {len(self.data)}.")
        self.still = _png(still)

    def __repr__(self):
        return f"Movable({self.name}: {', '.join(control.name for control in self.controls)})"

    def at(self, source, **places):
        """Contents of a feed at positions of the controls: columns, or the sentence for "says"."""
        found = {}
        for feed in (feed for feed in self.feeds if feed.source == source):
            frame = feed.frames
            for name in feed.by:
                frame = frame[places[name]]
            if isinstance(frame, str):
                return frame
            found |= frame
        return found

    def _repr_png_(self):
        """The still picture, for PDF and terminals with pictures, which do not show HTML."""
        return self.still

    def _repr_html_(self):
        """The still picture and, hidden until the script of the book activates them, controls and plots."""
        image = b64encode(self.still).decode()
        controls = "".join(map(_control, self.controls))
        data = self.data.replace("</", r"<\/")
        return (
            f'<div class="movable" data-figure="{self.name}">'
            f'<img class="still" alt="{html.escape(self.alt)}" src="data:image/png;base64,{image}"/>'
            f'<div class="controls" hidden>{controls}</div><div class="plots" hidden></div>'
            '<p class="says" aria-live="polite" hidden></p>'
            f'<script type="application/json">{data}</script></div>'
        )


def _png(still):
    """A picture as PNG with few colours, because a page holds it twice; closes the figure."""
    drawn, small = io.BytesIO(), io.BytesIO()
    still.savefig(drawn, format="png", dpi=110)
    plt.close(still)
    Image.open(drawn).convert("RGB").quantize(64).save(small, format="png", optimize=True)
    return small.getvalue()


def _control(control):
    """A control in plain HTML: arrow keys move it, and its value is written next to it."""
    first = control.values[0] if control.under else control.values
    label = html.escape(control.label)
    if control.choice:
        options = "".join(
            f'<option value="{place}"{" selected" * (place == control.start)}>{html.escape(value)}</option>'
            for place, value in enumerate(first)
        )
        return f'<label>{label} <select name="{control.name}">{options}</select></label>'
    return (
        f'<label>{label} <output>{html.escape(first[control.start])}</output> <input type="range" '
        f'name="{control.name}" min="0" max="{len(first) - 1}" step="1" value="{control.start}"/></label>'
    )


def _numbered(item, prefix):
    """The description of a plot with identifiers that do not depend on earlier plots."""
    known = {}
    text = json.dumps(item)
    return json.loads(re.sub(r'"p\d+"', lambda found: f'"{prefix}-{known.setdefault(found[0], len(known))}"', text))


def axes(x, y, *, xticks=None, yticks=None, log=True, height=300, **ranges):
    """An empty plot in the style of the book: full width, without tools.

    `x`, `y`: labels of the axes. `ranges`: x_range and y_range, pairs.
    """
    kind = {"x_axis_type": "log", "y_axis_type": "log"} if log else {}
    look = {"height": height, "sizing_mode": "stretch_width", "toolbar_location": None, "tools": ""}
    plot = figure(**look, **kind, **ranges)
    for axis, label, ticks in ((plot.xaxis[0], x, xticks), (plot.yaxis[0], y, yticks)):
        axis.axis_label, axis.axis_label_text_font_style = label, "normal"
        axis.axis_label_text_font_size = axis.major_label_text_font_size = "13px"
        axis.axis_line_color = axis.major_tick_line_color = "#808080"
        axis.minor_tick_line_color = None
        if ticks is not None:
            axis.ticker = FixedTicker(ticks=ticks)
            axis.major_label_overrides = {tick: tidy(tick, 6) for tick in ticks}  # label ticks with their exact values
    plot.grid.grid_line_color = "#e6e6e6"
    plot.outline_line_color = None
    plot.min_border_right = 12
    return plot


def source(name, columns):
    """A data source with a name, by which the script finds it."""
    return ColumnDataSource(columns, name=name)


def rounded(values, digits=4):
    """Numbers with `digits` significant digits, for data that are only displayed."""
    return [float(f"{float(value):.{digits}g}") for value in values]


def tidy(value, digits=3):
    """A number in readable form: 0.25, 1.5, 24, 12 457."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{float(f'{value:.{max(digits, 3)}g}'):,.0f}".replace(",", "\u202f")
    return f"{float(f'{value:.{digits}g}'):g}"
