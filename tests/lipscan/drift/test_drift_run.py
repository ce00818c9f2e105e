"""From names to a comparison: kept in a folder, continued, read again."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

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


def test_a_file_written_again_or_other_weights_are_measured_again(families, tmp_path, counted):
    """Only states in the middle or halves change, and the ends and the name of the file stay."""
    model, ids, folder = models.load(families / "gpt2"), torch.tensor([[2, 7, 5, 6, 9, 3, 22, 21]]), tmp_path / "out"
    path = drift.dump(model, ids, tmp_path / "mine.safetensors")
    held = load_file(path)
    save_file(held | {"mlp.1": -held["mlp.1"]}, path)
    assert drift.drift(model, against=path, output=folder, progress=False).verdict.kind == "bug"
    save_file(held, path)
    assert drift.drift(model, against=path, output=folder, progress=False).verdict.kind == "rounding"
    model.module.h[1].mlp.c_proj.weight.data *= 1.5
    assert drift.drift(model, against=path, output=folder, progress=False).verdict.kind == "bug"
    assert counted == [0, 0, 0]


def test_a_fault_in_one_window_of_three_is_a_fault(families):
    model, draw = models.load(families / "gpt2"), torch.Generator().manual_seed(0)
    ids = torch.randint(3, 40, (3, 8), generator=draw)
    own, weight = drift.states(model, ids, torch.bfloat16), model.module.h[1].mlp.c_proj.weight
    kept = weight.detach().clone()
    weight.data += 0.05 * weight.std() * torch.randn(weight.shape, generator=draw)
    other = drift.states(model, ids, torch.bfloat16)
    weight.data = kept
    for place, state in enumerate(own.hidden):
        state[1] = other.hidden[place][1]
    for half in ("attention", "mlp"):
        for layer, state in getattr(own, half).items():
            state[1] = getattr(other, half)[layer][1]
    found = drift.compare(model, own, progress=False)
    assert (found.verdict.kind, found.verdict.layer, found.verdict.part) == ("bug", 1, "mlp")


def test_states_of_a_low_type_in_a_wider_one_are_told(families, tmp_path):
    model, ids = models.load(families / "gpt2"), torch.tensor([[2, 7, 5, 6, 9, 3, 22, 21]])
    path = drift.dump(model, ids, tmp_path / "low.safetensors", dtype=torch.bfloat16)
    held = {key: one.float() if one.is_floating_point() else one for key, one in load_file(path).items()}
    save_file(held, path)
    with pytest.raises(ValueError, match="bfloat16 numbers stored in float32: say --dtype bfloat16"):
        drift.drift(model, against=path, progress=False)
    assert drift.drift(model, against=path, dtype="bfloat16", progress=False).verdict.kind == "rounding"
