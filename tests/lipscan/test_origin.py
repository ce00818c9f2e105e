"""Where the package comes from: its own commit and no other, and the versions."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lipnb
from lipscan import origin

HERE = Path(lipnb.__file__).parent.parent
ASKED = "import json; from lipscan.origin import versions; print(json.dumps(versions()))"


def git(folder, *words):
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(
        ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b", *words],
        check=True,
        env=own,
        capture_output=True,
    )


def copy(home):
    """Both packages as a wheel has them."""
    for name in ("lipnb", "lipscan"):
        shutil.copytree(HERE / name, home / name, ignore=shutil.ignore_patterns("__pycache__"))


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
    copy(inside)
    (outer / "pyproject.toml").write_text("[project]\nname = 'theirs'\n")
    git(tmp_path, "init", "-q", str(outer))
    git(outer, "add", "pyproject.toml")
    git(outer, "commit", "-qm", "theirs")
    assert stored(inside)["commit"] is None
    assert stored(inside)["lipnb"] == lipnb.__version__
    # our checkout copied into their repository, which tracks it: the repository is theirs
    shutil.copy(HERE / "pyproject.toml", inside)
    git(outer, "add", "-f", ".")
    git(outer, "commit", "-qm", "vendored")
    assert stored(inside)["commit"] is None


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not here")
def test_provenance_names_the_commit_of_our_own_repository(tmp_path):
    own, other = tmp_path / "own", tmp_path / "other"
    copy(own)
    shutil.copy(HERE / "pyproject.toml", own)
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
    table = own / "data" / "results" / "table.csv"
    table.parent.mkdir(parents=True)
    table.write_text("a\n1\n")
    git(own, "add", ".")
    git(own, "commit", "-qm", "a table")
    table.write_text("a\n2\n")
    clean = stored(own)["commit"]
    assert "dirty" not in clean  # no number of another table depends on this one
    with (own / "lipnb" / "checks.py").open("a") as file:
        file.write("# changed\n")
    # what a hook of git sets for another repository counts for nothing
    assert stored(own, GIT_DIR=str(other / ".git"))["commit"] == f"{clean}-dirty"


@pytest.mark.parametrize("text", [None, "", "[project", "[project]\nname = 'theirs'", "project = 1"])
def test_a_project_file_that_is_not_ours_makes_no_checkout(tmp_path, monkeypatch, text):
    monkeypatch.setattr(origin.lipnb, "__file__", str(tmp_path / "lipnb" / "__init__.py"))
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    assert origin.checkout.__wrapped__() is None
