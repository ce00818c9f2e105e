"""Every public function of these rooms has an example, which `make test` runs, and types."""

import inspect
from importlib import import_module


def test_public_functions_have_an_example_and_types():
    for room in map(import_module, ("lipnb.bounds", "lipnb.worst_case", "lipnb.measures")):
        for function in filter(inspect.isfunction, (getattr(room, name) for name in room.__all__)):
            wanted = f"{function.__name__}: give it types and, under Examples, a call of it after >>>"
            assert ">>> " in function.__doc__ and "return" in function.__annotations__, wanted
            assert function.__name__ in function.__doc__.split("Examples", 1)[1], wanted
