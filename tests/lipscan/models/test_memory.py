"""Networks in memory: measured as their saved folder, and left as they are."""

import gc
import os
from copy import deepcopy

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

    network = deepcopy(small(bert).module)
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


def test_what_stands_beside_a_network_is_not_taken_for_one(bert):
    import transformers

    network, tokenizer = (kind.from_pretrained(bert) for kind in (transformers.BertModel, transformers.AutoTokenizer))

    class Adapted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.base = network

        def save_pretrained(self, folder):
            pass

        def merge_and_unload(self):
            return network

    class Head(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = network

    pipeline = transformers.pipeline("feature-extraction", model=network, tokenizer=tokenizer)
    with torch.device("meta"):
        empty = transformers.BertModel(network.config)
    for given, sentence in (
        (
            {"name_or_path": tokenizer},
            "this BertTokenizer is not a model of transformers: give the network, or .*; a to",
        ),
        ({"name_or_path": network.config}, "this BertConfig is not a model of transformers: give the network, or the"),
        ({"name_or_path": pipeline}, r"Pipeline is not a model of transformers: give its \.model\."),
        (
            {"name_or_path": Adapted()},
            r"this Adapted is not .*: merge its adapter .* what merge_and_unload\(\) returns",
        ),
        ({"name_or_path": Head()}, r"this Head is not .*: give the one in it, model.get_submodule\('encoder'\)\."),
        (
            {"name_or_path": empty},
            "this BertModel lies on the meta device and holds no numbers: load its weights first",
        ),
        ({"name_or_path": 3}, "must be a name, a folder or a network of transformers, got 3"),
        (
            {"name_or_path": network, "tokenizer": network},
            "this BertModel is not a tokenizer of transformers: give a to",
        ),
        (
            {"name_or_path": network, "tokenizer": pipeline},
            r"is not a tokenizer of transformers: give its \.tokenizer\.",
        ),
    ):
        with pytest.raises(ValueError, match=sentence) as caught:
            models.load(**given)
        assert len(str(caught.value).splitlines()) == 1


def test_wrapped_half_and_in_training_it_is_the_network_that_was_saved(bert):
    from transformers import BertModel

    network = BertModel.from_pretrained(bert)
    ids = torch.arange(5, 12)[None]
    x = models.load(bert).activations(ids, 1)
    expected = models.load(bert).attention(1)(x)
    wrapped = torch.compile(torch.nn.DataParallel(torch.compile(network.train())))
    assert torch.equal(models.load(wrapped).attention(1)(x), expected) and network.training
    half = models.load(network.half()).attention(1)
    assert half.query.dtype == torch.float32 and torch.allclose(half(x), expected, atol=1e-2)
