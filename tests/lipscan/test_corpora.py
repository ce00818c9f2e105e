"""Texts are found where they are, and said when they are not."""

import sys

import needs
import pytest

from lipscan import corpora


def test_the_embedded_text_is_always_there_and_always_the_same():
    text = corpora.read("python_reference")
    assert len(text) > 300_000 and "assert" in text
    assert corpora.fingerprint(text) == corpora.fingerprint(corpora.read("python_reference"))
    assert corpora.available("a text that nobody has", "python_reference") == "python_reference"


@needs.ALICE
def test_alice_is_nltks_edition():
    text = corpora.read("alice")
    assert text.startswith("[Alice's Adventures in Wonderland by Lewis Carroll") and len(text) == 144_395
    assert corpora.available("alice", "python_reference") == "alice"


@needs.AG_NEWS
def test_ag_news_is_the_test_split():
    text = corpora.read("ag_news")
    assert text.startswith("Fears for T N pension after talks Unions representing workers at Turner")
    assert text.count("\n") == 7599


def test_a_file_is_a_text(tmp_path):
    (tmp_path / "good.txt").write_text("to be or not to be")
    assert corpora.read(str(tmp_path / "good.txt")) == "to be or not to be"
    assert corpora.describe(str(tmp_path / "good.txt")) == "the file good.txt" and "Alice" in corpora.describe("alice")


def test_a_missing_package_is_said_and_no_other_text_is_taken(monkeypatch, tmp_path):
    monkeypatch.delenv("LIPNB_DATA", raising=False)
    monkeypatch.setattr(corpora.hub, "dataset_file", lambda *_: str(tmp_path / "test.parquet"))
    (tmp_path / "test.parquet").write_bytes(b"PAR1")
    for module in ("pyarrow", "fastparquet"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match="Parquet"):
        corpora.available("ag_news", "python_reference")


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [("ptb", "ptb/ptb.zip", b"PK no zip"), *[("ag_news", "ag_news_csv/test.csv", raw) for raw in (b'1,"open', b"")]],
)
def test_a_damaged_text_is_said_and_no_other_one_is_taken(monkeypatch, tmp_path, name, file, content):
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_bytes(content)
    monkeypatch.setenv("LIPNB_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=f"the text '{name}' in LIPNB_DATA is damaged"):
        corpora.available(name, "python_reference")
