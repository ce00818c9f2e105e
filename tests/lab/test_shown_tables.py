"""Tables as readers see them."""

import re

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
        (1e6, 2, "1.0 · 10^6"),
        (float("nan"), 3, "–"),
        (float("inf"), 3, "∞"),
        (0.0, 3, "0"),
        (3e-7, 1, "3 · 10^−7"),
    ],
)
def test_one_number(value, digits, expected):
    assert figures.tables.number(value, digits) == expected


@pytest.mark.parametrize("kind", [bool, "boolean", object])
def test_a_column_of_booleans_says_yes_and_no_and_is_no_number(kind):
    shown = figures.table(pd.DataFrame({"holds": pd.Series([True, False], dtype=kind)}))
    assert shown.rows == [["yes"], ["no"]] and shown.numeric == [False]


@pytest.mark.parametrize("text", ["10^-3", "10^0.5", "10^2,5", "10^2n", "10^2^3", "210^3"])
def test_a_caret_that_raises_no_whole_power_stays(text):
    assert f"<td>{text}</td>" in figures.table(pd.DataFrame({"rate": [text]}))._repr_html_()


def test_a_series_of_bold_rows_follows_the_index():
    turned = FRAME[::-1]
    assert figures.table(turned, bold=FRAME.n > 100).bold == [True, False]
    assert figures.table(turned[:1], bold=FRAME.n > 100).bold == [True]
    assert figures.table(turned, bold=(FRAME.n > 100).to_numpy()).bold == [False, True]  # by place
    html = figures.table(FRAME.set_index("n"), {"n": "n"}, bold=lambda row: row.n > 100)._repr_html_()
    assert html.count('class="matters"') == 1 and html.index("matters") > html.index('<td class="number">4')
    again = pd.concat([FRAME, FRAME])
    assert figures.table(again, bold=again.n > 100).bold == [False, True] * 2


def test_a_line_of_tokens_has_a_bar_for_each_share_and_move():
    line = figures.token_line.TokenLine(["[CLS]", "<b>"], [0.75, 0.25], [1.0, 2.0])
    html = line._repr_html_()
    assert "[CLS]" in html and "&lt;b&gt;" in html and "<b><b>" not in html
    assert re.findall(r"height:([\d.]+)em", html) == ["1.60", "0.80", "0.53", "1.60"]
    assert "75.0% of the push; its output moves by 1.00" in html and repr(line) == "[CLS] (75%) <b> (25%)"
