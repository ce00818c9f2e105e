"""Files of states: what is written is read, and compares as rounding."""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from lipscan import drift, models

IDS = torch.tensor([[2, 7, 5, 6, 9, 3], [2, 8, 5, 11, 9, 3]])


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_what_is_dumped_is_read(families, tmp_path, dtype):
    model = models.load(families / "gpt2")
    path = drift.dump(model, IDS, tmp_path / "own.safetensors", dtype=dtype)
    found, own = drift.read(path), drift.states(model, IDS, dtype)
    kept = dtype or torch.float32
    assert found.ids.tolist() == IDS.tolist() and found.dtype == kept
    assert all(torch.equal(one, other.to(kept)) for one, other in zip(found.hidden, own.hidden, strict=True))
    assert torch.equal(found.mlp[3], own.mlp[3].to(kept)) and torch.equal(found.logits, own.logits.to(kept))
    with safe_open(path, "pt") as file:
        assert file.metadata()["norm"] == "hidden_states.L is before the final norm"
        assert {"input_ids", "hidden_states.0", "hidden_states.4", "attention.0", "mlp.3", "logits"} <= {*file.keys()}
    assert drift.compare(model, found, progress=False).verdict.kind == "rounding"


def test_a_dump_replaces_only_itself_and_has_the_rights_of_any_file(families, tmp_path):
    model, path, plain = models.load(families / "gpt2"), tmp_path / "own.safetensors", tmp_path / "plain"
    plain.touch()
    assert drift.dump(model, IDS, path).stat().st_mode == plain.stat().st_mode
    assert drift.dump(model, IDS, path) == path
    for ids, dtype in ((IDS + 1, None), (IDS, torch.bfloat16)):
        with pytest.raises(FileExistsError, match="something else"):
            drift.dump(model, ids, path, dtype=dtype)
    model.module.h[0].mlp.c_fc.weight.data[0] += 1
    with pytest.raises(FileExistsError, match="something else"):
        drift.dump(model, IDS, path)


def test_one_sequence_needs_no_first_dimension(families, tmp_path):
    model, path = models.load(families / "bert"), tmp_path / "one.safetensors"
    whole = load_file(drift.dump(model, IDS[:1], path))
    save_file({key: one[0].contiguous() for key, one in whole.items()}, path)
    found = drift.read(path)
    assert found.ids.tolist() == IDS[:1].tolist() and found.hidden[2].shape == (1, 6, 32)
    assert drift.compare(model, found, progress=False).verdict.kind == "rounding"
