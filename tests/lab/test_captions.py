"""Captions are moved to the figures they belong to, and missing ones are named."""

import copy

import nbformat
import pytest

from lab.pages import captions

PNG = nbformat.v4.new_output("display_data", data={"image/png": "iVBORw0KGgo="})
SVG = nbformat.v4.new_output("display_data", data={"image/svg+xml": "<svg/>"})
ALT = "dots that rise with the number of tokens,\nand a line"
BLOCK = f"<!-- figure fig-41-rates: {ALT} -->\n*Constants\nrise like $n^{{1/4}}$.*\n\nAnd text."


def page(*cells):
    return nbformat.v4.new_notebook(cells=list(cells))


def drawing(*outputs):
    return nbformat.v4.new_code_cell("plt.show()", outputs=[copy.deepcopy(one) for one in outputs])


def text(source):
    return nbformat.v4.new_markdown_cell(source)


def test_the_block_becomes_the_caption_and_leaves_the_text():
    after = text(BLOCK)
    notebook = captions.moved(page(drawing(PNG), after))
    assert notebook.cells[0].metadata.mystnb == {
        "figure": {"name": "fig-41-rates", "caption": "Constants rise like $n^{1/4}$."},
        "image": {"alt": "dots that rise with the number of tokens, and a line"},
    }
    assert notebook.cells[1].source == "And text."


def test_a_page_without_faults_has_no_complaint_and_each_fault_has_one():
    good = "<!-- figure fig-41-rates: dots that rise with the number of tokens -->\n*It grows.*"

    def said(*cells, name="41_real_text"):
        return list(captions.complaints({name: page(*cells)}))

    assert said(drawing(PNG), text(good)) == []
    assert said(nbformat.v4.new_code_cell("1"), text("*an italic paragraph*")) == []
    assert "no caption block" in said(drawing(PNG), text("*It grows.*"))[0]
    assert "no caption block" in said(drawing(PNG))[0]
    assert "shows 2 figures" in said(drawing(PNG, PNG), text(good))[0]
    assert "fig-42-words, not fig-41-rates" in said(drawing(PNG), text(good), name="42_inputs")[0]
    assert "in words of its own" in said(drawing(PNG), text(good.replace("that rise with the number of tokens", "")))[0]
    repeated = good.replace("It grows.", "See dots that rise with the\nnumber of tokens here.")
    assert "in words of its own" in said(drawing(PNG), text(repeated))[0]
    [sentence] = said(drawing(SVG), text(good))
    assert "is SVG without PNG" in sentence
    assert "given to 2 figures" in said(drawing(PNG), text(good), drawing(PNG), text(good))[0]


@pytest.mark.parametrize(
    "caption",
    [
        "*The star is forgotten.\n\nText with *emphasis*",
        "*Its end is **bold**",
        "**It is bold**",
        "*No star.",
        "No star*",
    ],
)
def test_a_caption_that_is_not_closed_is_none(caption):
    source = f"<!-- figure fig-41-rates: {ALT} -->\n{caption}\n\nAnd *more*."
    notebook = page(drawing(PNG), text(source))
    [sentence] = captions.complaints({"41_real_text": notebook})
    assert "no caption block" in sentence
    moved = captions.moved(notebook)
    assert "mystnb" not in moved.cells[0].metadata and moved.cells[1].source == source


@pytest.mark.parametrize(
    "caption", ["It **grows**", "**It** grows.", "**It** *or* **not**", "$n^*$ stars", "It\ngrows"]
)
@pytest.mark.parametrize("rest", ["", "\n", "\n\nAnd *more*."])
def test_a_caption_keeps_its_own_stars(caption, rest):
    notebook = page(drawing(PNG), text(f"<!-- figure fig-41-rates: {ALT} -->\n*{caption}*{rest}"))
    assert captions.moved(notebook).cells[0].metadata.mystnb.figure.caption == " ".join(caption.split())
    assert notebook.cells[1].source == rest.strip()


def test_a_comment_of_a_figure_that_no_cell_draws_is_named():
    def said(*cells):
        return list(captions.complaints({"41_real_text": page(*cells)}))

    still = nbformat.v4.new_code_cell("1")
    for cells in (
        (text(BLOCK),),
        (drawing(PNG), text(BLOCK), still, text(BLOCK.replace("rates", "other"))),
        (drawing(PNG), text(f"{BLOCK}\n\n{BLOCK.replace('rates', 'other')}")),
        (drawing(PNG), text(BLOCK), text(BLOCK.replace("rates", "other"))),
    ):
        [sentence] = said(*cells)
        assert "stands after no cell that draws" in sentence
    assert "<!-- figure fig-41-other: " in sentence


def test_a_glued_picture_is_not_shown():
    glued = nbformat.v4.new_output(
        "display_data", data={"application/papermill.record/image/png": "x", "image/png": "x"}
    )
    assert captions.draws(drawing(glued)) == 0
