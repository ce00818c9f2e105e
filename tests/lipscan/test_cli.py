"""The command `lipnb`: interrupts, failures and missing extras, each with its exit code and sentence."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lipscan import cli, sweeps

STOPPED = "lipnb: stopped; finished work is kept, and the same command continues\n"


@pytest.fixture
def heard():
    """Ctrl-C counts even where the tests themselves run in the background, with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_ctrl_c_ends_the_command_wherever_it_falls(said, monkeypatch):
    def destroyed(*_, **__):
        class Late:
            def __del__(self):
                raise KeyboardInterrupt

        Late()
        time.sleep(20)

    def another(*_, **__):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("a module that was not whole") from None

    for run in (destroyed, another):
        monkeypatch.setattr(sweeps, "run", run, raising=False)
        before, begun = signal.getsignal(signal.SIGINT), time.monotonic()
        assert said(cli, "sweep", "any.yml") == (130, "", STOPPED) and time.monotonic() - begun < 10
        assert signal.getsignal(signal.SIGINT) is before

    def stopped(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "import_module", stopped)
    assert said(cli, "sweep", "any.yml") == (130, "", STOPPED)


def test_ctrl_c_in_code_from_a_string_is_an_exit_code_and_no_signal(tmp_path):
    code = """import sys
from lipscan import cli
cli.import_module = lambda name: exec("raise KeyboardInterrupt")  # as named tuples and dataclasses are made
sys.exit(cli.main())"""
    (tmp_path / "ended.py").write_text(code)
    command = [sys.executable, "-m", "ended", "status", "x"]  # a module: there CPython looks for the signal
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (run.returncode, run.stderr) == (130, STOPPED)


@pytest.mark.parametrize(
    ("words", "lacks", "extra"),
    [
        (("scan", "minilm"), "rich", "scan"),
        (("scan", "minilm", "--lengths", "4"), "huggingface_hub", "models"),
        (("sweep", "a.yml", "--dry-run"), "yaml", "sweeps"),
        (("sweep", "a.yml"), "pandas", "sweeps"),
    ],
)
def test_a_missing_extra_is_named(words, lacks, extra, tmp_path):
    """Base install: the sentence names the extra to install, whichever of its packages is missing."""
    (tmp_path / "a.yml").write_text("notebook: a.py\ngrid: {n: [1]}\n")
    (tmp_path / "a.py").write_text('# %% tags=["parameters"]\nn = 1\n')
    code = f"""import sys
sys.modules[{lacks!r}] = None
from lipscan import cli
sys.exit(cli.main({list(words)}))"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 1 and f"pip install '.[{extra}]'" in run.stderr, run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_the_first_scan_of_the_readme_needs_no_text_from_anywhere():
    """Alice is fetched by NLTK: where its server is blocked, the first command that a user gave ended there."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    scans = re.findall(r"&& lipnb (scan [^\n&]+)", readme)
    assert len(scans) == 4
    parser, _ = cli._parser("lipnb", "", "lipscan.cli", cli.VERBS)
    first = parser.parse_args(scans[0].split())
    assert (first.model, first.text, first.lengths) == ("smollm2", "python_reference", "32,128,512")
