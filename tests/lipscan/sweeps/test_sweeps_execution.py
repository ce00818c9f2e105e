"""Sweeps that survive: notebooks that fail in every way, output without end, workers and clients that are killed."""

import json
import math
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import nbformat
import psutil
import pytest

from lipscan import cli, sweeps
from lipscan.sweeps import execution, folder, running

ROOT = Path(sweeps.__file__).parents[2]


NOTEBOOK = """\
# %% tags=["parameters"]
what, n, gate, value = "fine", 0, "", None

# %%
import os, signal, subprocess, sys, time
from IPython.display import HTML, clear_output, display
from lipscan.sweeps import record
child = subprocess.Popen(["sleep", "4321.5"], start_new_session=what != "killed")
size = 3_000_000

# %%
while gate and n > 0 and not os.path.exists(gate):
    time.sleep(0.05)
if what == "raise":
    1 / 0
if what == "hang":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        pass
if what == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "exits":
    os._exit(3)
if what == "memory":
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30))
    bytearray(30 * 2**30)
if what == "long":
    raise ValueError("y" * size)
if what == "much recorded":
    record(text="r" * size)
if what in ("twice", "half"):
    record(**{"result" if what == "twice" else "first": 1})
if what in ("leaves", "half"):
    raise SystemExit
if what == "forever":
    while True:
        print("z" * 1000)
if what == "endless line":
    while True:
        print("z" * 100_000, end="")
if what == "line":
    print("x" * size)
if what == "errors":
    print("e" * size, file=sys.stderr)
if what == "both":
    for _ in range(3000):
        print("a" * 300)
        print("b" * 300, file=sys.stderr)
if what == "display":
    display(HTML("h" * size))
if what == "update":
    handle = display(HTML("u"), display_id=True)
    for step in range(30):
        handle.update(HTML("u" * 100_000 * step))
if what == "bar":
    for step in range(200):
        print(f"\\r{step:6d}" + "=" * 2000, end="", flush=True)
if what == "frames":
    for step in range(30):
        clear_output(wait=True)
        display(HTML(f"frame {step}" + "f" * 100_000))

# %%
print("the last word")
record(result=2 * n)
if what == "fine":
    raise SystemExit
"""


LEFT = "code cell 3: SystemExit: it left by sys.exit before it recorded"


# all points but the first wait until the file "open" is there: a sweep that cannot end before a test says so
GATED = "notebook: odd.py\nparameters: {gate: open}\ngrid: {n: {range: [6]}}\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of its own with a notebook that can fail; nothing of it runs afterwards."""
    (tmp_path / "odd.py").write_text(NOTEBOOK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield tmp_path
    for process in sleepers(tmp_path):
        process.kill()


def sleepers(place):
    """What notebooks of this folder started and left behind."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if "4321.5" in process.cmdline() and process.cwd() == str(place):
                found.append(process)
    return found


def kernels(parent):
    """Kernels that a process has started and that still run."""
    found = []
    for process in parent.children(recursive=True):
        with suppress(psutil.Error):  # one that ends just now
            if "ipykernel_launcher" in " ".join(process.cmdline()):
                found.append(process)
    return found


def written(text, name="odd.yml"):
    Path(name).write_text(text)
    return name


def command(*words):
    """The command in a process of its own."""
    code = "import sys; from lipscan.cli import main; sys.exit(main(sys.argv[1:]))"
    # Ctrl-C counts even where the tests themselves run in the background, with it ignored
    return subprocess.Popen(
        [sys.executable, "-c", code, "sweep", *words],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def until(condition, seconds=240):
    """Wait for something."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def ended(where="sweeps/odd"):
    """Lines of the points that have ended."""
    lines = folder.Lines(Path(where, "points.jsonl")).raw()
    return [json.loads(line) for line in lines if b'"begun"' not in line]


def outputs(home, row):
    """Outputs of a point's executed notebook, which is a valid one."""
    notebook = nbformat.read(home / "notebooks" / f"{row.point}.ipynb", 4)
    nbformat.validate(notebook)
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def test_each_way_to_fail_costs_one_point(place):
    ways = "raise, fine, killed, exits, twice, leaves, half, memory, long"
    sweep = sweeps.run(written(f"notebook: odd.py\ngrid: {{what: [{ways}]}}\nworkers: 3"), progress=False)
    assert list(sweep.table.what) == ["fine"] and list(sweep.table.result) == [0]
    errors = {failure["what"]: failure["error"] for failure in sweep.failures}
    long = errors.pop("long")
    assert long.startswith("code cell 3: ValueError: yyy") and len(long) <= 300
    assert errors == {
        "raise": "code cell 3: ZeroDivisionError: division by zero",
        "killed": "code cell 3: KernelDied: its kernel was killed by SIGKILL, most often for want of memory",
        "exits": "code cell 3: KernelDied: its kernel ended with exit code 3",
        "leaves": f"{LEFT} a value: record first, or raise an error that says why not",
        "half": f"{LEFT} all its values: record first, or raise an error that says why not",
        "twice": "'result' is recorded twice: give each value a name of its own.",
        "memory": "code cell 3: MemoryError:",
    }
    for failure in sweep.failures:  # each keeps its notebook, with the error where it happened
        notebook = nbformat.read(failure["notebook"], 4)
        nbformat.validate(notebook)
        assert os.path.getsize(failure["notebook"]) < 0.2 * execution.KEPT
        shown = [output for cell in notebook.cells for output in cell.get("outputs", []) if "ename" in output]
        assert len(shown) == (failure["what"] != "twice")
        assert all("".join(output.traceback) for output in shown)
    # a session of its own outlives a kernel that ended by itself in the middle, and nothing else does
    assert len(sleepers(place)) <= 1


def test_a_point_that_hangs_or_prints_without_end_meets_its_limit(place):
    text = "notebook: odd.py\ngrid: {what: [hang, forever, endless line]}\ntimeout: 8\nworkers: 3"
    sweep = sweeps.run(written(text), progress=False)
    assert len(sweep.failures) == 3 and not sleepers(place)
    for failure in sweep.failures:
        assert failure["error"].endswith("Timeout: stopped after 8 s, the limit of a point")
        assert os.path.getsize(failure["notebook"]) < 2 * execution.KEPT


def test_a_points_output_is_capped_and_what_it_records_is_not(place):
    cut = ["line", "errors", "both", "display", "update"]
    whole = ["bar", "frames", "much recorded"]
    sweep = sweeps.run(written(f"notebook: odd.py\ngrid: {{what: {cut + whole}}}\nworkers: 3"), progress=False)
    assert sweep.failures == [] and set(sweep.table.result) == {0}
    kept = {row.what: outputs(sweep.folder, row) for row in sweep.table.itertuples()}
    for what, shown in kept.items():
        text = json.dumps(shown)
        assert (execution.CUT in text) == (what in cut), what
        assert len(text) < 1.3 * execution.KEPT or what == "much recorded", what
    assert sweep.table.set_index("what").text["much recorded"] == "r" * 3_000_000
    bar = "".join(part.text for part in kept["bar"] if part["output_type"] == "stream")
    assert bar == "   199" + "=" * 2000 + "the last word\n"  # its last state only
    frames = [part.data["text/html"][:8] for part in kept["frames"] if "text/html" in part.get("data", {})]
    assert frames == ["frame 29"]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (["one\ntwo\n"], "one\ntwo\n"),
        (["a", "b", "\n"], "ab\n"),
        (["10%\r", "20%\r", "done\n"], "20%\rdone\n"),
        (["\r10%", "\r20%", "\n"], "20%\n"),
        (["a\r\nb\r", "\nc"], "a\nb\r\nc"),
        (["kept\nlost\rnew"], "kept\nnew"),
        (["x" * 900_000 + "\r", "\ry"], "y"),
    ],
)
def test_lines_written_over_keep_their_last_state(parts, expected):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("")])
    client = execution.Client(SimpleNamespace(nb=notebook, autosave_cell=lambda: None), None)
    client.reset_execution_trackers()
    client.clear_before_next_output = False
    for part in parts:
        content = {"name": "stdout", "text": part}
        client.process_message(
            {"msg_type": "stream", "content": content, "parent_header": {}, "header": {"msg_type": "stream"}},
            notebook.cells[0],
            0,
        )
    assert "".join(output.text for output in notebook.cells[0].outputs) == expected


def test_a_parameter_arrives_as_the_spec_says_it(place):
    (place / "odd.py").write_text(
        '# %% tags=["parameters"]\na = b = c = d = None\n\n# %%\nfrom lipnb.sweeps import record\n'
        "import os\nrecord(**{'got ' + k: repr(v) for k, v in dict(a=a, b=b, c=c, d=d).items()})\n"
        "record(here=os.getcwd(), omp=os.environ['OMP_NUM_THREADS'], gpu=os.environ['CUDA_VISIBLE_DEVICES'])"
    )
    text = (
        "parameters:\n  a: [1, [null, {b: .inf, 'c d': [-.inf, true, 2.0]}], 'null', \"q\\\"\\\\ \\né\"]\n  b: .nan\n"
        "  c: null\ngrid: {d: ['2024-01-01', 1e-3]}\ngpus: [4, MIG-7]\nthreads: 3"
    )
    sweep = sweeps.run(written("notebook: odd.py\n" + text), progress=False)
    assert sweep.failures == []
    got = [line["values"] for line in sorted(ended(), key=lambda line: line["parameters"]["d"] == 1e-3)]
    expected = [1, [None, {"b": math.inf, "c d": [-math.inf, True, 2.0]}], "null", 'q"\\ \né']
    for values, d, gpu in zip(got, ("2024-01-01", 0.001), ("4", "MIG-7"), strict=True):
        told = {"got a": repr(expected), "got b": "nan", "got c": "None", "got d": repr(d)}
        assert values == {**told, "here": str(place), "omp": "3", "gpu": gpu}


def test_a_notebook_itself_is_a_sweep_of_one_point(place, capsys):
    words = ["sweep", "odd.py", "-p", "n=4", "-p", "value=.nan", "-p", "gate=False"]
    assert cli.main(words) == 0
    table = sweeps.load("sweeps/odd")
    assert list(table.result) == [8] and list(table.gate) == [False] and table.value.isna().all()
    assert sweeps.status("sweeps/odd").points[0]["parameters"]["n"] == 4
    notebook = nbformat.read(Path("sweeps/odd/notebooks", f"{table.point[0]}.ipynb"), 4)
    nbformat.validate(notebook)
    assert "n = 4" in notebook.cells[1].source and "input_path" not in notebook.metadata.papermill
    capsys.readouterr()
    assert cli.main([*words, "--dry-run"]) == 0
    assert "1 point, 0 would run" in capsys.readouterr().out  # not a number is the same parameter the next time


STILLBORN = """\
import os, sys
from pathlib import Path
if any("ipykernel" in word for word in sys.orig_argv):
    starts = Path(__file__).with_name("starts")
    left = int(starts.read_text())
    starts.write_text(str(left - 1))
    if left > 0:
        os._exit(1)
"""


@pytest.mark.parametrize(("dead", "ran"), [(2, 3), (3, 3)])
def test_a_kernel_that_ends_before_it_answers_is_started_again(place, monkeypatch, dead, ran):
    (place / "first").mkdir()
    (place / "first" / "sitecustomize.py").write_text(STILLBORN)
    starts = place / "first" / "starts"
    starts.write_text(str(dead))
    monkeypatch.setenv("PYTHONPATH", f"{place / 'first'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    sweep = sweeps.run(written("notebook: odd.py\ngrid: {what: [fine]}"), progress=False)
    assert (len(sweep.table), len(sweep.failures)) == ((1, 0) if dead < 3 else (0, 1))
    assert dead - int(starts.read_text()) == ran
    for failure in sweep.failures:
        assert "Kernel died before replying" in failure["error"]
    assert not sleepers(place)


def test_a_kernel_that_dies_in_a_cell_is_not_started_again(place):
    (place / "odd.py").write_text(NOTEBOOK.replace("import os,", "open('began', 'a').write('x')\nimport os,"))
    sweep = sweeps.run(written("notebook: odd.py\ngrid: {what: [exits]}"), progress=False)
    assert len(sweep.failures) == 1 and Path("began").read_text() == "x"


def test_a_sweep_keeps_others_out_and_what_is_finished_when_it_is_stopped(place):
    run = command(written(GATED), "--workers", "2")
    until(ended)
    out, err = (second := command("odd.yml")).communicate(timeout=900)
    assert second.returncode == 1 and "another sweep is running in" in err and "--output" in err
    assert len(err.strip().splitlines()) == 1
    now = sweeps.status("sweeps/odd")
    assert now.alive and now.run["process"] == run.pid and now.count("done") == 1 and now.count("running") >= 1
    run.send_signal(signal.SIGTERM)  # a batch system's notice
    out, err = run.communicate(timeout=900)
    assert run.returncode == 130 and "stopped; what is finished is kept, the same command continues" in err
    assert "Traceback" not in err and not sleepers(place)
    assert len(ended()) == 1 and len(sweeps.load("sweeps/odd")) == 1
    assert sweeps.status("sweeps/odd").run is None
    Path("open").touch()
    sweep = sweeps.run("odd.yml", progress=False)
    assert sweep.ran == 5 and list(sweep.table.result) == [0, 2, 4, 6, 8, 10]


def test_ctrl_c_ends_a_sweep_whose_point_prints_without_end(place):
    run = command(written("notebook: odd.py\nparameters: {what: endless line}"))
    until(lambda: kernels(psutil.Process(run.pid)))
    time.sleep(3)
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=900)
    assert run.returncode == 130 and "what is finished is kept" in said


def test_a_killed_command_leaves_no_kernel_and_loses_nothing(place):
    run = command(written(GATED), "--workers", "2")
    until(ended)
    until(lambda: sweeps.status("sweeps/odd").count("running") == 2)
    left = kernels(psutil.Process(run.pid))
    run.kill()
    run.communicate()
    assert not sweeps.status("sweeps/odd").alive and sweeps.status("sweeps/odd").count("left") == 5
    # what a notebook puts into a session of its own outlives a command that had no time to end it
    until(lambda: not any(process.is_running() and process.status() != "zombie" for process in left))
    (place / "sweeps" / "odd" / "notebooks" / ".x.ipynb.new").write_text("half a")  # as a power cut leaves it
    Path("open").touch()
    sweep = sweeps.run("odd.yml", progress=False)
    assert sweep.ran == 5 and not list((place / "sweeps").rglob("*.new"))
    assert list(sweep.table.n) == [*range(6)] and list(sweep.table.result) == [0, 2, 4, 6, 8, 10]


@contextmanager
def started(**shape):
    """A cluster on this machine, as somebody would start one, of workers that are started again however often."""
    import dask
    from distributed import LocalCluster

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ROOT)
    with (  # 15 s after a loss Dask ends a worker that it finds lost again
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}),
        LocalCluster(dashboard_address="127.0.0.1:0", **shape) as cluster,
    ):
        yield cluster
    os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)


@pytest.fixture(scope="module")
def cluster():
    """Two workers of one thread."""
    with started(n_workers=2, threads_per_worker=1) as cluster:
        yield cluster


def machine(address, home):
    """A worker on a machine of its own, as far as this one can play it, and what is to be killed of it."""
    words = ["worker", address, "--nthreads", "1", "--name", "far", "--local-directory", str(home), "--no-dashboard"]
    with open(home / "worker.log", "w") as log:
        nanny = subprocess.Popen([sys.executable, "-m", "dask", *words], stdout=log, stderr=log)
    until(lambda: "Registered to" in (home / "worker.log").read_text())
    return nanny


def vanish(nanny):
    """Kill a machine: the nanny first, or it starts another worker."""
    family = [psutil.Process(nanny.pid), *psutil.Process(nanny.pid).children(recursive=True)]
    for process in family:
        with suppress(psutil.Error):
            process.kill()
    nanny.wait()


def test_workers_and_commands_can_be_killed_and_the_table_is_the_same(cluster, place):
    address, results = cluster.scheduler_address, {n: 2 * n for n in range(6)}

    # a worker and a whole machine: Dask gives their points to others, the same run ends well
    far = machine(address, place)
    run = command(written(GATED), "--scheduler", address, "--output", "lost-workers")
    until(lambda: ended("lost-workers") and sweeps.status("lost-workers").count("running") == 3)
    vanish(far)
    psutil.Process(next(iter(cluster.workers.values())).pid).kill()  # its nanny starts another one
    Path("open").touch()
    out, err = run.communicate(timeout=900)
    assert run.returncode == 0, err
    assert "is gone: what it had in work goes to another one" in out
    Path("open").unlink()

    # the command: the same one continues
    run = command("odd.yml", "--scheduler", address, "--output", "lost-command")
    until(lambda: ended("lost-command"))
    run.kill()
    run.communicate()
    kept = len(ended("lost-command"))
    Path("open").touch()
    sweep = sweeps.run("odd.yml", scheduler=address, output=place / "lost-command", progress=False)
    assert sweep.ran == 6 - kept > 0
    tables = [Path(name, "table.csv").read_bytes() for name in ("lost-workers", "lost-command")]
    assert dict(zip(sweep.table.n, sweep.table.result, strict=True)) == results and tables[0] == tables[1]
    assert {line["host"] for line in ended("lost-command")} == {socket.gethostname()}
    assert len(ended("lost-workers")) == 6
    Path("open").unlink()

    # Ctrl-C: the kernels on the workers are gone too
    run = command("odd.yml", "--scheduler", address, "--output", "stopped")
    until(lambda: ended("stopped"))
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=900)
    assert run.returncode == 130 and "what is finished is kept" in err
    until(lambda: not kernels(psutil.Process()), 60)


def test_a_point_that_fails_on_a_worker_is_one_failed_point_there_as_here(place):
    """One takes its worker with it, again and again, and another point is in work there; that one is not blamed."""
    kills = NOTEBOOK.replace("os._exit(3)", "os.kill(os.getppid(), 9)") + "if what != 'killed':\n    time.sleep(3)\n"
    (place / "odd.py").write_text(kills)
    text = "notebook: odd.py\ngrid: {what: [exits, fine, killed]}"
    with started(n_workers=1, threads_per_worker=2) as cluster:
        sweep = sweeps.run(written(text), scheduler=cluster.scheduler_address, progress=False)
    assert list(sweep.table.what) == ["fine"], sweep.failures
    errors = {failure["what"]: failure["error"] for failure in sweep.failures}
    assert "KernelDied: its kernel was killed by SIGKILL" in errors["killed"]
    assert errors["exits"].startswith("WorkerLost: several workers died while they ran it, the last one tcp://127")


def test_a_result_that_is_lost_before_it_is_fetched_is_made_again(cluster, place, monkeypatch):
    """The workers die once both points have ended, while the first is written; the other needs the gate anew.

    What waits for its result hears a signal all the same.
    """
    kept, tasks = [], cluster.scheduler.tasks

    def keep(*given):
        if not kept:
            until(lambda: len(ours := [task.state for task in list(tasks.values())]) == ours.count("memory") == 2)
            until(lambda: all(nanny.pid for nanny in cluster.workers.values()))  # of None psutil takes this process
            Path("open").unlink()
            for nanny in cluster.workers.values():
                psutil.Process(nanny.pid).kill()
            until(lambda: all(task.state != "memory" for task in list(tasks.values())))
            threading.Timer(5, send).start()
        kept.append(given)
        real(*given)

    def send():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)

    real = folder.Folder.keep
    monkeypatch.setattr(folder.Folder, "keep", keep)
    Path("open").touch()
    text = written("notebook: odd.py\nparameters: {gate: open}\ngrid: {n: [1, 2]}")
    late = threading.Timer(90, Path("open").touch)
    late.start()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            sweeps.run(text, scheduler=cluster.scheduler_address, progress=False)
    finally:
        signal.signal(signal.SIGTERM, before)
        late.cancel()
    assert len(kept) == 1 and not Path("open").exists()
    Path("open").touch()
    sweep = sweeps.run(text, scheduler=cluster.scheduler_address, progress=False)
    assert sweep.ran == 1 and list(sweep.table.result) == [2, 4] and not sweep.failures


def test_a_worker_with_another_package_is_refused(cluster, place, monkeypatch):
    monkeypatch.setattr("lipscan.sweeps.source.package", lambda: "0.0.9")
    with pytest.raises(RuntimeError, match="a worker could not run its point: .* this sweep was begun with 0.0.9"):
        sweeps.run(written(GATED), scheduler=cluster.scheduler_address, progress=False)


def test_a_cluster_named_in_the_spec(place):
    Path("open").touch()
    text = GATED.replace("[6]", "[2]") + "cluster: {kind: LocalCluster, options: {processes: false}}"
    assert list(sweeps.run(written(text), progress=False).table.result) == [0, 2]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the half-made cluster
@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("{kind: SlurmCluster}", "there is no kind 'SlurmCluster': it is one of .*LocalCluster, .*SLURMCluster"),
        ("{kind: SLURMCluster, options: {cores: 1, memory: 1GB, colour: blue}}", "SLURMCluster could not be started: "),
        ("{kind: SLURMCluster, options: {cores: 1, memory: 1GB}}", "SLURMCluster gives its jobs to .* 'sbatch', which"),
    ],
)
def test_a_cluster_that_cannot_be_is_said(place, spec, sentence):
    with pytest.raises(ValueError, match=f"'cluster': {sentence}"):
        sweeps.run(written(f"{GATED}cluster: {spec}"), progress=False)


def test_no_scheduler_is_said(place, monkeypatch):
    monkeypatch.setattr(running, "CONNECT", 0.5)
    with pytest.raises(OSError, match="there is no Dask scheduler at tcp://127.0.0.1:9 "):
        sweeps.run(written(GATED), scheduler="tcp://127.0.0.1:9", progress=False)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # something answers there, and is none
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(OSError, match=f"there is no Dask scheduler at {address} "):
            sweeps.run(written(GATED), scheduler=address, progress=False)


def test_a_pool_whose_workers_are_gone_is_named_and_not_waited_for_without_end(monkeypatch):
    looks = iter([{"tcp://a:1": 1, "tcp://b:2": 2}, {"tcp://b:2": 2}, {"tcp://b:2": 2}, {}, {}])
    said, news = [], []
    client = SimpleNamespace(
        status="running",
        scheduler=SimpleNamespace(address="tcp://s:3"),
        nthreads=lambda: next(looks),
        processing=lambda: {"tcp://b:2": ["s-p1", "other-p2"]},
    )
    pool = running._Pool(client, said.append)
    assert pool.size == 3
    pool._given = {}  # it has looked already
    for size in (2, 2, 0):
        pool._looked -= running.EVERY
        news.append(pool.look("s"))
        assert pool.size == size
    assert news == [{"p1": "tcp://b:2"}, {}, {}]
    assert pool.look("s") == {}  # it is too early for another look
    assert said == [
        f"the worker tcp://{name} is gone: what it had in work goes to another one" for name in ("a:1", "b:2")
    ]
    pool._looked -= running.EVERY
    monkeypatch.setattr(running, "GONE", 0)
    with pytest.raises(RuntimeError, match="no worker at tcp://s:3, since .* the last one was tcp://b:2. What is fin"):
        pool.look("s")


def test_a_pool_to_which_no_worker_comes_is_not_waited_for_without_end(place, monkeypatch):
    monkeypatch.setattr(running, "NEVER", 0)
    text = GATED + "cluster: {kind: LocalCluster, options: {processes: false, n_workers: 0}}"
    with pytest.raises(RuntimeError, match="there is no worker at .*: see what ended them .*`dask worker "):
        sweeps.run(written(text), progress=False)


GATE, OVER = threading.Event(), []


def waits(task):
    """A point that ends by `GATE` alone, in this process."""
    OVER.append(GATE.wait(20))


def opens(sweep):
    """What ends it."""
    GATE.set()


def test_a_signal_that_wakes_nobody_is_answered(place, monkeypatch):
    """One that comes between the last look for signals and the wait, or to another thread, leaves the wait as it is."""

    def send():
        time.sleep(0.5)  # by then the main thread waits
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    def began(*given):
        real(*given)
        threading.Thread(target=send).start()

    monkeypatch.setattr(execution, "execute", waits)
    monkeypatch.setattr(execution, "stop", opens)
    real = folder.Folder.began
    monkeypatch.setattr(folder.Folder, "began", began)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            sweeps.run(written("notebook: odd.py\nparameters: {n: 1}"), progress=False)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert OVER == [True], "the signal was answered only when the point had ended"


def test_this_machine_as_a_cluster_listens_on_loopback_alone(place):
    """Every port that the process opens; and a point begins where it is said."""

    def listening():
        return {c.laddr for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN}

    now, before = running.plan(written("notebook: odd.py\ngrid: {n: [1, 2]}\ngpus: [3]")), listening()
    with running._opened(now, None) as (client, workers, words):
        assert {address.ip for address in listening() - before} <= {"127.0.0.1", "::1"}
        assert words == f"1 local worker of {running.cores()} thread{'s' * (running.cores() > 1)}, GPU 3"
        first = next(outcomes := running._outcomes(now, client, workers, lambda: False, print))
        assert first == (now.todo[0], f"{platform.node()}, GPU 3")
        outcomes.close()
