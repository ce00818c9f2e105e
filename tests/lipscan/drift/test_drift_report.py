"""The report: one file that opens offline, names escaped."""

import re
from dataclasses import replace
from io import StringIO

import pytest
import torch

from lipscan import drift, models
from lipscan.drift import terminal
from lipscan.drift.report import KINDS, html

IDS = torch.tensor([[2, 7, 5, 6, 9, 3]])


def test_a_report_holds_verdict_plots_and_table_and_nothing_from_outside(families, tmp_path):
    model = models.load(families / "gpt2")
    other = drift.states(model, IDS, torch.bfloat16)
    other.about["file"] = "<b>mine</b>.safetensors"
    found = drift.compare(model, other, progress=False)
    path = found.report(tmp_path)
    text = path.read_text(encoding="utf-8")
    assert path == tmp_path / "report.html" and found.report(tmp_path / "a.html").read_text(encoding="utf-8") == text
    assert found.verdict.sentence.partition(": ")[2].replace("'", "&#39;") in text and text.count("<svg") == 3
    assert "<b>mine" not in text and "&lt;b&gt;mine" in text
    assert not re.search(r"(src|href)=\"(?!#)", text) and "<script" not in text and "@import" not in text
    assert text.count("<tr") == 1 + len(found.table)


@pytest.mark.parametrize("kind", ["rounding", "cannot tell", "bug"])
def test_a_verdict_is_told_by_a_word_and_a_look_of_its_own(families, kind):
    model = models.load(families / "bert")
    found = drift.compare(model, drift.states(model, IDS, torch.bfloat16), progress=False)
    found = replace(found, verdict=found.verdict._replace(kind=kind))
    look, word = re.search(r'class="found verdict (\w+)"[^>]*><p><b>([\w ]+)</b>', html(found)).groups()
    others = {one for name, one in KINDS.items() if name != kind}
    assert (look, word) == KINDS[kind] and not any({look, word} & {*one} for one in others)


def test_terminal_and_report_have_the_same_names_and_numbers(families):
    model = models.load(families / "bert")
    found = drift.compare(model, drift.states(model, IDS, torch.bfloat16), progress=False)
    terminal.show(found, file=(printed := StringIO()))
    names, _, *rows = printed.getvalue().splitlines()[2:]
    table = re.findall(r"<t[hd]\b[^>]*>([^<]*)", html(found))
    headings = table[: table.index("")]
    assert {*headings} - {"part", "tenth of tokens", "worst token"} == {*names.split()} - {"attention", "MLP"}
    at = next(place for place, text in enumerate(table) if text == "1" and table[place + 1].strip() == "layer")
    shown = next(row.split() for row in rows if row.split()[:1] == ["1"])
    assert [table[at + headings.index(name)] for name in ("error", "floor", "floors")] == shown[1:4]


def test_above_is_explained_where_a_row_has_it(families):
    model = models.load(families / "bert")
    found = drift.compare(model, drift.states(model, IDS, torch.bfloat16), progress=False)
    for height, count in ((0.9, 0), (1.1, len(found.table))):
        text = html(replace(found, table=found.table.assign(height=height)))
        assert text.count('<span class="mark">above</span>') == count
        assert text.count("<dt>above</dt>") == min(count, 1)


def test_states_without_a_difference_have_a_report_too(families, tmp_path):
    model = models.load(families / "bert")
    found = drift.compare(model, drift.states(model, IDS), progress=False)
    assert found.report(tmp_path).is_file()
