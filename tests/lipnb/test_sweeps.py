"""Sweeps: specs checked whole, points that stay the same points, runs that do only what is missing."""

import json
import math
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch

from lipnb import cli, sweeps
from lipnb.sweeps import executors, planning, points, recorded, source, spec

NOTEBOOK = """\
# %% tags=["parameters"]
slope, n = 1.0, 3
words = ["a"]

# %%
from lipnb.sweeps.recorded import record

# %% a page's prose

# %%
record(value=slope * n)
record(words_count=len(words), far=float("inf"))
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of its own with a small notebook, and the current folder."""
    (tmp_path / "small.py").write_text(NOTEBOOK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(sweeps.__file__).parents[2]))
    return tmp_path


def written(text, name="small.yml"):
    Path(name).write_text("notebook: small.py\n" + text)
    return name


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
        for point in points._sample(every, 3, seed):
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
        ("grid: {n: [2024-01-01]}", "n: datetime.date.* is a date; .*put a date in quotes"),
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
        ("output: /elsewhere", "'output' is a folder below the current one; got '/elsewhere'"),
        ("output: ../elsewhere", "'output' is a folder below the current one"),
        ("output: a/../../elsewhere", "'output' is a folder below"),
        ("output: .", "'output' is a folder below"),
        ("output: link/inside", "'output' is a folder below"),
        ("cluster: {kind: os.system}", "kind .one of LocalCluster, SLURMCluster"),
        ("cluster: {kind: SLURMCluster, options: {log_directory: /etc}}", "option 'log_directory' is not taken"),
        (
            "grid: !!python/object/apply:os.system ['touch owned']",
            "line 2: not YAML: could not determine a constructor",
        ),
        ("grid: {n: [1]}\ngrid: {n: [2]}", "the key 'grid' is there twice"),
        ("grid: [", "not YAML"),
    ],
)
def test_each_mistake_in_a_spec_gets_a_sentence_and_leaves_nothing(place, text, sentence):
    (place / "link").symlink_to("/tmp")
    with pytest.raises(ValueError, match=f"small.yml.*{sentence}"):
        sweeps.run(written(text))
    assert not (place / "sweeps").exists() and not (place / "owned").exists()


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ("grid: {depth: [1]}", ValueError, "small.py has no parameter 'depth': it has slope, n, words"),
        ("kernel: fortran", ValueError, "there is no kernel 'fortran' here .there are: .*python3"),
    ],
)
def test_what_the_notebook_lacks_is_said_before_anything_runs(place, change, error, sentence):
    with pytest.raises(error, match=sentence):
        sweeps.run(written(change))
    assert not (place / "sweeps").exists()


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("gone.py", None, "there is no notebook .*gone.py"),
        ("text.txt", "x", "text.txt is no notebook"),
        ("torn.ipynb", '{"cells": [', "torn.ipynb is no notebook"),
        ("prose.py", "# %% [markdown]\n# x", "no code cell"),
        ("bare.py", "# %%\nn = 1", "no parameter 'n': it has no cell tagged 'parameters'"),
    ],
)
def test_a_notebook_that_is_none_is_answered(place, name, content, sentence):
    if content is not None:
        Path(name).write_text(content)
    Path("spec.yml").write_text(f"notebook: {name}\ngrid: {{n: [1]}}")
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        sweeps.run("spec.yml")


def test_a_spec_that_is_no_file_is_answered():
    with pytest.raises(FileNotFoundError, match="there is no file nowhere.yml"):
        sweeps.run("nowhere.yml")


# --- what a notebook records ------------------------------------------------------------------------------------------


def test_recorded_scalars_of_every_kind_come_back():
    values = {
        "a": 1,
        "b": 0.1,
        "c": "x",
        "d": True,
        "e": None,
        "f": np.float32(0.5),
        "g": torch.tensor(2.5),
        "h": np.array([[7]]),
        "i": float("nan"),
        "j": -math.inf,
        "k": np.bool_(False),
    }
    packed = {name: recorded._packed(recorded._scalar(name, value)) for name, value in values.items()}
    output = nbformat.v4.new_output("display_data", data={recorded.MIME: json.loads(json.dumps(packed))})
    cell = nbformat.v4.new_code_cell(outputs=[output])
    got = recorded.recorded(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("x"), cell]))
    assert math.isnan(got.pop("i"))
    assert got == {
        "a": 1,
        "b": 0.1,
        "c": "x",
        "d": True,
        "e": None,
        "f": 0.5,
        "g": 2.5,
        "h": 7,
        "j": -math.inf,
        "k": False,
    }
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


def test_a_sweep_fills_its_folder_and_a_rerun_does_only_what_is_missing(place):
    name = written("grid: {slope: [0.5, 2], n: [1, 3]}")
    first = sweeps.run(name, limit=2, progress=False)
    assert (first.ran, first.left, len(first.table)) == (2, 2, 2)
    second = sweeps.run(name, workers=2, progress=False)
    assert (second.ran, second.left, second.failures, second.recorded) == (2, 0, [], True)
    folder = place / "sweeps" / "small"
    assert second.folder == folder
    assert list(second.table.columns) == ["point", "slope", "n", "value", "words_count", "far"]
    assert list(second.table.value) == [0.5, 1.5, 2.0, 6.0] and set(second.table.far) == {math.inf}
    assert sweeps.load(folder).equals(second.table)
    assert {path.stem for path in (folder / "notebooks").glob("*.ipynb")} == set(second.table.point)
    birth = json.loads((folder / "sweep.json").read_text())
    assert birth["points"] == 4 and birth["finished"] and birth["key"]["package"] == source.package()
    assert (folder / "failures.csv").read_text() == "point,error,notebook\n"
    notebook = nbformat.read(folder / "notebooks" / f"{second.table.point[3]}.ipynb", 4)
    nbformat.validate(notebook)
    assert "slope = 2" in notebook.cells[1].source and "input_path" not in notebook.metadata.papermill
    table = (folder / "table.csv").read_bytes()
    assert sweeps.run(name, progress=False).ran == 0 and (folder / "table.csv").read_bytes() == table

    # prose does not count, code does; a point that is gone runs alone
    (folder / "notebooks" / f"{second.table.point[0]}.ipynb").unlink()
    (place / "small.py").write_text(NOTEBOOK.replace("a page's prose", "other prose"))
    states = planning.plan(name).states
    assert list(states.values()) == ["new", "done", "done", "done"]
    (place / "small.py").write_text(NOTEBOOK.replace("slope * n", "slope * n + 1"))
    assert set(planning.plan(name).states.values()) == {"new", "stale: the notebook changed"}


def test_another_package_makes_points_stale(place, monkeypatch):
    name = written("grid: {n: [1]}")
    sweeps.run(name, progress=False)
    monkeypatch.setattr(source, "package", lambda: "0.2.0")
    assert list(planning.plan(name).states.values()) == ["stale: the package changed"]


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
    (tmp_path / "lipnb" / "new.py").write_text("x = 1")
    assert plain in hashed and len({plain, hashed, source.package.__wrapped__()}) == 3


def test_workers_share_threads_and_gpus(place, monkeypatch):
    (place / "small.py").write_text(
        NOTEBOOK
        + """\
import os
record(omp=os.environ["OMP_NUM_THREADS"], mkl=os.environ["MKL_NUM_THREADS"], gpu=os.environ["CUDA_VISIBLE_DEVICES"],
       here=os.getcwd())
"""
    )
    table = sweeps.run(written("grid: {n: [1, 2]}\nworkers: 2\nthreads: 3\ngpus: [4, MIG-7]"), progress=False).table
    assert set(table.omp) == set(table.mkl) == {3} and set(table.gpu) == {"4", "MIG-7"}
    assert set(table.here) == {str(place)}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0, 5")
    assert executors.devices() == ["0", "5"] and executors.devices(1) == ["0"] and executors.devices(0) == []
    with pytest.raises(ValueError, match="there are only 2 GPUs here, not 3"):
        executors.devices(3)


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_shows_a_dry_run_and_writes_nothing(place, capsys):
    assert cli.main(["sweep", written("grid: {n: [1, 2, 3]}"), "--dry-run", "--limit", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:4] for line in lines] == ["run ", "run ", "    ", "3 po"] and "n=3  [new]" in lines[2]
    assert not (place / "sweeps").exists()


def test_the_command_fails_when_a_point_fails_and_goes_on(place, capsys):
    name = written("grid: {n: [1, x, 2]}\nparameters: {slope: 1.5}")
    assert cli.main(["sweep", name, "--output", "elsewhere"]) == 1
    said = capsys.readouterr()
    assert "2 points done: elsewhere/table.csv" in said.out
    assert "slope=1.5, n=x" in said.err and "TypeError: can't multiply sequence by non-int" in said.err
    failed = list(Path("elsewhere/failed").glob("*.ipynb"))
    assert len(failed) == 1 and "can't multiply" in failed[0].read_text()
    assert "failed/" in Path("elsewhere/failures.csv").read_text().splitlines()[1]

    # a rerun leaves it alone and still says so; mended and tried again, its failure is gone
    assert planning.plan(name, output=Path("elsewhere")).todo == []
    assert len(planning.plan(name, output=Path("elsewhere"), retry_failed=True).todo) == 1
    assert cli.main(["sweep", name, "--output", "elsewhere"]) == 1


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


def test_every_key_of_a_spec_is_in_the_help(capsys):
    with pytest.raises(SystemExit):
        cli.main(["sweep", "--help"])
    told = capsys.readouterr().out
    assert all(f"{key}:" in told for key in spec.KEYS)


def test_points_of_a_spec_made_by_hand(place):
    by_hand = spec.Spec(notebook=place / "small.py", grid={"n": [4]}, output=place / "mine")
    assert list(sweeps.run(by_hand, progress=False).table.value) == [4.0]
    assert points.canonical({"b": 1, "a": [1.5, None]}) == '{"a":[1.5,null],"b":1}'
