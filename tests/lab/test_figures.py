"""Figures draw what the table says, grey what did not converge, and are the same on the page and by the command."""

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

from lab import figures, results
from lab.cli import main
from lab.experiments.l2_tightness import largest_row
from lipnb import bounds
from lipscan.scanning.summary import first_window

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


def of_the_jump():
    stored = results.load("atlas-minilm")
    return stored[(stored.corpus == "alice") & (stored.order == "text") & (stored.layer == 0)]


def test_other_series_of_a_table_are_not_among_the_dots():
    rows = of_the_jump()
    assert {*rows.weights} == {"pretrained", "random"}
    assert figures.points(figures.real_text.jump(rows)) == (rows.weights == "pretrained").sum() == 52


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


def test_the_figures_of_a_scan_show_its_first_windows():
    table = results.load("scan-dinov2-small")
    rows = figures.scans.first(table)
    expected = first_window(table).query("length == @rows.length[0]")
    for column in ("layer", "window", "lipschitz", "low", "high", "certified"):
        assert rows[column].tolist() == expected[column].tolist()
    assert (rows.low < rows.high).any()


def test_live_measurements_join_in():
    ax = figures.real_text.jump(results.load("atlas-minilm"), {64: 7.0, 160: 15.0}).axes[0]
    assert list(ax.lines[1].get_ydata()) == [7, 15] and "now, medians" in ax.get_legend_handles_labels()[1]
    n = np.array([2.0, 50, 1e3])
    heads = {f"head {i}": (n, np.sqrt(n), 50.0, (1e3, 30.0)) for i in range(5)}
    ends = figures.two_clusters.growth_ends(heads).axes[0]
    assert [(text.get_text(), text.xy) for text in ends.texts] == [(name, (1e3, np.sqrt(1e3))) for name in heads]


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


@pytest.mark.parametrize("format", ["svg", "pdf"])
def test_the_same_table_gives_the_same_bytes(format, tmp_path):
    first = figures.redraw("l2-exponents", tmp_path / "a", format)
    assert first == tmp_path / "a" / f"l2-exponents.{format}"
    second = figures.redraw("l2-exponents", tmp_path / "b", format)
    assert first.read_bytes() == second.read_bytes() and first.read_bytes()[:4] in (b"<?xm", b"%PDF")
    assert [path.name for path in (tmp_path / "a").iterdir()] == [first.name] and not plt.get_fignums()


def test_what_cannot_be_drawn_is_said_and_the_rest_is_drawn(results_folder, capsys, monkeypatch):
    committed = NOTEBOOKS.parent / "data" / "results"
    for name in ("l2-bounds", "bracket-minilm", "bracket-gpt2"):
        (results_folder / f"{name}.csv").write_text((committed / f"{name}.csv").read_text())
    results.load("bracket-minilm").drop(columns="layer").to_csv(results_folder / "bracket-minilm.csv")
    out = results_folder / "drawn"
    names = ["l2-exponents", "real-text-jump", "verification", "brackets"]
    assert main(["figures", *names, "--output", str(out)]) == 1
    printed, said = capsys.readouterr()
    assert printed == f"{out / 'l2-exponents.png'}\n" and len(said.splitlines()) == 3
    assert "real-text-jump was not drawn" in said and "`python -m lab tables atlas-minilm` makes it" in said
    assert "`make verify` makes it" in said
    assert "or bracket-gpt2, in " in said and "lacks rows or columns that this figure shows" in said
    assert not plt.get_fignums()  # nor is one left open that was begun
    (results_folder / "file").write_text("")
    assert main(["figures", "l2-exponents", "--output", str(results_folder / "file")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_a_full_disk_leaves_the_old_drawing(tmp_path, monkeypatch):
    old = figures.redraw("l2-exponents", tmp_path, "png").read_bytes()

    def full(self, path, **_):
        Path(path).write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    with pytest.raises(OSError, match="cannot be written .No space left on device.: name another"):
        figures.redraw("l2-exponents", tmp_path, "png")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [old] and not plt.get_fignums()


def test_the_atlas_draws_slopes_in_their_intervals_and_each_on_its_axis():
    row = {"map": "m", "case": "as read", "layer": 0, "slope": 0.3, "low": 0.2, "high": 0.5, "released": 0.1}
    fitted = pd.DataFrame([row])
    [bar] = figures.atlas.slopes(fitted).axes[0].containers[0][2][0].get_segments()
    assert np.allclose(bar[:, 1], [0.2, 0.5])
    both = figures.atlas.two_quantities(fitted, 0.25, 0.1).axes[0]
    assert both.lines[1].get_xydata().tolist() == [[0.3, 0.1]] and both.get_ylabel().endswith("released quantity")


def test_names_at_the_ends_of_lines_keep_their_order_and_do_not_overlap():
    ax = plt.subplots()[1]
    for name, end in (("top", 2.0), ("low", 1.0), ("high", 1.01), ("_axis", 0.0)):
        ax.plot([0, 1], [0, end], label=name)
    figures.named_at_the_end(ax, apart=12)
    ax.figure.canvas.draw()
    boxes = {name.get_text(): name.get_window_extent() for name in ax.texts}
    low, high, top = (boxes.pop(name) for name in ("low", "high", "top"))
    assert low.y1 <= high.y0 and high.y1 <= top.y0 and min(low.x0, top.x0) > ax.bbox.x1 and not boxes
    assert abs((top.y0 + top.y1) / 2 - ax.transData.transform((1, 2))[1]) < 2
