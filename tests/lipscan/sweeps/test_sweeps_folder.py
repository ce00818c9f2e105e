"""The folder of a sweep: how far it is, who works in it, and what is damaged."""

import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from sweeping import edited, written

from lipscan import cli, sweeps
from lipscan.sweeps import folder, running


def test_a_damaged_line_is_named_and_its_point_runs_again(answered, capsys):
    spoils = [lambda raw: raw[: len(raw) // 2], lambda raw: b"", lambda raw: b"[]", lambda raw: b"\xff" + raw]
    spoils += [lambda raw: b"7"]
    name = written("grid: {n: {range: [6]}}")
    whole = sweeps.run(name, progress=False)
    table, path = (whole.folder / "table.csv").read_bytes(), whole.folder / "points.jsonl"
    raws = path.read_bytes().split(b"\n")[:-1]
    ends = [number for number, raw in enumerate(raws) if b'"begun"' not in raw]
    for number, spoil in zip(ends[1:], spoils, strict=True):
        raws[number] = spoil(raws[number])
    path.write_bytes(b"\n".join(raws) + b'\n{"half a li')
    again = sweeps.run(name)
    assert again.ran == 5 and (whole.folder / "table.csv").read_bytes() == table
    said = capsys.readouterr().out
    assert all(f"points.jsonl: line {number + 1} is damaged: its point runs again" in said for number in ends[1:])
    assert not folder.Folder(whole.folder).damaged


def test_a_sweep_that_was_begun_with_03_is_refused_in_one_sentence(answered, capsys):
    name = written("grid: {n: [1]}")
    path = sweeps.run(name, progress=False).folder / "points.jsonl"
    lines = [json.loads(line) | {"check": "0" * 16} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = path.read_bytes()
    for words in (["sweep", name], ["status", "sweeps/small"]):
        assert cli.main(words) == 1
        said = capsys.readouterr().err
        assert "begun with lipnb 0.3" in said
        assert len(said.splitlines()) == 1 and path.read_bytes() == before
    assert sweeps.run(name, output=Path("elsewhere"), progress=False).ran == 1


def test_the_status_of_each_point(answered, capsys):
    name = written("grid: {n: [1, 2, 3, 4, 5, 13]}")
    sweeps.run(name, parameters={"n": 13}, output=Path("sweeps/small"), progress=False)
    sweeps.run(name, limit=3, progress=False)
    now = sweeps.status("sweeps/small")
    assert [row["state"] for row in now.points] == ["done"] * 3 + ["left"] * 2 + ["failed"]
    assert (now.run, now.remaining, now.seconds) == (None, None, [1.5, 2.5, 3.5, 13.5])
    assert now.points[0]["values"] == {"value": 10} and now.points[0]["where"] == "there"
    assert cli.main(["status", "sweeps/small"]) == 0
    said = capsys.readouterr().out
    assert "6 points of small.py\n  3 done, 1 failed, 0 running, 2 left\n  no run is at work\n" in said
    assert "took 3.0 s in the median, from 1.5 s to 13.5 s" in said and "n=13" in said and "13" in said
    assert "n=1 " not in said
    assert cli.main(["status", "sweeps/small", "--points"]) == 0
    assert capsys.readouterr().out.count("n=") == 6
    # the notebook is edited: all that it has not made again is stale, for `--dry-run` and here alike
    edited()
    planned = [state for state in running.plan(name).states.values() if state != "new"]
    assert planned == ["stale: the notebook changed"] * 4
    assert [row["state"] for row in sweeps.status("sweeps/small").points if row["state"] != "left"] == planned
    Path("small.py").rename("gone.py")
    assert sweeps.status("sweeps/small").count("done") == 3
    Path("gone.py").rename("small.py")
    sweeps.run(name, limit=1, progress=False)
    now = sweeps.status("sweeps/small")
    assert (now.count("done"), now.count("stale"), now.count("left")) == (1, 3, 2)


def test_a_run_at_work_is_seen_and_one_that_was_killed_is_told_apart(answered, capsys):
    name = written("grid: {n: [1, 2, 3]}")
    sweeps.run(name, limit=1, progress=False)
    second = list(running.plan(name).states)[1]
    path = Path("sweeps/small/sweep.json")
    ended = json.loads(path.read_text())

    def at_work(**other):
        path.write_text(json.dumps(ended | {"run": mine | other}))
        return sweeps.status("sweeps/small")

    mine = folder.sign("1 local worker")
    at_work()
    folder.Folder("sweeps/small").began(second, "gpu-7")
    now = at_work()
    assert [row["state"] for row in now.points] == ["done", "running", "left"] and now.alive
    assert now.points[1]["where"] == "gpu-7" and now.remaining == pytest.approx(1.5 * 1.5)
    assert cli.main(["status", "sweeps/small"]) == 0
    said = capsys.readouterr().out
    assert re.search(rf"run by \S+ on {platform.node()} \(process {os.getpid()}\), begun .* ago: 1 local", said)
    assert "running  " in said and "n=2" in said and "on gpu-7" in said and "about 2.2 s left" in said
    assert at_work(host="elsewhere").alive is None
    now = at_work(born=mine["born"] - 60)  # an earlier process of that number
    assert now.alive is False and now.points[1]["state"] == "left"
    assert cli.main(["status", "sweeps/small"]) == 0
    assert "ended before it was done" in capsys.readouterr().out
    # a process that ended and was not waited for is no run
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    born = psutil.Process(zombie.pid).create_time()
    while psutil.Process(zombie.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert at_work(process=zombie.pid, born=born).alive is False
    zombie.wait()
    path.write_text(json.dumps(ended))
    assert sweeps.status("sweeps/small").run is None


@pytest.mark.parametrize("content", ["", "[]", '{"points": 3}', '{"points": {"a": 1}, "key": {}, "notebook": ""}'])
def test_a_folder_that_is_none_is_one_sentence(tmp_path, content):
    (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(ValueError, match="sweep.json is damaged"):
        sweeps.status(tmp_path)


def test_what_is_left_is_shared_by_the_points_that_run():
    points = [{"state": "done", "seconds": 4.0}, *2 * [{"state": "running"}], *2 * [{"state": "left"}]]
    assert folder.Status(Path(), "page.py", points, None, True).remaining == (2 / 2 + 2) * 4 / 2


def test_a_table_has_the_columns_of_all_its_rows():
    assert folder._csv([{"n": 1}, {"n": 2, "found": [1, {"a": None}]}], ["n"]) == 'n,found\n1,\n2,"[1,{""a"":null}]"\n'
    assert folder._csv([], ["n", "value"]) == "n,value\n"
