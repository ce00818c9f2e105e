"""`python -m lab`: its verbs, tables and figures. What it shares with `lipnb` is in tests/test_commands_alike.py."""

from types import SimpleNamespace

import pytest

from lab import cli, experiments, figures, results
from lab.cli import bench
from lab.experiments import checking
from lab.experiments.table import TABLES
from lab.verification import balls, digits, families  # noqa: F401  (these register their tables)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("tabels", "did you mean tables?"),
        ("tables --count many", "argument --count"),
        ("tables real-txt", "did you mean released-text or real-text-embedded?"),
        ("tables --lengths 2,x", "such as 2,8,32"),
        ("figures real-txt-jump", "did you mean real-text-jump?"),
        ("figures --all verification", "not both"),
        ("verify --bounds l2_uper", "did you mean l2_upper"),
        ("verify --quick --save-as bounds-survey", "is a table of the book"),
        ("verify --put", "--put goes with --bounds"),
        ("bench wrkload", "did you mean workload?"),
        ("pages stag", "invalid choice: 'stag'"),
        ("train --steps few", "a whole number, 1 or more"),
        ("tables verify --check 3", "by `make verify`"),
        ("tables bench-long", "by `make bench`"),
    ],
)
def test_what_is_not_understood_is_said_in_a_sentence(words, sentence, said):
    code, out, error = said(cli, *words.split())
    assert (code, out) == (2, "") and len(error.splitlines()) == 1 and sentence in error


def test_a_table_made_otherwise_does_not_pass_for_the_one_asked_for(said):
    code, _, error = said(cli, "tables", "real-text-embedded", "--lengths", "2", "--count", "2")
    assert code == 1 and "is there already, made with count 10 and lengths 2,4,6," in error and "98: --again" in error
    assert said(cli, "tables", "real-text-embedded", "--count", "10")[0] == 0


def test_a_table_of_another_seed_is_not_the_one_of_the_default(said, results_folder):
    assert said(cli, "tables", "l2-tightness", "--lengths", "2", "--seed", "5")[0] == 0
    code, _, error = said(cli, "tables", "l2-tightness", "--lengths", "2")
    assert code == 1 and "l2-tightness is there already, made with seed 5: --again makes it anew" in error
    assert said(cli, "tables", "l2-tightness", "--lengths", "2", "--seed", "5")[0] == 0


def test_rows_that_train_a_network_are_not_measured_again(said):
    code, out, error = said(cli, "tables", "training-stability", "--check", "3")
    assert (code, out) == (1, "") and len(error.splitlines()) == 1
    assert "training of a network, so that --check does not measure it again: `python -m lab tables training-" in error


def test_a_check_draws_by_the_seed_and_fails_where_rows_are_invented(said, monkeypatch):
    drawn = []
    found = {"table": "bounds-survey", "rows": 1, "units": "1 of 2", "deviation": 0.0, "column": "", "other": 0}

    def check(tables, rows, seed):
        drawn.append((rows, seed))
        yield found

    monkeypatch.setattr(checking, "check", check)
    found["unlike"] = ""
    assert said(cli, "tables", "bounds-survey", "--check", "1", "--seed", "7")[0] == 0 and drawn == [(1, 7)]
    found["unlike"] = "3 rows of a are stored, but 2 measured"
    code, out, error = said(cli, "tables", "bounds-survey", "--check", "1")
    assert code == 1 and found["unlike"] in out and "1 of 1 tables differ" in error and len(error.splitlines()) == 1


def test_the_tables_of_the_help_are_those_that_can_be_made():
    listed = results.listed()
    by_command = listed[listed.command == "python -m lab tables " + listed.index]
    assert set(by_command.index) == {*experiments.TABLES, *experiments.TRAINED}
    assert set(by_command.index[by_command.trains]) == set(experiments.TRAINED)
    described = listed[listed.module != ""]  # what is read from the source is what is registered
    assert set(described.index) == set(TABLES) and set(described.command[lambda c: c == "make verify"].index) == {
        name for name in TABLES if name.startswith("verify")
    }
    of_readers = {name for name in results.names() if name.startswith(("atlas-", "released-map-"))}  # by --model
    assert set(results.names()) <= {*listed.index, *of_readers} and listed.about.notna().all()


def test_the_figures_are_listed_with_page_and_tables(said):
    code, out, error = said(cli, "figures")
    assert (code, error) == (0, "")
    for figure in figures.FIGURES.values():
        assert f"\npage {figure.page}\n" in out and figure.about in out
        assert out.split(f"\n  {figure.name} ")[1].split("\n")[0].endswith(f"  {', '.join(figure.tables)}")


def test_failures_and_interrupts_have_their_exit_codes(said, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiments, "make", stopped)
    code, _, error = said(cli, "tables", "real-text-embedded", "--again")
    assert code == 130 and "the same command continues" in error
    monkeypatch.setenv("LIPNB_RESULTS", "no such folder")
    monkeypatch.setattr(experiments, "make", lambda *_, **__: results.load("bounds-survey"))
    code, _, error = said(cli, "tables", "bounds-survey")
    assert code == 1 and "`python -m lab tables bounds-survey` makes it" in error and len(error.splitlines()) == 1


def test_benchmarks_get_their_words(monkeypatch):
    ran = []
    done = SimpleNamespace(returncode=0)
    monkeypatch.setattr(bench.subprocess, "run", lambda words, check: ran.append(words[2:]) or done)
    assert cli.main(["bench", "--quick", "long", "--lengths", "8"]) == 0
    assert ran.pop() == ["lab.benchmarks.long", "--quick", "--lengths", "8"]
    assert cli.main(["bench", "--quick"]) == 0 and ran == [
        [f"lab.benchmarks.{name}", "--quick"] for name in bench.NAMES
    ]


def test_a_benchmark_that_fails_is_the_last_and_gives_its_exit_status(monkeypatch):
    ran = []
    monkeypatch.setattr(
        bench.subprocess, "run", lambda words, check: ran.append(words) or SimpleNamespace(returncode=3)
    )
    assert cli.main(["bench", "--quick"]) == 3 and len(ran) == 1


def test_a_figure_that_cannot_be_drawn_is_told_and_the_others_are_drawn(said, monkeypatch):
    def redraw(name, *_):
        if name == "verification":
            raise FileNotFoundError("no table")
        return f"{name} drawn"

    monkeypatch.setattr(figures, "redraw", redraw)
    code, out, error = said(cli, "figures", "verification", "real-text-jump")
    assert code == 1 and out == "real-text-jump drawn\n" and "verification was not drawn: no table" in error
