"""Words of the command: values are those of a spec; what is not understood is in test_refusals."""

from sweeping import written

from lipscan.cli import words
from lipscan.sweeps import spec

VALUES = ["3", "0.5", "1e-3", ".inf", "True", "null", "", "minilm", "[1, 2]", "{a: 1}", "a=b", "'3'", "12:00:00", "010"]
VALUES += ["[None]", "2026-11-27", "y", "'no'", "{on: 1}", "a#b", "0o17"]


def test_values_are_those_of_yaml_as_in_a_spec(place):
    """Lists and null came as text, though the same in a spec did not."""
    for value in VALUES:
        name, got = words.parameter(f"n={value}")
        expected = spec.read(written(f"parameters: {{n: {value}}}")).parameters["n"]
        assert name == "n" and got == expected and type(got) is type(expected), value
    assert words.parameter("n=None") == ("n", None)
