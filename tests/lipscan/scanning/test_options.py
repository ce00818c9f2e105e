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
    with pytest.raises(ValueError, match="part must be one of text, vision, got 'audio'"):
        options.ScanOptions(part="audio")
    bar = recording.bar(3, "step")
    bar.close()
    assert bar.mininterval >= 1  # standard error is no terminal here


def test_the_signature_of_a_scan_shows_its_options_with_their_defaults():
    given = inspect.signature(lipnb.scan).parameters
    own = {
        "model": inspect.Parameter.empty,
        "text": "python_reference",
        "output": None,
        "again": False,
        "progress": True,
    }
    assert {name: one.default for name, one in given.items()} == own | {
        one.name: one.default for one in fields(options.ScanOptions)
    }
    assert all(one.kind is not one.VAR_KEYWORD and one.annotation is not one.empty for one in given.values())
    for wrong, near in (("length", "lengths"), ("layer", "layers"), ("no_upper", "upper"), ("folder", None)):
        near = f"did you mean {near}" if near else "choose from model, text, layers, "
        with pytest.raises(TypeError) as refused:
            lipnb.scan("no such model", **{wrong: 8})
        assert str(refused.value).startswith(f"lipnb.scan has no option {wrong!r}: {near}")


@pytest.mark.parametrize("package", [lipnb, scanning])
def test_editors_see_every_public_name(package):
    stub = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text())
    names = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert names == {*package.__all__}


def test_lengths_are_a_text_as_at_the_terminal_or_refused():
    for lengths in ["2,x", "", [2.5], "2,2", (0,), 2.5, object()]:
        assert options.lengths_of("32,128") == options.lengths_of([32, 128]) == [32, 128] and options.lengths_of(7) == [
            7
        ]
        with pytest.raises(ValueError, match="lengths must be different positive whole numbers"):
            options.lengths_of(lengths)


def test_options_of_a_scan_that_are_of_another_kind():
    for given, kind, said in (
        ({"masked": "no"}, ValueError, "masked must be True or False, got 'no'"),
        ({"layers": 1.5}, ValueError, "numbers or ranges such as 0,3,5 or 0-5; got '1.5'"),
        ({"layers": None}, ValueError, "numbers or ranges such as 0,3,5 or 0-5; got 'None'"),
        ({"close": "no"}, ValueError, "close must be True or False, got 'no'"),
        ({"windows": "3"}, TypeError, "windows must be a whole number, got '3'"),
        ({"windows": 2.5}, TypeError, "windows must be a whole number, got 2.5"),
        ({"seed": None}, TypeError, "seed must be a whole number, got None"),
        ({"seed": 10**30}, ValueError, "seed must lie between"),
        ({"rtol": "1e-4"}, TypeError, "rtol must be a number, got '1e-4'"),
        ({"lengths": []}, ValueError, r"such as 2,8,32, got \[\]\."),
        ({"upper_windows": 3}, ValueError, "upper_windows must be at most windows, 2, got 3"),
        ({"upper_work": True}, TypeError, "upper_work must be a number, got True"),
    ):
        with pytest.raises(kind, match=said):
            options.ScanOptions(**given)
    for given, kind, said in (
        ({"again": "no"}, ValueError, "again must be True or False, got 'no'"),
        ({"progress": 1}, ValueError, "progress must be True or False, got 1"),
        ({"output": 5}, TypeError, "output must be the name of a folder, got 5"),
    ):
        with pytest.raises(kind, match=said):
            lipnb.scan("no such model", **given)
    taken = options.ScanOptions(windows=np.int64(3), rtol=np.float64(1e-3), upper_work=10**9, masked=None)
    assert (taken.windows, taken.rtol) == (3, 1e-3)
