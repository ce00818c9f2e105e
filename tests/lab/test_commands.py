"""`python -m lab`: its verbs, tables and figures. What it shares with `lipnb` is in tests/test_commands_alike.py."""

import subprocess
import sys
from importlib import import_module
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
        (("tabels",), "python -m lab: there is no verb 'tabels': did you mean tables? (`python -m lab --help`)"),
        (("tables", "--count", "many"), "python -m lab tables: argument --count: invalid int value: 'many'"),
        (("tables", "real-txt"), "there is no table 'real-txt': did you mean released-text or real-text-embedded?"),
        (("figures", "real-txt-jump"), "lab figures: there is no figure 'real-txt-jump': did you mean real-text-jump?"),
        (("figures", "--all", "verification"), "python -m lab figures: give names or --all, not both"),
        (
            ("figures", "verification", "--format", "jpg"),
            "python -m lab figures: argument --format: invalid choice: 'jpg'",
        ),
        (("verify", "--bounds", "l2_uper"), "python -m lab verify: there is no bound 'l2_uper': did you mean l2_upper"),
        (
            ("verify", "--quick", "--save-as", "bounds-survey"),
            "'bounds-survey' is a table of the book, which a trial does not",
        ),
        (("verify", "--bounds", "yudin_upper", "--save-as", "verify"), "'verify' is a table of the book"),
        (("bench", "wrkload"), "python -m lab bench: there is no benchmark 'wrkload': did you mean workload?"),
        (("pages",), "python -m lab pages: the following arguments are required: COMMAND"),
        (("pages", "stag"), "python -m lab pages: argument COMMAND: invalid choice: 'stag' (choose from"),
        (("train", "--steps", "few"), "lab train: argument --steps: give a whole number from 1 on; got 'few'"),
        (
            ("tables", "verify", "--check", "3"),
            "tables: 'verify' is made, and measured again, by `make verify`, not here",
        ),
        (("tables", "bench-long"), "python -m lab tables: 'bench-long' is made, and measured again, by `make bench`"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_not_understood_is_said_in_a_sentence(words, sentence, said):
    code, out, error = said(cli, *words)
    assert (code, out) == (2, "") and len(error.splitlines()) == 1
    assert sentence in error


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
    assert code == 1
    sentence = "the table 'bounds-survey' is not in no such folder: `python -m lab tables bounds-survey` makes it."
    assert error == f"python -m lab: {sentence}\n"


@pytest.mark.parametrize(
    ("words", "calls"),
    [
        (("--quick",), [(name, "--quick") for name in bench.NAMES]),
        (("workload", "--quick"), [("workload", "--quick")]),
        (("--quick", "long", "--lengths", "8"), [("long", "--quick", "--lengths", "8")]),
        (("products", "--help"), [("products", "--help")]),
    ],
    ids=str,
)
def test_benchmarks_get_their_words(words, calls, monkeypatch, capfd):
    ran = []
    monkeypatch.setattr(
        bench.subprocess, "run", lambda words, check: ran.append(words[2:]) or SimpleNamespace(returncode=0)
    )
    assert cli.main(["bench", *words]) == 0
    assert ran == [[f"lab.benchmarks.{name}", *rest] for name, *rest in calls]


@pytest.mark.parametrize("name", bench.NAMES)
def test_every_benchmark_explains_itself(name, capsys, monkeypatch):
    benchmark = import_module(f"lab.benchmarks.{name}")
    monkeypatch.setattr(sys, "argv", [benchmark.__file__])
    with pytest.raises(SystemExit, match="0"):
        benchmark.main(["--help"])
    out = capsys.readouterr().out
    assert f"usage: python -m lab bench {name} " in out and "--quick" in out


def test_a_benchmark_runs_in_a_process_of_its_own():
    command = [sys.executable, "-m", "lab", "bench", bench.NAMES[0], "--help"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"usage: python -m lab bench {bench.NAMES[0]} " in run.stdout


def test_a_benchmark_that_fails_is_the_last_and_gives_its_exit_status(monkeypatch):
    ran = []
    monkeypatch.setattr(
        bench.subprocess, "run", lambda words, check: ran.append(words) or SimpleNamespace(returncode=3)
    )
    assert cli.main(["bench", "--quick"]) == 3 and len(ran) == 1
