"""From names to a comparison: kept in a folder, continued, read again."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from lipscan import cli, drift, models
from lipscan.drift import run
from lipscan.drift.comparison import Bench

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


def test_default_folders_are_named_for_both_sides_and_the_type(families, tmp_path):
    assert str(run.folder_of("org/name", "bfloat16", None)) == "drift-org-name-bfloat16"
    model = models.load(families / "gpt2")
    path = drift.dump(model, torch.tensor([[2, 7, 5]]), tmp_path / "my states.safetensors", dtype=torch.float16)
    assert str(run.folder_of("minilm", None, path)) == "drift-minilm-against-my-states-float16"
    assert str(run.folder_of(str(tmp_path), "float32", path)) == f"drift-{tmp_path.name}-against-my-states-float32"
    assert str(run.folder_of("minilm", None, model)) == "drift-minilm-against-gpt2-float32"


def test_a_command_has_one_exit_code_for_a_bug_and_its_folder_is_shown_again(
    families, story, tmp_path, said, monkeypatch, counted
):
    monkeypatch.chdir(tmp_path)
    other = models.load(families / "llama")
    other.module.layers[1].mlp.down_proj.weight.data[0] = 0
    other.module.save_pretrained("other")
    words = (str(families / "llama"), "--text", str(story), "--length", "6")
    assert said(cli, "drift", *words, "--dtype", "bfloat16")[0] == 0
    code, out, _ = said(cli, "drift", *words, "--against", "other")
    assert code == 3 and counted == [0, 1, 0, 1]
    code, again, _ = said(cli, "drift", "drift-llama-against-other-float32")
    assert (code, again) == (3, out) and counted == [0, 1, 0, 1]
    assert said(cli, "drift", "drift-llama-against-other-float32", "--dtype", "float16")[0] == 2
    told = said(cli, "status", "drift-llama-against-other-float32")
    assert told[0] == 0 and "not rounding: layer 1" in told[1]


def test_the_folder_of_a_stopped_comparison_tells_how_far_it_is(families, story, tmp_path, monkeypatch):
    noted = Bench.measured

    def stopped(self, number, *rest):
        if number == 1:
            assert "is running, 1 of 2 windows" in run.state(tmp_path)
            raise KeyboardInterrupt
        return noted(self, number, *rest)

    monkeypatch.setattr(Bench, "measured", stopped)
    with pytest.raises(KeyboardInterrupt):
        drift.drift(families / "bert", story, dtype="bfloat16", output=tmp_path, **QUIET)
    assert "has not ended, 1 of 2 windows" in run.state(tmp_path)
    assert run.state(tmp_path / "none") is None


def test_a_file_finer_than_the_type_it_is_held_against_is_told(families, tmp_path):
    model, ids = models.load(families / "gpt2"), torch.tensor([[2, 7, 5, 6, 9, 3, 22, 21]])
    path = drift.dump(model, ids, tmp_path / "fine.safetensors", dtype=torch.float32)
    found = drift.drift(model, against=path, dtype="bfloat16", output=tmp_path / "out", progress=False)
    assert "Give --dtype float32" in found.about["note"]
    assert found.verdict.kind == "cannot tell" and "coarser" in found.verdict.sentence
    assert found.about["note"] in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "note" not in drift.drift(model, against=path, progress=False).about
    low = drift.dump(model, ids, tmp_path / "low.safetensors", dtype=torch.bfloat16)
    assert "note" not in drift.drift(model, against=low, progress=False).about
    note = drift.drift(model, against=low, dtype="float32", progress=False).about["note"]
    assert "coarser than float32" in note and "Give --dtype bfloat16" in note
    faulty = models.load(families / "gpt2")
    faulty.module.h[1].attn.c_proj.weight.data *= 1.003
    bug = drift.dump(faulty, ids, tmp_path / "bug.safetensors", dtype=torch.float32)
    assert drift.drift(model, against=bug, progress=False).verdict.kind == "bug"
    hidden = drift.drift(model, against=bug, dtype="bfloat16", progress=False)
    assert hidden.table.token_ratio.max() > run.FINER and hidden.verdict.kind == "cannot tell"
    wide = drift.dump(model, ids, tmp_path / "wide.safetensors", dtype=torch.float64)
    found = drift.drift(model, against=wide, progress=False)
    assert "float32 is the finest" in found.about["note"] and found.verdict.kind == "rounding"


def test_a_file_written_again_or_other_weights_are_measured_again(families, tmp_path, counted):
    """Only states in the middle or halves change, and the ends and the name of the file stay."""
    model, ids, folder = models.load(families / "gpt2"), torch.tensor([[2, 7, 5, 6, 9, 3, 22, 21]]), tmp_path / "out"
    path = drift.dump(model, ids, tmp_path / "mine.safetensors")
    held = load_file(path)
    save_file(held | {"mlp.1": -held["mlp.1"]}, path)
    assert drift.drift(model, against=path, output=folder, progress=False).verdict.kind == "bug"
    save_file(held, path)
    assert drift.drift(model, against=path, output=folder, progress=False).verdict.kind == "rounding"
    model.module.h[1].mlp.c_proj.weight.data *= 1.003
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


@pytest.mark.parametrize("name", ["scan.json", "report.html"])
def test_a_folder_of_something_else_is_left_as_it_is(families, story, tmp_path, counted, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(FileExistsError, match=f"holds {name} of something else: name another folder"):
        drift.drift(families / "bert", story, dtype="float16", output=tmp_path, **QUIET)
    assert not counted and (tmp_path / name).read_text() == "mine"
