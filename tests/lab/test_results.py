"""Tables: saved whole, resumed after any kind of death, refused when they would mix."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lipnb
from lab import results
from lipnb import origin

SETTINGS = {"seed": 0, "lengths": [2, 4]}


def fill(record, units):
    for unit in units:
        if record.rows(unit) is None:
            record.add(unit, [{"unit": unit, "value": len(unit) / 3}], seconds=0.5)


def test_a_table_and_its_birth_certificate(results_folder):
    with results.recording("small", SETTINGS) as record:
        fill(record, "ab")
        table = record.finish()
    assert list(table.unit) == ["a", "b"] and results.names() == ["small"]
    assert list(results.load("small").unit) == ["a", "b"]
    birth = results.provenance("small")
    assert birth["settings"] == SETTINGS and birth["rows"] == 2 and birth["seconds"] == 1.0
    assert birth["versions"]["torch"] and "commit" in birth["versions"]
    assert not list(results_folder.glob("*.partial.jsonl"))


def test_resumption_after_a_torn_line_gives_the_same_bytes(results_folder):
    with results.recording("whole", SETTINGS) as record:
        fill(record, "abc")
        record.finish()
    with results.recording("torn", SETTINGS) as record:
        fill(record, "ab")
    partial = results_folder / "torn.partial.jsonl"
    raw = partial.read_bytes()
    for cut in (len(raw), len(raw) - 1, len(raw) - 20, raw.find(b"\n") + 1, raw.find(b"\n") - 3, 0):
        partial.write_bytes(raw[:cut])
        with results.recording("torn", SETTINGS) as record:
            assert (record.rows("a") is not None) == (raw[:cut].count(b"\n") > 1)
            fill(record, "abc")
    with results.recording("torn", SETTINGS) as record:
        record.finish()
    assert (results_folder / "torn.csv").read_bytes() == (results_folder / "whole.csv").read_bytes()


def test_other_settings_are_refused_and_nothing_is_lost(results_folder):
    with results.recording("mine", SETTINGS) as record:
        fill(record, "a")
    with pytest.raises(ValueError, match="begun with other settings"), results.recording("mine", {"seed": 1}):
        pass
    with results.recording("mine", SETTINGS) as record:
        assert record.rows("a") is not None


def test_a_damaged_partial_table_is_named_and_left_alone(results_folder):
    with results.recording("hurt", SETTINGS) as record:
        fill(record, "ab")
    partial = results_folder / "hurt.partial.jsonl"
    damaged = partial.read_bytes().replace(b'"unit": "a"', b'"unit" "a"', 1)
    partial.write_bytes(damaged)
    with pytest.raises(ValueError, match="hurt.partial.jsonl is damaged"), results.recording("hurt", SETTINGS):
        pass
    assert partial.read_bytes() == damaged


def test_two_runs_at_once_are_refused(results_folder):
    with results.recording("busy", SETTINGS):
        with pytest.raises(RuntimeError, match="another run is making .busy."):
            with results.recording("busy", SETTINGS):
                pass


def test_an_absent_table_names_those_there_are(results_folder):
    with pytest.raises(FileNotFoundError, match="no table 'x' .there are: none.*data/README.md"):
        results.load("x")


def test_an_unwritable_folder_is_said_at_once(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LIPNB_RESULTS", str(tmp_path / "file" / "below"))
    with pytest.raises(OSError, match="folder .* cannot be written .*set LIPNB_RESULTS"):
        with results.recording("any", SETTINGS):
            pass


HERE = Path(lipnb.__file__).parent
ASKED = "import json; from lipnb.origin import versions; print(json.dumps(versions()))"


def git(folder, *words):
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(
        ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b", *words],
        check=True,
        env=own,
        capture_output=True,
    )


def stored(home, **variables):
    """The provenance that a copy of the package in `home` stores, in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-c", ASKED],
        env={**os.environ, "PYTHONPATH": str(home), **variables},
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(run.stdout)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not here")
def test_provenance_never_names_the_commit_of_another_repository(tmp_path):
    """A package that lies in somebody's repository, tracked or not, beside any pyproject.toml."""
    outer = tmp_path / "work"
    inside = outer / "env" / "site-packages"
    shutil.copytree(HERE, inside / "lipnb", ignore=shutil.ignore_patterns("__pycache__"))
    (outer / "pyproject.toml").write_text("[project]\nname = 'theirs'\n")
    git(tmp_path, "init", "-q", str(outer))
    git(outer, "add", "pyproject.toml")
    git(outer, "commit", "-qm", "theirs")
    assert stored(inside)["commit"] is None
    assert stored(inside)["lipnb"] == lipnb.__version__
    # our checkout copied into their repository, which tracks it: the repository is theirs
    shutil.copy(HERE.parent / "pyproject.toml", inside)
    git(outer, "add", "-f", ".")
    git(outer, "commit", "-qm", "vendored")
    assert stored(inside)["commit"] is None


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not here")
def test_provenance_names_the_commit_of_our_own_repository(tmp_path):
    own, other = tmp_path / "own", tmp_path / "other"
    shutil.copytree(HERE, own / "lipnb", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(HERE.parent / "pyproject.toml", own)
    for folder in (own, other):
        git(tmp_path, "init", "-q", str(folder))
    git(other, "commit", "-q", "--allow-empty", "-m", "another")
    git(own, "add", "pyproject.toml")
    git(own, "commit", "-qm", "without the package")
    assert stored(own)["commit"] is None  # a repository that does not track what computes
    git(own, "add", ".")
    git(own, "commit", "-qm", "ours")
    clean = stored(own)["commit"]
    assert clean and "dirty" not in clean
    with (own / "lipnb" / "results.py").open("a") as file:
        file.write("# changed\n")
    # what a hook of git sets for another repository counts for nothing
    assert stored(own, GIT_DIR=str(other / ".git"))["commit"] == f"{clean}-dirty"


@pytest.mark.parametrize("text", [None, "", "[project", "[project]\nname = 'theirs'", "project = 1"])
def test_a_project_file_that_is_not_ours_makes_no_checkout(tmp_path, monkeypatch, text):
    monkeypatch.setattr(origin.lipnb, "__file__", str(tmp_path / "lipnb" / "__init__.py"))
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    assert origin.checkout.__wrapped__() is None


def test_a_full_disk_is_said_and_the_old_pair_of_files_stays(results_folder, monkeypatch):
    """Table and provenance are replaced together, or neither; the same command finishes."""
    with results.recording("pair", SETTINGS) as record:
        fill(record, "a")
        record.finish()
    old = {path.name: path.read_bytes() for path in results_folder.glob("pair.*")}
    real, calls = os.fsync, []

    def full(descriptor):
        calls.append(1)
        if len(calls) == 3:  # one unit, the table; then the provenance
            raise OSError(28, "No space left on device")
        real(descriptor)

    with results.recording("pair", {"seed": 1}) as record:
        monkeypatch.setattr(os, "fsync", full)
        fill(record, "b")
        with pytest.raises(
            OSError,
            match="pair.csv cannot be written any more .No space left on device.: what is "
            "measured is kept. Make room, then give the same command again",
        ):
            record.finish()
        monkeypatch.setattr(os, "fsync", real)
        assert {path.name: path.read_bytes() for path in results_folder.glob("pair.[cj]*")} == old
        assert not list(results_folder.glob(".*.new"))
    with results.recording("pair", {"seed": 1}) as record:
        assert record.rows("b") is not None
        record.finish()
    assert results.provenance("pair")["settings"] == {"seed": 1}


def test_a_full_disk_while_measuring_keeps_what_is_measured(results_folder, monkeypatch):
    with results.recording("full", SETTINGS) as record:
        fill(record, "a")
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(OSError, match="full.partial.jsonl cannot be written any more .No space left on device"):
                fill(record, "ab")
    with results.recording("full", SETTINGS) as record:
        assert record.rows("a") is not None


def test_every_committed_table_has_its_provenance():
    assert {"real-text", "real-text-embedded"} <= set(results.names())
    for name in results.names():
        birth = results.provenance(name)
        assert birth["rows"] == len(results.load(name))
        assert {"python", "torch", "lipnb"} <= set(birth["versions"])
        assert "/" not in json.dumps(birth["settings"])  # no path of the machine that made it
