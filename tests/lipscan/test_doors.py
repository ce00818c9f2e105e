"""The names of the application that others call through lipnb: each is there, and answers in these shapes."""

import pytest
import torch
from hub import tiny_bert

import lipnb
from lipnb import corpora, models


def test_a_model_gives_attention_and_what_it_receives(tmp_path):
    model = models.load(tiny_bert(tmp_path), masked=None, random=False, device=None, dtype=torch.float64)
    ids = model.token_ids("the alice rabbit")
    x = model.activations(ids[None], 1)
    assert ids.ndim == 1 and model.layers == 2 and x.shape == (1, len(ids), 32)
    assert isinstance(model.attention(1, object="heads+output"), lipnb.Attention)
    assert model.attention(1)(x).shape == model.attention(1, object="block")(x).shape == x.shape
    assert model.describe()["masked"] is False
    stream = models.readings(model, ids[None])[0].stream
    hidden = model.network(to="hidden")(stream)
    assert torch.allclose(hidden, model.module(input_ids=ids[None]).last_hidden_state, atol=1e-12)
    assert lipnb.local_lipschitz(model.network(), stream).route == "autodiff"
    with pytest.raises(ValueError, match="has no logits here"):
        model.network(to="logits")


def test_a_scan_is_called_and_has_its_tables(tmp_path):
    scan = lipnb.scan(tiny_bert(tmp_path / "model"), "the alice rabbit " * 20, lengths=(6,), output=tmp_path / "scan")
    assert {"layer", "length", "lipschitz", "certified"} <= {*scan.table.columns} and len(scan.table) == 4
    assert len(scan.heads) and scan.report(tmp_path / "report.html").is_file()


def test_a_text_is_cut_into_windows(tmp_path):
    (tmp_path / "story").write_text("the alice rabbit")
    assert corpora.read(str(tmp_path / "story")) == "the alice rabbit"
    assert len(corpora.read("python_reference")) > 1e5
    windows = corpora.windows(torch.arange(10), length=3, count=3)
    assert windows.shape == (3, 3) and len(windows.unique()) == 9
    with pytest.raises(ValueError):
        corpora.windows(torch.arange(10), length=3, count=4)


def test_a_whole_model_is_no_map_of_tokens(minilm):
    with pytest.raises(ValueError, match="minilm is a whole model: give one of its layers"):
        lipnb.local_lipschitz(minilm, torch.ones(2, 5, 8))
