"""From names to a comparison: kept in a folder, continued, read again."""

import json

import pytest
import torch

from lipscan import drift, models
from lipscan.drift.comparison import Bench
from lipscan.drift.run import folder_of

QUIET = {"length": 6, "progress": False}


@pytest.fixture
def counted(monkeypatch):
    """Numbers of the windows that are measured."""
    measured, real = [], Bench.measured

    def noted(self, number, *given):
        measured.append(number)
        return real(self, number, *given)

    monkeypatch.setattr(Bench, "measured", noted)
    return measured


def test_a_stopped_comparison_continues_and_a_finished_one_is_read(families, story, tmp_path, counted, monkeypatch):
    folder, given = tmp_path / "out", {"dtype": "bfloat16", "windows": 3, **QUIET}
    noted = Bench.measured

    def stopped(self, number, *rest):
        if number == 2:
            raise KeyboardInterrupt
        return noted(self, number, *rest)

    monkeypatch.setattr(Bench, "measured", stopped)
    with pytest.raises(KeyboardInterrupt):
        drift.drift(families / "bert", story, output=folder, **given)
    monkeypatch.setattr(Bench, "measured", noted)
    found = drift.drift(families / "bert", story, output=folder, **given)
    assert counted == [0, 1, 2]
    again = drift.drift(families / "bert", story, output=folder, **given)
    assert counted == [0, 1, 2] and again.verdict == found.verdict
    assert {"windows.csv", "windows.json", "drift.csv", "report.html"} <= {path.name for path in folder.iterdir()}
    alone = drift.drift(families / "bert", story, **given)
    assert counted == [0, 1, 2, 0, 1, 2]
    assert alone.table.drop(columns="part").to_numpy(float) == pytest.approx(
        found.table.drop(columns="part").to_numpy(float), rel=1e-5, nan_ok=True
    )
    held = json.loads((folder / "windows.json").read_text())["settings"]
    assert held["model"] == "bert" and held["text"] == story.name and held["windows"] == 3
    drift.drift(families / "bert", story, output=folder, **{**given, "dtype": "float16"})
    assert counted[6:] == [0, 1, 2]


def test_a_file_brings_its_own_tokens_and_type(families, tmp_path, counted):
    model, ids = models.load(families / "gpt2"), torch.tensor([[2, 7, 5, 6, 9, 3, 22, 21]])
    path = drift.dump(model, ids, tmp_path / "own.safetensors", dtype=torch.float16)
    found = drift.drift(families / "gpt2", against=path, progress=False)
    assert (found.about["dtype"], found.about["against"], found.about["length"]) == ("float16", path.name, 8)
    assert found.verdict.kind == "rounding" and counted == [0]
    finer = drift.drift(model, against=path, dtype="float32", progress=False)
    assert finer.verdict.kind == "bug"  # float16 is not float32's rounding


def test_a_second_model_is_found_by_its_fault(families, story, tmp_path):
    other = models.load(families / "llama")
    other.module.layers[1].mlp.down_proj.weight.data[0] = 0
    other.module.save_pretrained(tmp_path / "other")
    found = drift.drift(families / "llama", story, against=tmp_path / "other", **QUIET)
    assert (found.verdict.kind, found.verdict.layer, found.verdict.part) == ("bug", 1, "mlp")
    assert found.about["dtype"] == "float32" and found.about["against"] == "other"


def test_default_folders_are_named_for_both_sides(tmp_path):
    assert str(folder_of("org/name", "bfloat16", None)) == "drift-org-name-bfloat16"
    assert str(folder_of("minilm", None, "a/mine.safetensors")) == "drift-minilm-against-mine"
    assert str(folder_of(str(tmp_path), "float32", "../b c")) == f"drift-{tmp_path.name}-against-b-c"
