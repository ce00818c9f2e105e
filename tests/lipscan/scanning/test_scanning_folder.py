"""The folder of a scan: whose it is, what was changed or damaged in it, and the way out."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from hub import tiny_bert
from scans import BRIEF, scanned, small

from lipscan import scanning
from lipscan.cli import main
from lipscan.scanning import run
from lipscan.scanning.folder import folder_of


@pytest.mark.parametrize("name", ["scan.csv", "summary.csv", "report.html", "scan.json", "against.csv"])
def test_files_of_the_users_own_are_not_written_over(bert, brief, tmp_path, story, capsys, monkeypatch, name):
    """They were, without a word, or the advice was --again, which deleted them."""
    monkeypatch.setattr(run, "begin", lambda *given: pytest.fail("begun"))
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / name).write_text("mine")
    own = f"the folder 'out' holds {name}, which no scan of lipnb wrote: name another folder with --output.\n"
    others = [[str(brief), "--against", str(brief)], [str(brief)], [str(bert), "--against", str(brief)]]
    for given in ([str(bert)], [str(bert), "--again"], *others):
        assert main(["scan", *given, *["--text", str(story)] * (given[0] != str(brief)), "--output", str(folder)]) == 1
        assert capsys.readouterr().err.endswith(own)
    monkeypatch.undo()
    for again in (False, True):
        with pytest.raises(ValueError, match=own.strip()):  # before the model is looked for
            scanned("no such model", story, tmp_path, **BRIEF, again=again)
    with pytest.raises(ValueError, match="output must be the name of a folder, got ' '"):
        scanning.scan("no such model", story, output=" ")
    assert [path.name for path in folder.iterdir()] == [name] and (folder / name).read_text() == "mine"
    (folder / name).unlink()
    (folder / "notes.txt").write_text("mine")
    for _ in range(2):  # a folder of a report alone is lipnb's own
        assert main(["scan", str(brief), "--output", str(folder)]) == 0


CHANGED = {
    "scan.csv": lambda text: text.replace("1.", "2.", 1),
    "heads.csv": lambda text: text.replace("1.", "2.", 1),
    "tokens.csv": None,
    "whole.json": None,
    "scan.json": lambda text: text[:-9],
}


@pytest.mark.parametrize("file", CHANGED)
def test_what_was_changed_is_not_read_again(bert, found, tmp_path, story, file):
    path = shutil.copytree(found[1], tmp_path / "out") / file
    path.write_text(CHANGED[file](path.read_text())) if CHANGED[file] else path.unlink()
    again = r"measure its model anew \(lipnb scan MODEL --output \S+/out --again; again=True in Python\)"
    for call in (
        lambda: scanning.load(tmp_path / "out"),
        lambda: scanned(small(bert), story, tmp_path, lengths=[5, 9]),
    ):
        with pytest.raises(ValueError, match=f"the tables in the folder 'out' were changed or damaged .*: {again}"):
            call()
    assert len(scanned(small(bert), story, tmp_path, **BRIEF, again=True).table) == 2


def test_a_summary_is_never_read(bert, brief, tmp_path, text, monkeypatch):
    """It is made of scan.csv: deleted, it is there again after the same call, which measures nothing."""
    path = shutil.copytree(brief, tmp_path / "out") / "summary.csv"
    written = path.read_text()
    path.write_text(written.replace("1.", "2.", 1))
    pd.testing.assert_frame_equal(scanning.load(path.parent).summary, scanning.load(brief).summary)
    path.unlink()
    monkeypatch.setattr(run, "measure", lambda *given, **options: pytest.fail("measured"))
    scanned(small(bert), text, tmp_path, **BRIEF)
    assert path.read_text() == written and scanning.load(path.parent).gaps.empty


@pytest.mark.parametrize("left", ["SHA256SUMS", "scan.json", "scan.partial.jsonl"])
def test_a_scan_of_an_older_edition_is_refused_with_the_way_out(bert, brief, tmp_path, text, capsys, left):
    """Finished with checksums, or begun, which its settings tell: before a model is loaded, and by every verb."""
    folder = shutil.copytree(brief, tmp_path / "out")
    about = json.loads((folder / "scan.json").read_text())
    del about["settings"]["layout"]
    if left == "SHA256SUMS":
        (folder / left).write_text("")
    elif left == "scan.json":
        (folder / left).write_text(json.dumps(about))
    else:
        (folder / "scan.json").unlink()
        unit = {"unit": "0/4", "seconds": 0, "rows": []}
        (folder / left).write_text("".join(json.dumps(line) + "\n" for line in ({"settings": about["settings"]}, unit)))
    old = (
        "the folder 'out' holds a scan of edition 0.3 of lipnb, which this edition does not read: name another folder "
    )
    for call in (scanning.load, lambda folder: scanned("no such model", text, tmp_path)):
        with pytest.raises(ValueError, match=f"{old}with --output, or measure anew with --again"):
            call(folder)
    for command in (["scan", str(folder)], ["status", str(folder)]):
        assert main(command) == 1 and old in capsys.readouterr().err
    assert len(scanned(small(bert), text, tmp_path, **BRIEF, again=True).table) == 2
    assert not (folder / "SHA256SUMS").exists()


def test_two_parts_of_a_model_have_two_folders():
    assert [str(folder_of("my clip", part)) for part in (None, "text")] == ["scan-my-clip", "scan-my-clip-text"]


def test_two_models_of_one_name_have_two_folders(bert, story, tmp_path, monkeypatch, capsys):
    """The second scan, after the first had been measured, was refused by the folder of the first."""
    twin, after = (tiny_bert(tmp_path / "x" / name, num_hidden_layers=1) for name in ("bert", "after"))
    monkeypatch.chdir(tmp_path)
    given = ["--text", str(story), *"--lengths 4 --windows 1 --layers 0 --no-upper --no-close".split()]
    folders = ["scan-bert/scan-bert", "scan-bert-against-bert/scan-bert", "scan-after"]
    for first, second, folder in zip((bert, "scan-bert", bert), (twin, twin, after), folders, strict=True):
        assert main(["scan", str(first), "--against", str(second), *given]) == 0
        assert scanning.load(folder).about["settings"]["model"] == second.name
    assert not (tmp_path / "scan-bert" / "scan-after").exists()  # one that is measured already is found there
    capsys.readouterr()
    assert main(["scan", str(bert), "--against", "scan-bert", *given, "--again"]) == 1
    assert "--again would delete the scan scan-bert, with which" in capsys.readouterr().err
    assert scanning.load("scan-bert").about["settings"]["model"] == bert.name
    shutil.rmtree("scan-bert")
    assert main(["scan", str(bert), "--against", str(after), *given, "--seed", "1"]) == 1
    assert "'scan-after' holds another scan (seed 0, not 1)" in capsys.readouterr().err
    assert not Path("scan-bert").exists()  # refused before anything is measured
