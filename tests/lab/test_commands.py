"""`python -m lab`: help that is there at once and teaches, and one sentence for what is not understood."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from lab import cli, experiments, figures, results
from lab.cli import bench
from lab.experiments.table import TABLES
from lab.verification import balls, digits, families  # noqa: F401  (these register their tables)

HEAVY = ("torch", "transformers", "matplotlib", "scipy", "nltk", "papermill")


def said(capsys, *words):
    """Exit code of `python -m lab WORDS`, what it printed and what it said of errors."""
    try:
        code = cli.main(list(words))
    except SystemExit as stop:
        code = stop.code
    out, error = capsys.readouterr()
    return code, out, error


def test_the_command_alone_teaches(capsys):
    code, out, error = said(capsys)
    assert (code, error) == (0, "") and out == said(capsys, "--help")[1]
    for verb in cli.VERBS:
        assert f"\n    {verb} " in out and f"\n  python -m lab {verb}" in out  # what it is for, and an example


@pytest.mark.parametrize("verb", cli.VERBS)
def test_each_verb_explains_itself(verb, capsys):
    code, out, error = said(capsys, verb, "--help")
    assert (code, error) == (0, "") and out.startswith(f"usage: python -m lab {verb}")
    assert out.count(f"  python -m lab {verb}") > 1 and "examples:" in out
    assert max(map(len, out.splitlines())) <= 120


@pytest.mark.parametrize(
    "words", [(), ("--help",), ("--version",), *((verb, "--help") for verb in cli.VERBS)], ids=" ".join
)
def test_help_imports_nothing_heavy(words):
    code = f"""import sys
from lab import cli
try:
    cli.main({list(words)})
except SystemExit:
    pass
print([module for module in {HEAVY} if module in sys.modules])"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"


def test_the_command_is_a_module_too():
    run = subprocess.run([sys.executable, "-m", "lab", "--version"], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("lipnb ")
    run = subprocess.run([sys.executable, "-m", "lab", "nonsense"], capture_output=True, text=True, check=False)
    assert run.returncode == 2 and run.stdout == "" and len(run.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("tabels",), "python -m lab: there is no verb 'tabels': did you mean tables? (`python -m lab --help`)"),
        (("xyzzy",), "python -m lab: there is no verb 'xyzzy': choose from tables"),
        (
            ("--versoin",),
            "python -m lab: there is no option --versoin: did you mean --version? (`python -m lab --help`)",
        ),
        (("tables", "--agian"), "python -m lab tables: there is no option --agian: did you mean --again?"),
        (("tables", "--lengt=2"), "there is no option --lengt: did you mean --lengths?"),  # no abbreviations either
        (("tables", "--bogus"), "there is no option --bogus: choose from --help, --model"),
        (("tables", "--count", "many"), "python -m lab tables: argument --count: invalid int value: 'many'"),
        (("tables", "--lengths"), "python -m lab tables: argument --lengths: expected one argument"),
        (("tables", "real-txt"), "there is no table 'real-txt': did you mean released-text or real-text-embedded?"),
        (("figures", "real-txt-jump"), "lab figures: there is no figure 'real-txt-jump': did you mean real-text-jump?"),
        (("figures", "--all", "verification"), "python -m lab figures: give names or --all, not both"),
        (
            ("figures", "verification", "--format", "jpg"),
            "python -m lab figures: argument --format: invalid choice: 'jpg'",
        ),
        (("verify", "--bounds", "l2_uper"), "python -m lab verify: there is no bound 'l2_uper': did you mean l2_upper"),
        (("verify", "--quick", "--save-as", "zoo"), "'zoo' is a table of the book, which a trial does not"),
        (("verify", "--bounds", "yudin_upper", "--save-as", "verify"), "'verify' is a table of the book"),
        (("bench", "wrkload"), "python -m lab bench: there is no benchmark 'wrkload': did you mean workload?"),
        (("bench", "--quik"), "python -m lab bench: there is no option --quik: did you mean --quick?"),
        (("pages",), "python -m lab pages: the following arguments are required: COMMAND"),
        (("pages", "stag"), "python -m lab pages: argument COMMAND: invalid choice: 'stag' (choose from"),
        (("train", "--steps", "few"), "lab train: argument --steps: give a whole number from 1 on; got 'few'"),
        (("tables", "verify"), "python -m lab tables: there is no table 'verify': choose from adversarial,"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_not_understood_is_said_in_a_sentence(words, sentence, capsys):
    code, out, error = said(capsys, *words)
    assert (code, out) == (2, "") and len(error.splitlines()) == 1
    assert sentence in error


def test_a_table_made_otherwise_does_not_pass_for_the_one_asked_for(capsys):
    code, _, error = said(capsys, "tables", "real-text-embedded", "--lengths", "2", "--count", "2")
    assert code == 1 and "is there already, made with lengths 2,4,6," in error and "and count 10: --again" in error
    assert said(capsys, "tables", "real-text-embedded", "--count", "10")[0] == 0


def test_the_tables_of_the_help_are_those_that_can_be_made():
    listed = results.listed()
    by_command = listed[listed.command == "python -m lab tables " + listed.index]
    assert set(by_command.index) == {*experiments.TABLES, *experiments.TRAINED}
    assert set(by_command.index[by_command.trains]) == set(experiments.TRAINED)
    described = listed[listed.module != ""]  # what is read from the source is what is registered
    assert set(described.index) == set(TABLES) and set(described.command[lambda c: c == "make verify"].index) == {
        name for name in TABLES if name.startswith("verify")
    }
    assert set(results.names()) <= set(listed.index) and listed.about.notna().all()


def test_the_figures_are_listed_with_page_and_tables(capsys):
    code, out, error = said(capsys, "figures")
    assert (code, error) == (0, "")
    for figure in figures.FIGURES.values():
        assert f"\npage {figure.page}\n" in out and figure.about in out
        assert out.split(f"\n  {figure.name} ")[1].split("\n")[0].endswith(f"  {', '.join(figure.tables)}")


def test_failures_and_interrupts_have_their_exit_codes(capsys, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiments, "make", stopped)
    code, _, error = said(capsys, "tables", "real-text-embedded", "--again")
    assert code == 130 and "the same command continues" in error
    monkeypatch.setenv("LIPNB_RESULTS", "no such folder")
    monkeypatch.setattr(experiments, "make", lambda *_, **__: results.load("zoo"))
    code, _, error = said(capsys, "tables", "zoo")
    assert code == 1
    assert error == "python -m lab: the table 'zoo' is not in no such folder: `python -m lab tables zoo` makes it.\n"


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
def test_every_benchmark_explains_itself(name):
    command = [sys.executable, "-m", "lab", "bench", name, "--help"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"usage: python -m lab bench {name} " in run.stdout and "--quick" in run.stdout
