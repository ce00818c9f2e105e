"""Loading: silent, by the seed alone, and what cannot be loaded or is on no device is named at once."""

import pytest
import torch
from scans import small

from lipscan import models
from lipscan.models.loading import layer_count


def test_layer_counts_of_every_family(families):
    for folder in families.iterdir():
        assert layer_count(folder) == small(folder).layers, folder.name
    assert layer_count("gpt2", random=True) is None


def test_random_weights_follow_the_seed_alone(checkpoints):
    state = torch.get_rng_state()
    with torch.random.fork_rng():
        torch.manual_seed(5)
        first = models.load(checkpoints / "gpt2", random=True)
        torch.manual_seed(6)
        inside = torch.get_rng_state()
        again = models.load(checkpoints / "gpt2", random=True)
        assert torch.equal(inside, torch.get_rng_state())
    double = models.load(checkpoints / "gpt2", random=True, dtype=torch.float64)
    other = models.load(checkpoints / "gpt2", random=True, seed=1)
    models.load(checkpoints / "gpt2")
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


@pytest.mark.parametrize(
    ("arguments", "kind", "sentence"),
    [
        (
            {"name_or_path": "nobody/nothing"},
            FileNotFoundError,
            "could not be found .* take 'minilm', which is embedded",
        ),
        (
            {"name_or_path": "./no folder"},
            FileNotFoundError,
            "there is no folder './no folder': a model is a folder with",
        ),
        ({"name_or_path": ""}, ValueError, "must be a name, a folder or a network of transformers, got ''"),
        ({"name_or_path": None}, ValueError, "must be a name, a folder or a network of transformers, got None"),
        ({"name_or_path": "minilm", "dtype": torch.int64}, ValueError, "floating point"),
        ({"name_or_path": "minilm", "dtype": "double"}, ValueError, "floating point"),
        ({"name_or_path": "minilm", "masked": "no"}, ValueError, "masked must be True, False or None, got 'no'"),
        ({"name_or_path": "minilm", "random": True, "seed": "a"}, TypeError, "seed must be a whole number, got 'a'"),
        ({"name_or_path": "minilm", "tokenizer": "nobody/nothing"}, FileNotFoundError, "no tokenizer 'nobody/nothing'"),
    ],
    ids=str,
)
def test_what_cannot_be_loaded_is_named(arguments, kind, sentence, monkeypatch):
    monkeypatch.delenv("LIPNB_DATA", raising=False)
    with pytest.raises(kind, match=sentence):
        models.load(**arguments)


DEVICES = {"cuda": "CUDA", "cuda:3": "CUDA", "mps": "built without it", "warp": "no such kind", "meta": "no numbers"}


DEVICES |= {"cpu:x": "Invalid device", "mkldnn": "no tensor lies there", 3.5: "a name or a torch.device"}


@pytest.mark.filterwarnings("ignore:'mkldnn' is no longer used")
@pytest.mark.skipif(torch.accelerator.is_available(), reason="some of these devices may be here")
def test_a_device_that_is_not_here_is_named_before_anything_is_read():
    for device, reason in DEVICES.items():
        with pytest.raises(
            ValueError, match=f"^the device {device!r} cannot be used here .*{reason}.*: leave it out"
        ) as e:
            models.load("nobody/nothing", device=device)
        assert len(str(e.value)) < 150
