"""Movable figures in a real browser, from the disk: what a reader moves to is what the package computes."""

import re
from base64 import b64encode
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest
import test_book
import torch
from nbformat import v4

from lab import figures, results
from lab.experiments import moving
from lab.figures import sliders
from lab.statistics import growth, layer_growth, power_laws
from lipnb import Attention, bounds, local_lipschitz
from lipnb.worst_case import tight_input

ROOT = Path(__file__).parents[2]
LENGTHS, RADII, RANGES = [3, 10, 30, 100], [0.5, 1.0, 1.5], [0.0, 8.0, 64.0]
FORKS, HEIGHTS = [3, 8], [0.05, 0.3, 1.0]
ONE = torch.ones(1, 1).double()
PAGE = "notebooks/99_scratch.html"
DATA = """(name) => Bokeh.documents.map(one => one.get_model_by_name(name)).find(one => one)?.data"""


def atlas_rows():
    """Two models of the atlas, as read, and one of a single layer."""
    rows = layer_growth.named(pd.concat([results.load("atlas-minilm"), results.load("atlas-gpt2-mini")]))
    rows = rows[(rows.case == "as read") & (rows.corpus == "alice")]
    return pd.concat([rows, rows[(rows["map"] == "MiniLM") & (rows.layer == 2)].assign(map="one layer", layer=6)])


@pytest.fixture(scope="module")
def tables():
    """Small ones."""
    sharp = moving.from_uniform_to_sharp([4, 8, 16], RANGES, draws=3)
    return moving.two_clusters(LENGTHS, RADII), sharp, atlas_rows(), moving.even_forks(FORKS, [10.0, 1e4], HEIGHTS)


def drawn(tables):
    """The four figures."""
    movable = figures.movable
    makers = (movable.two_clusters, movable.released, movable.growth, movable.even_forks)
    with plt.style.context(figures.STYLE):
        return [make(table) for make, table in zip(makers, tables, strict=True)]


@pytest.fixture(scope="module")
def shown(tables):
    return drawn(tables)


@pytest.fixture(scope="module")
def site(tmp_path_factory, shown):
    """A book of one page that holds them, and one that does not."""
    folder = tmp_path_factory.mktemp("movable")
    test_book.begun(folder, "notebooks/99_scratch", "book/front")
    (folder / "book" / "front.md").write_text("# Front\n\n```{figure} figures/fig-99-growth.png\nA caption.\n```\n")
    (folder / "book" / "figures").mkdir()
    (folder / "book" / "figures" / "fig-99-growth.png").write_bytes(shown[2].still)
    (folder / "book" / "figures" / "fig-99-growth.html").write_text(shown[2]._repr_html_())
    cells = [v4.new_markdown_cell("# Scratch\n\nSee {numref}`fig-99-growth`.")]
    for count, one in enumerate(shown, 1):
        metadata = {"mystnb": {"figure": {"name": f"fig-99-{one.name}", "caption": f"Caption of {one.name}."}}}
        bundle = {"text/html": one._repr_html_(), "image/png": b64encode(one.still).decode(), "text/plain": repr(one)}
        outputs = [v4.new_output("execute_result", bundle, execution_count=count)]
        cells.append(v4.new_code_cell("figure", execution_count=count, metadata=metadata, outputs=outputs))
    (folder / "notebooks").mkdir()
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(v4.new_notebook(cells=cells, metadata=kernel), folder / "notebooks" / "99_scratch.ipynb")
    rendered = test_book.render(folder, folder)
    assert rendered.returncode == 0, rendered.stderr
    return folder / "_build" / "html"


@pytest.fixture(scope="module")
def visit(site, browser):
    visit = test_book.Visit(browser, site / PAGE, 1300)
    visit.page.wait_for_function("document.querySelectorAll('.movable.awake').length === 4")
    return visit


def figure(visit, place):
    return visit.page.locator(".movable").nth(place)


def slide(visit, place, name, to):
    """Move a slider with the keyboard, from its left end."""
    control = figure(visit, place).locator(f"[name={name}]")
    control.press("Home")
    for _ in range(to):
        control.press("ArrowRight")


def words(sentence):
    """Its words without the marks after them: 1.4 is none of "1.42 and 11.4"."""
    return [word.rstrip(".,:") for word in re.split(r"[ \n]", sentence)]


def signed(value):
    """Two decimals with a real minus, none before a zero."""
    text = f"{value:.2f}".replace("-", "−")
    return "0.00" if text == "−0.00" else text


def seen(page, selector, count):
    """How many of so many elements are visible; another count is no answer."""
    found = page.locator(selector).all()
    assert len(found) == count, (selector, len(found))
    return sum(one.is_visible() for one in found)


@pytest.mark.parametrize(("n", "R"), [(0, 0), (3, 1)])
def test_two_clusters_moved_show_what_the_package_computes(visit, n, R):
    slide(visit, 0, "n", n)
    slide(visit, 0, "R", R)
    length, radius = LENGTHS[n], RADII[R]
    x = tight_input(-ONE, length, radius)
    constant = local_lipschitz(Attention.from_matrices(-ONE, ONE), x, method="dense").value.item()
    said = figure(visit, 0).locator(".says").inner_text()
    bound = bounds.general_upper(-ONE, ONE, length, radius)
    for number in (constant, bound, length**0.5):
        assert sliders.tidy(number) in words(said), said
    assert f"n = {length}, R = {radius:g}:" in said
    now = visit.page.evaluate(DATA, "now")
    assert now["n"] == [length] * 2 and now["y"] == pytest.approx([constant, bound], rel=1e-3)
    assert visit.page.evaluate(DATA, "tokens")["x"][:2] == pytest.approx([-radius, radius])
    assert visit.page.evaluate(DATA, "curves")["constant"][n] == pytest.approx(constant, rel=1e-3)
    control = figure(visit, 0).locator("[name=n]")
    assert control.get_attribute("aria-valuetext") == str(length)


@pytest.mark.parametrize(("n", "t", "b"), [(0, 0, 0), (1, 1, 1), (1, 0, 2)])
def test_even_forks_moved_show_what_the_package_computes(visit, n, t, b):
    for name, to in (("n", n), ("t", t), ("b", b)):
        slide(visit, 3, name, to)
    length, logits, height = FORKS[n], (10.0, 1e4)[t], HEIGHTS[b]
    A = logits * torch.tensor([[0.0, 1, 0], [1, 0, 0], [0, 0, -1]]).double()
    low = height / 4
    x = torch.tensor([[1.0, 0, low], [-1.0, 0, low]] + [[1.0, 0, height]] * (length - 2), dtype=torch.float64)
    x[:, 0] *= (1 - x[:, 2] ** 2).sqrt()
    f = Attention.from_matrices(A, torch.eye(3).double())
    constant = local_lipschitz(f, x, method="dense").value.item()
    ratio = constant / bounds.general_upper_exact(A, torch.eye(3), length, 1.0)
    said = figure(visit, 3).locator(".says").inner_text()
    assert sliders.tidy(constant) in words(said) and sliders.tidy(ratio, 4) in words(said), said
    assert visit.page.evaluate(DATA, "places")["y"] == pytest.approx([low, low, height], rel=1e-3)
    P = f.probabilities(x)[0]
    shares = visit.page.evaluate(DATA, "shares")["text"]
    for text, share in zip(shares, (P[2, 0], P[0, 1]), strict=True):
        assert text.endswith(f"gives each prong {100 * share.item():.3g} %")


def test_the_arrows_have_the_length_of_the_constant(tables):
    """In all, outputs move by the constant when the input moves by one."""
    rows = tables[0]
    moved = rows.lonely_move**2 + (rows.n - 1) * rows.cluster_move**2
    out = rows.lonely_out_move**2 + (rows.n - 1) * rows.cluster_out_move**2
    assert np.allclose(moved, 1) and np.allclose(np.sqrt(out), rows.constant)  # the worst move never parts the cluster
    assert (rows.constant <= rows.bound).all()


@pytest.mark.parametrize("t", range(len(RANGES)))
def test_the_logit_range_moved_shows_both_exponents(visit, tables, t):
    slide(visit, 1, "t", t)
    rows = tables[1][tables[1].logit_range == RANGES[t]]
    said = figure(visit, 1).locator(".says").inner_text()
    for name, word in (("defined", "constant"), ("released", "reported")):
        law = power_laws.power_law(rows.n, rows[name])
        assert f"{word} {signed(law.exponent)} [" in said
    points = visit.page.evaluate(DATA, "points")
    assert sorted(points["defined"]) == pytest.approx(sorted(rows.defined), rel=1e-3)


def test_uniform_attention_has_the_exponent_of_a_quarter(shown, tables):
    rows = tables[1][tables[1].logit_range == 0]
    assert np.allclose(rows.defined, 1) and np.allclose(rows.largest, 1 / rows.n)
    for _, draw in rows.groupby("draw"):
        assert np.allclose(draw.released / draw.n**0.25, draw.released.iloc[0] / draw.n.iloc[0] ** 0.25)
    assert "reported 0.25 [0.25, 0.25]" in shown[1].at("says", t=0)


def test_model_and_layer_are_chosen(visit, tables):
    figure(visit, 2).locator("[name=model]").select_option(label="gpt2-mini")
    slide(visit, 2, "layer", 3)
    text = tables[2]
    rows = text[(text.model == "gpt2-mini") & (text.layer == 3)]
    fit = growth.slope(rows)
    said = figure(visit, 2).locator(".says").inner_text()
    low, high = map(signed, fit.interval)
    assert said.startswith(f"gpt2-mini, layer 3: slope {signed(fit.slope)}, 95 % interval {low} to {high}; {fit.curve}")
    law = visit.page.evaluate(DATA, "law")
    assert law["n"] == [rows.length.min(), rows.length.max()]
    assert np.log(law["y"][1] / law["y"][0]) / np.log(law["n"][1] / law["n"][0]) == pytest.approx(fit.slope, abs=1e-2)
    figure(visit, 2).locator("[name=model]").select_option(label="one layer")
    layer = figure(visit, 2).locator("[name=layer]")
    assert figure(visit, 2).locator("output").inner_text() == "6" and layer.is_disabled()
    assert figure(visit, 2).locator(".says").inner_text().startswith("one layer, layer 6: ")


def test_nothing_is_asked_from_outside_and_scripts_are_small(visit, site, browser):
    assert [url for url in visit.requests if not url.startswith(("file:", "data:"))] == [] and visit.errors == []
    scripts = [site / "_static" / name for name in ("vendor/bokeh.min.js", "movable.js")]
    assert sum(path.stat().st_size for path in scripts) < 1_500_000
    other = test_book.Visit(browser, site / "book" / "intro.html", 1300)
    assert not [url for url in other.requests if re.search(r"bokeh|movable\.(?:js|css)", url)]


def test_a_page_of_prose_that_shows_the_picture_has_the_figure(site, browser):
    page = test_book.Visit(browser, site / "book" / "front.html", 1300).page
    page.wait_for_function("document.querySelectorAll('figure .movable.awake').length === 1")
    assert page.locator("figure img:visible").count() == 0 and page.locator("figure [name=layer]").is_visible()


def test_it_fits_a_phone(site, browser):
    page = test_book.Visit(browser, site / PAGE, 390).page
    page.wait_for_function("document.querySelectorAll('.movable.awake').length === 4")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate(test_book.STICKS_OUT) == []


def test_a_still_picture_stands_where_scripts_do_not_run(site, browser, visit):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site / PAGE).as_uri())
    still, moving_parts = (".movable .still", 4), (".movable :is(.controls, .plots, .says)", 12)
    assert seen(page, *still) == 4 and seen(page, *moving_parts) == 0
    context.close()
    assert seen(visit.page, *still) == 0 and seen(visit.page, *moving_parts) == 12
    visit.page.emulate_media(media="print")
    assert seen(visit.page, *still) == 4 and seen(visit.page, *moving_parts) == 0
    visit.page.emulate_media(media="screen")


def test_a_figure_is_the_same_each_time_and_small(shown, tables):
    """Whatever bokeh drew before."""
    for first, again in zip(shown, drawn(tables), strict=True):
        assert first._repr_html_() == again._repr_html_() and first._repr_png_() == again._repr_png_()
        assert len(first.data) < sliders.MOST and len(first.still) < 30_000
        assert first._repr_png_().startswith(b"\x89PNG")
