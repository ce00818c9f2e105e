"""The program around a point: limits, the tree that it ends, and what it keeps of a notebook."""

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from lipscan.sweeps import point

TASK = {"worker": os.getppid(), "timeout": 10, "share": 100}


@pytest.mark.parametrize(
    ("change", "seconds", "expected"),
    [
        ({}, 9, None),
        ({}, 11, "timeout"),
        ({"timeout": None}, 1e9, None),
        ({"worker": 1 - os.getppid()}, 1, "stopped"),  # the worker is gone
        ({"rss": point.OUTPUT + 1}, 1, "output"),
        ({"full": 95, "held": 101}, 1, "memory"),
        ({"full": 95, "held": 99}, 1, None),  # another one holds the memory
        ({"full": 50, "held": 101}, 1, None),  # there is enough
    ],
)
def test_why_a_point_must_end(monkeypatch, change, seconds, expected):
    monkeypatch.setattr(point.psutil, "virtual_memory", lambda: SimpleNamespace(percent=change.get("full", 0)))
    monkeypatch.setattr(point, "memory_held", lambda: change.get("held", 0))
    papermill = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=change.get("rss", 0)))
    assert point.reason(TASK | change, papermill, seconds, []) == expected
    assert point.reason(TASK | change, papermill, seconds, [True]) == "stopped"


def test_the_memory_that_descendants_hold():
    with subprocess.Popen(
        [sys.executable, "-c", "x = bytes(range(256)) * 200_000; print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        child.stdout.readline()
        assert point.memory_held() > 50_000_000
        child.communicate(b"\n")


def test_the_whole_tree_is_ended_daemons_and_what_forks_without_end_included():
    """In a process of its own, which adopts daemons; its descendants fork as fast as they are killed."""
    code = f"""import os, signal, sys, time
sys.path.append({os.path.dirname(point.__file__)!r})
import point, psutil
point.prctl(point.PR_SET_CHILD_SUBREAPER, 1)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        for _ in range(200):
            time.sleep(0.01)
            if os.fork() == 0:
                os.setsid()
                time.sleep(60)
time.sleep(1)
before = len(psutil.Process().children(recursive=True))
point.end_descendants()
print(before, len(psutil.Process().children(recursive=True)))"""
    run = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    before, after = map(int, run.stdout.split())
    assert before > 30 and after == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_status_of_a_process_of_another_is_seen_before_its_parent_asks():
    for code, status in (("exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)):
        child = subprocess.Popen([sys.executable, "-c", code])
        while (found := point.exit_status(child.pid)) is None:
            time.sleep(0.01)
        assert os.waitstatus_to_exitcode(found) == status == child.wait()
        assert point.exit_status(child.pid) is None


def test_a_large_notebook_loses_its_largest_outputs_and_neither_errors_nor_records(tmp_path):
    def cell(*outputs):
        return {"cell_type": "code", "source": ["1"], "outputs": outputs}

    def stream(size):
        return {"output_type": "stream", "name": "stdout", "text": ["x" * size]}

    record = {"output_type": "display_data", "data": {"a/record": {"text": "r" * 100_000}}, "metadata": {}}
    error = {"output_type": "error", "ename": "E", "evalue": "e" * 10**6, "traceback": ["t", "e" * 10**6]}
    cells = [{"cell_type": "markdown", "source": []}, cell(stream(9_000_000)), cell(stream(900_000), record, error)]
    path = tmp_path / "executed.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    first, second, third = json.loads(point.kept(path, "a/record"))["cells"]
    assert second["outputs"][0]["text"].startswith("[9.0 MB of output dropped")
    assert third == json.loads(json.dumps(cells[2]))  # it fits now
    cells[2]["outputs"] = (stream(20_000_000), record, error)
    path.write_text(json.dumps({"cells": cells}))
    dropped, kept, short = json.loads(text := point.kept(path, "a/record"))["cells"][2]["outputs"]
    assert "20.0 MB" not in text and "dropped" in dropped["text"] and kept == record
    assert short["evalue"] == "e" * point.ERROR and "".join(short["traceback"])[-point.ERROR :] == "e" * point.ERROR

    path.write_text("{}"[:1])  # killed while it saved
    assert point.kept(path, "a/record") is None and point.kept(tmp_path / "none", "a/record") is None
