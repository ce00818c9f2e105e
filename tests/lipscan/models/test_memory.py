"""Networks in memory: measured as their saved folder, and left as they are."""

import gc
import os
from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from hub import WORDS, write_tokenizer
from scans import scanned, small
from transformers import AutoTokenizer, BertModel, GPT2Config, GPT2LMHeadModel

from lipscan import models


def test_a_network_in_memory_is_scanned_as_its_saved_folder(tmp_path, text):
    """In the middle of training: the same numbers, and nothing of it is changed."""
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
    with pytest.raises(ValueError, match=r"another scan \(weights"):
        scanned(network, text, tmp_path / "memory", tokenizer=tokenizer, **look)
    place = loaded.source.folder.parent
    assert os.path.isdir(place)
    del loaded, given
    gc.collect()
    assert not os.path.exists(place)


def test_a_network_that_transformers_does_not_write_is_refused_with_all_it_says(bert):
    tied = deepcopy(small(bert).module)
    first, second = (layer.attention.self.query for layer in tied.encoder.layer[:2])
    second.weight = first.weight
    with torch.random.fork_rng():
        other = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=1, n_positions=8))
    other.generation_config.top_p, other.generation_config.do_sample = 0.5, False
    for network, word in ((tied, "shared tensors"), (other, "top_p")):
        with pytest.raises(ValueError, match=f"cannot write it .*{word}") as said:
            models.load(network)
        assert len(str(said.value).splitlines()) == 1 and "make room" not in str(said.value)


class Adapted(torch.nn.Module):
    """As PEFT wraps a network."""

    def __init__(self, network):
        super().__init__()
        self.base = network

    def save_pretrained(self, folder):
        pass

    def merge_and_unload(self):
        return self.base


def test_what_stands_beside_a_network_is_not_taken_for_one(bert):
    network, tokenizer = BertModel.from_pretrained(bert), AutoTokenizer.from_pretrained(bert)
    pipeline = transformers.pipeline("feature-extraction", model=network, tokenizer=tokenizer)
    with torch.device("meta"):
        empty = BertModel(network.config)
    for given, own, word in (
        (tokenizer, None, "BertTokenizer"),
        (network.config, None, "BertConfig"),
        (pipeline, None, r"\.model\."),
        (Adapted(network), None, "merge_and_unload"),
        (torch.nn.ModuleDict({"encoder": network}), None, r"get_submodule\('encoder'\)"),
        (empty, None, "meta device"),
        (3, None, "got 3"),
        (network, network, "not a tokenizer"),
        (network, pipeline, r"\.tokenizer\."),
    ):
        with pytest.raises(ValueError, match=word) as caught:
            models.load(given, tokenizer=own)
        assert len(str(caught.value).splitlines()) == 1


def test_wrapped_half_and_in_training_it_is_the_network_that_was_saved(bert):
    network = BertModel.from_pretrained(bert)
    ids = torch.arange(5, 12)[None]
    x = models.load(bert).activations(ids, 1)
    expected = models.load(bert).attention(1)(x)
    wrapped = torch.compile(torch.nn.DataParallel(torch.compile(network.train())))
    assert torch.equal(models.load(wrapped).attention(1)(x), expected) and network.training
    half = models.load(network.half()).attention(1)
    assert half.query.dtype == torch.float32 and torch.allclose(half(x), expected, atol=1e-2)
