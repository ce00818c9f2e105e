"""Figures of a scan: what was measured, in plots that break where nothing was."""

import dataclasses
import re

import numpy as np
import pandas as pd
import pytest

from lipscan.scanning import figures, report, summary
from lipscan.scanning.summary import TITLES, first_window, summarise


def test_lines_and_bands_break_where_no_layer_was_measured(finished):
    """They ran on, and the proved band with them, over layers between those that were asked for."""
    rows = first_window(finished.table).query("length == 4").assign(certified=9.0, certified_lower=1.0)
    rows = pd.concat([rows.assign(layer=[0, 4]), rows.iloc[:1].assign(layer=5)])
    compared = rows.assign(before=rows.lipschitz, after=rows.lipschitz)
    bounds = {key: TITLES[key] for key in report.PLOTTED}
    drawn = [figures.layers(rows, bounds), figures.radii(rows), figures.baselines(rows)]
    for ax in [*drawn, figures.comparison(compared, ("a", "b"))]:
        lines = [line for line in ax.lines if len(line.get_xdata()) > 3]
        assert len(lines) > 1 and all(np.isnan([*map(float, line.get_ydata()[1:4])]).all() for line in lines)
        assert all(line.get_marker() != "None" for line in lines)  # one layer alone is seen
    band, alone = [one for one in drawn[0].collections if one.get_alpha()]
    assert {tuple(path.get_extents().intervalx) for path in band.get_paths()} == {(0, 0), (4, 5)}
    assert [path.vertices.tolist() for path in alone.get_paths()] == [[[0, 1], [0, 9]]]


def test_figures_draw_what_was_measured_in_the_first_window(finished):
    """Lines were means over windows: outside the proved band, and over ratios of the first window no constants."""
    first = finished.table.query("length == 9 and window == 0")
    rows = first_window(finished.table).query("length == 9")
    constants = finished.table.query("length == 9").groupby("layer").lipschitz
    assert rows.low.tolist() == constants.min().tolist() and rows.high.tolist() == constants.max().tolist()
    assert (rows.low < rows.high).all()
    drawn = {line.get_label(): line.get_ydata() for line in figures.baselines(rows).lines}
    names = {"the model": "lipschitz", "random weights": "random", "shuffled text": "shuffled"}
    names |= {"relative constant": "relative"}
    assert {label: [*drawn[label]] for label in names} == {label: [*first[name]] for label, name in names.items()}
    ax = figures.layers(rows, {"column": "column sums"})
    drawn = {line.get_label(): [*line.get_ydata()] for line in ax.lines}
    assert drawn["column sums"] == pytest.approx([*10**first.log10_column])
    assert [*ax.containers[0].lines[0].get_ydata()] == [*first.lipschitz]
    assert (first.certified_lower <= first.lipschitz * (1 + 1e-9)).all() and (first.lipschitz <= first.certified).all()
    lost = finished.table.assign(lipschitz=finished.table.lipschitz.mask(finished.table.window == 0))
    assert first_window(lost).window.tolist() == [1, 1, 1, 1]  # a gap


def test_the_closest_bound_is_drawn_and_one_that_says_nothing_says_so_everywhere(finished):
    """Column sums came closest and were not drawn; and were called of no use, as their mean over layers was large."""
    logs = {name: 9.0 for name in finished.table if name.startswith("log10_")} | {"log10_column": 1.5}
    table = finished.table.assign(**logs)
    table.loc[table.layer == 1, "log10_column"] = 8.0
    page = report.html(dataclasses.replace(finished, table=table, summary=summarise(table)))
    assert "column sums" in page[page.index("<svg") : page.index("<figcaption>")]
    [useless] = re.findall("at every layer and length says nothing of practical use here: <strong>(.*?)</strong>", page)
    assert TITLES["general"] in useless and "column sums" not in useless


def test_norms_that_are_all_alike_are_drawn_inside_the_plot(finished):
    alike = np.linspace(24, 24.001, len(finished.summary))
    ax = figures.radii(finished.summary.assign(radius=alike, mean_radius=alike))
    assert ax.get_ylim()[1] > 24.5


def test_words_stand_on_the_map_of_tokens_and_axes_say_1_10_100(found):
    scan, _ = found
    tokens = scan.tokens.assign(written=scan.tokens.written.where(scan.tokens.place != 1, "'$x_1$ and a long word'"))
    for ax, bar in (
        (figures.heads(scan.heads), "constant of the head alone"),
        (figures.tokens(tokens), "moves others"),
    ):
        assert ax.figure.axes[1].get_ylabel().startswith(bar)
    labels = ax.get_xticklabels()
    words = [label.get_text() for label in labels]
    assert words[0] == scan.tokens.written[0].strip("'") and words[1] == "$x_1$ and a l…" and len(words) == 5
    assert not any(label.get_parse_math() for label in labels)  # a dollar is a dollar
    many = pd.DataFrame({"layer": 0, "place": range(300), "written": [repr(f"w{n}") for n in range(300)], "moves": 1.0})
    many.loc[[7, 9, 250], "moves"] = 4.0, 3.0, 5.0
    words = [label.get_text() for label in figures.tokens(many).get_xticklabels()]
    assert words[:2] == ["w250", "w7"] and "w9" not in words and len(words) <= figures.WORDS

    good = summary.first_window(scan.table).query("length == 9").assign(relative=[2e-3, 3e7])
    ax = figures.baselines(good)
    ax.figure.canvas.draw()
    assert {"0.1", "1,000"} <= {label.get_text() for label in ax.get_yticklabels()}
    written = [figures._plain(value) for value in (0.001, 2.5, 100, 20000, 1e6, 2.5e8)]
    assert written == ["0.001", "2.5", "100", "20,000", "$10^{6}$", r"$2.5 \times 10^{8}$"]


def test_bars_crosses_and_norms_are_those_of_their_rows_and_what_did_not_pass_is_left_out(finished):
    rows = first_window(finished.table).query("length == 9")
    rows = rows.assign(low=rows.lipschitz - 1, high=rows.lipschitz + 3, converged=[True, False])
    ax = figures.layers(rows, {})
    bars = ax.containers[0][2][0].get_segments()
    assert np.allclose([bar[:, 1] for bar in bars], rows[["low", "high"]])
    assert [[*line.get_xdata()] for line in ax.lines if line.get_marker() == "x"] == [[1]]
    norms = figures.radii(rows.assign(radius=[5.0, 6.0], mean_radius=[2.0, 3.0]))
    assert [[*line.get_ydata()] for line in norms.lines] == [[5, 6], [2, 3]]
    drawn = figures.growth(finished.summary.assign(passed=finished.summary.layer == 0)).lines
    assert [line.get_label() for line in drawn] == ["layer 0", "slope 1/2"]


def test_scans_are_compared_at_the_longest_length_and_tokens_within_their_layer(finished):
    rows = first_window(finished.table)
    rows = rows.assign(before=rows.lipschitz, after=2 * rows.lipschitz)
    longest = rows[rows.length == rows.length.max()]
    lines = figures.comparison(rows, ("a", "b")).lines
    assert [[*line.get_ydata()] for line in lines] == [[*longest.before], [*longest.after]]
    words = {"layer": [0, 0, 1, 1], "place": [0, 1, 0, 1], "moves": [1.0, 2.0, 12.0, 3.0], "written": [*"abab"]}
    drawn = figures.tokens(pd.DataFrame(words)).collections[0].get_array()
    assert drawn.tolist() == [[0.5, 1], [1, 0.25]]
