"""Words of the command: what is not understood is said, with what was meant."""

import pytest
from sweeping import written

from lipscan import cli
from lipscan.cli import words
from lipscan.sweeps import spec


@pytest.mark.parametrize(
    "value",
    [
        *("3", "-3", "0.5", "1e-3", ".inf", "True", "true", "null", "", "minilm", "[1, 2]", "{a: 1}", "a=b", "'3'"),
        *("12:00:00", "010", "None", "[None]", "2026-11-27", "1e3", "y", "'no'", "{on: 1}", "a#b", "0o17"),
    ],
)
def test_values_are_those_of_yaml_as_in_a_spec(place, value):
    """Lists and null came as text, though the same in a spec did not."""
    name, got = words.parameter(f"n={value}")
    expected = spec.read(written(f"parameters: {{n: {value}}}")).parameters["n"]
    assert name == "n" and got == expected and type(got) is type(expected)
    assert words.parameter("n=None") == ("n", None)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("scna",), "lipnb: there is no verb 'scna': did you mean scan? (`lipnb --help`)"),
        (("xyzzy",), "lipnb: there is no verb 'xyzzy': choose from scan, sweep"),
        (("--versoin",), "lipnb: there is no option --versoin: did you mean --version? (`lipnb --help`)"),
        (("scan", "minilm", "--againn"), "lipnb scan: there is no option --againn: did you mean --again or --against?"),
        (("scan", "minilm", "--lengt=2"), "there is no option --lengt: did you mean --lengths?"),  # nor abbreviations
        (("scan", "minilm", "--xyzzy"), "there is no option --xyzzy: choose from --help, --text"),
        (("scan", "minilm", "--lengths"), "lipnb scan: argument --lengths: expected one argument"),
        (("scan", "minilm", "--object", "head"), "lipnb scan: argument --object: invalid choice: 'head'"),
        (("scan", "minilm", "gpt2"), "lipnb scan: 'gpt2' is one word too many"),
        (("scan",), "lipnb scan: the following arguments are required: MODEL"),
        (("sweep", "a.yml", "--limit", "0"), "lipnb sweep: argument --limit: give a whole number from 1 on; got '0'"),
        (("sweep", "a.yml", "--output", ""), "argument --output: give the name of a folder; got ''"),
        (("sweep", "a.yml", "--timeout", "soon"), "a number of seconds above 0 is wanted; got 'soon'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_not_understood_is_said_in_a_sentence(words, sentence, said):
    code, out, error = said(cli, *words)
    assert (code, out) == (2, "") and len(error.splitlines()) == 1
    assert sentence in error
