"""Sentences of a scan: whole, plain, true of untrained models too, and with pages that are there."""

import re
from pathlib import Path
from string import Formatter

import pytest

from lipscan.scanning import words

BOOK = Path(__file__).parents[3] / "notebooks"


def test_each_kind_is_a_whole_sentence_with_a_page_that_is_there():
    for key, template in words.TEMPLATES.items():
        assert template.page in {None, *words.PAGES}, key
        assert re.match(r'[A-Z"{]', template.words) and template.words[-1] in ".}", key
        assert not re.search(r"\(s\)|\btrain|  | 1 [a-z]+s\b", template.words), key  # no plurals; nothing on training
        if "{value" in template.words:
            assert template.unit, key
        for _, name, spec, _ in Formatter().parse(template.words):
            assert name is None or spec in {*words.WRITERS, ".0f"}, key
    for page, title in words.PAGES.items():
        assert f"# # {title}\n" in (BOOK / f"{page}.py").read_text(encoding="utf-8"), page


@pytest.mark.parametrize(
    ("key", "value", "where", "said"),
    [
        (
            "proved",
            34.8501,
            {"proved": 1, "windows": 2, "constant": 14.3},
            "whose constant is 14.3: no small change comes out more than 34.9 times as large (windows with a",
        ),
        (
            "farthest",
            0.99969,
            dict(layer=1, length=8, before=0.967, after=0.9667),
            "0.967 to 0.9667, a factor of 0.9997",
        ),
        ("steepest", 0.9957, {"token": 0}, "In the first window 99.6 % of the worst change"),
        (
            "closest",
            5.08,
            dict(title="T", count=1, rows=2, low=2.53),
            '"T" is the closest in 1 of 2 layers and lengths',
        ),
        ("closest", 5.08, dict(title="T", count=1, rows=2, low=2.53), "340 to 1.2e5 times too high"),
        ("passed", 12345, {"rows": 12345}, "Self-checks passed: 12345 of 12345"),
    ],
)
def test_numbers_are_written_as_their_kind_asks(key, value, where, said):
    found = words.finding(key, value, **where)
    assert said in str(found) and (found.value, found.where) == (value, where)
    template = words.TEMPLATES[key]
    assert (found.unit, found.page, found.section) == (template.unit, template.page, template.section)
