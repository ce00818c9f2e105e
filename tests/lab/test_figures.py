"""Figures draw what the table says, grey what did not converge, and are the same on the page and by the command."""

import inspect
import io
import os
import re
import subprocess
import sys
from base64 import b64decode
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from nbclient import NotebookClient
from PIL import Image

from lab import figures, results, verification
from lab.cli import main
from lab.experiments.l2_tightness import largest_row
from lab.figures import book
from lab.statistics import power_laws
from lipnb import bounds
from lipnb.bounds.catalogue import CATALOGUE

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
WITHOUT_TORCH = """import sys
class NotHere:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers"):
            raise ImportError(f"{name} is not here")
sys.meta_path.insert(0, NotHere())
from lab.cli import main
sys.exit(main(["figures", "--all", "--output", sys.argv[1]]))"""


@pytest.fixture(autouse=True)
def closed():
    with plt.style.context(figures.STYLE):
        yield
    plt.close("all")


def test_a_page_draws_into_itself_and_in_the_books_look_whatever_the_machine_prefers(tmp_path):
    """Under MPLBACKEND=Agg cells had no pictures, and a matplotlibrc changed them."""
    code = """
import matplotlib.pyplot as plt
from lab import figures
figures.house_style()
plt.plot([1, 2])
plt.title("a title")
plt.show()"""
    (tmp_path / "matplotlibrc").write_text("backend: svg\nfont.size: 20\nlines.linestyle: --\naxes.facecolor: red\n")

    def drawn(**environment):
        page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
        plain = {name: value for name, value in os.environ.items() if not name.startswith("MPL")}
        NotebookClient(page, kernel_name="python3").execute(cwd=ROOT, env={**plain, **environment})
        return [output.data["image/png"] for output in page.cells[0].outputs]

    [expected] = drawn()
    assert drawn(MPLBACKEND="Agg") == drawn(MPLBACKEND="TkAgg", MPLCONFIGDIR=str(tmp_path)) == [expected]


@pytest.mark.parametrize("column", power_laws.SERIES)
def test_two_series_are_not_fitted_under_one_label(column):
    n = np.repeat(np.arange(2, 50, 4), 3)
    rows = pd.DataFrame({"length": n, "lipschitz": 2.0 * n**0.3, column: np.arange(n.size) % 2})
    said = rf"rows of one series, and these are of several .{column} 0, 1."
    with pytest.raises(power_laws.SeveralSeries, match=said):
        power_laws.one_series(rows, "these rows")
    with pytest.raises(power_laws.SeveralSeries, match=column):
        power_laws.rate(rows)
    power_laws.rate(rows[rows[column] == 1])


def twice(rows, **changed):
    """A table in which each row stands a second time, as that of another series."""
    return pd.concat([rows, rows.assign(**changed)], ignore_index=True)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("real-text-jump", {"model": "gpt2-large"}),
        ("positions", {"model": "gpt2-large"}),
        ("position-norms", {"weights": "random"}),
        ("released-code", {"corpus": "news"}),
    ],
)
def test_a_second_series_in_a_stored_table_is_refused(name, changed, monkeypatch):
    load = results.load
    empty = dict.fromkeys(changed, "")
    monkeypatch.setattr(results, "load", lambda table: twice(load(table).assign(**empty), **changed))
    with pytest.raises(power_laws.SeveralSeries, match="needs the rows of one series"):
        figures.draw(name)


def of_the_jump():
    stored = results.load("atlas-minilm")
    return stored[(stored.corpus == "alice") & (stored.order == "text") & (stored.layer == 0)]


def test_other_series_of_a_table_are_not_among_the_dots():
    rows = of_the_jump()
    assert {*rows.weights} == {"pretrained", "random"}
    assert figures.points(figures.real_text.jump(rows)) == (rows.weights == "pretrained").sum() == 52


def test_every_mark_is_a_row():
    assert figures.points(figures.draw("real-text-jump")) == 52
    ax = plt.subplots()[1]
    ax.scatter([1, 2], [3, 4])
    ax.errorbar([3, 4, 5], [2, 2, 2], 0.1, fmt="o", capsize=3)
    assert figures.points(ax) == 5


def test_other_figures_draw():
    history = pd.DataFrame({"method": ["a", "a", "b"], "products": [1, 2, 1], "error": [0.1, 0.01, 0.2]})
    assert len(figures.residuals(history).lines) == 2
    nine = pd.DataFrame({"method": [*"abcdefghi"], "products": 1, "error": 0.1})
    lines = figures.residuals(nine).lines  # none is dropped, and no two look the same
    assert len(lines) == 9 and len({(line.get_marker(), line.get_color()) for line in lines}) == 9
    ax = figures.matrix(np.diag([1.0, -2.0, 3.0, 0.0]), block=(2, 2), title="J", label="entry")
    assert ax.collections[0].get_array().shape == (4, 4)
    assert [len(lines.get_segments()) for lines in ax.collections[1:3]] == [1, 1]  # between the blocks
    assert len(figures.panels(3)) == 3


def test_tokens_stand_at_their_probabilities():
    P = np.array([[0.9, 0.1], [0.0, 1.0]])
    ax = figures.probabilities(P, ["the", "cat"], title="head")
    assert np.array_equal(ax.collections[0].get_array(), P) and ax.get_ylim() == (2, 0)  # the first row is on top
    for labels in (ax.get_xticklabels(), ax.get_yticklabels()):
        assert [label.get_text() for label in labels] == ["the", "cat"]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Every figure of the book, drawn by the command where neither torch nor transformers can be imported."""
    folder = tmp_path_factory.mktemp("figures")
    run = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, folder], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [str(folder / f"{name}.png") for name in figures.FIGURES]
    return folder


def picture(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), dtype=float)


@pytest.mark.parametrize("figure", figures.FIGURES.values(), ids=figures.FIGURES)
def test_page_and_command_draw_the_same(figure, drawn):
    assert set(figure.tables) <= set(results.listed().index)
    png = (drawn / f"{figure.name}.png").read_bytes()
    assert picture(png).std() > 10  # not an empty page
    source = NOTEBOOKS / f"{figure.page}.py"
    assert source.read_text().count(figure.call) == 1, f"{source.name} does not call {figure.call}...) once"
    if not source.with_suffix(".ipynb").exists():
        pytest.skip("this page has no executed pair yet")
    cells = nbformat.read(source.with_suffix(".ipynb"), as_version=4).cells
    outputs = [output for cell in cells if figure.call in cell.source for output in cell.get("outputs", [])]
    shown = [output.data["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    if not shown:
        pytest.skip("the executed pair is older than its source: make notebooks")
    here, there = picture(b64decode(shown[0])), picture(png)
    if figure.live:  # the page adds something
        assert here.std() > 10 and here.shape[1] >= there.shape[1]
        return
    assert here.shape == there.shape
    off = np.abs(here - there)  # the pair keeps 256 colours
    assert off.mean() < 0.5 and (off > 40).mean() < 5e-4


def test_a_page_that_calls_a_book_figure_is_listed():
    """No figure of stored tables is drawn on a page and unknown to the command."""
    calls = {figure.call for figure in figures.FIGURES.values()}
    modules = {call.split(".")[1] for call in calls}
    for source in NOTEBOOKS.glob("*.py"):
        for call in re.findall(rf"figures\.(?:{'|'.join(modules)})\.\w+\(", source.read_text()):
            assert call in calls, f"{source.name} calls {call}...), which has no @figure"


@pytest.mark.parametrize("name", figures.FIGURES)
def test_no_mark_lies_outside_its_axes(name):
    for ax in figures.draw(name).axes:
        marks = [line.get_xydata() for line in ax.lines if line.get_marker() not in ("None", "|", "_")]
        marks += [dots.get_offsets() for dots in ax.collections if isinstance(dots, PathCollection)]
        for xy in map(np.asarray, marks):
            for values, (low, high) in zip(xy.T, (sorted(ax.get_xlim()), sorted(ax.get_ylim())), strict=True):
                seen = np.isfinite(xy).all(axis=1)
                assert ((low <= values) & (values <= high) | ~seen).all(), ax.get_title()


def test_live_measurements_join_in():
    ax = figures.real_text.jump(results.load("atlas-minilm"), {64: 7.0, 160: 15.0}).axes[0]
    assert list(ax.lines[1].get_ydata()) == [7, 15] and "now, medians" in ax.get_legend_handles_labels()[1]
    n = np.array([2.0, 50, 1e3])
    heads = {f"head {i}": (n, np.sqrt(n), 50.0, (1e3, 30.0)) for i in range(5)}
    ends = figures.two_clusters.growth_ends(heads).axes[0]
    assert [line.get_label() for line in ends.lines][:15:3] == [*heads]
    with pytest.raises(ValueError, match="at most 6 heads have a look of their own, and these are 7"):
        figures.two_clusters.growth_ends({f"head {i}": heads["head 0"] for i in range(7)})


def test_every_head_is_counted_in_its_histogram():
    drawn = figures.adversarial.scaling_factors(results.load("scaling-factor"))
    assert [sum(bar.get_height() for bar in ax.patches) for ax in drawn.axes] == [72, 72, 144]


def test_the_curves_beside_the_ascents_are_those_of_the_theorem():
    left, right = figures.draw("l2-tightness").axes
    n = left.lines[0].get_xdata()
    bound = np.array([4 * bounds.phi_inverse(m - 1) + 1 for m in n])
    exact = np.array([largest_row(m) for m in n])
    assert np.allclose(left.lines[0].get_ydata(), bound) and np.allclose(left.lines[1].get_ydata(), exact)
    assert np.allclose(right.lines[1].get_ydata(), bound - exact)


def test_what_tables_say_without_words():
    """Orders that the figures take from their tables."""
    assert list(results.load("verify").bound.unique()) == [check.name for check in verification.CHECKS]
    titles = figures.verified.bound_titles()
    assert {check.name for check in verification.CHECKS} <= {*titles}
    assert all(titles[bound.key] == bound.title for bound in CATALOGUE)


@pytest.mark.parametrize("format", ["svg", "pdf"])
def test_the_same_table_gives_the_same_bytes(format, tmp_path):
    first = figures.redraw("position-norms", tmp_path / "a", format)
    assert first == tmp_path / "a" / f"position-norms.{format}"
    second = figures.redraw("position-norms", tmp_path / "b", format)
    assert first.read_bytes() == second.read_bytes() and first.read_bytes()[:4] in (b"<?xm", b"%PDF")
    assert [path.name for path in (tmp_path / "a").iterdir()] == [first.name] and not plt.get_fignums()


def test_what_cannot_be_drawn_is_said_and_the_rest_is_drawn(results_folder, capsys, monkeypatch):
    committed = NOTEBOOKS.parent / "data" / "results"
    for name in ("position-norms", "gpt2-mini-training", "gpt2-mini-baselines"):
        (results_folder / f"{name}.csv").write_text((committed / f"{name}.csv").read_text())
    results.load("gpt2-mini-training").drop(columns="tokens").to_csv(results_folder / "gpt2-mini-training.csv")
    out = results_folder / "drawn"
    assert (
        main(
            ["figures", "position-norms", "real-text-jump", "verification", "gpt2-mini-training", "--output", str(out)]
        )
        == 1
    )
    printed, said = capsys.readouterr()
    assert printed == f"{out / 'position-norms.png'}\n" and len(said.splitlines()) == 3
    assert "real-text-jump was not drawn" in said and "`python -m lab tables atlas-minilm` makes it" in said
    assert "`make verify` makes it" in said
    assert "or gpt2-mini-baselines, in " in said and "lacks rows or columns that this figure shows" in said
    assert not plt.get_fignums()  # nor is one left open that was begun

    assert main(["figures"]) == 0
    listed = capsys.readouterr().out
    assert listed.count("cannot be drawn yet") == sum(bool(figure.missing()) for figure in figures.FIGURES.values())
    assert "`python -m lab tables adversarial-worst` and `python -m lab tables adversarial-layers` first" in listed
    (results_folder / "file").write_text("")
    for folder in (results_folder / "file", results_folder / "file" / "below"):
        assert main(["figures", "position-norms", "--output", str(folder)]) == 1
        assert f"python -m lab: the folder {folder} cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("format", ["png", "svg"])
def test_a_full_disk_leaves_the_old_drawing(format, tmp_path, monkeypatch):
    old = figures.redraw("position-norms", tmp_path, format).read_bytes()

    def full(self, path, **_):
        Path(path).write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    with pytest.raises(OSError, match="cannot be written .No space left on device.: name another"):
        figures.redraw("position-norms", tmp_path, format)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [old] and not plt.get_fignums()


def test_wrong_names_are_said(tmp_path):
    with pytest.raises(ValueError, match="there is no format 'jpg': choose from png, svg, pdf"):
        figures.redraw("position-norms", tmp_path, "jpg")
    with pytest.raises(ValueError, match="there is no figure 'x': choose from"):
        figures.draw("x")


def test_every_function_says_which_tables_it_takes():
    for figure in figures.FIGURES.values():
        for table in figure.tables:
            assert f"``{table}``" in (inspect.getdoc(figure.function) or ""), (
                f"{figure.call}...) draws the table {table}: its docstring says so, as ``{table}``, with the columns"
            )
    assert set(book.FORMATS) == {"png", "svg", "pdf"}


def test_the_atlas_draws_growth_from_the_shortest_window_slopes_in_their_intervals_and_each_on_its_axis():
    same = {"map": "m", "case": "as read", "corpus": "alice", "masked": False, "window": 0}
    rows = [{**same, "layer": layer, "length": n, "lipschitz": 2.0 * n} for layer in (0, 1) for n in (8, 32)]
    grown = figures.atlas.growth(pd.DataFrame(rows), {"m": "alice"}).axes[0].lines
    assert np.allclose([line.get_ydata() for line in grown[:2]], [1, 4])
    fitted = pd.DataFrame([{**same, "layer": 0, "slope": 0.3, "low": 0.2, "high": 0.5, "released": 0.1}])
    [bar] = figures.atlas.slopes(fitted).axes[0].containers[0][2][0].get_segments()
    assert np.allclose(bar[:, 1], [0.2, 0.5])
    both = figures.atlas.two_quantities(fitted, 0.25, 0.1).axes[0]
    assert both.lines[1].get_xydata().tolist() == [[0.3, 0.1]] and both.get_ylabel().endswith("released quantity")
