"""Sweeps from day to day: one parameter changed, a notebook edited, a look at how far it is, pages to read."""

import json
import os
import platform
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pandas as pd
import psutil
import pytest
from papermill.cli import _resolve_type

from lipnb import cli, sweeps
from lipnb.cli import words
from lipnb.sweeps import clusters, executors, folder, pages, planning, points, progress, running, spec

ROOT = Path(sweeps.__file__).parents[2]
SMALL = """\
# %% tags=["parameters"]
n, slope, who = 1, 2.0, "a"

# %%
from lipnb.sweeps.recorded import record
record(value=10 * n)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of its own with a small notebook, and the current folder."""
    (tmp_path / "small.py").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


@pytest.fixture
def answered(place, monkeypatch):
    """No kernels: what a notebook would record, with its code read for the factor; a point of n = 13 fails."""

    @contextmanager
    def outcomes(now, *_):
        factor = int(re.search(r"(\d+) \* n", now.source.text)[1])
        yield ((place, event) for place, point in enumerate(now.todo) for event in events(now, point, factor)), "here"

    def events(now, point, factor):
        n = point.parameters.get("n", 1)
        ok = n != 13
        yield "a machine"
        yield {
            "ok": ok,
            "values": {"value": factor * n} if ok else {},
            "error": None if ok else "ValueError: <b>13</b>",
            "notebook": now.source.text,
            "log": "",
            "seconds": 0.5 + n,
            "host": "there",
            "finished": "2026-01-01T00:00:00Z",
        }

    monkeypatch.setattr(running, "_outcomes", outcomes)
    return place


def written(text, name="small.yml"):
    Path(name).write_text("notebook: small.py\n" + text)
    return name


def edited():
    Path("small.py").write_text(SMALL.replace("10 * n", "100 * n"))


def parameters(name, **values):
    return [point.parameters for point in planning.plan(name, parameters=values).states]


# --- one parameter changed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    ["3", "-3", "1_000", "0.5", "1e-3", "1e400", "inf", "True", "true", "None", "", "minilm", "[1, 2]", "a=b", " 3"],
)
def test_values_are_typed_as_papermill_types_them(value):
    name, got = words.parameter(f"n={value}")
    assert name == "n" and got == _resolve_type(value) and type(got) is type(_resolve_type(value))


def test_a_parameter_overrides_whatever_the_spec_says_of_it(place):
    name = written(
        "parameters: {who: b}\ngrid: {n: [1, 2, 3]}\nzip: {slope: [0.5, 1.5], m: [7, 8]}\n"
        "exclude: [{n: 1, slope: 0.5}, {n: 2}]"
    )
    (place / "small.py").write_text(SMALL.replace('who = 1, 2.0, "a"', 'who, m = 1, 2.0, "a", 0'))
    assert len(parameters(name)) == 3
    assert parameters(name, who="c", n=1) == [{"who": "c", "n": 1, "slope": 1.5, "m": 8}]
    assert [point["n"] for point in parameters(name, slope=0.5)] == [3, 3]  # the exclusion of n = 1 holds for 0.5
    assert [point["n"] for point in parameters(name, slope=9.0)] == [1, 1, 3, 3]  # and for no other slope
    assert parameters(name, n=4, m=0) == [{"who": "b", "n": 4, "m": 0, "slope": slope} for slope in (0.5, 1.5)]
    # the same point whether a grid or an option names its value
    [one] = planning.plan(written("grid: {n: [1, 2]}"), parameters={"n": 2}).states
    assert one in planning.plan("small.yml").states


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["-p", "n"], "give a parameter and its value, such as -p layer=3; got 'n'"),
        (["-p", "a b=1"], "such as -p layer=3; got 'a b=1'"),
        (["-p", "depth=1"], "small.py has no parameter 'depth': it has n, slope, who"),
        (["-p", "n=1", "-p", "n=2"], "-p n is given twice: several values are a grid"),
        (["-p", "stale=1"], "'stale' is a column of every table"),
    ],
)
def test_a_parameter_that_cannot_be_is_one_sentence_and_nothing_runs(place, given, sentence, capsys):
    try:
        code = cli.main(["sweep", written("grid: {n: [1]}"), *given])
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr().err
    assert code in (1, 2) and sentence in said and len(said.strip().splitlines()) == 1
    assert not (place / "sweeps").exists()


def test_a_notebook_itself_is_a_sweep_of_one_point(place, capsys):
    assert cli.main(["sweep", "small.py", "-p", "n=4", "-p", "who=True", "-p", "slope=nan"]) == 0
    table = sweeps.load("sweeps/small")
    assert list(table.value) == [40] and list(table.who) == [True] and table.slope.isna().all()
    assert json.loads(Path("sweeps/small/sweep.json").read_text())["parameters"]["n"] == 4
    capsys.readouterr()
    assert cli.main(["sweep", "small.py", "-p", "n=4", "-p", "who=True", "-p", "slope=nan", "--dry-run"]) == 0
    assert "1 point, 0 would run" in capsys.readouterr().out  # not a number is the same parameter the next time


def test_a_column_of_the_table_is_no_parameter(place):
    for name in spec.COLUMNS:
        with pytest.raises(ValueError, match=f"'{name}' is a column of every table"):
            sweeps.read(written(f"grid: {{{name}: [1]}}"))


# --- a notebook edited ------------------------------------------------------------------------------------------------


def test_rows_of_an_earlier_notebook_stay_in_the_table_when_asked(answered, capsys):
    name = written("grid: {n: [0, 1, 13]}")
    sweeps.run(name, progress=False)
    edited()
    written("grid: {n: [1, 2, 13]}")
    assert cli.main(["sweep", name, "--keep-stale", "--dry-run"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line[:4] for line in shown[:3]] == ["    ", "run ", "run "]  # a failure is nothing to keep
    assert cli.main(["sweep", name, "--keep-stale"]) == 1
    said = capsys.readouterr().out
    assert "3 points done: " in said and "still to run" not in said
    assert "2 rows of an earlier notebook, package or spec stay in that table, the reason in its column `stale`" in said
    table = sweeps.load("sweeps/small")
    assert list(table.columns[:2]) == list(spec.COLUMNS)
    assert list(table.value) == [200, 10, 0] and list(table.stale[1:]) == [
        "the notebook changed",
        "not a point of this spec",
    ]
    assert table.stale.isna().tolist() == [True, False, False] and not Path("sweeps/small/stale.csv").exists()
    # without the option they run, and what is not asked for any more is in the other file
    last = sweeps.run(name, progress=False)
    assert last.ran == 1 and list(last.table.value) == [100, 200] and "stale" not in last.table
    assert list(pd.read_csv("sweeps/small/stale.csv").value) == [0]


def test_a_kept_row_whose_rerun_failed_is_there_with_the_reason(answered):
    sweeps.run(written("grid: {n: [1]}"), progress=False)
    edited()
    before = Path("sweeps/small/points").iterdir()
    [entry] = [json.loads(path.read_text()) for path in before]
    home, [point] = folder.Folder("sweeps/small"), sweeps.expand(sweeps.read("small.yml"))
    failed = {"ok": False, "values": {}, "error": "E: no", "log": "", "seconds": 1.0, "host": "", "finished": ""}
    home.keep(point, planning.key(planning.plan("small.yml").source), {**failed, "notebook": "{}"})
    kept = sweeps.run("small.yml", keep_stale=True, progress=False)
    assert (kept.stale, kept.failed_again, kept.left) == (1, 1, 0)
    assert list(kept.table.value) == [entry["values"]["value"]] and list(kept.table.stale) == [
        "the re-run failed: E: no"
    ]


# --- how far it is ----------------------------------------------------------------------------------------------------


def test_the_status_of_each_point(answered, capsys):
    name = written("grid: {n: [1, 2, 3, 4, 5, 13]}")
    sweeps.run(name, parameters={"n": 13}, progress=False)
    sweeps.run(name, limit=3, progress=False)
    now = sweeps.status("sweeps/small")
    assert [row["state"] for row in now.points] == ["done"] * 3 + ["left"] * 2 + ["failed"]
    assert (now.run, now.remaining, now.seconds) == (None, None, [1.5, 2.5, 3.5, 13.5])
    assert now.points[0]["values"] == {"value": 10} and now.points[0]["where"] == "there"
    assert cli.main(["status", "sweeps/small"]) == 0
    said = capsys.readouterr().out
    assert "6 points of small.py\n  3 done, 1 failed, 0 running, 2 left\n  no run is at work\n" in said
    assert "took 3.0 s in the median, from 1.5 s to 13.5 s" in said and "n=13" in said and "<b>13</b>" in said
    assert "n=1 " not in said
    assert cli.main(["status", "sweeps/small", "--points"]) == 0
    assert capsys.readouterr().out.count("n=") == 6
    # the notebook is edited: nothing is said before a run plans with it, then all that it has not made again is stale
    edited()
    sweeps.run(name, limit=1, progress=False)
    now = sweeps.status("sweeps/small")
    assert (now.count("done"), now.count("stale"), now.count("left")) == (1, 3, 2)
    Path(now.folder, "points", f"{now.points[0]['point']}.json").write_text("{")
    assert sweeps.status("sweeps/small").count("damaged") == 1


def test_a_run_at_work_is_seen_and_one_that_was_killed_is_told_apart(answered, capsys):
    name = written("grid: {n: [1, 2, 3]}")
    sweeps.run(name, limit=1, progress=False)
    second = list(planning.plan(name).states)[1]
    with progress.Sign(Path("sweeps/small"), "1 local worker") as sign:
        sign.began(second, "gpu-7")
        now = sweeps.status("sweeps/small")
        assert [row["state"] for row in now.points] == ["done", "running", "left"] and now.alive
        assert now.points[1]["where"] == "gpu-7" and now.remaining == pytest.approx(1.5 * 1.5)
        assert cli.main(["status", "sweeps/small"]) == 0
        said = capsys.readouterr().out
        assert re.search(rf"run by \S+ on {platform.node()} \(process {os.getpid()}\), begun .* ago: 1 local", said)
        assert "running  " in said and "n=2" in said and "on gpu-7" in said and "about 2.2 s left" in said
        path = Path("sweeps/small", progress.SIGN)
        mine = json.loads(path.read_text())
        path.write_text(json.dumps({**mine, "host": "elsewhere"}))
        assert sweeps.status("sweeps/small").alive is None
        path.write_text(json.dumps({**mine, "born": mine["born"] - 60}))  # an earlier process of that number
        now = sweeps.status("sweeps/small")
        assert now.alive is False and now.points[1]["state"] == "left"
        assert cli.main(["status", "sweeps/small"]) == 0
        assert "was killed: what is finished is kept, the same command continues" in capsys.readouterr().out
        path.write_text(json.dumps(mine))
        sign.ended(second)
        assert sweeps.status("sweeps/small").points[1]["state"] == "left"
    assert sweeps.status("sweeps/small").run is None


def test_a_process_that_ended_and_was_not_waited_for_is_no_run(answered):
    sweeps.run(written("grid: {n: [1]}"), progress=False)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    born = psutil.Process(ended.pid).create_time()
    while psutil.Process(ended.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    with progress.Sign(Path("sweeps/small"), "x"):
        path = Path("sweeps/small", progress.SIGN)
        path.write_text(json.dumps({**json.loads(path.read_text()), "process": ended.pid, "born": born}))
        assert sweeps.status("sweeps/small").alive is False
    ended.wait()


@pytest.mark.parametrize("content", ["", "[]", '{"points": 3}', '{"points": {"a": 1}, "key": {}, "notebook": ""}'])
def test_a_folder_that_is_none_is_one_sentence(tmp_path, content):
    with pytest.raises(FileNotFoundError, match="there is no sweep in .*: no plan.json"):
        sweeps.status(tmp_path / "none")
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(ValueError, match="plan.json is damaged: the same `lipnb sweep` command makes it anew"):
        sweeps.status(tmp_path)


def test_a_point_begins_before_it_ends(monkeypatch):
    monkeypatch.setattr(executors, "execute", lambda task: {"ok": True, "n": task["n"]})
    tasks = [{"sweep": "s", "environment": {}, "n": n} for n in range(5)]
    events = list(executors.on_this_machine(tasks, 2, ["3"]))
    for n in range(5):
        assert [event for place, event in events if place == n] == [f"{platform.node()}, GPU 3", {"ok": True, "n": n}]


def test_workers_that_are_gone_are_named_once(monkeypatch):
    looks = iter([{"tcp://a:1", "tcp://b:2"}, {"tcp://b:2"}, {"tcp://b:2"}, set(), set()])
    monkeypatch.setattr(clusters, "workers_of", lambda client: next(looks))
    said = []
    client = SimpleNamespace(status="running", scheduler=SimpleNamespace(address="tcp://s:3"))
    pool = clusters._Pool(client, 60, 60, said.append)
    for there in (True, True, True, False, False):
        pool._looked = -60
        assert pool.looked() == there
    assert not pool.looked()  # it is too early for another look
    assert said == [
        f"the worker tcp://{name} is gone: what it had in work goes to another one" for name in ("a:1", "b:2")
    ]


def test_a_point_that_ends_its_workers_names_the_last_one():
    from distributed.scheduler import KilledWorker

    error = KilledWorker("key", SimpleNamespace(address="tcp://b:2"), 3)
    lost = clusters._lost({"notebook": ""}, error)
    assert "4 workers died while they ran it, the last one tcp://b:2" in lost["error"] and lost["host"] == "tcp://b:2"


# --- pages to read ----------------------------------------------------------------------------------------------------


class Links(HTMLParser):
    """Addresses and tags of a page."""

    def __init__(self, text):
        super().__init__()
        self.addresses, self.tags = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.addresses += [value for name, value in attributes if name in ("href", "src")]


def test_the_index_leads_to_each_point_and_to_nothing_outside(answered):
    sweeps.run(written("grid: {n: [1, 2, 13], who: [a, '<script>x</script>']}"), limit=5, progress=False)
    home = Path("sweeps/small")
    text = (home / "index.html").read_text()
    links = Links(text)
    assert "script" not in links.tags and "b" not in links.tags and "&lt;script&gt;" in text
    assert text.count("<tr>") == 7 and "4 done, 1 failed, 1 left" in re.sub(r"\s+", " ", text)
    assert len([link for link in links.addresses if link.startswith("pages/")]) == 5
    assert all((home / link).is_file() for link in links.addresses)
    for page in (home / "pages").iterdir():
        inner = Links(page.read_text())
        assert "script" not in inner.tags and all((page.parent / link).is_file() for link in inner.addresses)
    assert "default-src 'none'" in text and "http:" not in text and "https:" not in text


def test_a_page_shows_texts_pictures_and_errors_and_runs_nothing(tmp_path):
    v4 = nbformat.v4
    outputs = [
        v4.new_output("stream", text="\x1b[31mred\x1b[0m <i>"),
        v4.new_output("display_data", {"image/png": "aGk=\n", "text/plain": "Figure"}),
        v4.new_output("display_data", {"image/svg+xml": "<svg><script>1</script></svg>"}),
        v4.new_output("execute_result", {"text/html": "<script>2</script>", "text/plain": "a table"}),
        v4.new_output("error", ename="E", evalue="x", traceback=["Traceback <b>", "E: x"]),
    ]
    cells = [v4.new_markdown_cell("# A <b>title</b>"), v4.new_code_cell("1 < 2", outputs=outputs), v4.new_code_cell("")]
    outcome = {
        "ok": False,
        "error": "E: x",
        "values": {"third": 1 / 3},
        "notebook": nbformat.writes(v4.new_notebook(cells=cells)),
        "log": "last words",
        "seconds": 2.0,
        "host": "there",
        "finished": "2026",
    }
    which = points.Point("abc", {"n": [1, 2]})
    pages.point(tmp_path, which, outcome)
    text = (tmp_path / "pages" / "abc.html").read_text()
    found = Links(text)
    assert "script" not in found.tags and not {"i", "b", "svg"} & found.tags
    assert found.addresses[1] == "../failed/abc.ipynb" and found.addresses[2] == "data:image/png;base64,aGk="
    assert found.addresses[3].startswith("data:image/svg+xml;base64,") and "Figure" not in text
    for shown in ("red &lt;i&gt;", "a table", "Traceback &lt;b&gt;", "1 &lt; 2", "[1,2]", "0.333333", "last words"):
        assert shown in text
