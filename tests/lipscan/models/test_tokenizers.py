"""Which tokenizer reads is never silent, and one that does not fit is named."""

import shutil
from functools import partial

import pytest
from hub import WORDS, write_tokenizer

from lipscan import models
from lipscan.models import tokenizers


def test_whose_tokenizer_reads_is_never_silent(families, tmp_path, monkeypatch):
    monkeypatch.setenv("LIPNB_DATA", str(tmp_path))
    write_tokenizer(tmp_path / "tokenizers" / "gpt2")
    find = partial(tokenizers.find_tokenizer, None, "gpt2", None, True)
    tokenizer, name = find(vocabulary=50257, random=True)
    assert name == "gpt2" and len(tokenizer) == len(WORDS)
    shutil.rmtree(tmp_path / "tokenizers")
    tokenizer, name = find(vocabulary=50257, random=True)
    assert name == "minilm" and len(tokenizer) == 30522
    assert find(vocabulary=50257, random=False) == (None, None)  # real weights: never another's tokenizer
    assert find(vocabulary=30521, random=True) == (None, None)
    forced = models.load(families / "gpt2", tokenizer=families / "bert")
    assert forced.tokenizer_name == "bert" and forced.token_ids("the alice").tolist() == [7, 5]


def test_a_tokenizer_of_another_vocabulary_gives_no_ids_that_the_model_lacks(families, tmp_path):
    write_tokenizer(folder := shutil.copytree(families / "wordless", tmp_path / "model"))
    words = folder / "vocab.txt"
    words.write_text("".join(f"[unused{number}]\n" for number in range(100)) + words.read_text())
    model = models.load(folder)
    with pytest.raises(ValueError, match="token_ids must lie between 0 and 69"):
        model.activations(model.token_ids("alice")[None], 0)


def test_every_name_of_a_model_names_its_tokenizer(families, tmp_path, monkeypatch):
    monkeypatch.setenv("LIPNB_CACHE", str(tmp_path))
    for name in ("smollm2", "dinov2-small"):
        place = tmp_path / "models" / f"{name}-{models.SOURCES[name].sha256[:16]}"
        place.mkdir(parents=True)
        (place / "config.json").write_text("{}")
    write_tokenizer(tmp_path / "models" / f"smollm2-{models.SOURCES['smollm2'].sha256[:16]}")
    model = models.load(families / "bert", tokenizer="smollm2")
    assert model.tokenizer_name == "smollm2" and len(model.token_ids("alice")) == 1
    with pytest.raises(FileNotFoundError, match="'dinov2-small' holds no tokenizer"):
        models.load(families / "bert", tokenizer="dinov2-small")


UNREAD = [
    ({"tekken.json": "{}"}, "it is in tekken.json"),
    ({"spiece.model": "spoiled", "tokenizer_config.json": "{}"}, "it is in spiece.model"),
    ({"tokenizer_config.json": '{"tokenizer_class": "EvilTokenizer"}'}, "tokenizer_config.json says 'EvilTokenizer'"),
]


def test_a_tokenizer_that_is_there_and_not_read_is_named(families, tmp_path):
    for number, (written, sentence) in enumerate(UNREAD):
        folder = shutil.copytree(families / "gpt2", tmp_path / str(number))
        for file, text in written.items():
            (folder / file).write_text(text)
        model = models.load(folder)
        with pytest.raises(ValueError, match=f"has a tokenizer that cannot be read .{sentence}.*: write .*--tokenizer"):
            model.token_ids("alice")
        with pytest.raises(FileNotFoundError, match=f"the tokenizer '.*' is not read .{sentence}.*: give another"):
            models.load(families / "bert", tokenizer=folder)
