"""The report: one file that opens offline, names escaped."""

import re

import torch

from lipscan import drift, models

IDS = torch.tensor([[2, 7, 5, 6, 9, 3]])


def test_a_report_holds_verdict_plots_and_table_and_nothing_from_outside(families, tmp_path):
    model = models.load(families / "gpt2")
    other = drift.states(model, IDS, torch.bfloat16)
    other.about["file"] = "<b>mine</b>.safetensors"
    found = drift.compare(model, other, progress=False)
    path = found.report(tmp_path)
    text = path.read_text(encoding="utf-8")
    assert path == tmp_path / "report.html" and found.report(tmp_path / "a.html").read_text(encoding="utf-8") == text
    assert found.verdict.sentence.replace("'", "&#39;") in text and text.count("<svg") == 3
    assert "<b>mine" not in text and "&lt;b&gt;mine" in text
    assert not re.search(r"(src|href)=\"(?!#)", text) and "<script" not in text and "@import" not in text
    assert text.count("<tr") == 1 + len(found.table)


def test_states_without_a_difference_have_a_report_too(families, tmp_path):
    model = models.load(families / "bert")
    found = drift.compare(model, drift.states(model, IDS), progress=False)
    assert found.report(tmp_path).is_file()
