"""Figures draw what the table says, and grey what did not converge."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from lipnb import figures, scaling


@pytest.fixture(autouse=True)
def closed():
    with plt.style.context(figures.STYLE):
        yield
    plt.close("all")


def table():
    n = np.repeat(np.arange(2, 50, 4), 3)
    return pd.DataFrame({"length": n, "lipschitz": 2.0 * n**0.3, "mean_radius": np.linspace(5, 6, n.size),
                         "converged": np.arange(n.size) % 10 > 0})


def test_no_row_is_dropped():
    rows = table()
    ax = figures.against_length(rows, scaling.power_law(rows.length, rows.lipschitz), title="panel")
    drawn = [collection.get_offsets() for collection in ax.collections if len(collection.get_offsets())]
    assert sum(map(len, drawn)) == len(rows)
    grey = min(ax.collections, key=lambda collection: len(collection.get_offsets()) or 10**6)
    assert to_hex(grey.get_facecolor()[0]) == figures.NOT_CONVERGED
    assert "0.300" in ax.get_legend().get_texts()[-1].get_text()
    assert ax.get_xscale() == ax.get_yscale() == "log"


def test_one_radius_is_written_not_coloured():
    rows = table().assign(mean_radius=27.7)
    ax = figures.against_length(rows)
    assert "27.7" in ax.texts[0].get_text() and len(ax.figure.axes) == 1
    assert len(figures.against_length(table()).figure.axes) == 2


def test_what_did_not_converge_is_named_also_without_a_fit():
    assert [text.get_text() for text in figures.against_length(table()).get_legend().get_texts()] == ["not converged"]


def test_the_line_is_the_fit():
    fit = scaling.PowerLaw(2.0, 0.5, 0.4, 0.6, 0.95, 10)
    ax = plt.subplots()[1]
    figures.rate_line(ax, fit, (2, 98))
    x, y = ax.lines[0].get_data()
    assert np.allclose(y, 2 * np.sqrt(x)) and x[0] == 2 and np.isclose(x[-1], 98)


def test_other_figures_draw():
    history = pd.DataFrame({"method": ["a", "a", "b"], "products": [1, 2, 1], "error": [0.1, 0.01, 0.2]})
    assert len(figures.residuals(history).lines) == 2
    ax = figures.matrix(np.diag([1.0, -2.0, 3.0, 0.0]), block=(2, 2), title="J", label="entry")
    assert ax.images[0].get_array().shape == (4, 4) and len(ax.lines) == 2
    assert len(figures.panels(3)) == 3


def test_a_method_that_misses_looks_different_and_says_how_often():
    table = pd.DataFrame({"method": ["peer", "ours"], "ratio": [1.0, 12.0], "low": [1.0, 11.0], "high": [1.0, 13.0],
                          "missed": [3, 0], "count": [40, 40], "error": [2e-2, 1e-7]})
    ax = figures.speed_bars(table)
    assert [bar.get_hatch() for bar in ax.patches] == ["///", None] and ax.patches[1].get_width() == 12
    assert [text.get_text() for text in ax.texts] == ["3 of 40 wrong, up to 2e-02", "0 of 40 wrong"]
    plt.close("all")


def test_head_map_writes_each_number_in_its_place():
    grid = pd.DataFrame([[1.0, 20.0], [3.0, 0.5]], index=[4, 7], columns=[0, 2])
    image = figures.head_map(grid, text="{:.1f}", largest=True)
    ax = image.axes
    written = {text.get_position(): (text.get_text(), text.get_weight()) for text in ax.texts}
    assert written == {(0, 0): ("1.0", "normal"), (1, 0): ("20.0", "bold"),
                       (0, 1): ("3.0", "bold"), (1, 1): ("0.5", "normal")}
    assert [label.get_text() for label in ax.get_yticklabels()] == ["4", "7"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "2"]
    assert {text.get_text(): text.get_color() for text in ax.texts}["20.0"] == "white"  # on the darkest shade
