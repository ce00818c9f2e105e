"""Sweeps that survive: notebooks that fail in every way, folders that cannot be written, workers and clients killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import nbformat
import psutil
import pytest

from lipnb import sweeps
from lipnb.sweeps import executors, folder, planning

ROOT = Path(sweeps.__file__).parents[2]
NOTEBOOK = """\
# %% tags=["parameters"]
what, n, gate = "fine", 0, ""

# %%
import os, signal, subprocess, time
from lipnb.sweeps.recorded import record
child = subprocess.Popen(["sleep", "4321.5"], start_new_session=True)

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
if what in ("twice", "half"):
    record(**{"value" if what == "twice" else "first": 1})
if what in ("leaves", "half"):
    raise SystemExit

# %%
record(value=2 * n)
if what == "fine":
    raise SystemExit
"""
LEFT = "code cell 4: SystemExit: it left by sys.exit before it recorded"
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
    """What notebooks of this folder started in sessions of their own and left behind."""
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


def command(*words, **options):
    """The command in a process of its own."""
    code = "import sys; from lipnb.cli import main; sys.exit(main(sys.argv[1:]))"
    # Ctrl-C counts even where the tests themselves run in the background, with it ignored
    return subprocess.Popen(
        [sys.executable, "-c", code, "sweep", *words],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def until(condition, seconds=240):
    """Wait for something."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def entries(where="sweeps/odd"):
    return list(Path(where, "points").glob("*.json"))


def test_each_way_to_fail_costs_one_point(place):
    ways = "raise, hang, fine, killed, exits, twice, leaves, half"
    text = f"notebook: odd.py\ngrid: {{what: [{ways}]}}\ntimeout: 15\nworkers: 3"
    sweep = sweeps.run(written(text), progress=False)
    assert list(sweep.table.what) == ["fine"] and list(sweep.table.value) == [0]
    errors = {failure["what"]: failure["error"] for failure in sweep.failures}
    assert errors == {
        "raise": "code cell 4: ZeroDivisionError: division by zero",
        "hang": "code cell 4: Timeout: stopped after 15 s, the limit of a point",
        "killed": "code cell 4: KernelDied: its kernel was killed by SIGKILL, most often for want of memory",
        "exits": "code cell 4: KernelDied: its kernel ended with exit code 3",
        "leaves": f"{LEFT} a value: record first, or raise an error that says why not",
        "half": f"{LEFT} all its values: record first, or raise an error that says why not",
        "twice": "'value' is recorded twice: give each value a name of its own.",
    }
    for failure in sweep.failures:  # each keeps its notebook, with the error where it happened
        notebook = nbformat.read(failure["notebook"], 4)
        nbformat.validate(notebook)
        shown = [output.ename for cell in notebook.cells for output in cell.get("outputs", []) if "ename" in output]
        assert len(shown) == (failure["what"] != "twice")
    assert not sleepers(place)
    assert sweeps.run("odd.yml", progress=False).ran == 0
    (place / "odd.py").write_text(NOTEBOOK.replace("1 / 0", "1 / 1"))
    again = sweeps.run("odd.yml", progress=False, limit=1)  # another notebook: every point is stale
    assert (again.ran, list(again.table.what), again.failures) == (1, ["raise"], [])
    assert len(list(Path("sweeps/odd/failed").glob("*"))) == 6


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


@pytest.mark.parametrize(("dead", "ran"), [(0, 1), (2, 3), (3, 3)])
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


def test_a_failed_point_runs_again_only_when_asked(place):
    name = written("notebook: odd.py\ngrid: {what: [exits]}")
    assert len(sweeps.run(name, progress=False).failures) == 1
    assert sweeps.run(name, progress=False).ran == 0
    assert sweeps.run(name, retry_failed=True, progress=False).ran == 1


def test_a_damaged_entry_is_named_and_its_point_runs_again(place, capsys):
    spoils = [
        lambda raw: raw[: len(raw) // 2],
        lambda raw: b"",
        lambda raw: b"[]",
        lambda raw: b"\xff" + raw,
        lambda raw: raw.replace(b'"value": ', b'"value": 9'),
    ]  # the last one is valid JSON, and false
    name = written("notebook: odd.py\ngrid: {n: {range: [6]}}")
    whole = sweeps.run(name, workers=3, progress=False)
    table = (whole.folder / "table.csv").read_bytes()
    paths = [whole.folder / "points" / f"{point}.json" for point in whole.table.point[1:]]
    for path, spoil in zip(paths, spoils, strict=True):
        path.write_bytes(spoil(path.read_bytes()))
    again = sweeps.run(name, workers=3)
    assert again.ran == 5 and (whole.folder / "table.csv").read_bytes() == table
    said = capsys.readouterr().out
    assert all(f"points/{path.name} is damaged: that point runs again" in said for path in paths)


def test_two_sweeps_in_one_folder(place):
    name = written(GATED)
    first = command(name, "--workers", "1")
    until(entries)
    second = command(name)
    out, err = second.communicate(timeout=900)
    assert second.returncode == 1 and "another sweep is running in" in err and "--output" in err
    assert len(err.strip().splitlines()) == 1
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=900)
    assert first.returncode == 130


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_sweep_that_is_stopped_keeps_what_is_finished(place, sent):
    run = command(written(GATED), "--workers", "2")
    until(entries)
    run.send_signal(sent)
    out, err = run.communicate(timeout=900)
    assert run.returncode == 130 and "stopped; what is finished is kept, the same command continues" in err
    assert "Traceback" not in err and not sleepers(place)
    kept = len(entries())
    assert kept == 1 and len(sweeps.load("sweeps/odd")) == kept
    Path("open").touch()
    sweep = sweeps.run("odd.yml", progress=False)
    assert sweep.ran == 6 - kept and list(sweep.table.value) == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_that_comes_while_a_point_is_kept_waits_until_it_is(place, monkeypatch, sent):
    def interrupted(*given):
        with suppress(KeyboardInterrupt):  # as an import or a destructor would
            signal.raise_signal(sent)
        write(*given)

    write, before = folder.Folder.keep, signal.getsignal(sent)
    monkeypatch.setattr(folder.Folder, "keep", interrupted)
    signal.signal(sent, signal.default_int_handler)  # as in the command; tests in the background ignore Ctrl-C
    Path("open").touch()
    try:
        with pytest.raises(KeyboardInterrupt):
            sweeps.run(written(GATED), workers=1, progress=False)
    finally:
        signal.signal(sent, before)
    assert len(entries()) == 1 and len(sweeps.load("sweeps/odd")) == 1


def test_a_killed_client_leaves_no_kernel_and_loses_nothing(place):
    Path("open").touch()
    calm = sweeps.run(written(GATED), output=place / "calm", progress=False)
    Path("open").unlink()
    run = command("odd.yml", "--workers", "2")
    until(entries)
    kernels = psutil.Process(run.pid).children()
    run.kill()
    run.communicate()
    # what a notebook puts into a session of its own outlives a client that had no time to end it
    until(lambda: not any(process.is_running() and process.status() != "zombie" for process in kernels))
    (place / "sweeps" / "odd" / "points" / ".x.json.1.new").write_text("half a")  # as a power cut leaves it
    Path("open").touch()
    sweep = sweeps.run("odd.yml", progress=False)
    assert sweep.ran == 5 and not list((place / "sweeps").rglob("*.new"))
    assert (sweep.folder / "table.csv").read_bytes() == (calm.folder / "table.csv").read_bytes()


def test_a_folder_that_cannot_be_written_is_said_before_anything_runs(place):
    (place / "file").write_text("")
    with pytest.raises(OSError, match="the folder .*below cannot be written .*: give another one with --output"):
        sweeps.run(written(GATED), output=place / "file" / "below")


def test_a_full_disk_stops_the_sweep_and_keeps_what_was_finished(place, monkeypatch):
    real = folder.write

    def full(path, text):
        if path.suffix == ".ipynb" and len(entries()) == 2:
            raise OSError(28, "No space left on device")
        real(path, text)

    Path("open").touch()
    monkeypatch.setattr(folder, "write", full)
    with pytest.raises(OSError, match="cannot be written any more .No space left on device.: what is finished is kept"):
        sweeps.run(written(GATED), workers=1, progress=False)
    monkeypatch.undo()
    os.chdir(place)
    sweep = sweeps.run("odd.yml", progress=False)
    assert sweep.ran == 4 and len(sweep.table) == 6


def test_a_torn_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    folder.write(path, "old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError):
        folder.write(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.json"]


# --- Dask -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dask(tmp_path_factory):
    """A scheduler and two workers on loopback, as somebody would start them; gives address, start and workers."""
    home = tmp_path_factory.mktemp("dask")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address, running = f"tcp://127.0.0.1:{port}", []

    def start(*words):
        with open(home / f"dask-{len(running)}.log", "w") as log:
            running.append(
                subprocess.Popen(
                    [sys.executable, "-m", "dask", *words],
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                )
            )
        return running[-1]

    def worker():
        return start("worker", address, "--nthreads", "1", "--no-dashboard", "--local-directory", str(home))

    start("scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
    workers = [worker(), worker()]
    until(lambda: sum("Registered to" in (home / f"dask-{n}.log").read_text() for n in (1, 2)) == 2)
    yield address, workers
    for process in running:
        process.terminate()
    for process in running:
        process.wait(30)


def grown(process):
    """The worker that a nanny watches over."""
    return next(child for child in process.children(recursive=True) if "spawn_main" in " ".join(child.cmdline()))


def test_workers_and_clients_can_be_killed_and_the_table_is_the_same(dask, place):
    address, workers = dask
    Path("open").touch()
    calm = sweeps.run(written(GATED), output=place / "calm", progress=False)
    Path("open").unlink()

    # a worker: Dask gives its point to another one, the same run ends well
    run = command("odd.yml", "--scheduler", address, "--output", "lost-worker")
    until(lambda: entries("lost-worker"))
    nanny = psutil.Process(workers[0].pid)
    victims = [grown(nanny), nanny]
    for process in reversed(victims):
        process.kill()
    Path("open").touch()
    out, err = run.communicate(timeout=900)
    assert run.returncode == 0, err
    Path("open").unlink()

    # the client: the same command continues
    run = command("odd.yml", "--scheduler", address, "--output", "lost-client")
    until(lambda: entries("lost-client"))
    run.kill()
    run.communicate()
    Path("open").touch()
    kept = len(entries("lost-client"))
    sweep = sweeps.run("odd.yml", scheduler=address, output=place / "lost-client", progress=False)
    assert sweep.ran == 6 - kept > 0
    for name in ("lost-worker", "lost-client"):
        assert (place / name / "table.csv").read_bytes() == (calm.folder / "table.csv").read_bytes()
        assert len(entries(name)) == 6
        hosts = {json.loads(path.read_text())["host"] for path in entries(name)}
        assert hosts == {socket.gethostname()}

    # Ctrl-C: the kernels on the workers are gone too
    Path("open").unlink()
    run = command("odd.yml", "--scheduler", address, "--output", "stopped")
    until(lambda: entries("stopped"))
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=900)
    assert run.returncode == 130 and "what is finished is kept" in err
    left = psutil.Process(workers[1].pid)
    until(lambda: not kernels(left), 60)

    # a notebook that fails on a worker is one failed point there as here
    failed = sweeps.run(
        written("notebook: odd.py\ngrid: {what: [killed, hang, fine]}\ntimeout: 10", "bad.yml"),
        scheduler=address,
        progress=False,
    )
    assert len(failed.failures) == 2 and list(failed.table.what) == ["fine"]


def test_a_worker_with_another_package_is_refused(dask, place, monkeypatch):
    address, *_ = dask
    monkeypatch.setattr("lipnb.sweeps.source.package", lambda: "0.0.9")
    with pytest.raises(RuntimeError, match="a worker could not run its point: .* this sweep was begun with 0.0.9"):
        sweeps.run(written(GATED), scheduler=address, progress=False)


def test_a_cluster_named_in_the_spec(place):
    Path("open").touch()
    text = GATED.replace("[6]", "[2]") + (
        "cluster: {kind: LocalCluster, jobs: 1, options: {threads_per_worker: 1, dashboard_address: ':0'}}"
    )
    assert list(sweeps.run(written(text), progress=False).table.value) == [0, 2]
    assert "LocalCluster" in planning.plan("odd.yml").spec.text


def test_no_scheduler_is_said(place):
    with pytest.raises(OSError, match="there is no Dask scheduler at tcp://127.0.0.1:9 "):
        sweeps.run(written(GATED), scheduler="tcp://127.0.0.1:9", progress=False)
    with pytest.raises(OSError, match="there is no Dask scheduler at nonsense"):
        sweeps.run("odd.yml", scheduler="nonsense", progress=False)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the half-made cluster
def test_a_cluster_with_unknown_options_is_said(place):
    text = GATED + "cluster: {kind: SLURMCluster, options: {cores: 1, memory: 1GB, colour: blue}}"
    with pytest.raises(ValueError, match="the option 'colour' is not taken from a spec"):
        sweeps.run(written(text), progress=False)


def test_a_signal_that_wakes_nobody_is_answered(monkeypatch):
    """One that comes between the last look for signals and the wait, or to another thread, leaves the wait as it is."""
    gate, ended = threading.Event(), []
    monkeypatch.setattr(executors, "execute", lambda task: ended.append(gate.wait(20)))

    def stopped(*_):
        gate.set()
        raise KeyboardInterrupt

    def send():
        time.sleep(0.5)  # by then the main thread waits
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, stopped)
    try:
        with pytest.raises(KeyboardInterrupt):
            for _ in executors.on_this_machine([{"sweep": "none", "environment": {}}], 1, []):
                threading.Thread(target=send).start()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended == [True], "the signal was answered only when the point had ended"
