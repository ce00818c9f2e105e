"""Sentences of a scan: whole, plain, true of untrained models too, and with pages that are there."""

import re
from pathlib import Path
from string import Formatter

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


def test_numbers_are_written_as_their_kind_asks():
    closest = dict(title="T", count=1, rows=2, low=2.53)
    for key, value, where, said in (
        ("proved", 34.8501, {"proved": 1, "windows": 2, "constant": 14.3}, "34.9 times as large"),
        ("farthest", 0.99969, dict(layer=1, length=8, before=0.967, after=0.9667), "a factor of 0.9997"),
        ("steepest", 0.9957, {"token": 0}, "99.6 %"),
        ("closest", 5.08, closest, "1 of 2 layers and lengths"),
        ("closest", 5.08, closest, "340 to 1.2e5 times too high"),
        ("passed", 12345, {"rows": 12345}, "12345 of 12345"),
    ):
        found, template = words.finding(key, value, **where), words.TEMPLATES[key]
        assert said in str(found) and (found.value, found.where) == (value, where)
        assert (found.unit, found.page, found.section) == (template.unit, template.page, template.section)
