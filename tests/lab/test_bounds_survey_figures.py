"""Figures of bounds, worst inputs and rounded caches: legible, and names apart, where a phone shows them."""

from itertools import combinations

import matplotlib.pyplot as plt
import pytest

from lab import figures, results

PHONE = 350  # pixels that a figure has on a phone
LEGIBLE = 9  # pixels of a letter's size


@pytest.fixture(params=["text", "worst", "trained", "layers", "brackets", "ranks", "depth"])
def drawn(request):
    """One of the figures that pages show, drawn."""
    figures.house_style()
    caches = figures.kv_rounding.predicted(results.load("kv-rounding"))
    draw = {
        "text": lambda: figures.bounds_survey.at_text(results.load("bounds-survey-text")),
        "worst": lambda: figures.bounds_survey.at_worst(results.load("bounds-survey-growth")),
        "trained": lambda: figures.worst_inputs.between({"heads": results.load("worst-gpt2")}),
        "layers": lambda: figures.worst_inputs.between({"layers": results.load("worst-gpt2-layers")}, thing="layers"),
        "brackets": lambda: figures.verified.brackets(results.load("bracket-minilm"), results.load("bracket-gpt2")),
        "ranks": lambda: figures.kv_rounding.ranks(caches),
        "depth": lambda: figures.kv_rounding.depth(caches),
    }
    found = draw[request.param]()
    found.canvas.draw()
    yield found
    plt.close(found)


def texts(figure):
    """What is written in a figure: titles, labels, numbers of the axes, legends."""
    return [one for one in figure.findobj(plt.Text) if one.get_text().strip() and one.get_visible()]


def test_letters_are_legible_on_a_phone(drawn):
    wide = drawn.get_tightbbox().width * drawn.dpi
    small = [one.get_text() for one in texts(drawn) if one.get_size() / 72 * drawn.dpi * PHONE / wide < LEGIBLE]
    assert not small


def test_nothing_written_overlaps(drawn):
    boxes = [(one.get_text(), one.get_window_extent()) for ax in drawn.axes for one in [ax.title, *ax.texts]]
    boxes += [(one.get_text(), one.get_window_extent()) for legend in drawn.legends for one in legend.get_texts()]
    boxes = [(words, box) for words, box in boxes if words]
    meeting = [(a, b) for (a, one), (b, other) in combinations(boxes, 2) if one.overlaps(other)]
    assert not meeting
    frames = [ax.get_window_extent() for ax in drawn.axes]
    assert not [legend for legend in drawn.legends if any(legend.get_window_extent().overlaps(one) for one in frames)]
