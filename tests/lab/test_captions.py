"""Captions are moved to the figures they belong to, and missing ones are named."""

import copy

import nbformat

from lab.pages import captions

PNG = nbformat.v4.new_output("display_data", data={"image/png": "iVBORw0KGgo="})
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
    assert "given to 2 figures" in said(drawing(PNG), text(good), drawing(PNG), text(good))[0]


def test_a_glued_picture_is_not_shown():
    glued = nbformat.v4.new_output(
        "display_data", data={"application/papermill.record/image/png": "x", "image/png": "x"}
    )
    assert captions.draws(drawing(glued)) == 0
