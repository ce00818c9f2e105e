"""Imports point down, never sideways; doors to heavy libraries are where they are said to be."""

import ast
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import lipnb
import lipscan
import lipscan.drift

ROOT = Path(__file__).parent.parent
FLOORS = {  # rooms by floor, the lowest first
    "lipnb": [
        "checks extras threads scaling",
        "attention spectral",
        "bounds jacobian reference",
        "certified lipschitz",
        "measures worst_case",
        "corpora models sweeps",  # doors into lipscan
    ],
    "lipscan": ["hub origin windows", "registry", "corpora recording", "models", "scanning sweeps", "drift", "cli"],
    "lab": [
        "described invertible ledger released",
        "results",
        "statistics",
        "bounds_survey figures training",
        "benchmarks experiments",
        "verification pages",
        "cli",
    ],
}
FLOORS = {
    house: {room: n for n, rooms in enumerate(floors) for room in rooms.split()} for house, floors in FLOORS.items()
}
# modules of lipnb that open lipscan; the fourth is the function `lipnb.scan`
OPENINGS = "corpora", "models", "sweeps"
# a heavy library enters by these rooms alone
DOORS = {
    # the second holds the maps against its modules, the third makes a twin of GPT-2 with rotary positions
    "transformers": {"lipscan.models", "lab.verification", "lab.training"},
    "huggingface_hub": {"lipscan.models", "lipscan.hub"},
    "nltk": {"lipscan.corpora"},
    "matplotlib": {"lipscan.drift", "lipscan.scanning", "lab.figures"},
    "seaborn": {"lipscan.scanning", "lab.figures"},
    "bokeh": {"lab.figures"},
    "papermill": {"lab.pages"},
    "dask": {"lipscan.sweeps"},
    "distributed": {"lipscan.sweeps"},
    "dask_jobqueue": {"lipscan.sweeps"},
}


def imported(path):
    """Names of all modules that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module in FLOORS)


def modules():
    """House, room and file of every module but the houses' own `__init__` and `__main__`."""
    for house in FLOORS:
        for path in sorted((ROOT / house).rglob("*.py")):
            room = path.relative_to(ROOT / house).parts[0].removesuffix(".py")
            if not room.startswith("__"):
                yield house, room, path


def test_imports_point_down():
    for house, room, path in modules():
        assert room in FLOORS[house], f"say on which floor {room} lives"
        for name in imported(path):
            top, *rest = name.split(".")
            if top == house and rest and rest[0] != room and rest[0] in FLOORS[house]:
                assert FLOORS[house][rest[0]] < FLOORS[house][room], f"{path} imports {rest[0]}, not below {room}"
            if top in DOORS:
                assert f"{house}.{room}" in DOORS[top], f"{path} imports {top}: its door is {DOORS[top]}"
        assert (house, room) != ("lab", "figures") or "torch" not in set(imported(path)), path


def test_no_module_waits_for_itself():
    """No module imports itself by way of others, the `__init__` of a folder and imports inside functions included."""
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for house in FLOORS
        for path in (ROOT / house).rglob("*.py")
    }
    graph = {}
    for module, path in files.items():
        graph[module] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                graph[module] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                parts = {f"{node.module}.{alias.name}" for alias in node.names}
                graph[module] |= {part if part in files else node.module for part in parts}
        graph[module].discard(module)
    TopologicalSorter(graph).prepare()  # CycleError names the circle


def test_the_laboratory_is_installed_whole():
    listed = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = [path.parent.relative_to(ROOT) for path in (ROOT / "lab").rglob("__init__.py")]
    assert listed == sorted(".".join(folder.parts) for folder in folders)


def test_the_library_knows_nothing_of_what_is_built_on_it():
    """lipnb opens lipscan by its doors alone, lipscan goes through none of them, and neither knows the laboratory."""
    doors = {ROOT / "lipnb" / f"{name}.py" for name in ("__init__", "__main__", *OPENINGS)}
    for path in [path for house in ("lipnb", "lipscan") for path in sorted((ROOT / house).rglob("*.py"))]:
        names = set(imported(path))
        tops = {name.split(".")[0] for name in names}
        assert "lab" not in tops, path
        assert "lipscan" not in tops or path in doors or ROOT / "lipscan" in path.parents, path
        assert not names & {f"lipnb.{name}" for name in (*OPENINGS, "scan")}, f"{path} goes through a door"


def test_tests_of_the_library_know_nothing_of_what_is_built_on_it():
    """Those of lipnb and of lipscan do without the laboratory, and those of lipnb reach lipscan by the doors alone."""
    for house in ("lipnb", "lipscan"):
        for path in sorted((ROOT / "tests" / house).rglob("*.py")):
            tops = {name.split(".")[0] for name in imported(path)}
            assert "lab" not in tops, path
            assert house == "lipscan" or "lipscan" not in tops, path


LIBRARY = f"""import lipnb, pkgutil
for module in pkgutil.walk_packages(lipnb.__path__, "lipnb."):
    if module.name.split(".")[1] not in {("__main__", *OPENINGS)}:
        __import__(module.name)"""


@pytest.mark.parametrize(
    ("imports", "absent"),
    [
        ("import lipnb", ("lipscan", "torch", "numpy")),
        ("import lipnb, lipscan.cli", ("torch", "numpy")),
        (LIBRARY, ("lipscan",)),
    ],
    ids=["lipnb", "command", "library"],
)
def test_importing_the_packages_imports_nothing_heavy(imports, absent):
    heavy = [*absent, "transformers", "nltk", "matplotlib", "pandas"]
    code = f"{imports}\nimport sys\nprint([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_doors_open_what_they_name():
    for name in OPENINGS:
        door, room = getattr(lipnb, name), import_module(f"lipscan.{name}")
        assert door.__all__ is room.__all__
        assert all(getattr(door, one) is getattr(room, one) for one in door.__all__)
    assert lipnb.scan is lipscan.scanning.scan


def test_every_public_name_is_there():
    for name in lipnb.__all__:
        assert getattr(lipnb, name) is getattr(import_module("lipnb"), name) and name in dir(lipnb)
    assert lipnb.Attention.__module__ == "lipnb.attention.heads" and lipnb.certify.__module__ == "lipnb.certified"
    # completion offers what is meant
    for package in (lipnb, lipnb.sweeps, lipscan.drift, lipscan.scanning, lipscan.sweeps):
        assert {name for name in dir(package) if not name.startswith("__")} == {*package.__all__}
