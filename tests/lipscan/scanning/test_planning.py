"""A dry run says what a scan will do and how long, and measures nothing."""

import model_types
import pytest
from hub import small_model, tiny_bert

from lipscan import models
from lipscan.cli import main
from lipscan.scanning import options, planning, run


def test_a_dry_run_measures_nothing(bert, story, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["scan", str(bert), "--text", str(story), "--lengths", "4,6", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [] and "would shorten it" not in said and "Together about" in said
    numbers = [int(line.split()[-3]) for line in said.splitlines() if line.endswith(" s")]
    assert numbers == [16, 4, 8, 2, 2, 2]  # constants, bounds, heads, maps, whole layers, ends of the network


@pytest.mark.parametrize(
    ("layers", "close", "said"), [(60, 200, ""), (600, 5400, "100 minutes, most of it"), (5400, 600, "100 minutes: f")]
)
def test_a_long_scan_says_how_it_is_shortened(monkeypatch, layers, close, said):
    rows = [("constants", 1, layers), ("bounds", 0, 0), ("details", 1, close)]
    monkeypatch.setattr(planning, "planned", lambda begun: [planning.Planned(*row) for row in rows])
    told = planning.shorter(None)
    assert len(told) == bool(said) and said in "".join(told)


def test_a_dry_run_says_what_the_folder_holds(bert, story, tmp_path, capsys, monkeypatch):
    """It planned a whole scan where all of it lay finished, and one that would be refused."""
    monkeypatch.chdir(tmp_path)
    command = ["scan", str(bert), "--text", str(story), "--lengths", "4", "--layers", "0", "--no-upper", "--no-close"]
    assert main(command) == 0
    capsys.readouterr()
    assert main([*command, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("scan-bert holds a finished scan") and "Nothing would be measured again" in said
    assert main([*command, "--dry-run", "--again"]) == 0
    assert capsys.readouterr().out.startswith("A whole scan of ")
    assert main([*command, "--windows", "1", "--dry-run"]) == 1
    assert "holds another scan (windows 2, not 1)" in capsys.readouterr().err
    other = tiny_bert(tmp_path / "other", num_hidden_layers=1)
    assert main([*command, "--against", str(other), "--dry-run"]) == 0  # of two models it says both
    said = capsys.readouterr().out
    assert said.index("Nothing would be measured again") < said.index(f"A whole scan of {other} at length 4")
    elsewhere = [*command, "--layers", "1", "--output", "elsewhere"]
    assert main([*elsewhere, "--against", "scan-bert", "--dry-run"]) == 1
    assert "cannot be compared: layers are 1 in the first and 0 in the second" in capsys.readouterr().err


def test_the_time_of_a_close_look_is_that_of_the_layers_as_often_as_they_are_used(tmp_path, story, monkeypatch):
    """It counted the table of embeddings, which no product meets, and a shared layer once."""
    monkeypatch.setattr(planning, "_speed", lambda: 1e6)  # so slow that operations alone count

    def seconds(folder):
        model = models.load(folder, tokenizer=wordy)
        rows = planning.planned(run.begin(model, story, options.ScanOptions(lengths=[8])))
        return sum(row.seconds for row in rows[2:])

    wordy, sizes = tiny_bert(tmp_path / "bert"), model_types.small("albert").to_dict()
    for layers, vocabulary in ((2, 63), (4, 63), (2, 6300)):
        settings = sizes | {"num_hidden_layers": layers, "vocab_size": vocabulary}
        small_model(tmp_path / f"{layers} {vocabulary}", "albert", settings)
    plain = seconds(tmp_path / "2 63")
    assert seconds(tmp_path / "4 63") == pytest.approx(2 * plain, rel=0.01)
    assert seconds(tmp_path / "2 6300") == pytest.approx(plain, rel=1e-9)
