"""Help of both commands, `lipnb` and `python -m lab`: there at once, and it teaches."""

import subprocess
import sys

import pytest

import lab.cli
from lipnb import __version__
from lipscan import cli

HEAVY = ("rich", "jinja2", "torch", "transformers", "matplotlib", "scipy", "nltk", "papermill", "pandas")


DOORS = {"lipnb": cli, "python -m lab": lab.cli}


VERBS = [(name, verb) for name, door in DOORS.items() for verb in door.VERBS]


@pytest.mark.parametrize("name", DOORS)
def test_the_command_alone_teaches(name, said):
    door = DOORS[name]
    code, out, error = said(door)
    assert (code, error) == (0, "") and out == said(door, "--help")[1]
    for verb in door.VERBS:
        assert f"\n    {verb} " in out and f"\n  {name} {verb}" in out  # what it is for, and an example
    assert max(map(len, out.splitlines())) <= 120


def test_each_verb_explains_itself(said):
    for name, verb in VERBS:
        code, out, error = said(DOORS[name], verb, "--help")
        assert (code, error) == (0, "") and out.startswith(f"usage: {name} {verb}")
        assert out.count(f"  {name} {verb}") > 1 and "examples:" in out
        assert max(map(len, out.splitlines())) <= 120


@pytest.mark.parametrize("name", DOORS)
def test_help_imports_nothing_heavy(name):
    door = DOORS[name]
    heavy = HEAVY[:-1] if door is lab.cli else HEAVY  # the list of tables is a DataFrame
    code = f"""import sys
from {door.__name__.partition(".")[0]} import cli
for words in ([], ["--help"], ["--version"], *([verb, "--help"] for verb in cli.VERBS)):
    try:
        cli.main(words)
    except SystemExit:
        pass
    assert not [module for module in {heavy} if module in sys.modules], words"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("module", ["lipnb", "lab"])
def test_the_command_is_a_module_too(module):
    run = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert run.stdout == f"lipnb {__version__}\n"
    run = subprocess.run([sys.executable, "-m", module, "nonsense"], capture_output=True, text=True, check=False)
    assert run.returncode == 2 and run.stdout == "" and len(run.stderr.splitlines()) == 1
