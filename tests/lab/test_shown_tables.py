"""Tables as readers see them."""

import re

import numpy as np
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


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, "yes"),
        (np.True_, "yes"),
        (np.False_, "no"),
        (-12345, "−12,345"),
        (np.int64(-7), "−7"),
        (np.float32(-0.5), "−0.500"),
        (pd.NA, "–"),
    ],
)
def test_one_entry(value, expected):
    assert figures.tables.text(value, 3) == expected


@pytest.mark.parametrize("kind", [bool, "boolean", object])
def test_a_column_of_booleans_says_yes_and_no_and_is_no_number(kind):
    shown = figures.table(pd.DataFrame({"holds": pd.Series([True, False], dtype=kind)}))
    assert shown.rows == [["yes"], ["no"]] and shown.numeric == [False]


def test_a_nullable_column_shows_what_is_missing():
    holds, count = pd.array([True, None], dtype="boolean"), pd.array([-3, None], dtype="Int64")
    shown = figures.table(pd.DataFrame({"holds": holds, "count": count}))
    assert shown.rows == [["yes", "−3"], ["–", "–"]] and shown.numeric == [False, True]


@pytest.mark.parametrize("text", ["10^-3", "10^n", "10^0.5", "10^2,5", "10^2n", "10^{3}", "10^", "10^2^3", "210^3"])
def test_a_caret_that_raises_no_whole_power_stays(text):
    assert f"<td>{text}</td>" in figures.table(pd.DataFrame({"rate": [text]}))._repr_html_()


def test_whole_powers_of_ten_are_raised():
    assert figures.tables.superscript("2.5 · 10^−7") == "2.5 · 10<sup>−7</sup>"
    assert figures.tables.superscript("g = 10^3, 10^12.") == "g = 10<sup>3</sup>, 10<sup>12</sup>."


def test_the_row_that_matters_is_bold():
    for bold in ([False, True], FRAME.n > 100, lambda row: row.n > 100):
        html = figures.table(FRAME, {"n": "n"}, bold=bold)._repr_html_()
        assert html.count('class="matters"') == 1 and html.index("matters") > html.index('<td class="number">4')


def test_a_series_of_bold_rows_follows_the_index():
    turned = FRAME[::-1]
    assert figures.table(turned, bold=FRAME.n > 100).bold == [True, False]
    assert figures.table(turned[:1], bold=FRAME.n > 100).bold == [True]
    assert figures.table(turned, bold=(FRAME.n > 100).to_numpy()).bold == [False, True]  # by place
    named = FRAME.set_index("n")
    assert figures.table(named[::-1], {"n": "n"}, bold=named.value > 1).bold == [True, False]
    assert figures.table(named, {"n": "n"}, bold=lambda row: row.n > 100).bold == [False, True]
    again = pd.concat([FRAME, FRAME])
    assert figures.table(again, bold=again.n > 100).bold == [False, True] * 2


def test_an_index_is_shown_if_it_is_named():
    by_layer = pd.DataFrame({"value": [1.5]}, index=pd.Index([3], name="layer"))
    assert figures.table(by_layer, {"layer": "layer", "value": "constant"}).rows == [["3", "1.50"]]
    assert figures.table(by_layer).headings == ["value"]


def test_what_cannot_be_read_is_refused():
    with pytest.raises(TypeError, match="frame must be a pandas DataFrame, .* got list"):
        figures.table([[1, 2]])
    wide = pd.DataFrame({str(i): [i] for i in range(8)})
    with pytest.raises(ValueError, match="at most 7 columns"):
        figures.table(wide)
    with pytest.raises(ValueError, match="there is no column lengths"):
        figures.table(FRAME, {"lengths": "n"})
    with pytest.raises(ValueError, match="for each of 2 rows, got 1"):
        figures.table(FRAME, {"n": "n"}, bold=[True])
    with pytest.raises(ValueError, match="for each of 2 rows, got 1"):
        figures.table(FRAME, {"n": "n"}, bold=pd.array([True, None], dtype="boolean"))
    with pytest.raises(ValueError, match="its index is not that of the frame"):
        figures.table(FRAME, {"n": "n"}, bold=pd.Series([True, False], index=[1, 2]))
    with pytest.raises(ValueError, match="digits are given for value, which the table does not show"):
        figures.table(FRAME, {"n": "n"}, digits={"value": 2})
    twice = pd.DataFrame([[1, 2, 3]], columns=["n", "n", "value"])
    with pytest.raises(ValueError, match="two columns are called n: give each a name"):
        figures.table(twice)
    assert figures.table(twice, {"value": "value"}).rows == [["3"]]


def test_a_line_of_tokens_has_a_bar_for_each_share_and_move():
    line = figures.token_line.TokenLine(["[CLS]", "<b>"], [0.75, 0.25], [1.0, 2.0])
    html = line._repr_html_()
    assert "[CLS]" in html and "&lt;b&gt;" in html and "<b><b>" not in html
    assert re.findall(r"height:([\d.]+)em", html) == ["1.60", "0.80", "0.53", "1.60"]
    assert "75.0% of the push; its output moves by 1.00" in html and repr(line) == "[CLS] (75%) <b> (25%)"
    with pytest.raises(ValueError, match="2 tokens need as many shares and moves"):
        figures.token_line.TokenLine(["a", "b"], [1.0], [1.0, 1.0])
