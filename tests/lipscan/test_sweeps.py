"""Sweeps: specs checked whole, points that stay the same points, runs that do only what is missing; no kernels."""

import gc
import json
import math
import os
import platform
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import psutil
import pytest
import torch

from lipscan import cli, recording, sweeps
from lipscan.cli import words
from lipscan.sweeps import cells, folder, recorded, running, source, spec

NOTEBOOK = """\
# %% tags=["parameters"]
n, slope, who = 1, 2.0, "a"
words, m = ["a"], 0

# %%
from lipscan.sweeps import record
record(value=10 * n)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of its own with a small notebook, and the current folder."""
    (tmp_path / "small.py").write_text(NOTEBOOK)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def answer(point, text):
    """What the notebook would record, with its code read for the factor; a point of n = 13 fails."""
    n = point.parameters.get("n", 1)
    factor = int(re.search(r"(\d+) \* n", text)[1])
    told = {"notebook": text, "seconds": 0.5 + n, "host": "there", "finished": "2026-01-01T00:00:00Z"}
    if n == 13:
        return told | {"ok": False, "values": {}, "error": "ValueError: 13"}
    return told | {"ok": True, "values": {"value": factor * n}, "error": None}


@pytest.fixture
def answered(place, monkeypatch):
    """No kernels: each point begins and ends with `answer`."""

    def outcomes(now, client, workers, stopped, say):
        for point in now.todo:
            if stopped():
                raise KeyboardInterrupt
            yield point, "a machine"
            yield point, answer(point, now.source.text)

    monkeypatch.setattr(running, "_outcomes", outcomes)
    return place


def written(text, name="small.yml"):
    Path(name).write_text("notebook: small.py\n" + text)
    return name


def edited():
    Path("small.py").write_text(NOTEBOOK.replace("10 * n", "100 * n"))


def overriding(name, **values):
    return [point.parameters for point in running.plan(name, parameters=values).states]


def parameters(text):
    return [point.parameters for point in sweeps.expand(sweeps.read(written(text)))]


# --- what a spec says -------------------------------------------------------------------------------------------------


def test_grid_and_zip_give_every_combination_in_order(place):
    got = parameters("parameters: {words: [x]}\ngrid: {n: [1, 2]}\nzip: {slope: [0.1, 1e-3], who: [a, b]}")
    assert got == [
        {"words": ["x"], "n": n, "slope": slope, "who": who}
        for n in (1, 2)
        for slope, who in ((0.1, "a"), (0.001, "b"))
    ]
    assert type(got[1]["slope"]) is float  # plain YAML would read 1e-3 as a word


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[(time, time) for time in ("12:00:00", "12:30", "1:2:3.5", "-1:30", "2026-11-27", "2001-12-14t21:59:43Z")],
        *[("010", 10), ("-007", -7), ("08", 8), ("+3", 3), ("0o17", 15), ("0x1F", 31), ("0", 0)],
        *[("1e3", 1000.0), ("1E+3", 1000.0), ("-1.e-3", -0.001), (".5", 0.5), ("1.", 1.0), ("-.INF", -math.inf)],
        *[("true", True), ("FALSE", False), ("tRUE", "tRUE"), ("y", "y"), ("N", "N"), ("'no'", "no"), ('"on"', "on")],
        *[("null", None), ("~", None), ("None", None), ("NULL", None), ("", None), ("'null'", "null")],
        *[("=", "="), ("1.2.3", "1.2.3"), ("2-0", "2-0"), ("e3", "e3"), ("!!int 010", 10), ("!!str 010", "010")],
        ("[yes please, no one, 1 000]", ["yes please", "no one", "1 000"]),
        ("{on: 1, no: [off the map]}", {"on": 1, "no": ["off the map"]}),
    ],
)
def test_words_and_numbers_are_those_of_yaml_1_2(place, text, value):
    """PyYAML reads 1.1: 12:00:00 was 43200, 010 was 8, 1e3 a text, and a date no text."""
    got = spec.read(written(f"parameters:\n  n: {text}")).parameters["n"]
    assert got == value and type(got) is type(value) and words.parameter(f"n={text}")[1] == value


def test_a_key_is_its_text_and_merges_stay(place):
    got = parameters("parameters:\n  n: {deep: {a: &a {<<: {x: 1}, x: 2}}}\n  m: {<<: *a, y: 3}\n  on: 4\n  no: 5")
    assert got == [{"n": {"deep": {"a": {"x": 2}}}, "m": {"x": 2, "y": 3}, "on": 4, "no": 5}]


def test_a_walltime_reaches_the_batch_system_as_hours_or_is_refused(place):
    """Without quotes 12:00:00 was 43200, a month of minutes to SLURM."""
    from dask_jobqueue.slurm import SLURMJob

    def options(limit, kind="SLURMCluster"):
        return spec.read(written(f"cluster: {{kind: {kind}, options: {{walltime: {limit}}}}}")).cluster["options"]

    for limit in ("12:00:00", "'12:00:00'", "1-12:00:00", "0:30:00", "120:00:00"):
        job = SLURMJob(None, "a job", cores=1, memory="1GB", **options(limit))
        assert f"#SBATCH -t {limit.strip(chr(39))}\n" in job.job_script()
    assert options("12:30", "LSFCluster") == {"walltime": "12:30"} and options("UNLIMITED") == {"walltime": "UNLIMITED"}
    for limit, kind in (("720", "SLURM"), ("'720'", "PBS"), ("12:30", "SLURM"), ("1.5", "SGE"), ("12:00:00", "LSF")):
        with pytest.raises(
            ValueError, match=r"small.yml: 'cluster': a walltime is hours:minutes.*; got .*, whose unit"
        ):
            options(limit, f"{kind}Cluster")
    with pytest.raises(ValueError, match="a walltime is hours:minutes:seconds, such as 12:00:00; got 43200"):
        spec.Spec(place / "small.py", cluster={"kind": "SLURMCluster", "options": {"walltime": 43200}})


def test_several_zipped_groups_are_axes_of_their_own(place):
    got = parameters("zip: [{slope: [1, 2], n: [3, 4]}, {a: [5, 6]}]")
    assert got == [{"slope": s, "n": n, "a": a} for s, n in ((1, 3), (2, 4)) for a in (5, 6)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("{range: [2, 9, 3]}", [2, 5, 8]),
        ("{range: [3]}", [0, 1, 2]),
        ("{range: [3, 0, -1]}", [3, 2, 1]),
        ("{linspace: [0, 0.3, 4]}", [0.0, 0.1, 0.2, 0.3]),
        ("{geomspace: [1, 100, 3]}", [1.0, 10.0, 100.0]),
        ("{logspace: [-1, 1, 3]}", [0.1, 1.0, 10.0]),
    ],
)
def test_ranges_are_those_of_numpy_in_round_numbers(place, values, expected):
    assert [point["n"] for point in parameters(f"grid: {{n: {values}}}")] == expected


def test_exclusions_are_partial_points(place):
    got = parameters("grid: {slope: [1, 2], n: [1, 2, 3]}\nexclude: [{slope: 1}, {slope: 2, n: 3}]")
    assert got == [{"slope": 2, "n": 1}, {"slope": 2, "n": 2}]


def test_samples_are_nested_and_stay_when_the_grid_grows(place):
    def drawn(count, n, seed=0):
        return parameters(f"grid: {{n: {{range: [{n}]}}}}\nsample: {{count: {count}, seed: {seed}}}")

    few, more = drawn(10, 100), drawn(20, 100)
    assert len(few) == 10 and all(point in more for point in few) and more == sorted(more, key=lambda p: p["n"])
    assert drawn(10, 100) == few != drawn(10, 100, seed=1)
    kept = [point for point in drawn(20, 110) if point["n"] < 100]
    assert len(kept) >= 10 and all(point in more for point in kept)


def test_samples_are_uniform(place):
    every = sweeps.expand(sweeps.read(written("grid: {n: {range: [10]}}")))
    hits = np.zeros(10)
    for seed in range(300):
        for point in spec._drawn(every, 3, seed):
            hits[point.parameters["n"]] += 1
    assert ((hits - 90) ** 2 / 90).sum() < 27.9  # chi squared, 9 degrees of freedom, one in a thousand


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("grids: {n: [1]}", "there is no key 'grids': the keys are notebook, parameters, grid"),
        ("grid: {n: 3}", "grid: n: give a list with at least one value"),
        ("grid: {n: []}", "at least one value"),
        ("grid: {n: [1, 1]}", "the value 1 is there twice"),
        ("grid: {n: {range: [0.5, 2]}}", "grid: n: range takes one to three whole numbers"),
        ("grid: {n: {range: [0, 2, 0]}}", "range takes"),
        ("grid: {n: {linspace: [0, 1]}}", "linspace takes .first, last, count."),
        ("grid: {n: {geomspace: [-1, 1, 3]}}", "same sign"),
        ("grid: {n: {random: [0, 1]}}", "one of range, linspace, geomspace, logspace"),
        ("grid: {n: {range: [2000000]}}", "grid: n: more than 1000000 values"),
        ("grid: {n: {range: [2000]}, slope: {range: [2000]}}", "4000000 points are too many: at most 1000000"),
        ("grid: {n: [1]}\nparameters: {n: 2}", "the parameter 'n' is there twice"),
        ("grid: {n: [!!timestamp 2024-01-01]}", "line 2: not YAML: could not determine a constructor"),
        (
            "parameters:\n  n: no",
            "line 3: 'no' could be meant in two ways: write true or false, or put a text in quotes",
        ),
        ("grid: {who: [{a: [b, On]}]}", "line 2: 'On' could be meant in two ways: write true or false"),
        ("workers: off", "'off' could be meant in two ways"),
        ("grid: {n: [1_000]}", "'1_000' could be meant in two ways: write a number in plain digits, .inf or .nan, or"),
        ("grid: {n: [0b11]}", "'0b11' could be meant"),
        ("grid: {n: [-0x1F]}", "'-0x1F' could be meant"),
        ("grid: {n: [0o9]}", "'0o9' could be meant"),
        ("grid: {n: [-inf]}", "'-inf' could be meant"),
        ("grid: {n: [1e999]}", "'1e999' is no float here"),
        ("grid: {n: [!!bool maybe]}", "'maybe' is no bool here: write true or false"),
        ("grid: {n: [!!int x]}", "'x' is no int here"),
        ("grid: {n: [!!float x]}", "'x' is no float here"),
        ("grid:\n\tn: [1]", "line 3: not YAML: .* .a tab: indent with spaces."),
        ("parameters: {n: {a: 1, 'a': 2}}", "the key 'a' is there twice"),
        ("grid: {<<: {n: [1]}, <<: {m: [2]}}", "the key '<<' is there twice"),
        ("timeout: 12:00:00", "'timeout' is a number of seconds for each point; got '12:00:00'"),
        ("grid: {n: [!!set {a}]}", "n: .* is a set; "),
        ("grid: {n: [!!binary aGk=]}", "n: .* is a bytes; "),
        ("parameters: {n: [{1: a}]}", "n: the key 1 of a mapping is no text: put it in quotes"),
        ("parameters: {n: {null: a}}", "n: the key None of a mapping is no text"),
        ("grid: {point: [1]}", "'point' is a column of the tables"),
        ("grid: {error: [1]}", "'error' is a column of the tables"),
        ("grid: &g {n: *g}", "nested too deeply, or within themselves"),
        ("output: 3", "'output' is a folder; got 3"),
        ("cluster: {kind: [LocalCluster]}", "'cluster' takes kind"),
        ("cluster: {jobs: 3}", "'cluster' takes kind"),
        ("cluster: {kind: LocalCluster, workers: 3}", "'cluster' takes kind"),
        ("cluster: {kind: LocalCluster, jobs: 0}", "'jobs' is a whole number from 1 on; got 0"),
        ("grid: {'a b': [1]}", "'a b' is not the name of a parameter"),
        ("zip: {n: [1, 2], slope: [1]}", "equally long and not empty; here: n 2, slope 1"),
        ("zip: {n: [1, 1], slope: [2, 2]}", "zip: n, slope: the value .* is there twice"),
        ("grid: {n: [1]}\nexclude: [{m: 1}]", "'exclude' names 'm', which this sweep does not set"),
        ("grid: {n: [1]}\nexclude: [{n: 2}]", 'exclude: {"n":2} matches no point'),
        ("grid: {n: [1]}\nexclude: [{n: 1}]", "no point left"),
        ("grid: {n: [1]}\nsample: {count: 2}", "only 1 points, not 2"),
        ("grid: {n: [1]}\nsample: {size: 2}", "'sample' takes a count"),
        ("workers: 0", "'workers' is a whole number from 1 on; got 0"),
        ("timeout: soon", "'timeout' is a number of seconds"),
        ("gpus: -1", "'gpus' is how many"),
        (
            "grid: !!python/object/apply:os.system ['touch owned']",
            "line 2: not YAML: could not determine a constructor",
        ),
        ("grid: {n: [1]}\ngrid: {n: [2]}", "the key 'grid' is there twice"),
        ("grid: [", "not YAML"),
    ],
)
def test_each_mistake_in_a_spec_gets_a_sentence_and_leaves_nothing(place, text, sentence):
    with pytest.raises(ValueError, match=f"small.yml.*{sentence}"):
        sweeps.run(written(text))
    assert not (place / "sweeps").exists() and not (place / "owned").exists()


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("gone.py", None, "there is no notebook .*gone.py"),
        ("text.txt", "x", "text.txt is no notebook"),
        ("torn.ipynb", '{"cells": [', "torn.ipynb is no notebook"),
        ("prose.py", "# %% [markdown]\n# x", "no code cell"),
        ("bare.py", "# %%\nn = 1", "no parameter 'n': it has no cell tagged 'parameters'"),
        ("lacks.py", NOTEBOOK.replace("n, ", ""), "lacks.py has no parameter 'n': it has slope, who, words, m"),
        ("other.py", NOTEBOOK, "there is no kernel 'fortran' here .there are: .*python3"),
    ],
)
def test_a_notebook_that_is_none_is_answered_before_anything_runs(place, name, content, sentence):
    if content is not None:
        Path(name).write_text(content)
    kernel = "kernel: fortran" if "fortran" in sentence else ""
    Path("spec.yml").write_text(f"notebook: {name}\ngrid: {{n: [1]}}\n{kernel}")
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        sweeps.run("spec.yml")
    assert not (place / "sweeps").exists()
    with pytest.raises(FileNotFoundError, match="there is no file nowhere.yml"):
        sweeps.run("nowhere.yml")


# --- what a notebook records ------------------------------------------------------------------------------------------


def test_recorded_scalars_of_every_kind_come_back():
    plain = {"a": 1, "b": 0.1, "c": "x", "d": True, "e": None, "j": -math.inf}
    others = {"f": np.float32(0.5), "g": torch.tensor(2.5), "h": np.array([[7]]), "k": np.bool_(False)}
    values = plain | others | {"i": float("nan")}
    packed = {name: recorded._packed(recorded._scalar(name, value)) for name, value in values.items()}
    output = nbformat.v4.new_output("display_data", data={recorded.MIME: json.loads(json.dumps(packed))})
    cell = nbformat.v4.new_code_cell(outputs=[output])
    got = recorded.recorded(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("x"), cell]))
    assert math.isnan(got.pop("i"))
    assert got == plain | {"f": 0.5, "g": 2.5, "h": 7, "k": False}
    assert type(got["d"]) is bool and type(got["h"]) is int


@pytest.mark.parametrize("value", [[1], {"a": 1}, 1j, np.zeros(3), torch.zeros(2, 2), object(), np.array(1j)])
def test_what_is_no_scalar_is_refused(value):
    with pytest.raises(TypeError, match="record takes numbers, strings, booleans and None; 'v' is a "):
        sweeps.record(v=value)


def test_record_outside_a_notebook_prints_a_line(capsys):
    sweeps.record(slope=1 / 3, name="x")
    assert capsys.readouterr().out == "recorded: slope = 0.333333, name = 'x'\n"
    with pytest.raises(TypeError, match="needs a name"):
        sweeps.record()


def test_importing_record_imports_nothing_heavy():
    code = (
        "import sys; from lipnb.sweeps import record; "
        "print([m for m in ('papermill', 'distributed', 'yaml', 'pandas', 'nbformat') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# --- runs -------------------------------------------------------------------------------------------------------------


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
    assert "1 point done, 3 still to run" in said and "3 good rows not in that table, with the reason: " in said
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
    good = answer
    bad = {"ok": False, "values": {}, "error": "E: no"}
    monkeypatch.setattr(sys.modules[__name__], "answer", lambda *given: good(*given) | bad)
    for factor in (100, 1000):  # a second failure, with yet another notebook, holds on to the row too
        Path("small.py").write_text(NOTEBOOK.replace("10 * n", f"{factor} * n"))
        sweep = sweeps.run(name, progress=False)
        assert len(sweep.table) == 0 and len(sweep.failures) == sweep.stale == 2
        stale = pd.read_csv(home / "stale.csv")
        assert list(stale.value) == [10, 20] and set(stale.stale) == {"the re-run failed: E: no"}
        assert {path: path.read_bytes() for path in (home / "notebooks").iterdir()} == notebooks
        assert len(list((home / "failed").iterdir())) == 2
    monkeypatch.setattr(sys.modules[__name__], "answer", good)
    edited()
    last = sweeps.run(name, progress=False)
    assert list(last.table.value) == [100, 200] and last.stale == 0
    assert not (home / "stale.csv").exists() and not list((home / "failed").iterdir())


def test_a_damaged_line_is_named_and_its_point_runs_again(answered, capsys):
    spoils = [
        lambda raw: raw[: len(raw) // 2],
        lambda raw: b"",
        lambda raw: b"[]",
        lambda raw: b"\xff" + raw,
        lambda raw: raw.replace(b'"value": ', b'"value": 9'),  # valid JSON, and false
    ]
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
    with pytest.raises(OSError, match="cannot be written any more .No space left on device.: what is measured is kept"):
        sweeps.run(name, progress=False)
    monkeypatch.undo()
    monkeypatch.chdir(answered)
    kept = 6 if file == "table.csv" else 2
    assert sum(found == "done" for found in running.plan(name).states.values()) == kept
    assert not folder.Folder("sweeps/small").damaged


def test_a_folder_that_cannot_be_written_is_said_before_anything_runs(answered):
    Path("file").write_text("")
    with pytest.raises(OSError, match="the folder .*below cannot be written .*: give another one with --output"):
        sweeps.run(written("grid: {n: [1]}"), output=Path("file/below"))


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_that_comes_while_a_point_is_kept_waits_until_it_is(answered, monkeypatch, sent):
    def interrupted(*given):
        with suppress(KeyboardInterrupt):  # as an import or a destructor would
            signal.raise_signal(sent)
        keep(*given)

    keep, before = folder.Folder.keep, signal.getsignal(sent)
    monkeypatch.setattr(folder.Folder, "keep", interrupted)
    signal.signal(sent, signal.default_int_handler)  # as in the command; tests in the background ignore Ctrl-C
    try:
        with pytest.raises(KeyboardInterrupt):
            sweeps.run(written("grid: {n: {range: [6]}}"), progress=False)
        assert signal.getsignal(sent) is signal.default_int_handler
        with pytest.raises(KeyboardInterrupt), running._stoppable():  # the second one counts at once
            signal.raise_signal(sent)
            signal.raise_signal(sent)
        with pytest.raises(KeyboardInterrupt), running._stoppable():  # and one that nobody asks for any more
            signal.raise_signal(sent)
    finally:
        signal.signal(sent, before)
    assert len(sweeps.load("sweeps/small")) == 1


def test_equal_points_have_equal_names_whatever_the_order(place):
    one = sweeps.expand(sweeps.read(written("grid: {slope: [1], n: [2]}")))
    other = sweeps.expand(sweeps.read(written("grid: {n: [2], slope: [1]}")))
    assert one[0].id == other[0].id and len(one[0].id) == 12


def test_the_package_hash_sees_a_changed_file(tmp_path, monkeypatch):
    (tmp_path / "lipnb").mkdir()
    (tmp_path / "lipnb" / "__init__.py").write_text("")
    monkeypatch.setattr(source.lipnb, "__file__", str(tmp_path / "lipnb" / "__init__.py"))
    monkeypatch.setattr(source, "checkout", source.checkout.__wrapped__)  # which remembers its answer
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'another'")
    plain = source.package.__wrapped__()
    assert plain == source.lipnb.__version__
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'lipnb'")
    hashed = source.package.__wrapped__()
    found = {plain, hashed}
    for house in ("lipnb", "lipscan"):
        (tmp_path / house).mkdir(exist_ok=True)
        (tmp_path / house / "new.py").write_text("x = 1")
        found.add(source.package.__wrapped__())
    assert plain in hashed and len(found) == 4


def test_gpus_are_those_that_are_visible(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0, 5")
    assert running.devices() == ["0", "5"] and running.devices(1) == ["0"] and running.devices(0) == []
    assert running.devices([4, "MIG-7"]) == ["4", "MIG-7"]
    with pytest.raises(ValueError, match="there are only 2 GPUs here, not 3"):
        running.devices(3)


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_shows_a_dry_run_and_writes_nothing(place, capsys):
    assert cli.main(["sweep", written("grid: {n: [1, 2, 3]}"), "--dry-run", "--limit", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:4] for line in lines] == ["run ", "run ", "    ", "3 po"] and "n=3  [new]" in lines[2]
    assert not (place / "sweeps").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--workers", "none"], "whole number from 1 on"),
        (["--timeout", "-1"], "seconds above 0"),
        (["--limit", "0"], "whole number from 1 on"),
    ],
)
def test_options_are_checked_by_the_parser(place, words, sentence, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["sweep", written("grid: {n: [1]}"), *words])
    assert stop.value.code == 2 and sentence in capsys.readouterr().err


def test_points_of_a_spec_made_by_hand(answered):
    by_hand = spec.Spec(notebook=answered / "small.py", grid={"n": [4]}, output=answered / "mine")
    assert list(sweeps.run(by_hand, progress=False).table.value) == [40]
    assert spec.canonical({"b": 1, "a": [1.5, None]}) == '{"a":[1.5,null],"b":1}'
    with pytest.raises(ValueError, match="n: .* is a tuple; parameters are"):  # papermill would write a text
        sweeps.run(spec.Spec(notebook=answered / "small.py", grid={"n": [(1, 2)]}, output=answered / "mine"))


def test_the_help_says_every_key_of_a_spec_and_what_is_cut_and_kept(capsys):
    from lipscan.sweeps.execution import KEPT

    with pytest.raises(SystemExit):
        cli.main(["sweep", "--help"])
    told = capsys.readouterr().out
    assert f"{KEPT:,} characters" in told and "stale.csv" in told and all(f"{key}:" in told for key in spec.KEYS)
    assert "as long as the re-run of its point fails" in " ".join(told.split()) and "\n  .lock " in told


# --- one parameter changed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        *("3", "-3", "0.5", "1e-3", ".inf", "True", "true", "null", "", "minilm", "[1, 2]", "{a: 1}", "a=b", "'3'"),
        *("12:00:00", "010", "None", "[None]", "2026-11-27", "1e3", "y", "'no'", "{on: 1}", "a#b", "0o17"),
    ],
)
def test_values_are_those_of_yaml_as_in_a_spec(place, value):
    """Lists and null came as text, though the same in a spec did not."""
    name, got = words.parameter(f"n={value}")
    expected = spec.read(written(f"parameters: {{n: {value}}}")).parameters["n"]
    assert name == "n" and got == expected and type(got) is type(expected)
    assert words.parameter("n=None") == ("n", None)


def test_a_parameter_overrides_whatever_the_spec_says_of_it(place):
    name = written(
        "parameters: {who: b}\ngrid: {n: [1, 2, 3]}\nzip: {slope: [0.5, 1.5], m: [7, 8]}\n"
        "exclude: [{n: 1, slope: 0.5}, {n: 2}]"
    )
    assert len(overriding(name)) == 3
    assert overriding(name, who="c", n=1) == [{"who": "c", "n": 1, "slope": 1.5, "m": 8}]
    assert [point["n"] for point in overriding(name, slope=0.5)] == [3, 3]  # the exclusion of n = 1 holds for 0.5
    assert [point["n"] for point in overriding(name, slope=9.0)] == [1, 1, 3, 3]  # and for no other slope
    assert overriding(name, n=4, m=0) == [{"who": "b", "n": 4, "m": 0, "slope": slope} for slope in (0.5, 1.5)]
    # the same point whether a grid or an option names its value
    [one] = running.plan(written("grid: {n: [1, 2]}"), parameters={"n": 2}).states
    assert one in running.plan("small.yml").states


def test_the_table_of_a_grid_stays_where_a_parameter_overrides_it(answered):
    """It lost the rows of all other points to stale.csv."""
    name = written("grid: {n: [1, 2]}")
    whole = sweeps.run(name, progress=False)
    one = sweeps.run(name, parameters={"n": 4, "who": "a/b c"}, progress=False)
    assert one.folder.name == "small-n=4-who=a-b-c" and one.folder.parent == whole.folder.parent
    assert len(one.table) == 1 and len(sweeps.load(whole.folder)) == 2
    assert sweeps.run(name, parameters={"n": 2}, output=whole.folder, progress=False).ran == 0
    assert running.plan("small.py", parameters={"n": 4}).spec.output.name == "small"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["-p", "n"], "give a parameter and its value, such as -p layer=3; got 'n'"),
        (["-p", "a b=1"], "such as -p layer=3; got 'a b=1'"),
        (["-p", "depth=1"], "small.py has no parameter 'depth': it has n, slope, who, words, m"),
        (["-p", "n=1", "-p", "n=2"], "-p n is given twice: several values are a grid"),
        (["-p", "stale=1"], "'stale' is a column of the tables"),
        (["-p", "n=[1, 2"], "argument -p: n: a value is written as in YAML, a text that begins as something else in"),
        (["-p", "n=no"], "n: 'no' could be meant in two ways: write true or false, or put a text in quotes (the shell"),
        (["-p", "n=[1, 1_000]"], "'1_000' could be meant in two ways: write a number in plain digits"),
        (["-p", "who=issue #5"], "what follows a # is a comment in YAML: put the text in quotes (the shell takes one"),
        (["-p", "who={a: b} # c"], "what follows a # is a comment in YAML"),
        (["--scheduler", "nonsense"], "a Dask scheduler has an address such as tcp://10.0.0.1:8786; got 'nonsense'."),
        (["--scheduler", "10.0.0.1:8786"], "has an address such as tcp://10.0.0.1:8786; got '10.0.0.1:8786'."),
        (["--scheduler", "tcp://127.0.0.1:9"], "there is no Dask scheduler at tcp://127.0.0.1:9 (ConnectionRefusedErr"),
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


# --- how far it is ----------------------------------------------------------------------------------------------------


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
    assert (
        "ended before it was done (killed, or by an error that it named): what is finished is kept, the same"
        in capsys.readouterr().out
    )
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
    with pytest.raises(FileNotFoundError, match="there is no sweep in .*: no sweep.json"):
        sweeps.status(tmp_path / "none")
    (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(ValueError, match="sweep.json is damaged: the same `lipnb sweep` command makes it anew"):
        sweeps.status(tmp_path)


# --- values that a notebook would not get -----------------------------------------------------------------------------

HEAD = '# %% tags=["parameters"]\nn, slope, who, quick = 1, 2.0, "a", False\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (HEAD + "# %%\nx = n\n" + HEAD, "2 cells are tagged 'parameters', code cell 1 and code cell 3"),
        (HEAD + '# %% tags=["a", "parameters"]\nm = 3', "2 cells are tagged 'parameters'"),
        ('# %% [markdown] tags=["parameters"]\n# n\n\n' + HEAD, "a cell tagged 'parameters' holds no code"),
        (
            HEAD + '# %% tags=["injected-parameters"]\nn = 5',
            "code cell 2 is tagged 'injected-parameters': papermill has",
        ),
        *[
            (f"{HEAD}# %%\nm = 1\n# %% [markdown]\n# prose\n# %%\n{line}\nprint(n)", f"code cell 3 sets 'n' .`{said}")
            for line, said in {
                "n = 3": "n = 3`. before anything reads it, so the value of the sweep is lost",
                "n: int = 3": "n: int = 3`",
                "m, (n, *k) = 1, (2, 3)": "m, .n, .k. = ",
                "m = n = 3": "m = n = 3",
                "for n in range(3):\n    m = n": "for n in range.3.:`",
                "for m in range(3):\n    n = m": "for m in",
                "with open('x') as n:\n    pass": "with open",
                "import numpy as n": "import numpy as n",
                "from math import e as n": "from math import e as n",
                "def n():\n    pass": "def n..",
                "class n:\n    pass": "class n",
                "del n": "del n",
                "(n := 3)": ".n := 3",
                "if m:\n    n = 2\nelse:\n    n = 3": "if m",
                "try:\n    n = m + 1\nexcept KeyError:\n    n = 3": "try",
                "[n for n in range(3)]\nf = lambda n: n + 1\nn = 3": "n = 3",
                "%matplotlib inline\nn = 3": "n = 3",
                "%%time\nn = 3": "n = 3",
                "await m\nn = 3": "n = 3",
            }.items()
        ],
        (
            "# %%\nn = 2\nx = 10 * n\n" + HEAD,
            "code cell 1 reads 'n' .`x = 10 . n`., and the values of the sweep come after",
        ),
        ("# %%\nx = [n * i for i in range(3)]\n" + HEAD, "code cell 1 reads 'n'"),
        (
            HEAD + "twice = 2 * n",
            "code cell 1, tagged 'parameters', makes 'twice' of the default of 'n' .`twice = 2 . n`",
        ),
        (HEAD + "if n:\n    m = 3", "makes 'm' of the default of 'n'"),
        (HEAD + "many = [n * i for i in range(3)]", "makes 'many' of the default of 'n'"),
    ],
)
def test_a_value_that_the_notebook_would_not_get_is_refused_before_any_run(place, text, sentence):
    """Of two tagged cells the second overrode what was injected after the first, and the table said otherwise."""
    (place / "odd.py").write_text(text)
    with pytest.raises(ValueError, match=f"^odd.py: .*{sentence}"):
        sweeps.run("odd.py", parameters={"n": 5})
    assert not (place / "sweeps").exists()


@pytest.mark.parametrize(
    "text",
    [
        *[
            f"{HEAD}# %%\n{line}\nn = 3"
            for line in (
                "n += 1",
                "n = 2 * n",
                "m, n = n, 3",
                "def f():\n    return n\nf()",
                "class f:\n    a = n",
                "f = lambda: n",
                "[n for i in range(3)]",
                "[i for i in range(n)]",
                "print(f'{n}')",
                "if m:\n    n = 2",
                "while m:\n    n = 2",
                "try:\n    n = 2\nexcept KeyError:\n    pass",
                "def f():\n    global n\n    n = 3\nf()",
                "eval('n + 1')",
                "globals()['n']",
                "!echo $n",
                "%%time\nprint(n)",
                "%timeit n + 1",
                "%run -i other.py",
                "%%bash\nn=3",
                "x[n] = 3",
                "def f(a=n):\n    pass",
                "match m:\n    case 3:\n        n = 3",
            )
        ],
        HEAD + "# %%\nn: int\nprint(n)\nn = 3",
        HEAD + "# %%\ndef f(n):\n    n = 3\n    return n",
        HEAD + "# %%\nx = {}\nx['n'] = slope = 3",  # no value is given to this one
        "# %%\nfor n in range(3):\n    print(n)\n" + HEAD,  # another n
        "# %%\nfrom math import *\nprint(n)\n" + HEAD,
        "# %%\ndef f():\n    return n\n" + HEAD,
        "# %%\nprint('n')\n" + HEAD,
        HEAD + "m = 2 * slope\nassert n > 0\nprint(n)\ndef f():\n    return n\nn = n + 1",
        HEAD.replace("n, slope", "%matplotlib inline\nn, slope"),
    ],
)
def test_a_value_that_is_used_or_may_be_is_not_refused(place, text):
    (place / "odd.py").write_text(text)
    assert len(running.plan("odd.py", parameters={"n": 5}).todo) == 1


def test_a_notebook_that_papermill_has_run_is_refused_with_any_parameters(place):
    """Without some, the values of that run counted; with some, the others of it went."""
    cells = [nbformat.v4.new_code_cell(text) for text in ("n = 1", "n = 5", "print(n)")]
    cells[0].metadata.tags, cells[1].metadata.tags = ["parameters"], ["injected-parameters"]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), "ran.ipynb")
    for given in ({}, {"n": 7}):
        with pytest.raises(ValueError, match="ran.ipynb: code cell 2 is tagged 'injected-parameters'"):
            sweeps.run("ran.ipynb", parameters=given)


@pytest.mark.parametrize("value", ["n", "No", "off", "y", "true", "F"])
def test_a_text_for_what_is_true_or_false_is_refused(place, value):
    """Every such text counts as true in Python."""
    (place / "small.py").write_text(HEAD)
    with pytest.raises(
        ValueError, match=f"small.py: 'quick' is true or false there, and the text '{value}' would count"
    ):
        running.plan(written(f"grid: {{quick: [true, '{value}'], who: ['{value}']}}"))
    assert len(running.plan(written("grid: {quick: [true, fast], who: ['no']}")).todo) == 2


def test_examples_can_be_swept():
    for path in sorted((Path(__file__).parents[2] / "examples").glob("*.py")):
        known = source.read(path)
        source.check(known, [dict.fromkeys(known.defaults)])


def test_cells_count_as_in_the_notebook_of_their_author():
    from lipscan.sweeps import cells

    new = [nbformat.v4.new_markdown_cell("x"), *(nbformat.v4.new_code_cell("x") for _ in range(4))]
    new[2].metadata.tags = ["injected-parameters"]
    assert [cells.shown(new, n) for n in (1, 2, 3, 4)] == [
        "code cell 1",
        "the parameters",
        "code cell 2",
        "code cell 3",
    ]


def test_cells_are_read_while_another_thread_reads_code():
    """CPython 3.11 raises SystemError where two threads build trees: a sweep on Dask does, whose threads log errors."""
    book = nbformat.v4.new_notebook()
    long = "\n".join(f"x{i} = f(a, b[{i}], [1, 2, (3, {{4: 5}})])" for i in range(60))
    book.cells = [nbformat.v4.new_code_cell(text) for text in ("a = 1", long)]
    book.cells[0].metadata["tags"] = ["parameters"]

    class Left:
        """Garbage whose end takes a while: the other thread's turn, in the midst of a tree."""

        def __init__(self):
            self.itself = self

        def __del__(self):
            sum(range(50))

    def read(_):
        Left()
        cells.refuse(book, ["a"])

    before, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(read, range(40)))
    finally:
        sys.setswitchinterval(before)
        gc.set_threshold(*threshold)
