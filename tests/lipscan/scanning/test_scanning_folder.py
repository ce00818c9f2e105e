"""The folder of a scan: whose it is, what was changed or damaged in it, and the way out."""

import shutil
from hashlib import sha256
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


@pytest.mark.parametrize(
    ("file", "spoil"),
    [
        ("scan.csv", lambda text: "\n".join(text.splitlines()[:-1])),
        ("scan.json", lambda text: text[:-9]),
        ("scan.json", lambda text: "[]"),
        ("scan.json", lambda text: ""),
        ("scan.csv", None),
    ],
)
def test_a_damaged_scan_is_named_with_the_way_out(bert, brief, tmp_path, text, file, spoil):
    model = small(bert)
    path = shutil.copytree(brief, tmp_path / "out") / file
    path.write_text(spoil(path.read_text())) if spoil else path.unlink()
    why = "it is not the file that the scan wrote" if spoil else "it is missing"
    again = r"measure its model anew \(lipnb scan MODEL --output \S+/out --again; again=True in Python\)"
    with pytest.raises(ValueError, match=rf"{file} in the folder 'out' is damaged \({why}\): {again}"):
        scanned(model, text, tmp_path, **BRIEF)
    assert len(scanned(model, text, tmp_path, **BRIEF, again=True).table) == 2


def test_a_summary_that_was_changed_costs_no_scan(bert, brief, tmp_path, text, monkeypatch):
    """It is made of scan.csv: deleted, it is there again after the same call, which measures nothing."""
    model, path = small(bert), shutil.copytree(brief, tmp_path / "out") / "summary.csv"
    written = path.read_text()
    path.write_text(written + "1")
    with pytest.raises(ValueError, match=r"summary.csv in the folder 'out' is damaged \(.*\): delete it, and the comm"):
        scanned(model, text, tmp_path, **BRIEF)
    path.unlink()
    monkeypatch.setattr(run, "measure", lambda *given, **options: pytest.fail("measured"))
    scanned(model, text, tmp_path, **BRIEF)
    assert path.read_text() == written and scanning.load(tmp_path / "out").gaps.empty


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


def test_a_table_changed_later_is_not_read_again(found, tmp_path):
    _, where = found
    folder = shutil.copytree(where, tmp_path / "out")
    table = pd.read_csv(folder / "heads.csv")
    table.assign(lipschitz=1.0).to_csv(folder / "heads.csv", index=False)
    with pytest.raises(ValueError, match="heads.csv in the folder 'out' is damaged .it is not the file that the scan"):
        scanning.load(folder)


@pytest.mark.parametrize(("name", "column"), [("tokens", "written"), ("whole", "composed")])
def test_a_folder_of_an_older_scan_is_refused_with_the_way_out(found, tmp_path, name, column):
    folder = shutil.copytree(found[1], tmp_path / "out")
    table, sums = pd.read_csv(folder / f"{name}.csv"), (folder / "SHA256SUMS").read_text()
    before = sha256((folder / f"{name}.csv").read_bytes()).hexdigest()
    table.drop(columns=column).to_csv(folder / f"{name}.csv", index=False)
    after = sha256((folder / f"{name}.csv").read_bytes()).hexdigest()
    (folder / "SHA256SUMS").write_text(sums.replace(before, after))
    with pytest.raises(ValueError, match=f"{name}.csv .* .it has no column '{column}'.: measure its model anew"):
        scanning.load(folder)
