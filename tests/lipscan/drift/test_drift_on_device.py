"""Local errors on the device that is not there (`tests/pretend_device.py`) are those on the processor."""

import pytest
import torch
from hub import tiny_gpt2

from lipscan import drift, models
from lipscan.drift import comparison
from lipscan.drift.carrying import Carried
from lipscan.drift.comparison import Bench

IDS = torch.tensor([[2, 7, 5, 6, 9, 3], [2, 8, 5, 11, 9, 3]])


def _still(network, ids, base, errors, *rest):
    """Errors that go nowhere: neither autograd nor `torch.func` works on that device."""
    return Carried(torch.cat([*errors]), [1.0] * len(errors), [one[0] for one in errors])


def _measured(folder, path):
    from pretend_device import LOG, PretendDevice

    comparison.carried = _still
    torch.__future__.set_swap_module_params_on_conversion(True)  # else a cast reaches the clothes alone
    rows = []
    for device in ("cpu", "pretend"):
        with PretendDevice():
            LOG.clear()
            bench = Bench(models.load(folder, device=device), torch.bfloat16, drift.read(path))
            rows.append([row for number in range(len(IDS)) for row in bench.measured(number)])
            assert (LOG["waits"] > 100) == (device == "pretend")
    for here, there in zip(*rows, strict=True):
        for key in ("error", "size", "floor_eager", "toward"):
            if key in here:
                assert there[key] == pytest.approx(here[key], rel=1e-3), key


def test_states_of_a_file_are_compared_on_the_device_of_the_model(apart, tmp_path):
    model = models.load(tiny_gpt2(tmp_path / "gpt2"))
    path = drift.dump(model, IDS, tmp_path / "own.safetensors", dtype=torch.bfloat16)
    apart(_measured, tmp_path / "gpt2", path)
