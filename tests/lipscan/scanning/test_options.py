"""Options of a scan: as a text at the terminal, or refused."""

import ast
import inspect
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import lipnb
from lipscan import recording, scanning
from lipscan.scanning import options


def test_a_tower_is_chosen_at_a_terminal_and_progress_in_a_file_is_seldom():
    assert options.ScanOptions(part="vision").loading["part"] == "vision"
    bar = recording.bar(3, "step")
    bar.close()
    assert bar.mininterval >= 1  # standard error is no terminal here


def test_the_signature_of_a_scan_shows_its_options_with_their_defaults():
    given = inspect.signature(lipnb.scan).parameters
    own = {"text": "python_reference", "output": None, "again": False, "progress": True}
    own |= {one.name: one.default for one in fields(options.ScanOptions)}
    assert {name: one.default for name, one in given.items() if name != "model"} == own
    assert all(one.kind is not one.VAR_KEYWORD and one.annotation is not one.empty for one in given.values())


@pytest.mark.parametrize("package", [lipnb, scanning])
def test_editors_see_every_public_name(package):
    stub = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text())
    names = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert names == {*package.__all__}


def test_options_are_taken_in_each_of_their_forms():
    assert options.lengths_of("32,128") == options.lengths_of([32, 128]) == [32, 128] and options.lengths_of(7) == [7]
    taken = options.ScanOptions(windows=np.int64(3), rtol=np.float64(1e-3), upper_work=10**9, masked=None)
    assert (taken.windows, taken.rtol) == (3, 1e-3)
