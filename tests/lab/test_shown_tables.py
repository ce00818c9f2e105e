"""Tables as readers see them."""

import pandas as pd
import pytest

from lab import figures

FRAME = pd.DataFrame({"n": [4, 65536], "value": [0.000123456, 2.5e7], "holds": [True, False], "name": ["a < b", None]})


def test_numbers_have_the_digits_asked_for_and_text_is_escaped():
    shown = figures.table(FRAME, {"name": "case", "n": "tokens n", "value": "constant", "holds": "holds"}, digits=2)
    assert shown.headings == ["case", "tokens n", "constant", "holds"]
    assert shown.rows == [["a < b", "4", "0.00012", "yes"], ["–", "65,536", "2.5 · 10^7", "no"]]
    assert shown.numeric == [False, True, True, False]
    html = shown._repr_html_()
    assert "a &lt; b" in html and "10<sup>7</sup>" in html and 'class="matters"' not in html
    assert (
        html
        == figures.table(
            FRAME, {"name": "case", "n": "tokens n", "value": "constant", "holds": "holds"}, digits=2
        )._repr_html_()
    )


@pytest.mark.parametrize(
    ("value", "digits", "expected"),
    [
        (999.96, 4, "1,000"),
        (999.94, 4, "999.9"),
        (1.0, 3, "1.00"),
        (-0.25, 2, "−0.25"),
        (1e6, 2, "1.0 · 10^6"),
        (123456.0, 2, "123,456"),
        (float("nan"), 3, "–"),
        (float("inf"), 3, "∞"),
        (0.0, 3, "0"),
        (3e-7, 1, "3 · 10^−7"),
    ],
)
def test_one_number(value, digits, expected):
    assert figures.tables.number(value, digits) == expected


def test_the_row_that_matters_is_bold():
    for bold in ([False, True], FRAME.n > 100, lambda row: row.n > 100):
        html = figures.table(FRAME, {"n": "n"}, bold=bold)._repr_html_()
        assert html.count('class="matters"') == 1 and html.index("matters") > html.index('<td class="number">4')


def test_an_index_is_shown_if_it_is_named():
    by_layer = pd.DataFrame({"value": [1.5]}, index=pd.Index([3], name="layer"))
    assert figures.table(by_layer, {"layer": "layer", "value": "constant"}).rows == [["3", "1.50"]]
    assert figures.table(by_layer).headings == ["value"]


def test_what_cannot_be_read_is_refused():
    wide = pd.DataFrame({str(i): [i] for i in range(8)})
    with pytest.raises(ValueError, match="at most 7 columns"):
        figures.table(wide)
    with pytest.raises(ValueError, match="there is no column lengths"):
        figures.table(FRAME, {"lengths": "n"})
    with pytest.raises(ValueError, match="for each of 2 rows, got 1"):
        figures.table(FRAME, {"n": "n"}, bold=[True])
