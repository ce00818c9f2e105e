"""One list of dependencies, one lock, one range of Pythons: the files that name them agree."""

import os
import re
import shutil
import subprocess
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import lipnb

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
MAKEFILE = (ROOT / "Makefile").read_text()


def requirements():
    """Every requirement of the package and of each of its extras, its own extras left out."""
    extras = PROJECT["optional-dependencies"].values()
    found = [Requirement(text) for group in (PROJECT["dependencies"], *extras) for text in group]
    return [requirement for requirement in found if requirement.name != PROJECT["name"]]


def locked():
    """Name -> version of the lock."""
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in LINES)}


def setup_command():
    """What `make setup` gives to pip."""
    return re.search(r"pip install .*", MAKEFILE)[0]


def test_the_lock_satisfies_every_requirement():
    versions = {str(asked): locked().get(canonicalize_name(asked.name)) for asked in requirements()}
    assert None not in versions.values(), "not in constraints.txt"
    assert len(locked()) == len([line for line in LINES if re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line)])
    assert {Requirement(text).name for text in PROJECT["dependencies"]} == {"torch", "numpy", "scipy"}
    assert [one for one in requirements() if not one.specifier.contains(versions[str(one)], prereleases=True)] == []


def test_locked_versions_run_on_the_lowest_python():
    """Pip refuses a version that asks for a later patch release than a distribution's own Python 3.11 has."""
    lowest = re.fullmatch(r">=(\d+\.\d+)", PROJECT["requires-python"].split(",")[0])[1]
    asked = {}
    for name in locked():
        with suppress(PackageNotFoundError):  # of an extra that is not installed here
            asked[name] = metadata(name).get("Requires-Python")
    assert len(asked) > 100
    assert [name for name, range in asked.items() if range and not SpecifierSet(range).contains(f"{lowest}.0")] == []


def test_dev_has_every_extra_but_the_one_of_make_notebook():
    def reached(extra):
        own = [Requirement(text) for text in PROJECT["optional-dependencies"][extra]]
        inner = {name for requirement in own if requirement.name == PROJECT["name"] for name in requirement.extras}
        return {extra}.union(*map(reached, inner))

    assert reached("dev") | {"notebook"} == set(PROJECT["optional-dependencies"])
    assert "notebook" not in reached("dev")  # forty packages that no test and no page needs
    assert re.search(r"pip install .*-c constraints\.txt -e '\.\[notebook\]'", MAKEFILE)


def test_conda_installs_what_make_setup_installs():
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert "pip" in dependencies
    said = next(entry["pip"] for entry in dependencies if isinstance(entry, dict))
    assert said == ["-c constraints.txt", "-e .[dev]", "-e ./lab"]
    assert "-c constraints.txt" in setup_command()
    assert "-e '.[dev]' -e ./lab" in setup_command()


def test_one_version_and_one_range_of_pythons():
    assert str(yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]) == lipnb.__version__
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"][0].removeprefix("python=")
    lowest, beyond = re.search(r"not \((\d+, \d+)\) <= .* < \((\d+, \d+)\)", MAKEFILE).groups()
    lowest, beyond = (tuple(map(int, version.split(", "))) for version in (lowest, beyond))
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert allowed.contains("{}.{}".format(*lowest))
    assert not allowed.contains(f"{lowest[0]}.{lowest[1] - 1}")
    assert lowest <= tuple(map(int, conda.split("."))) < beyond


PYTHON = """#!/bin/sh
# a Python that only notes what it is asked
echo "$0 $*" >> "$NOTES"
case "$*" in "-m venv .venv")
  mkdir -p .venv/bin
  cp "$0" .venv/bin/python
  printf '#!%s/.venv/bin/python3\\n' "$(pwd -P)" > .venv/bin/pip
esac
"""


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A folder with all that `make setup` reads, its Python one that installs nothing; what it was asked to do."""
    home, notes = tmp_path / "a clone", tmp_path / "notes"
    (home / "lab").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "lab/pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, home / name)
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setenv("NOTES", str(notes))
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):  # of a `make test` around this one
        monkeypatch.delenv(name, raising=False)

    def made(folder=home):
        notes.write_text("")
        words = ["make", "-j4", f"PYTHON={tmp_path / 'python'}", "setup"]
        said = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True).stdout
        return [re.search(r"-m (\w+)", line)[1] for line in notes.read_text().splitlines() if " -m " in line], said

    return home, made


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_the_environment_is_made_again_for_what_it_holds_and_not_for_times(clone):
    home, made = clone
    assert made()[0] == ["venv", "pip"] and made() == ([], "")
    for name in ("pyproject.toml", "lab/pyproject.toml", "constraints.txt"):
        os.utime(home / name, (4e9, 4e9))
    assert made() == ([], "")
    with (home / "constraints.txt").open("a") as lines:
        lines.write("another==1.0\n")
    (home / ".venv" / "kept").touch()
    assert made()[0] == ["venv", "pip"] and made() == ([], "") and (home / ".venv" / "kept").exists()


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize("moved", [False, True])
def test_a_copied_clone_gets_an_environment_of_its_own(clone, moved):
    """Its commands ran the code of the clone that it was copied from."""
    home, made = clone
    made()
    other = home.parent / "deeper" / "another"
    (shutil.move if moved else shutil.copytree)(home, other)  # with the times of all files
    (other / ".venv" / "old").touch()
    told = "The .venv here is that of another folder, copied or moved: it is made anew\n"
    did, said = made(other)
    assert did == ["venv", "pip"] and said.startswith(told) and not (other / ".venv" / "old").exists()
    assert made(other) == ([], "") and (moved or made(home) == ([], ""))
