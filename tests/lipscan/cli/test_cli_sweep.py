"""`lipnb sweep`: dry runs, options and parameters, each mistake in a sentence."""

import pytest
from sweeping import written

from lipscan import cli
from lipscan.sweeps import spec


def test_the_command_shows_a_dry_run_and_writes_nothing(place, capsys):
    assert cli.main(["sweep", written("grid: {n: [1, 2, 3]}"), "--dry-run", "--limit", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:4] for line in lines] == ["run ", "run ", "    ", "3 po"] and "n=3  [new]" in lines[2]
    assert not (place / "sweeps").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--workers", "none"], "whole number from 1 on"),
        (["--timeout", "-1"], "seconds above 0"),
        (["--limit", "0"], "whole number from 1 on"),
    ],
)
def test_options_are_checked_by_the_parser(place, words, sentence, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["sweep", written("grid: {n: [1]}"), *words])
    assert stop.value.code == 2 and sentence in capsys.readouterr().err


def test_the_help_says_every_key_of_a_spec_and_what_is_dropped_and_kept(capsys):
    from lipscan.sweeps import point

    with pytest.raises(SystemExit):
        cli.main(["sweep", "--help"])
    told = capsys.readouterr().out
    assert f"more than {point.KEPT / 1e6:g} MB" in told and f"fills {point.OUTPUT / 1e6:g} MB" in told
    assert "stale.csv" in told and "--keep-stale" in told and all(f"{key}:" in told for key in spec.KEYS)
    assert "as long as the re-run of its point fails" in " ".join(told.split()) and "\n  .lock " in told


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["-p", "n"], "give a parameter and its value, such as -p layer=3; got 'n'"),
        (["-p", "a b=1"], "such as -p layer=3; got 'a b=1'"),
        (["-p", "depth=1"], "small.py has no parameter 'depth': it has n, slope, who, words, m"),
        (["-p", "n=1", "-p", "n=2"], "-p n is given twice: several values are a grid"),
        (["-p", "stale=1"], "'stale' is a column of the tables"),
        (["-p", "n=[1, 2"], "argument -p: n: a value is written as in YAML, a text that begins as something else in"),
        (["-p", "n=no"], "n: 'no' could be meant in two ways: write true or false, or put a text in quotes (the shell"),
        (["-p", "n=[1, 1_000]"], "'1_000' could be meant in two ways: write a number in plain digits"),
        (["-p", "who=issue #5"], "what follows a # is a comment in YAML: put the text in quotes (the shell takes one"),
        (["-p", "who={a: b} # c"], "what follows a # is a comment in YAML"),
        (["--scheduler", "nonsense"], "a Dask scheduler has an address such as tcp://10.0.0.1:8786; got 'nonsense'."),
        (["--scheduler", "10.0.0.1:8786"], "has an address such as tcp://10.0.0.1:8786; got '10.0.0.1:8786'."),
        (["--scheduler", "tcp://127.0.0.1:9"], "there is no Dask scheduler at tcp://127.0.0.1:9 (ConnectionRefusedErr"),
    ],
)
def test_a_parameter_that_cannot_be_is_one_sentence_and_nothing_runs(place, given, sentence, capsys):
    try:
        code = cli.main(["sweep", written("grid: {n: [1]}"), *given])
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr().err
    assert code in (1, 2) and sentence in said and len(said.strip().splitlines()) == 1
    assert not (place / "sweeps").exists()
