"""Imports point down, never sideways; doors to heavy libraries are where they are said to be."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import lipnb

PACKAGE = Path(__file__).parent.parent / "lipnb"
FLOORS = {
    "hub": 0, "gemm": 0, "origin": 0, "shapes": 0,
    "parameters": 1,
    "attention": 2, "spectral": 2, "scaling": 2, "corpora": 2, "results": 2, "ledger": 2,
    "jacobian": 3, "models": 3, "particles": 3, "bounds": 3, "measures": 3,
    "routes": 4, "worst_case": 4, "released": 4, "attacks": 4, "invertible": 4,
    "lipschitz": 5,
    "bracket": 6, "figures": 6, "splitting": 6, "training": 6,
    "bracket_tables": 7, "experiments": 7, "scan": 7, "sweeps": 7, "verification": 7,
    "cli": 8,
}
DOORS = {"transformers": {"models"}, "huggingface_hub": {"models", "hub"}, "nltk": {"corpora"},
         "matplotlib": {"figures"}, "papermill": {"sweeps"},
         "dask": {"sweeps"}, "distributed": {"sweeps"}, "dask_jobqueue": {"sweeps"}}


def imported(path):
    """Names of all modules that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            yield node.module
            if node.module == "lipnb":
                yield from (f"lipnb.{alias.name}" for alias in node.names)


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        if path != PACKAGE / "__init__.py":
            yield path.relative_to(PACKAGE).parts[0].removesuffix(".py"), path


@pytest.mark.parametrize(("module", "path"), [*modules()], ids=lambda value: getattr(value, "stem", value))
def test_imports_point_down(module, path):
    assert module in FLOORS, f"say on which floor {module} lives"
    for name in imported(path):
        top, *rest = name.split(".")
        if top == "lipnb" and rest and rest[0] != module and rest[0] in FLOORS:
            assert FLOORS[rest[0]] < FLOORS[module], f"{module} imports {rest[0]}, which is not below it"
        if top in DOORS:
            assert module in DOORS[top], f"{module} imports {top}: its door is {DOORS[top]}"
    assert "figures" != module or "torch" not in set(imported(path))


@pytest.mark.parametrize(("module", "path"), [*modules()], ids=lambda value: getattr(value, "stem", value))
def test_rooms_are_small(module, path):
    assert len(path.read_text().splitlines()) <= 400


def test_importing_the_package_imports_no_model_library():
    code = """import sys, lipnb, lipnb.cli
print([m for m in ('torch', 'numpy', 'transformers', 'nltk', 'matplotlib', 'pandas') if m in sys.modules])"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_public_name_is_there():
    for name in lipnb.__all__:
        assert getattr(lipnb, name) is getattr(import_module("lipnb"), name) and name in dir(lipnb)
    assert lipnb.Attention.__module__ == "lipnb.attention" and lipnb.certify.__module__ == "lipnb.certified"
    with pytest.raises(AttributeError, match="module 'lipnb' has no attribute 'Atention'"):
        lipnb.Atention  # noqa: B018
