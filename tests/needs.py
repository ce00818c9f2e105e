"""Marks of tests that need what may not be here: they are skipped then, and say what is missing."""

import json
import os
from pathlib import Path

import pytest

from lipscan import corpora
from lipscan.models.demo.fetching import fetched_folder

STORED = Path(__file__).parents[1] / "data" / "results" / "one-word.json"
READ = json.loads(STORED.read_text(encoding="utf-8"))["settings"]["texts"]  # editions of the texts of stored rows
DATA = Path(os.environ.get("LIPNB_DATA") or "/nowhere")
CACHE = os.environ.get("LIPNB_CACHE")  # before each test has one of its own


def own_cache(monkeypatch):
    """Give a test the cache in which what was fetched lies, in place of its own empty one."""
    if CACHE:
        monkeypatch.setenv("LIPNB_CACHE", CACHE)
    else:
        monkeypatch.delenv("LIPNB_CACHE")


def _fetched(name):
    try:
        return fetched_folder(name).is_dir()
    except FileNotFoundError:
        return False


def _alice():
    """Whether she can be read without asking the package registry."""
    return corpora.text_folder("alice").is_dir() or "carroll-alice.txt" in corpora.gutenberg()


def marks(there, reason):
    """Marks of a test, or of one of its parameters, that needs something; `pytest -m data` runs such tests alone."""
    return [pytest.mark.data, pytest.mark.skipif(not there, reason=reason)]


def mark(there, reason):
    """A decorator with these marks."""
    data, skip = marks(there, reason)
    return lambda test: data(skip(test))


ALICE = mark(_alice(), "no Alice here: make test fetches her, or lipnb fetch alice")
GPT2 = mark((DATA / "models/gpt2-124m-attention").is_dir(), "the attention weights of GPT-2 are not in LIPNB_DATA")
AG_NEWS = mark((DATA / "ag_news_csv/test.csv").is_file(), "AG_NEWS is not in LIPNB_DATA")
PENN_TREEBANK = mark((DATA / "ptb/ptb.zip").is_file(), "the Penn Treebank is not in LIPNB_DATA")
STORIES = marks((DATA / "models/stories260K").is_dir(), "stories260K is not in LIPNB_DATA")
GPT2_TOKENIZER = marks((DATA / "tokenizers/gpt2").is_dir(), "the tokenizer of GPT-2 is not in LIPNB_DATA")
DINOV2 = mark(_fetched("dinov2-small"), "dinov2-small is not fetched here")
ALBERT = mark(_fetched("rxnmapper-albert"), "rxnmapper-albert is not fetched here")
E5 = mark(_fetched("e5-small"), "e5-small is not fetched here")
MINILM_L3 = mark(_fetched("minilm-l3"), "minilm-l3 is not fetched here")
REFERENCE = mark(
    corpora.fingerprint(corpora.read("python_reference")) == READ["python_reference"],
    "another edition of the text that comes with Python",
)
