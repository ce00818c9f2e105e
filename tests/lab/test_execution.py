"""The facts of runs and tables are kept and shown."""

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from lab import results
from lab.pages import execution, running
from lab.pages.sources import sources

ROOT = Path(__file__).parents[2]


@pytest.fixture
def small(tmp_path):
    """A repository of one page."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "constraints.txt").write_text("")
    source = tmp_path / "notebooks" / "01_small.py"
    source.write_text("# %% [markdown]\n# # Small\n\n# %%\n1 + 1\n")
    return tmp_path


def test_a_run_is_noted_stored_and_shown(small):
    [source] = sources(small)
    seconds, failure = running.run_page(small, source)
    assert failure is None
    executed = small / "_build" / "notebooks"
    facts = execution.gather(small, executed, [])
    page = facts["pages"]["01_small"]
    assert page["verdicts"] == {}
    assert 0 < page["seconds"] <= seconds + 1 and page["finished"][:2] == "20" and page["versions"]["torch"]
    assert not list((small / "_build" / "failed").glob("*"))
    # from committed pages the stored facts are shown, and the last run stays out
    execution.store(small, facts)
    (executed / "01_small.run.json").unlink()
    assert execution.gather(small, small / "notebooks", []) == facts
    text = execution.section(facts)
    assert "1 of 1 pages have a recorded run" in text and "{doc}`../notebooks/01_small`" in text
    assert f"torch {page['versions']['torch']}" in text
    nothing = execution.section({"pages": {"01_small": {"verdicts": {}}}, "tables": {}})
    assert "0 of 1 pages have a recorded run" in nothing


def test_the_stored_facts_are_of_these_pages_and_tables():
    stored = json.loads((ROOT / execution.STORED).read_text())
    mend = f"`python -m lab pages pair NN` writes {execution.STORED}: commit it with the pages"
    assert list(stored["pages"]) == [source.stem for source in sources(ROOT)], mend
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


def test_a_table_is_as_young_as_the_rows_of_it_that_were_made_again(small):
    name, stored = results.listed().index[0], small / "data" / "results"
    stored.mkdir(parents=True)
    (stored / f"{name}.csv").write_text("n\n1\n")
    birth = {"finished": "2024-01-01", "rows": 1, "seconds": 1.0, "made again": [{"date": "2025-02-03"}]}
    (stored / f"{name}.json").write_text(json.dumps(birth))
    assert execution.gather(small, small / "notebooks", [])["tables"][name]["finished"] == "2025-02-03"
