"""The folder of a scan: whose it is, what was changed or damaged in it, and the way out."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from hub import tiny_bert
from scans import BRIEF, scanned, small

from lipscan import cli, scanning
from lipscan.scanning import run
from lipscan.scanning.folder import OTHERS


@pytest.mark.parametrize("name", ["scan.csv", "summary.csv", "report.html", "against.csv"])
@pytest.mark.usefixtures("finished")
def test_files_of_the_users_own_are_not_written_over(bert, scan_folder, tmp_path, story, said, monkeypatch, name):
    """They were, without a word, or the advice was --again, which deleted them."""
    monkeypatch.setattr(run, "begin", lambda *given: pytest.fail("begun"))
    (folder := tmp_path / "out").mkdir()
    (folder / name).write_text("mine")
    own, measured = f"holds {name}, which no scan of lipnb wrote", ["--text", str(story)]
    for given in (
        *([str(bert), *words, *measured] for words in ([], ["--again"], ["--against", str(scan_folder)])),
        *([str(scan_folder), *words] for words in ([], ["--against", str(scan_folder)])),
    ):
        code, _, error = said(cli, "scan", *given, "--output", str(folder))
        assert code == 1 and own in error
    for again in (False, True):
        with pytest.raises(ValueError, match=own):  # before the model is looked for
            scanned("no such model", story, tmp_path, **BRIEF, again=again)
    assert [path.name for path in folder.iterdir()] == [name] and (folder / name).read_text() == "mine"
    (folder / name).unlink()
    (folder / "notes.txt").write_text("mine")
    for _ in range(2):  # a folder of a report alone is lipnb's own
        assert said(cli, "scan", str(scan_folder), "--output", str(folder))[0] == 0


@pytest.mark.parametrize(("name", "what"), OTHERS.items())
def test_folders_of_other_commands_and_models_are_left_alone(bert, tmp_path, story, said, monkeypatch, name, what):
    """Their files were mixed, and `lipnb status` forgot one of the two."""
    monkeypatch.setattr(run, "begin", lambda *given: pytest.fail("begun"))
    (there := tmp_path / "out").mkdir()
    (there / name).write_text('{"model_type": "bert"}')
    for words in ([], ["--again"]):
        code, _, error = said(cli, "scan", str(bert), "--text", str(story), *words, "--output", str(there))
        assert code == 1 and f"holds {what} ({name}): name another" in error
    assert [path.name for path in there.iterdir()] == [name]


CHANGED = {
    "scan.csv": lambda text: text.replace("1.", "2.", 1),
    "tokens.csv": None,
    "whole.json": None,
    "scan.json": lambda text: text[:-9],
}


@pytest.mark.parametrize("file", CHANGED)
def test_what_was_changed_is_not_read_again(bert, copied, tmp_path, story, file):
    path = copied / file
    path.write_text(CHANGED[file](path.read_text())) if CHANGED[file] else path.unlink()
    for call in (scanning.load, lambda _: scanned(small(bert), story, tmp_path, lengths=[5, 9])):
        with pytest.raises(ValueError, match="'out' were changed or damaged .*--again"):
            call(copied)
    assert len(scanned(small(bert), story, tmp_path, **BRIEF, again=True).table) == 2


def test_a_summary_is_never_read(bert, finished, copied, tmp_path, story, monkeypatch):
    """It is made of scan.csv: deleted, it is there again after the same call, which measures nothing."""
    path = copied / "summary.csv"
    written = path.read_text()
    path.write_text(written.replace("1.", "2.", 1))
    pd.testing.assert_frame_equal(scanning.load(copied).summary, finished.summary)
    path.unlink()
    monkeypatch.setattr(run, "measure", lambda *given, **options: pytest.fail("measured"))
    scanned(small(bert), story, tmp_path, lengths=[5, 9], close=True)
    assert path.read_text() == written


@pytest.mark.parametrize("left", ["SHA256SUMS", "nothing", "scan.json", "scan.partial.jsonl"])
def test_a_scan_of_an_older_edition_is_refused_with_the_way_out(bert, copied, tmp_path, story, said, left):
    """Finished with checksums, or begun, which its settings tell: before a model is loaded, and by every verb."""
    about = json.loads((copied / "scan.json").read_text())
    del about["settings"]["layout"]
    begun = [{"settings": about["settings"]}, {"unit": "0/5", "seconds": 0, "rows": []}]
    if left in ("SHA256SUMS", "nothing"):
        (copied / "SHA256SUMS").write_text("")
    else:
        lines = [about] if left == "scan.json" else begun
        (copied / left).write_text("".join(json.dumps(line) + "\n" for line in lines))
    if left in ("nothing", "scan.partial.jsonl"):
        (copied / "scan.json").unlink()
    for call in (scanning.load, lambda _: scanned("no such model", story, tmp_path)):
        with pytest.raises(ValueError, match="'out' holds a scan made by lipnb 0.3, .*--output.*--again"):
            call(copied)
    for verb in ("scan", "status"):
        code, _, error = said(cli, verb, str(copied))
        assert code == 1 and "made by lipnb 0.3" in error
    assert len(scanned(small(bert), story, tmp_path, **BRIEF, again=True).table) == 2
    assert not (copied / "SHA256SUMS").exists()


def test_two_models_of_one_name_have_two_folders(bert, story, tmp_path, monkeypatch, said):
    """The second scan, after the first had been measured, was refused by the folder of the first."""
    twin, after = (tiny_bert(tmp_path / "x" / name, num_hidden_layers=1) for name in ("bert", "after"))
    monkeypatch.chdir(tmp_path)
    given = ["--text", str(story), *"--lengths 4 --windows 1 --layers 0 --no-upper --no-close".split()]
    folders = ["scan-bert/scan-bert", "scan-bert-against-bert/scan-bert", "scan-after"]
    for first, second, folder in zip((bert, "scan-bert", bert), (twin, twin, after), folders, strict=True):
        assert said(cli, "scan", str(first), "--against", str(second), *given)[0] == 0
        assert scanning.load(folder).about["settings"]["model"] == second.name
    assert not (tmp_path / "scan-bert" / "scan-after").exists()  # one that is measured already is found there
    code, _, error = said(cli, "scan", str(bert), "--against", "scan-bert", *given, "--again")
    assert code == 1 and "--again would delete the scan scan-bert" in error
    assert scanning.load("scan-bert").about["settings"]["model"] == bert.name
    shutil.rmtree("scan-bert")
    code, _, error = said(cli, "scan", str(bert), "--against", str(after), *given, "--seed", "1")
    assert code == 1 and "'scan-after' holds another scan (seed 0, not 1)" in error
    assert not Path("scan-bert").exists()  # refused before anything is measured
