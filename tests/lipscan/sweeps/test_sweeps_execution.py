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
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import nbformat
import psutil
import pytest

from lipscan import sweeps
from lipscan.sweeps import execution, folder, point, running

ROOT = Path(sweeps.__file__).parents[2]


NOTEBOOK = """\
# %% tags=["parameters"]
what, n, gate, value = "fine", 0, "", None

# %%
import os, signal, subprocess, sys, time
from lipscan.sweeps import record
open("began", "a").write(f"{what}\\n")
child = subprocess.Popen(["sleep", "4321.5"], start_new_session=True)
if os.fork() == 0:  # a daemon
    os.setsid()
    os.fork() or os.execvp("sleep", ["sleep", "4321.5"])
    os._exit(0)

# %%
while gate and n > 0 and not os.path.exists(gate):
    print("z" * 10_000)
    time.sleep(0.05)
if what == "raise":
    1 / 0
if what == "hang":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("what it had to say")
    while True:
        pass
if what == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "its parent":
    os.kill(os.getppid(), signal.SIGKILL)
if what == "its worker":
    import psutil
    psutil.Process().parents()[2].kill()
if what == "exits":
    os._exit(3)
if what == "deletes":
    import shutil
    shutil.rmtree(os.path.dirname(os.readlink(f"/proc/{os.getppid()}/fd/1")))  # of papermill's log
if what == "memory":
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30))
    bytearray(30 * 2**30)
if what == "long":
    raise ValueError("y" * 3_000_000)
if what == "much":
    record(text="r" * 3_000_000)
    print("x" * 12_000_000)
if what in ("twice", "half"):
    record(**{"result" if what == "twice" else "first": 1})
if what in ("leaves", "half"):
    raise SystemExit
while what == "prints":
    print("z" * 1000)
while what == "a line":
    print("z" * 100_000, end="")
time.sleep(1000 * what.startswith("its"))

# %%
print("the last word")
record(result=2 * n)
if what == "fine":
    raise SystemExit
"""


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


def end(run):
    """How a command ended: its exit code, and what it said."""
    out, err = run.communicate(timeout=900)
    return run.returncode, out, err


def until(condition, seconds=240):
    """Wait for something."""
    last = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < last, "waited in vain"
        time.sleep(0.05)


def ended(where="sweeps/odd"):
    """Lines of the points that have ended."""
    lines = folder.Lines(Path(where, "points.jsonl")).raw()
    return [json.loads(line) for line in lines if b'"begun"' not in line]


def shown(path):
    """Outputs of an executed notebook, which is a valid one."""
    notebook = nbformat.read(path, 4)
    nbformat.validate(notebook)
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def test_each_way_to_end_costs_one_point_at_most(place):
    ways = "raise, fine, killed, exits, twice, leaves, half, memory, long, its parent, much, deletes"
    sweep = sweeps.run(written(f"notebook: odd.py\ngrid: {{what: [{ways}]}}\nworkers: 3"), progress=False)
    assert list(sweep.table.what) == ["fine", "much"] and list(sweep.table.result) == [0, 0]
    errors = {failure["what"]: failure["error"] for failure in sweep.failures}
    long = errors.pop("long")
    assert long.startswith("code cell 3: ValueError: yyy") and len(long) <= 300
    died = "code cell 3: KernelDied: its kernel "
    words = {
        "raise": "code cell 3: ZeroDivisionError: division by zero",
        "killed": f"{died}was killed by SIGKILL, most often for lack of memory",
        "exits": f"{died}ended with exit code 3",
        "leaves": "code cell 3: SystemExit: it left by sys.exit before it recorded a value",
        "half": "code cell 3: SystemExit: it left by sys.exit before it recorded all its values",
        "twice": "'result' is recorded twice",
        "memory": "code cell 3: MemoryError",
        "deletes": "FolderDeleted: its notebook deleted the temporary folder",
        "its parent": "code cell 3: KernelDied: the process that ran it was killed by SIGKILL",
    }
    assert errors.keys() == words.keys() and all(errors[what].startswith(words[what]) for what in words), errors
    for failure in sweep.failures:  # each keeps its notebook, with the error where it happened
        named = [output for output in shown(failure["notebook"]) if "ename" in output]
        assert len(named) == (failure["what"] not in ("twice", "deletes"))  # no executed notebook of the last
        assert all("".join(output.traceback) for output in named)
    assert sorted(Path("began").read_text().splitlines()) == sorted(ways.split(", "))  # none ran twice
    assert not sleepers(place)

    # of a large notebook the output is dropped and what it recorded is not
    row = sweep.table.set_index("what").loc["much"]
    assert row.text == "r" * 3_000_000
    text = json.dumps(shown(sweep.folder / "notebooks" / f"{row.point}.ipynb"))
    assert "MB of output dropped" in text and "xxx" not in text and "the last word" in text


def test_a_point_that_hangs_or_prints_without_end_meets_its_limit(place, monkeypatch):
    (place / "low.py").write_text(Path(point.__file__).read_text().replace("OUTPUT = 500", "OUTPUT = 100"))
    with monkeypatch.context() as patch:
        patch.setattr(point, "__file__", str(place / "low.py"))
        prints = sweeps.run(written("notebook: odd.py\ngrid: {what: [prints, a line]}\nworkers: 2"), progress=False)
    hangs = sweeps.run("odd.py", parameters={"what": "hang"}, timeout=25, output=place / "hangs", progress=False)
    assert all("code cell 3: OutputLimit: stopped" in failure["error"] for failure in prints.failures)
    assert len(prints.failures) == 2 and "Timeout: stopped after 25 s" in hangs.failures[0]["error"]
    assert not sleepers(place)
    for failure in prints.failures + hangs.failures:  # the executed part is kept
        assert os.path.getsize(failure["notebook"]) < point.KEPT
        assert shown(failure["notebook"])[-1].ename in ("OutputLimit", "Timeout")
    assert "what it had to say" in json.dumps(shown(hangs.failures[0]["notebook"]))


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


@pytest.mark.parametrize("dead", [2, 3])
def test_a_kernel_that_ends_before_it_answers_is_started_again(place, monkeypatch, dead):
    (place / "first").mkdir()
    (place / "first" / "sitecustomize.py").write_text(STILLBORN)
    (starts := place / "first" / "starts").write_text(str(dead))
    monkeypatch.setenv("PYTHONPATH", f"{place / 'first'}{os.pathsep}{ROOT}")
    sweep = sweeps.run(written("notebook: odd.py\ngrid: {what: [fine]}"), progress=False)
    assert (len(sweep.table), len(sweep.failures)) == ((1, 0) if dead < 3 else (0, 1))
    assert dead - int(starts.read_text()) == 3
    assert all("Kernel died before replying" in failure["error"] for failure in sweep.failures)
    assert not sleepers(place)


def test_a_sweep_keeps_others_out_and_what_is_finished_when_it_is_stopped_or_killed(place):
    run = command(written(GATED), "--workers", "2")
    until(ended)
    code, _, err = end(command("odd.yml"))
    assert code == 1 and "another sweep is running in" in err and len(err.strip().splitlines()) == 1
    now = sweeps.status("sweeps/odd")
    assert now.alive and now.run["process"] == run.pid and now.count("done") == 1 and now.count("running") >= 1
    run.send_signal(signal.SIGTERM)  # a batch system's notice
    code, _, err = end(run)
    assert code == 130 and "finished work is kept" in err and "Traceback" not in err
    assert not sleepers(place) and len(ended()) == len(sweeps.load("sweeps/odd")) == 1
    assert sweeps.status("sweeps/odd").run is None
    # and again, killed without a notice
    run = command("odd.yml", "--workers", "2")
    until(lambda: len(kernels(psutil.Process(run.pid))) == 2 and sleepers(place))
    left = kernels(psutil.Process(run.pid))
    run.kill()
    end(run)
    assert not sweeps.status("sweeps/odd").alive and sweeps.status("sweeps/odd").count("left") == 5
    until(lambda: not sleepers(place) and not any(process.is_running() for process in left))
    (place / "sweeps" / "odd" / "notebooks" / ".x.ipynb.new").write_text("half a")  # as a power cut leaves it
    Path("open").touch()
    sweep = sweeps.run("odd.yml", progress=False)
    assert sweep.ran == 5 and not list((place / "sweeps").rglob("*.new"))
    assert list(sweep.table.n) == [*range(6)] and list(sweep.table.result) == [0, 2, 4, 6, 8, 10]


@pytest.fixture(scope="module")
def cluster():
    """Two workers of one thread, as somebody would start them, who are started again however often."""
    import dask
    from distributed import LocalCluster

    with (  # 15 s after a loss Dask ends a worker that it finds lost again
        pytest.MonkeyPatch.context() as patch,
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}),
    ):
        patch.setenv("PYTHONPATH", str(ROOT))
        with LocalCluster(dashboard_address="127.0.0.1:0", n_workers=2, threads_per_worker=1) as cluster:
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


def test_workers_can_be_killed_and_commands_stopped_and_the_table_is_the_same(cluster, place):
    address = cluster.scheduler_address
    # a worker and a whole machine: Dask gives their points to others, the same run ends well
    far = machine(address, place)
    run = command(written(GATED), "--scheduler", address, "--output", "lost")
    until(lambda: ended("lost") and sweeps.status("lost").count("running") == 3)
    vanish(far)
    psutil.Process(next(iter(cluster.workers.values())).pid).kill()  # its nanny starts another one
    Path("open").touch()
    code, out, err = end(run)
    assert code == 0, err
    assert "is gone: its points go to another one" in out and len(ended("lost")) == 6
    # Ctrl-C: the kernels on the workers are gone too, and the same command continues
    Path("open").unlink()
    run = command("odd.yml", "--scheduler", address, "--output", "stopped")
    until(lambda: ended("stopped"))
    run.send_signal(signal.SIGINT)
    code, _, err = end(run)
    assert code == 130 and "finished work is kept" in err
    until(lambda: not kernels(psutil.Process()))
    kept = len(ended("stopped"))
    Path("open").touch()
    sweep = sweeps.run("odd.yml", scheduler=address, output=place / "stopped", progress=False)
    assert sweep.ran == 6 - kept > 0 and list(sweep.table.result) == [0, 2, 4, 6, 8, 10]
    tables = [Path(name, "table.csv").read_bytes() for name in ("lost", "stopped")]
    assert tables[0] == tables[1] and {line["host"] for line in ended("stopped")} == {socket.gethostname()}


def test_a_point_cannot_end_its_worker_and_one_whose_workers_end_is_one_failed_point(cluster, place, monkeypatch):
    """Another point is in work beside it."""
    monkeypatch.setattr(cluster.scheduler, "allowed_failures", 0)
    before = {worker.pid for worker in cluster.workers.values()}
    text = "notebook: odd.py\ngrid: {what: [exits, fine, its parent]}"
    sweep = sweeps.run(written(text), scheduler=cluster.scheduler_address, progress=False)
    assert list(sweep.table.what) == ["fine"], sweep.failures
    assert all("KernelDied" in failure["error"] for failure in sweep.failures)
    assert {worker.pid for worker in cluster.workers.values()} == before
    sweep = sweeps.run("odd.py", parameters={"what": "its worker"}, scheduler=cluster.scheduler_address, progress=False)
    [failure] = sweep.failures
    assert failure["error"].startswith("WorkerLost: several workers ended while they ran it, the last one tcp:")
    until(lambda: not sleepers(place))


def test_a_result_that_is_lost_before_it_is_fetched_is_made_again(cluster, place, monkeypatch):
    """The workers die once both points have ended, while the first is written; the other is run anew."""
    kept, tasks = [], cluster.scheduler.tasks

    def keep(*given):
        if not kept:
            until(lambda: len(ours := [task.state for task in list(tasks.values())]) == ours.count("memory") == 2)
            until(lambda: all(nanny.pid for nanny in cluster.workers.values()))  # of None psutil takes this process
            lost = {*list(cluster.scheduler.workers)}
            for nanny in cluster.workers.values():
                psutil.Process(nanny.pid).kill()
            # not their states: what is lost early may be there again before the rest is lost
            until(lambda: not lost & {*list(cluster.scheduler.workers)})
        kept.append(given)
        real(*given)

    real = folder.Folder.keep
    monkeypatch.setattr(folder.Folder, "keep", keep)
    text = written("notebook: odd.py\ngrid: {n: [1, 2]}")
    until(lambda: len(cluster.scheduler.workers) == 2)  # one that another test ended may still be starting
    sweep = sweeps.run(text, scheduler=cluster.scheduler_address, progress=False)
    assert list(sweep.table.result) == [2, 4] and not sweep.failures and len(kept) == 2
    assert len(Path("began").read_text().split()) in (3, 4)  # the first may begin again before it is given up


def test_a_lost_scheduler_is_named_and_what_is_finished_is_in_the_table(place):
    words = ["scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", "its.json", "--no-dashboard"]
    scheduler = subprocess.Popen([sys.executable, "-m", "dask", *words], stderr=subprocess.DEVNULL)
    until(Path("its.json").exists)
    address = json.loads(Path("its.json").read_text())["address"]
    worker = machine(address, place)
    run = command(written(GATED), "--scheduler", address)
    until(ended)
    scheduler.kill()
    code, _, err = end(run)
    vanish(worker)
    assert code == 1 and scheduler.wait() == -signal.SIGKILL
    assert f"the scheduler {address} is gone" in err and "Traceback" not in err
    assert list(sweeps.load("sweeps/odd").n) == [0] and sweeps.status("sweeps/odd").count("left") == 5


@pytest.mark.parametrize("first", ["running", "closed"])
def test_whatever_breaks_when_the_scheduler_goes_away_its_sentence_is_the_same(place, first):
    """A result that was on its way was "a worker could not run its point: CommClosedError: in <TCP (closed) ...>"."""
    from distributed import CancelledError
    from distributed.comm import CommClosedError

    ways = [CommClosedError("in <TCP>"), TimeoutError(), CancelledError("p")]
    future = Mock(status="finished", result=Mock(side_effect=ways), add_done_callback=lambda put: put(0))
    broken = Mock(side_effect=CommClosedError("in <TCP>"))
    client = Mock(status=first, submit=lambda *_, **__: future, run=broken, nthreads=broken)
    client.scheduler.address = "tcp://s:3"
    with pytest.raises(RuntimeError, match="^the scheduler tcp://s:3 is gone"):
        list(running._outcomes(running.plan(written(GATED)), client, [{}], lambda: False, print))
    client.status = "running"
    assert running._Pool(client, print).size == 0


def test_a_worker_with_another_package_is_refused(cluster, place, monkeypatch):
    monkeypatch.setattr("lipscan.sweeps.source.package", lambda: "0.0.9")
    with pytest.raises(RuntimeError, match="begun with 0.0.9"):
        sweeps.run(written(GATED), scheduler=cluster.scheduler_address, progress=False)


def test_a_cluster_named_in_the_spec(place):
    Path("open").touch()
    text = GATED.replace("[6]", "[2]") + "cluster: {kind: LocalCluster, options: {processes: false}}"
    assert list(sweeps.run(written(text), progress=False).table.result) == [0, 2]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the half-made cluster
@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("{kind: SlurmCluster}", "one of .*LocalCluster, .*SLURMCluster"),
        ("{kind: SLURMCluster, options: {cores: 1, memory: 1GB, colour: blue}}", "could not be started"),
        ("{kind: SLURMCluster, options: {cores: 1, memory: 1GB}}", "'sbatch'"),
    ],
)
def test_a_cluster_that_cannot_be_is_said(place, monkeypatch, spec, sentence):
    for name in [name for name in sys.modules if name.startswith("dask_jobqueue")]:  # its import takes Ctrl-C away
        monkeypatch.delitem(sys.modules, name)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match=f"'cluster': .*{sentence}"):
        sweeps.run(written(f"{GATED}cluster: {spec}"), progress=False)
    assert signal.getsignal(signal.SIGINT) == before


def test_what_answers_and_is_no_scheduler_is_said(monkeypatch):
    monkeypatch.setattr(running, "CONNECT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(OSError, match=f"there is no Dask scheduler at {address} "):
            sweeps.run("any.yml", scheduler=address)


def test_a_pool_whose_workers_are_gone_is_named_and_not_waited_for_without_end(monkeypatch):
    looks = iter([{"tcp://a:1": 1, "tcp://b:2": 2}, {"tcp://b:2": 2}, {"tcp://b:2": 2}, {}, {}])
    said, news = [], []
    client = SimpleNamespace(
        status="running",
        scheduler=SimpleNamespace(address="tcp://s:3"),
        nthreads=lambda: next(looks),
        processing=lambda: {"tcp://b:2": ["p1"]},
    )
    pool = running._Pool(client, said.append)
    assert pool.size == 3
    pool._given = {}  # it has looked already
    for size in (2, 2, 0):
        pool._looked -= running.EVERY
        news.append(pool.look())
        assert pool.size == size
    assert news == [{"p1": "tcp://b:2"}, {}, {}]
    assert pool.look() == {}  # it is too early for another look
    assert [sentence.split()[2] for sentence in said] == ["tcp://a:1", "tcp://b:2"]
    pool._looked -= running.EVERY
    monkeypatch.setattr(running, "GONE", 0)
    with pytest.raises(RuntimeError, match="no worker at tcp://s:3 .* the last one was tcp://b:2"):
        pool.look()


def test_a_pool_to_which_no_worker_comes_is_not_waited_for_without_end(place, monkeypatch):
    monkeypatch.setattr(running, "NEVER", 0)
    text = GATED + "cluster: {kind: LocalCluster, options: {processes: false, n_workers: 0}}"
    with pytest.raises(RuntimeError, match="no worker at"):
        sweeps.run(written(text), progress=False)


def test_ctrl_c_ends_the_wait_and_the_loop_is_told(monkeypatch):
    """A signal to another thread wakes nobody; the second one does not wait for a loop that hears nothing."""

    def send(count):
        for _ in range(count):
            time.sleep(0.3)  # by then the main thread waits
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    def heeds(stopped):
        threading.Thread(target=send, args=(1,)).start()
        until(stopped, 20)
        heard.append(True)

    def hears_nothing(stopped):
        threading.Thread(target=send, args=(2,)).start()
        release.wait(20)

    heard, release, before = [], threading.Event(), signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(running, "LOOK", 0.05)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as in the command
    try:
        for work in (heeds, hears_nothing):
            with pytest.raises(KeyboardInterrupt):
                running._heeding(work)
    finally:
        signal.signal(signal.SIGINT, before)
        release.set()
    assert heard == [True]


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


def test_an_error_without_text_is_named_without_a_colon_at_its_end():
    ended = {"why": None, "code": 1, "raised": "PapermillExecutionError: it"}
    for text, said in (("", "KeyError"), ("'a'", "KeyError: 'a'")):
        output = nbformat.v4.new_output("error", ename="KeyError", evalue=text, traceback=[])
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("{}['a']", outputs=[output])])
        assert execution._error({}, ended, notebook).endswith(f": {said}")


@pytest.mark.parametrize("limit", [8 * 10**9, None])
def test_points_that_run_on_one_worker_share_its_memory(limit, monkeypatch):
    import distributed
    from distributed.system import MEMORY_LIMIT

    worker = SimpleNamespace(memory_manager=SimpleNamespace(memory_limit=limit), state=SimpleNamespace(nthreads=4))
    monkeypatch.setattr(distributed, "get_worker", lambda: worker)
    assert execution._share() == (limit or MEMORY_LIMIT) / 4


def test_a_value_under_the_name_of_a_parameter_is_passed_over_only_if_it_is_the_same():
    assert execution._merged({"n": 3, "found": 1.0}, {"n": 3}) == {"found": 1.0}
    with pytest.raises(ValueError, match="'n' is a parameter"):
        execution._merged({"n": 4}, {"n": 3})
    with pytest.raises(ValueError, match="column"):
        execution._merged({"point": 4}, {"n": 3})
