"""Sweeps under strain: output without end, specs from strangers, pools of workers that die, notebooks that change."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import nbformat
import pytest

from lipnb import cli, sweeps
from lipnb.sweeps import clusters, output, running

ROOT = Path(sweeps.__file__).parents[2]
LOUD = """\
# %% tags=["parameters"]
what = "line"

# %%
import sys
from IPython.display import HTML, clear_output, display
from lipnb.sweeps.recorded import record
record(before=1)

# %%
size = 3_000_000
if what == "line":
    print("x" * size)
if what == "errors":
    print("e" * size, file=sys.stderr)
if what == "returns":
    print("r\\r" * size)
if what == "both":
    for _ in range(3000):
        print("a" * 300)
        print("b" * 300, file=sys.stderr)
if what == "display":
    display(HTML("h" * size))
if what == "result":
    last = "q" * size
if what == "update":
    handle = display(HTML("u"), display_id=True)
    for step in range(30):
        handle.update(HTML("u" * 100_000 * step))
if what == "bar":
    for step in range(2000):
        print(f"\\r{step:6d}" + "=" * 2000, end="", flush=True)
if what == "frames":
    for step in range(30):
        clear_output(wait=True)
        display(HTML(f"frame {step}" + "f" * 100_000))
last if what == "result" else None

# %%
if what == "raise":
    raise ValueError("y" * size)
if what == "forever":
    while True:
        print("z" * 1000)
if what == "endless line":
    while True:
        print("z" * 100_000, end="")
print("the last word")
record(after=2)
"""
CUT = "[cut here: a sweep keeps 1,000,000 characters of the output of a point]"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of its own with a notebook that prints much, and the current folder."""
    (tmp_path / "loud.py").write_text(LOUD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def written(text, name="loud.yml", notebook="loud.py"):
    Path(name).write_text(f"notebook: {notebook}\n{text}")
    return name


def outputs(folder, row):
    notebook = nbformat.read(folder / "notebooks" / f"{row.point}.ipynb", 4)
    nbformat.validate(notebook)
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


# --- output -----------------------------------------------------------------------------------------------------------


def test_a_points_output_is_capped_and_what_it_records_is_not(place):
    cut = ["line", "errors", "both", "display", "result", "update"]
    sweep = sweeps.run(written(f"grid: {{what: {[*cut, 'returns', 'bar', 'frames']}}}\nworkers: 3"), progress=False)
    assert sweep.failures == [] and set(sweep.table.before) == {1} and set(sweep.table.after) == {2}
    for row in sweep.table.itertuples():
        kept = outputs(sweep.folder, row)
        text = json.dumps(kept)
        assert len(text) < 1.2 * output.LIMIT, row.what
        assert (CUT in text) == (row.what in cut), row.what
    kept = {row.what: outputs(sweep.folder, row) for row in sweep.table.itertuples()}
    bar = next(part for part in kept["bar"] if part["output_type"] == "stream")
    assert bar.text == "  1999" + "=" * 2000 + "\n" or bar.text == "  1999" + "=" * 2000  # its last state only
    assert any("frame 29" in part.get("data", {}).get("text/html", "") for part in kept["frames"])
    assert not any("frame 28" in part.get("data", {}).get("text/html", "") for part in kept["frames"])


def test_a_point_that_prints_without_end_meets_its_limit_and_others_go_on(place):
    text = "grid: {what: [forever, endless line]}\ntimeout: 8\nworkers: 2"
    sweep = sweeps.run(written(text), progress=False)
    assert len(sweep.failures) == 2
    for failure in sweep.failures:
        assert failure["error"].endswith("Timeout: stopped after 8 s, the limit of a point")
        assert os.path.getsize(failure["notebook"]) < 2 * output.LIMIT


def test_an_error_of_millions_of_characters_is_one_line(place):
    sweep = sweeps.run(written("parameters: {what: raise}"), progress=False)
    error, notebook = sweep.failures[0]["error"], sweep.failures[0]["notebook"]
    assert error.startswith("code cell") and ": ValueError: yyy" in error and len(error) <= 300
    assert os.path.getsize(notebook) < 0.2 * output.LIMIT


def test_ctrl_c_ends_a_sweep_whose_point_prints_without_end(place):
    code = "import sys; from lipnb.cli import main; sys.exit(main(sys.argv[1:]))"
    run = subprocess.Popen(
        [sys.executable, "-c", code, "sweep", written("parameters: {what: endless line}")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    run.stdout.readline()  # it has begun
    with pytest.raises(subprocess.TimeoutExpired):
        run.wait(5)
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=900)
    assert run.returncode == 130 and "what is finished is kept" in said


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (["one\ntwo\n"], "one\ntwo\n"),
        (["a", "b", "\n"], "ab\n"),
        (["10%\r", "20%\r", "done\n"], "done\n"),
        (["\r10%", "\r20%", "\n"], "20%\n"),
        (["a\r\nb\r", "\nc"], "a\nb\nc"),
        (["kept\nlost\rnew"], "kept\nnew"),
        (["x\r\r\ny"], "x\ny"),
    ],
)
def test_lines_written_over_keep_their_last_state(parts, expected):
    text = ""
    for part in parts:
        text = output._tidy(text, part)
    assert text == expected


def test_too_much_recorded_fails_the_point_and_is_said(place, monkeypatch):
    (place / "loud.py").write_text(LOUD + "for i in range(40):\n    record(**{f'v{i}': 'r' * 9_000 * 4})\n")
    sweep = sweeps.run(written("parameters: {what: quiet}"), progress=False)
    assert "the values that it records have more than 1,000,000 characters" in sweep.failures[0]["error"]


# --- specs from strangers ---------------------------------------------------------------------------------------------

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(8)
)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (BOMB, "stands for more than 1,000,000 values, by its aliases"),
        ("grid: &g {n: *g}", "nested too deeply, or within themselves"),
        ("grid: " + "[" * 5000 + "]" * 5000, "nested too deeply|not YAML"),
        ("parameters: {n: " + "9" * 5000 + "}", "a value cannot be read"),
        ("parameters: {n: 2024-13-45}", "a value cannot be read"),
        ("parameters: {? [a, b] : 1}", "not YAML"),
        ("parameters: {n: \x00}", "not YAML"),
        ("#" * 1_000_001, "has more than 1,000,000 characters"),
    ],
)
def test_yaml_that_grows_or_is_odd_is_refused_in_a_sentence(place, text, sentence):
    Path("spec.yml").write_text(text)
    with pytest.raises(ValueError, match=f"(?s)spec.yml.*({sentence})"):
        sweeps.read("spec.yml")


def test_aliases_in_reason_are_read(place):
    assert sweeps.read(written("grid: {what: &w [line, bar]}\nzip: {m: *w}")).zipped == [{"m": ["line", "bar"]}]


@pytest.mark.parametrize("kind", ["LocalCluster", "SLURMCluster", "PBSCluster"])
@pytest.mark.parametrize(
    "option",
    [
        "host",
        "ip",
        "interface",
        "protocol",
        "security",
        "preload",
        "preload_argv",
        "preload_nanny",
        "plugins",
        "env",
        "nanny",
        "worker_class",
        "scheduler_kwargs",
        "scheduler_options",
        "service_kwargs",
        "services",
        "name",
        "extra",
        "worker_extra_args",
        "worker_command",
        "job_extra",
        "job_extra_directives",
        "job_script_prologue",
        "env_extra",
        "shebang",
        "python",
        "log_directory",
        "local_directory",
        "shared_temp_directory",
        "submit_command_extra",
        "scheduler_port",
        "worker_dashboard_address",
        "contact_address",
        "listen_address",
        "config_name",
        "asynchronous",
    ],
)
def test_only_harmless_options_of_a_cluster_pass(place, kind, option):
    text = f"cluster: {{kind: {kind}, options: {{{option}: [x]}}}}"
    with pytest.raises(ValueError, match=f"the option '{option}' is not taken from a spec .those of {kind} are "):
        sweeps.read(written(text))


@pytest.mark.parametrize(
    "value",
    [
        '{queue: "normal\\nrm -rf x"}',
        "{queue: a b}",
        "{queue: $(id)}",
        "{cores: -1}",
        "{queue: -x}",
        "{memory: [1]}",
        "{queue: ''}",
        "{dashboard_address: everywhere}",
    ],
)
def test_values_of_cluster_options_are_plain_words(place, value):
    with pytest.raises(ValueError, match="is a number or one plain word; got"):
        sweeps.read(written(f"cluster: {{kind: SLURMCluster, options: {value}}}"))


@pytest.mark.parametrize(
    "text",
    [
        "{kind: [LocalCluster]}",
        "{kind: {a: 1}}",
        "{kind: LocalCluster, options: [1]}",
        "{kind: LocalCluster, workers: 3}",
        "{jobs: 3}",
    ],
)
def test_a_cluster_of_another_form_is_refused(place, text):
    with pytest.raises(ValueError, match="'cluster' takes kind"):
        sweeps.read(written(f"cluster: {text}"))
    with pytest.raises(ValueError, match="'jobs' is a whole number"):
        sweeps.read(written("cluster: {kind: LocalCluster, jobs: 0}"))


def test_the_dashboard_of_a_cluster_is_for_this_machine_unless_asked(monkeypatch):
    from dask import config

    local = clusters._options("LocalCluster", {"threads_per_worker": 1})
    assert local == {"n_workers": 0, "dashboard_address": "127.0.0.1:0", "threads_per_worker": 1}
    assert clusters._options("LocalCluster", {"dashboard_address": ":8787"})["dashboard_address"] == ":8787"
    with config.set({"jobqueue.slurm.scheduler-options": {}}):
        slurm = clusters._options("SLURMCluster", {"cores": 1})
    assert slurm == {"scheduler_options": {"dashboard_address": "127.0.0.1:0"}, "cores": 1}
    with config.set({"jobqueue.slurm.scheduler-options": {"dashboard_address": ":1", "port": 5}}):  # the user's own
        assert clusters._options("SLURMCluster", {})["scheduler_options"] == {"dashboard_address": ":1", "port": 5}


def test_a_local_cluster_listens_on_loopback_alone():
    """Every port that the process of the scheduler opens; a cluster of an earlier test may still hold its own."""
    import psutil

    def listening():
        return {c.laddr for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN}

    before = listening()
    with clusters.opened(cluster=clusters.checked({"kind": "LocalCluster", "options": {"processes": False}})):
        opened = listening() - before
    assert opened and {address.ip for address in opened} <= {"127.0.0.1", "::1"}


# --- workers that die -------------------------------------------------------------------------------------------------

TASK = {"sweep": "sweep-x", "package": "another", "notebook": "", "parameters": {}, "cwd": ".", "environment": {}}


def test_a_pool_without_workers_is_not_waited_for_without_end():
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster, Client(cluster) as client:
        with pytest.raises(RuntimeError, match="no worker came to .* in .*: start some with `dask worker "):
            list(clusters.on_dask([TASK], client, never=1))


def test_a_pool_that_died_is_named(monkeypatch):
    """Two workers are there, then none; the sweep ends with their addresses."""
    from distributed import Client, LocalCluster

    looks = iter([{"tcp://127.0.0.1:1", "tcp://127.0.0.1:2"}])
    monkeypatch.setattr(clusters, "workers_of", lambda client: next(looks, set()))
    with LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster, Client(cluster) as client:
        with pytest.raises(
            RuntimeError,
            match="there is no worker any more at .*: the last ones were "
            "tcp://127.0.0.1:1, tcp://127.0.0.1:2. What is finished is kept",
        ):
            list(clusters.on_dask([TASK], client, gone=1))


# --- rows of an earlier version ---------------------------------------------------------------------------------------

SMALL = """\
# %% tags=["parameters"]
n = 1

# %%
from lipnb.sweeps.recorded import record
record(value=10 * n)
"""


def test_rows_of_an_earlier_notebook_are_kept_and_said(place, capsys):
    Path("small.py").write_text(SMALL)
    name = written("grid: {n: {range: [4]}}", "small.yml", "small.py")
    sweeps.run(name, progress=False)
    folder = place / "sweeps" / "small"
    assert not (folder / "stale.csv").exists()
    Path("small.py").write_text(SMALL.replace("10 * n", "100 * n"))
    assert cli.main(["sweep", name, "--limit", "1"]) == 0
    said = capsys.readouterr().out
    assert "1 point done, 3 still to run" in said
    assert "3 rows of an earlier notebook, package or spec are not in that table: " in said and "stale.csv" in said
    import pandas as pd

    stale = pd.read_csv(folder / "stale.csv")
    assert list(sweeps.load(folder).value) == [0] and list(stale.value) == [10, 20, 30]
    assert set(stale.why) == {"the notebook changed"}
    # a smaller grid: what is not asked for any more is kept too
    written("grid: {n: [0, 1]}", "small.yml", "small.py")
    sweep = sweeps.run(name, progress=False)
    assert list(sweep.table.value) == [0, 100] and sweep.stale == 2
    assert dict(zip(*[pd.read_csv(folder / "stale.csv")[c] for c in ("value", "why")], strict=True)) == {
        20: "not a point of this spec",
        30: "not a point of this spec",
    }
    # all made anew: nothing is stale
    written("grid: {n: {range: [4]}}", "small.yml", "small.py")
    sweep = sweeps.run(name, progress=False)
    assert list(sweep.table.value) == [0, 100, 200, 300] and sweep.stale == 0 and not (folder / "stale.csv").exists()


def test_a_good_row_stays_until_its_rerun_succeeds(place, capsys, monkeypatch):
    import pandas as pd

    @contextmanager
    def without_kernels(now, *_):  # what they would answer
        source = now.source.text
        ok = " / 0" not in source
        factor = 100 if "100 * n" in source else 10
        rest = {
            "log": "",
            "seconds": 0.1,
            "host": "here",
            "finished": "2026-01-01T00:00:00Z",
            "notebook": source,
            "ok": ok,
            "error": None if ok else "ZeroDivisionError: division by zero",
        }
        yield (
            (
                (i, {**rest, "values": {"value": factor * point.parameters["n"]} if ok else {}})
                for i, point in enumerate(now.todo)
            ),
            "here",
        )

    monkeypatch.setattr(running, "_outcomes", without_kernels)
    Path("small.py").write_text(SMALL)
    name = written("grid: {n: [1, 2]}", "small.yml", "small.py")
    first = sweeps.run(name, progress=False)
    folder = first.folder
    notebooks = {path: path.read_bytes() for path in (folder / "notebooks").iterdir()}
    for times in (1, 2):  # a second failure, with yet another notebook, holds on to the row too
        Path("small.py").write_text(SMALL.replace("10 * n", f"{times} / 0"))
        assert cli.main(["sweep", name]) == 1
        said = capsys.readouterr().out
        assert "0 points done" in said and "2 rows of an earlier notebook" in said
        assert "stale.csv keeps them, with the reason; 2 because the re-run failed" in said
        stale = pd.read_csv(folder / "stale.csv")
        assert list(stale.value) == [10, 20] and len(sweeps.load(folder)) == 0
        assert set(stale.why) == {"the re-run failed: ZeroDivisionError: division by zero"}
        assert {path: path.read_bytes() for path in (folder / "notebooks").iterdir()} == notebooks
        assert len(list((folder / "failed").iterdir())) == 2
    # the notebook changes and not all run; what is not asked for any more; both still there
    Path("small.py").write_text(SMALL.replace("10 * n", "100 * n"))
    assert sweeps.run(name, progress=False, limit=1).stale == 1
    written("grid: {n: [1]}", "small.yml", "small.py")
    assert sweeps.run(name, progress=False).stale == 1
    assert list(pd.read_csv(folder / "stale.csv").value) == [20]
    # a run that succeeds takes its place
    written("grid: {n: [1, 2]}", "small.yml", "small.py")
    last = sweeps.run(name, progress=False)
    assert list(last.table.value) == [100, 200] and (last.stale, last.failed_again) == (0, 0)
    assert not (folder / "stale.csv").exists() and not list((folder / "failed").iterdir())


def test_the_help_says_what_is_cut_and_kept(capsys):
    with pytest.raises(SystemExit):
        cli.main(["sweep", "--help"])
    told = capsys.readouterr().out
    assert f"{output.LIMIT:,} characters" in told and "stale.csv" in told
    assert "as long as the re-run of its point fails" in " ".join(told.split()) and "\n  .lock " in told
