"""Plant faults in a copy of the package, one at a time, and see whether the tests named for each turn red.

    python tests/plant.py             all faults of tests/faults.toml (an hour on two cores; resumes; `make nightly`)
    python tests/plant.py kim terms   those whose `place` or `old` holds one of these words (a few: two to four minutes)

Set NLTK_DATA and LIPNB_DATA: tests that need their texts and weights are skipped without, and see nothing.
What is known is kept in _build/planted.json as long as the package and its tests stay as they are. Exit status 1 when a
fault survives, 2 when a test that caught one fails without it too.
"""

import compileall
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from threading import Lock

from faults import ROOT, faults, planted
from tqdm import tqdm

COPIED = ("lipnb", "lipscan", "lab", "tests", "notebooks")  # the rest of the repository is linked beside them
WORKERS = 2
# a process that has imported what takes seconds, and nothing of ours: each run of tests is a fork of it
SERVER = """
import json, os, sys
import jupyter_client, matplotlib.pyplot, numpy, pandas, pytest, scipy.optimize, scipy.stats, torch, transformers
class Outcome:
    def __init__(self, seconds):
        self.seconds, self.took, self.failed = seconds, {}, []
    def pytest_collection_modifyitems(self, items):
        items.sort(key=lambda item: self.seconds.get(item.nodeid, 1.0) if self.seconds else 0)
    def pytest_runtest_logreport(self, report):
        self.took[report.nodeid] = self.took.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.failed.append(report.nodeid)
for line in sys.stdin:
    asked, seconds, keep, answer = json.loads(line)
    if not (run := os.fork()):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        sys.dont_write_bytecode = not keep
        code = int(pytest.main(asked, plugins=[outcome := Outcome(seconds)]))
        with open(answer, "w", encoding="utf-8") as file:
            json.dump([outcome.failed, outcome.took], file)
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(run, 0)[1]), flush=True)
"""


class Copy:
    """A copy of the repository in which the package and its tests may be changed, and a process that runs tests there.

    Byte code is made once and never written again: a fault can be planted twice within the second that it goes by.
    """

    def __init__(self, folder):
        self.folder = folder
        for path in ROOT.iterdir():
            if path.name in COPIED:
                shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__"))
                compileall.compile_dir(folder / path.name, quiet=2)
            elif path.name != ".git":
                (folder / path.name).symlink_to(path)
        paths = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        quiet = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1", "MPLBACKEND": "Agg"}
        self.server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            cwd=folder,
            env={**os.environ, **paths, **quiet},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.run([""], "--collect-only", keep=True)  # pytest compiles tests in its own way

    def run(self, tests, *options, seconds=None, keep=False):
        """Exit status of pytest on files or tests, those that fail, and the seconds of each; `keep` the byte code."""
        answer = self.folder / "answer.json"
        answer.write_text("[[], {}]", encoding="utf-8")  # of a run that is killed
        early = "ignore::pytest.PytestAssertRewriteWarning"  # of plugins that the server has imported already
        asked = ["-q", "-W", early, "-p", "no:cacheprovider", "--rootdir", str(self.folder), *options]
        asked += [str(self.folder / "tests" / test) for test in tests]
        self.server.stdin.write(json.dumps([asked, seconds, keep, str(answer)]) + "\n")
        self.server.stdin.flush()
        code = int(self.server.stdout.readline())
        failed, took = json.loads(answer.read_text(encoding="utf-8"))
        return code, [test.removeprefix("tests/") for test in failed], took

    def caught_by(self, fault, seconds):
        """The first of the tests named for a fault that fails with it, quick ones of a file first; None if all pass."""
        file, text = planted(fault, ROOT)
        try:
            (self.folder / file).write_text(text, encoding="utf-8")
            for test in sorted(fault["tests"], key=lambda test: ("::" not in test, Path(file).stem not in test)):
                code, failed, took = self.run([test], "-x", seconds={**seconds})
                if code:
                    return failed[0] if failed else test
                seconds.update(took)
            return None
        finally:
            shutil.copy2(ROOT / file, self.folder / file)


class Known:
    """Outcomes on this very tree: fault -> the test that caught it, or None."""

    def __init__(self, path):
        self.path, whole = path, hashlib.sha256()
        for file in sorted(file for name in COPIED for file in (ROOT / name).rglob("*") if file.is_file()):
            if "__pycache__" not in file.parts and file.name != "faults.toml":
                whole.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
        self.tree, self.lock, self.found = whole.hexdigest(), Lock(), {}
        if path.exists() and (kept := json.loads(path.read_text(encoding="utf-8")))["tree"] == self.tree:
            self.found = kept["found"]

    def get(self, key, measure):
        """What is known under a key, or what `measure()` finds, which is kept at once."""
        if key not in self.found:
            outcome = measure()
            with self.lock:
                self.found[key] = outcome
                self.path.parent.mkdir(exist_ok=True)
                partial = self.path.with_suffix(".partial")
                partial.write_text(json.dumps({"tree": self.tree, "found": self.found}), encoding="utf-8")
                partial.replace(self.path)
        return self.found[key]


def main(words):
    """Plant what was asked for; print the survivors; return the exit status."""
    if {"-h", "--help"} & {*words}:
        print(__doc__)
        return 0
    chosen = [fault for fault in faults() if not words or any(word in fault["place"] + fault["old"] for word in words)]
    if not chosen:
        print(f"no fault has {' or '.join(words)} in its `place` or `old`: see tests/faults.toml", file=sys.stderr)
        return 2
    for fault in chosen:
        file, _ = planted(fault, ROOT)
        if Path(file).parts[0] not in COPIED:  # it would be planted in this repository itself
            print(f"{file} is not in a folder that is copied: add it to COPIED of tests/plant.py", file=sys.stderr)
            return 2
    known, copies, seconds, left = Known(ROOT / "_build" / "planted.json"), Queue(), {}, 0

    def caught(fault):
        """The test that a fault turns red; None if none does."""
        copy = copies.get()
        try:
            return known.get(json.dumps(fault), lambda: copy.caught_by(fault, seconds))
        finally:
            copies.put(copy)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(WORKERS) as pool:
        for number in range(WORKERS):
            (place := Path(folder, str(number))).mkdir()
            copies.put(Copy(place))
        found = []
        for fault, test in zip(chosen, tqdm(pool.map(caught, chosen), total=len(chosen), unit="fault"), strict=True):
            found.append(test)
            if test is None:
                left += 1
                told = f"{fault['place']}, {', '.join(fault['tests'])}\n  - {fault['old']}\n  + {fault['new']}"
                tqdm.write(f"survived: {told}")
            elif words:
                tqdm.write(f"caught: {fault['place']}, by {test}")
        # the control: the tests that caught one, with nothing planted
        tests = sorted({*found} - {None})
        parts = [part for part in (tests[::2], tests[1::2]) if part]
        controls = [*pool.map(lambda part: copies.get().run(part), parts)]
    print(f"{len(chosen)} planted, {len(chosen) - left} caught, {left} survived")
    if any(code for code, _, _ in controls):
        failing = [test for _, failed, _ in controls for test in failed]
        print(f"with nothing planted fail: {', '.join(failing) or 'none, but a run ended early: a test is missing'}")
        return 2
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
