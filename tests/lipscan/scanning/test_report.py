"""The report of a scan: it asks for nothing, escapes what it shows, and gives true reasons."""

import dataclasses
import re
import shutil
from io import StringIO

import model_types
import numpy as np
import pytest
from scans import WORDS, scanned

import lipnb
from lipscan.scanning import report, terminal

NASTY = "<script>alert(1)</script>&\"'[bold]"


def test_names_and_texts_are_escaped_and_the_report_asks_for_nothing(bert, tmp_path):
    folder = shutil.copytree(bert, tmp_path / NASTY.replace("/", "_"))
    story = tmp_path / (NASTY.replace("/", "_") + ".txt")
    story.write_text(NASTY + WORDS)
    found = scanned(folder, story, tmp_path)
    said = report.write_report(found, tmp_path / "out").read_text(encoding="utf-8")
    assert "<script" not in said and "&lt;script&gt;" in said and "alert(1)&lt;_script&gt;" in said
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#)|url\((?!#)|@import|<link|<iframe""", said)
    addresses = {address.split("/")[2] for address in re.findall(r"https?://[^\s\"'<)]+", said)}
    assert addresses <= {"www.w3.org", "purl.org", "creativecommons.org"}  # names of formats
    out = StringIO()
    terminal.show(found, file=out)
    assert "[bold]" in out.getvalue()


def test_of_a_folder_it_is_not_said_that_it_is_pretrained(finished):
    for weights, said in (("pretrained", "(BERT, unmasked)"), ("random", "(BERT, random, unmasked)")):
        about = {**finished.about, "settings": {**finished.about["settings"], "weights": weights}}
        out, found = StringIO(), dataclasses.replace(finished, about=about)
        terminal.show(found, file=out)
        assert said in out.getvalue().splitlines()[0] and "pretrained" not in out.getvalue() + report.html(found)


def test_the_report_goes_where_it_is_asked_for_and_shows_what_there_is(finished, tmp_path):
    assert finished.report(tmp_path) == tmp_path / "report.html"
    said = finished.report(tmp_path / "mine.html").read_text(encoding="utf-8")
    assert "A close look" in said and "The roughest heads" in said and "[CLS]" in said and "in_steepest" in said
    assert said.count("<svg") == 7 and "scan.csv, heads.csv, tokens.csv, whole.csv" in said
    assert "No logits of bert: its checkpoint holds no output layer (cls.predictions.bias" in said
    bare = report.html(dataclasses.replace(finished, tokens=finished.tokens[:0]))
    assert "scan.csv, heads.csv, whole.csv" in bare
    said, row = " ".join(said.split()), finished.summary.iloc[0]
    assert "over_* hold its logarithm to base 10, and certified_over a plain ratio" in said
    rows = finished.table[(finished.table.layer == row.layer) & (finished.table.length == row.length)]
    assert row.over_general == pytest.approx((rows.log10_general - np.log10(rows.lipschitz)).mean())
    assert row.certified_over == pytest.approx((rows.certified / rows.lipschitz).max(), rel=1e-5)  # six digits, up


def test_of_a_family_without_closed_form_the_reasons_are_true_ones(tmp_path, story, monkeypatch):
    """They were those of a block."""
    from safetensors.torch import load_file, save_file

    monkeypatch.setattr("lipscan.models.loading.tried", lambda network, architecture, masked: architecture)
    model_types.written(tmp_path / "esm", "esm")
    weights = load_file(tmp_path / "esm" / "model.safetensors")
    kept = {key: value for key, value in weights.items() if not key.startswith(("pooler.", "contact_head."))}
    assert len(kept) == len(weights) - 4  # as in the checkpoints of ESM-2, whose task has no pooler
    save_file(kept, tmp_path / "esm" / "model.safetensors", metadata={"format": "pt"})
    options = {"tokenizer": tmp_path / "esm" / "tokenizer", "lengths": [6], "windows": 1, "progress": False}
    out = lipnb.scan(tmp_path / "esm", story, output=tmp_path / "out", **options)
    assert out.gaps.empty and out.table.passed.all() and {*out.whole.part} == {"layer", "layers", "hidden"}
    assert {*out.tokens.layer} == {0, 1} and out.heads.empty and len(out.heads.columns) == 7
    page, reasons = report.html(out), out.about["settings"]["reasons"]
    assert "of this family lipnb runs the network" in page and "block with residual" not in page
    assert {*reasons} == {*report.TITLES} and len({*reasons.values()}) == 1
    assert page.count("Not applicable here:") == 1 and page.count(reasons["yudin"].partition("'")[0]) == 1
    assert "No look at single heads, for the same reason." in page and "no closed form of the attention of esm" in page
    assert "No logits of esm: its checkpoint holds no output layer" in page
