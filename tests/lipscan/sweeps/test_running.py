"""Runs of a sweep do only what is missing, and lose nothing; no kernels."""

import json
import os
import signal
import time
from pathlib import Path

import pandas as pd
import pytest
import sweeping
from sweeping import NOTEBOOK, edited, written

from lipscan import cli, recording, sweeps
from lipscan.sweeps import folder, running, source


def test_a_rerun_does_only_what_is_missing_or_stale(answered, monkeypatch):
    name = written("grid: {slope: [0.5, 2], n: [1, 3]}")
    first = sweeps.run(name, limit=2, progress=False)
    assert (first.ran, first.left, len(first.table)) == (2, 2, 2)
    second = sweeps.run(name, progress=False)
    assert (second.ran, second.left, second.failures, second.recorded) == (2, 0, [], True)
    home = answered / "sweeps" / "small"
    assert second.folder == home and list(second.table.columns) == ["point", "slope", "n", "value"]
    assert list(second.table.value) == [10, 30, 10, 30] and sweeps.load(home).equals(second.table)
    assert {path.stem for path in (home / "notebooks").glob("*.ipynb")} == set(second.table.point)
    birth = json.loads((home / "sweep.json").read_text())
    assert len(birth["points"]) == 4 and birth["finished"] and birth["key"]["package"] == source.package()
    assert (home / "failures.csv").read_text() == "point,error,notebook\n"
    table = (home / "table.csv").read_bytes()
    assert sweeps.run(name, progress=False).ran == 0 and (home / "table.csv").read_bytes() == table
    assert json.loads((home / "sweep.json").read_text())["finished"]  # what is known of the last run stays

    # prose does not count, code does, and so does the package; a point that is gone runs alone
    (home / "notebooks" / f"{second.table.point[0]}.ipynb").unlink()
    (answered / "small.py").write_text(NOTEBOOK + "\n# %% [markdown]\n# prose\n")
    assert list(running.plan(name).states.values()) == ["new", "done", "done", "done"]
    edited()
    assert set(running.plan(name).states.values()) == {"new", "stale: the notebook changed"}
    (answered / "small.py").write_text(NOTEBOOK)
    monkeypatch.setattr(source, "package", lambda: "0.2.0")
    assert set(running.plan(name).states.values()) == {"new", "stale: the package changed"}


def test_a_failed_point_stops_nothing_and_runs_again_only_when_asked(answered, capsys):
    name = written("grid: {n: [1, 13, 2]}\nparameters: {slope: 1.5}")
    for given, run in (([], True), ([], False), (["--retry-failed"], True)):
        lines = Path("elsewhere/points.jsonl")
        assert cli.main(["sweep", name, "--output", "elsewhere", *given]) == 1
        said = capsys.readouterr()
        assert "2 points done: elsewhere/table.csv" in said.out
        assert "slope=1.5, n=13\n      ValueError: 13" in said.err
        assert (b'"begun"' in lines.read_bytes()) == run
    assert len(list(Path("elsewhere/failed").glob("*.ipynb"))) == 1
    assert "ValueError: 13,failed/" in Path("elsewhere/failures.csv").read_text().splitlines()[1]


def test_a_good_row_is_never_lost_without_a_word(answered, capsys):
    name = written("grid: {n: {range: [4]}}")
    sweeps.run(name, progress=False)
    home, stale = answered / "sweeps" / "small", answered / "sweeps" / "small" / "stale.csv"
    assert not stale.exists()
    edited()
    assert cli.main(["sweep", name, "--limit", "1"]) == 0
    said = capsys.readouterr().out
    assert "1 point done, 3 still to run" in said and "3 good rows not in that table" in said
    assert list(sweeps.load(home).value) == [0] and list(pd.read_csv(stale).value) == [10, 20, 30]
    assert set(pd.read_csv(stale).stale) == {"the notebook changed"}
    # a smaller grid: what is not asked for any more is kept too
    written("grid: {n: [0, 1]}")
    sweep = sweeps.run(name, progress=False)
    assert list(sweep.table.value) == [0, 100] and sweep.stale == 2
    assert list(pd.read_csv(stale).value) == [20, 30] and set(pd.read_csv(stale).stale) == {"not a point of this spec"}
    # all made anew: nothing is stale
    written("grid: {n: {range: [4]}}")
    sweep = sweeps.run(name, progress=False)
    assert list(sweep.table.value) == [0, 100, 200, 300] and sweep.stale == 0 and not stale.exists()


def test_a_good_row_stays_until_its_rerun_succeeds(answered, monkeypatch):
    name = written("grid: {n: [1, 2]}")
    home = sweeps.run(name, progress=False).folder
    notebooks = {path: path.read_bytes() for path in (home / "notebooks").iterdir()}
    good = sweeping.answer
    bad = {"ok": False, "values": {}, "error": "E: no"}
    monkeypatch.setattr(sweeping, "answer", lambda *given: good(*given) | bad)
    for factor in (100, 1000, 10_000):  # later failures, with yet other notebooks, hold on to the row too
        edited(factor)
        sweep = sweeps.run(name, progress=False)
        assert len(sweep.table) == 0 and len(sweep.failures) == sweep.stale == 2
        stale = pd.read_csv(home / "stale.csv")
        assert list(stale.value) == [10, 20] and set(stale.stale) == {"the re-run failed: E: no"}
        assert {path: path.read_bytes() for path in (home / "notebooks").iterdir()} == notebooks
        assert len(list((home / "failed").iterdir())) == 2
    monkeypatch.setattr(sweeping, "answer", good)
    edited()
    last = sweeps.run(name, progress=False)
    assert list(last.table.value) == [100, 200] and last.stale == 0
    assert not (home / "stale.csv").exists() and not list((home / "failed").iterdir())


@pytest.mark.parametrize("file", ["notebooks", "points.jsonl", "table.csv"])
def test_a_full_disk_stops_the_sweep_and_keeps_what_was_finished(answered, monkeypatch, file):
    def full(path):
        ended = [line for line in folder.Lines(Path("sweeps/small/points.jsonl")).raw() if b'"begun"' not in line]
        if file in str(path) and len(ended) >= 2:
            with recording.files.kept(path):
                raise OSError(28, "No space left on device")

    name, write, append = written("grid: {n: {range: [6]}}"), folder.write, folder.Lines.append
    monkeypatch.setattr(folder, "write", lambda path, text: (full(path), write(path, text)))
    monkeypatch.setattr(folder.Lines, "append", lambda lines, *given: (full(lines.path), append(lines, *given)))
    with pytest.raises(OSError, match="No space left on device.: everything measured so far is kept"):
        sweeps.run(name, progress=False)
    monkeypatch.undo()
    monkeypatch.chdir(answered)
    kept = 6 if file == "table.csv" else 2
    assert sum(found == "done" for found in running.plan(name).states.values()) == kept
    assert file == "table.csv" or len(sweeps.load("sweeps/small")) == kept
    assert not folder.Folder("sweeps/small").damaged


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_that_comes_while_a_point_is_kept_waits_until_it_is(answered, monkeypatch, sent):
    def interrupted(*given):
        os.kill(os.getpid(), sent)
        time.sleep(1)  # the wait for the loop hears of it now, and the loop only at its head
        keep(*given)

    keep, before = folder.Folder.keep, signal.getsignal(sent)
    monkeypatch.setattr(folder.Folder, "keep", interrupted)
    signal.signal(sent, signal.default_int_handler)  # as in the command; tests in the background ignore Ctrl-C
    try:
        with pytest.raises(KeyboardInterrupt):
            sweeps.run(written("grid: {n: {range: [6]}}"), progress=False)
    finally:
        signal.signal(sent, before)
    assert len(sweeps.load("sweeps/small")) == 1


def test_finished_points_of_an_earlier_notebook_are_kept_by_name_and_marked(answered, capsys):
    """A mended branch of one failed point made the whole grid stale."""
    name = written("grid: {n: [1, 2, 13]}")
    sweeps.run(name, progress=False)
    edited()
    assert len(running.plan(name).todo) == 3
    now = running.plan(name, keep_stale=True)  # one that failed with the earlier notebook runs again
    assert list(now.states.values()) == [*["kept: the notebook changed"] * 2, "stale: the notebook changed"]
    assert [point.parameters["n"] for point in now.todo] == [13]
    written("grid: {n: [1, 2, 13, 4]}")
    assert cli.main(["sweep", name, "--keep-stale"]) == 1
    said = capsys.readouterr().out
    assert "2 kept of an earlier notebook or package, 2 to run" in said and "see the column `stale`" in said
    table = sweeps.load("sweeps/small")
    assert list(table.columns) == ["point", "stale", "n", "value"] and list(table.value) == [10, 20, 400]
    assert list(table.stale.fillna("")) == ["the notebook changed"] * 2 + [""]
    assert not Path("sweeps/small/stale.csv").exists()
    # without the option they run, and nothing is marked
    table = sweeps.run(name, progress=False).table
    assert list(table.value) == [100, 200, 400] and "stale" not in table


def test_gpus_are_those_that_are_visible(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0, 5")
    assert running.devices() == ["0", "5"] and running.devices(1) == ["0"] and running.devices(0) == []
    assert running.devices(2) == running.devices()
    assert running.devices([4, "MIG-7"]) == ["4", "MIG-7"]
    with pytest.raises(ValueError, match="only 2 GPUs"):
        running.devices(3)


def test_the_table_of_a_grid_stays_where_a_parameter_overrides_it(answered):
    """It lost the rows of all other points to stale.csv."""
    name = written("grid: {n: [1, 2]}")
    whole = sweeps.run(name, progress=False)
    one = sweeps.run(name, parameters={"n": 4, "who": "a/b c"}, progress=False)
    assert one.folder.name == "small-n=4-who=a-b-c" and one.folder.parent == whole.folder.parent
    assert len(one.table) == 1 and len(sweeps.load(whole.folder)) == 2
    assert sweeps.run(name, parameters={"n": 2}, output=whole.folder, progress=False).ran == 0
    assert running.plan("small.py", parameters={"n": 4}).spec.output.name == "small"


def test_a_notebook_itself_is_a_sweep_of_one_point(answered, said):
    words = ["sweep", "small.py", "-p", "n=4", "-p", "slope=.nan"]
    assert said(cli, *words)[0] == 0
    assert list(sweeps.load("sweeps/small").value) == [40]
    assert "1 point, 0 would run" in said(cli, *words, "--dry-run")[1]  # not a number is the same parameter next time


def test_a_sweep_leaves_the_folder_of_a_scan_alone(answered, capsys):
    name = written("grid: {n: [1]}\nparameters: {slope: 1.5}")
    Path("scanned").mkdir()
    Path("scanned/scan.json").write_text("{}")
    for words in ([], ["--dry-run"]):
        assert cli.main(["sweep", name, "--output", "scanned", *words]) == 1
        assert "scanned holds scan.json of a scan or a drift: name another folder" in capsys.readouterr().err
    assert [path.name for path in Path("scanned").iterdir()] == ["scan.json"]
