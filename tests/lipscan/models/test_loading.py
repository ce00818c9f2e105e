"""Loading: silent, by the seed alone, and what cannot be loaded or is on no device is named at once."""

import pytest
import torch
from scans import small

from lipscan import models
from lipscan.models.loading import layer_count


def test_layer_counts_of_every_family(families):
    for name in {*families.names} - {"t5"}:  # which has no such entry
        assert layer_count(families / name) == small(families / name).layers, name
    assert layer_count("gpt2", random=True) is None


def test_random_weights_follow_the_seed_alone(families):
    state = torch.get_rng_state()
    with torch.random.fork_rng():
        torch.manual_seed(5)
        first = models.load(families / "gpt2", random=True)
        torch.manual_seed(6)
        inside = torch.get_rng_state()
        again = models.load(families / "gpt2", random=True)
        assert torch.equal(inside, torch.get_rng_state())
    double = models.load(families / "gpt2", random=True, dtype=torch.float64)
    other = models.load(families / "gpt2", random=True, seed=1)
    models.load(families / "gpt2")
    assert torch.equal(state, torch.get_rng_state())
    assert (first.weights, first.name) == ("random", "gpt2")
    for name, tensor in first.module.state_dict().items():
        assert torch.equal(tensor, again.module.state_dict()[name])
        assert torch.equal(tensor.double(), double.module.state_dict()[name])
    assert not torch.equal(first.attention(0).query, other.attention(0).query)


def test_loading_is_silent_and_leaves_no_setting_behind(capfd, caplog):
    from huggingface_hub import utils as hub
    from transformers.utils import logging

    def settings():
        return logging.get_verbosity(), logging.is_progress_bar_enabled(), hub.are_progress_bars_disabled()

    first = settings()
    logging.set_verbosity_info()
    loud = settings()
    try:
        models.load("minilm").token_ids("rabbit " * 700)
        assert capfd.readouterr() == ("", "") and not caplog.records
        assert settings() == loud
    finally:
        logging.set_verbosity(first[0])


DEVICES = {
    "cuda": "(CUDA|NVIDIA)",
    "cuda:3": "(CUDA|NVIDIA)",
    "mps": "built without it",
    "warp": "no such kind",
    "meta": "no numbers",
}


DEVICES |= {"cpu:x": "Invalid device", 3.5: "a name or a torch.device"}
DEVICES |= {"mkldnn": "(no tensor lies there|cannot be used to allocate)"}  # before and since PyTorch 2.14


@pytest.mark.filterwarnings("ignore:'mkldnn' is no longer used")
@pytest.mark.skipif(torch.accelerator.is_available(), reason="some of these devices may be here")
def test_a_device_that_is_not_here_is_named_before_anything_is_read():
    for device, reason in DEVICES.items():
        with pytest.raises(ValueError, match=f"^the device {device!r} cannot be used here .*{reason}") as e:
            models.load("nobody/nothing", device=device)
        assert len(str(e.value)) < 250
