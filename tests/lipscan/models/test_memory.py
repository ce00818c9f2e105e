"""Networks in memory: measured as their saved folder, and left as they are."""

import gc
import os

import numpy as np
import pandas as pd
import pytest
import torch
from hub import WORDS, write_tokenizer
from scans import scanned, small

from lipscan import models, scanning
from lipscan.models.loading import layer_count


def test_a_network_in_memory_is_scanned_as_its_saved_folder(tmp_path, text):
    """In the middle of training: the same numbers, and nothing of it is changed."""
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    write_tokenizer(tmp_path / "words")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "words")
    sizes = dict(vocab_size=len(WORDS), n_embd=24, n_layer=2, n_head=3, n_positions=40, bos_token_id=0)
    with torch.random.fork_rng():
        network = GPT2LMHeadModel(GPT2Config(**sizes, eos_token_id=0)).train()
        network.transformer.h[0].eval()
        network(torch.tensor([[4, 5, 6]]), labels=torch.tensor([[4, 5, 6]])).loss.backward()
    network.lm_head.requires_grad_(False)

    def state():
        parameters = {name: (one.clone(), one.grad, one.requires_grad) for name, one in network.named_parameters()}
        modes = [module.training for module in network.modules()]
        return parameters, modes, dict(vars(network.config)), torch.get_rng_state(), np.random.get_state()[1].tolist()

    before = str(state())
    look = {"lengths": [5], "close": True, "upper": False, "dtype": "float32"}
    found = scanned(network, text, tmp_path / "memory", tokenizer=tokenizer, **look)
    assert str(state()) == before and found.gaps.empty and "logits" in set(found.whole.part)
    assert {"model": "GPT2LMHeadModel", "weights": "in memory"}.items() <= found.about["settings"].items()
    network.save_pretrained(tmp_path / "saved")
    saved = scanned(tmp_path / "saved", text, tmp_path / "folder", tokenizer=tmp_path / "words", **look)
    loaded = models.load(network, tokenizer=tmp_path / "words")
    given = scanned(loaded, text, tmp_path / "loaded", **look)
    for name in ("table", "heads", "tokens", "whole"):
        pd.testing.assert_frame_equal(getattr(found, name), getattr(saved, name), rtol=1e-5)
        pd.testing.assert_frame_equal(getattr(given, name), getattr(saved, name), rtol=1e-5)
    with torch.no_grad():
        network.transformer.h[0].attn.c_attn.weight.mul_(2)
    with pytest.raises(ValueError, match=r"another scan \(weights and rotary frequencies"):
        scanned(network, text, tmp_path / "memory", tokenizer=tokenizer, **look)
    place = loaded.source.folder.parent
    assert os.path.isdir(place)
    del loaded, given
    gc.collect()
    assert not os.path.exists(place)


def test_what_in_memory_is_no_network_of_transformers_is_refused(bert, tmp_path, monkeypatch):
    own = torch.nn.Identity()
    for call in (models.load, layer_count, lambda model: scanning.scan(model, output=tmp_path / "out")):
        with pytest.raises(ValueError, match="measure a module of your own with lipnb.local_lipschitz"):
            call(own)
    with pytest.raises(
        ValueError, match="tokenizer must be a name, a folder or a tokenizer of transformers, got a int"
    ):
        scanning.scan("minilm", tokenizer=3, output=tmp_path / "out")
    with pytest.raises(ValueError, match="text must be a text or the name of a file or corpus, got a list"):
        scanning.scan("minilm", ["a", "b"], output=tmp_path / "out")
    network = small(bert).module
    monkeypatch.setattr(type(network), "save_pretrained", lambda *given: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(
        ValueError, match=r"this BertModel is in memory, .* could not be written \(disk full\): make room"
    ):
        models.load(network)
    assert not (tmp_path / "out").exists()


def test_a_network_that_transformers_does_not_write_is_refused_with_all_it_says(bert):
    from transformers import GPT2Config, GPT2LMHeadModel

    network = small(bert).module
    first, second = (layer.attention.self.query for layer in network.encoder.layer[:2])
    second.weight = first.weight
    with pytest.raises(ValueError, match=r"transformers does not write it \(.*shared tensors .*\): mend that, until"):
        models.load(network)
    with torch.random.fork_rng():
        network = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=1, n_positions=8))
    network.generation_config.top_p, network.generation_config.do_sample = 0.5, False
    with pytest.raises(
        ValueError, match=r"does not write it \(GenerationConfig is invalid: .*top_p.*\): mend that"
    ) as said:
        models.load(network)
    assert len(str(said.value).splitlines()) == 1 and "make room" not in str(said.value)
