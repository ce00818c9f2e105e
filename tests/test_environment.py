"""One list of dependencies, one lock, one range of Pythons: the files that name them agree."""

import re
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

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


def test_the_lock_holds_each_package_once_by_name_and_version():
    """No URL, no local version, no marker."""
    assert not [line for line in LINES if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line)]
    assert len(locked()) == len(LINES)


def test_the_lock_satisfies_every_requirement():
    versions = {str(asked): locked().get(canonicalize_name(asked.name)) for asked in requirements()}
    assert None not in versions.values(), "not in constraints.txt"
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


def test_the_version_stands_in_one_place():
    assert PROJECT["dynamic"] == ["version"] and "version" not in PROJECT
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == lipnb.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", lipnb.__version__)


def test_the_base_install_is_three_packages():
    """What `local_lipschitz`, `certify`, `bounds` and `measures` need; `tests/smoke.py` tries them with no more."""
    assert {Requirement(text).name for text in PROJECT["dependencies"]} == {"torch", "numpy", "scipy"}


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
    assert next(entry["pip"] for entry in dependencies if isinstance(entry, dict)) == [
        "-c constraints.txt",
        "-e .[dev]",
        "-e ./lab",
    ]
    assert "-c constraints.txt" in setup_command()
    assert "-e '.[dev]' -e ./lab" in setup_command()


def test_one_range_of_pythons():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"][0].removeprefix("python=")
    lowest, beyond = re.search(r"not \((\d+, \d+)\) <= .* < \((\d+, \d+)\)", MAKEFILE).groups()
    lowest, beyond = (tuple(map(int, version.split(", "))) for version in (lowest, beyond))
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert allowed.contains("{}.{}".format(*lowest))
    assert not allowed.contains(f"{lowest[0]}.{lowest[1] - 1}")
    assert lowest <= tuple(map(int, conda.split("."))) < beyond
