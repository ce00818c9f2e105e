"""Formulas of the reference cases against the definition in fifty digits; the released loop, which fails them."""

import json
import math
from importlib.resources import files
from pathlib import Path

import flint
import pytest

from lab.experiments import exact
from lab.released import reported
from lab.verification import truth
from lipnb import reference_cases

CASES = reference_cases()


def error(found, case, precision="float64"):
    """Relative, in units of the tolerance."""
    return abs(found / case.value - 1) / case.tolerance[precision]


def test_the_released_loop_fails():
    plain = [case for case in CASES if case.weights is None]
    right = [case.name for case in plain if error(reported(case.attention, case.x).item(), case) <= 1]
    assert right == ["blind-simplex"]  # a coincidence


def test_the_file_is_what_the_command_makes():
    listed = exact.cases()
    there = files("lipnb").joinpath("reference_cases.json").read_text(encoding="utf-8")
    assert exact.text(listed) == there
    assert (Path(__file__).parents[2] / "data" / "reference_cases.json").read_text(encoding="utf-8") == there
    assert [one["name"] for one in json.loads(there)["cases"]] == [case.name for case in CASES]


def test_formulas_are_what_the_definition_says_in_fifty_digits():
    errors = [exact.disagreement(one) for one in exact.cases()]
    assert sum(one is not None for one in errors) >= 60
    assert all(one is None or one < 1e-20 for one in errors)


def test_larger_inputs_have_a_direction_stretched_by_the_value_in_many_digits():
    larger = [case for case in CASES if case.x.numel() > exact.WIDEST and case.attention.score == "dot"]
    assert len(larger) == 8
    for case in larger:
        J, bits = truth.jacobian(case.attention, case.x, case.weights)
        stretch = truth.largest_stretch(J, bits)
        with flint.ctx.workprec(bits):
            assert float(abs(stretch / flint.arb(case.digits) - 1)) < 1e-20


def root(function, near):
    """A zero by secants."""
    last = near + 1e-3
    for _ in range(50):
        if function(near) == function(last):
            break
        last, near = near, near - function(near) * (near - last) / (function(near) - function(last))
    return near


def test_a_formula_is_python_that_needs_nothing_of_ours():
    """Read as the file itself explains, with the functions of Python's mathematics."""
    for case in CASES:
        names = {name: getattr(math, name, None) or root for name in exact.FUNCTIONS}
        body, _, definitions = case.formula.partition(" where ")
        for name, _, expression in (one.partition(" = ") for one in filter(None, definitions.split("; "))):
            names[name] = eval(expression, names)
        assert eval(body, names) == pytest.approx(case.value, rel=1e-12), case.name
    explained = exact.ABOUT.partition("formula: ")[2]
    assert all(name in explained for name in exact.FUNCTIONS)
