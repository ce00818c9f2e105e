"""The examples in docstrings run and say what they show; every public function of these rooms has one, and types."""

import doctest
import inspect
from importlib import import_module

import pytest

ROOMS = ("bounds", "worst_case", "measures")
PUBLIC = [
    getattr(import_module(f"lipnb.{room}"), name) for room in ROOMS for name in import_module(f"lipnb.{room}").__all__
]
FUNCTIONS = [one for one in PUBLIC if inspect.isfunction(one)]


@pytest.mark.parametrize("module", sorted({one.__module__ for one in PUBLIC}))
def test_examples_hold(module):
    assert doctest.testmod(import_module(module)).failed == 0


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_public_functions_have_an_example_and_types(function):
    assert ">>> " in function.__doc__ and "return" in function.__annotations__
    assert function.__name__ in function.__doc__.split("Examples", 1)[1]
