"""The files that archives and checkers read are what the lists say, and point at what is there."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

import lipnb
from lab import cli, metadata

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made():
    return metadata.contents(ROOT)


def test_no_file_is_stale():
    assert not metadata.stale(ROOT), "`python -m lab metadata` writes them anew"


def test_the_citation_names_both_papers(made):
    said = yaml.safe_load(made["CITATION.cff"])
    assert said["version"] == lipnb.__version__ and said["license"] == "BSD-3-Clause"
    assert [one["identifiers"][0]["value"] for one in said["references"]] == ["arXiv:2312.14820", "arXiv:2006.04710"]
    assert said["references"][0]["authors"][0] == {"family-names": "Castin", "given-names": "Valérie"}
    assert said["references"][1]["title"] == "The Lipschitz Constant of Self-Attention"


def test_the_deposit(made):
    said = json.loads(made[".zenodo.json"])
    assert said["upload_type"] == "software" and said["access_right"] == "open" and said["version"] == lipnb.__version__
    assert all(one["name"] for one in said["creators"]) and "orcid" not in made[".zenodo.json"]


def test_the_short_paper_has_its_numbers_and_citations(made):
    _, head, text = made["paper.md"].split("---\n", 2)
    head = yaml.safe_load(head)
    assert head["title"].startswith("lipnb: ") and (ROOT / head["bibliography"]).is_file()
    assert re.findall(r"^# (.*)", text, re.M)[:3] == ["Summary", "Statement of need", "State of the field"]
    assert "{" not in re.sub(r"\$[^$]*\$", "", text) and "`lipnb scan`" in text  # no mark of the book is left
    keys = set(re.findall(r"@(\w+)", text))
    assert {"castin2024smooth", "kim2021lipschitz"} < keys
    assert keys <= set(re.findall(r"^@\w+\{(\w+),", (ROOT / head["bibliography"]).read_text(), re.M))
    ledger = {row["id"] for row in json.loads((ROOT / "data" / "results" / "ledger.json").read_text())}
    assert f"on each of {len(ledger)} statements" in " ".join(text.split())
    assert 250 < len(text.split()) < 1000


def test_what_a_checker_reproduces(made):
    assert made["codecheck.yml"].startswith("---\n")
    said = yaml.safe_load(made["codecheck.yml"])
    files = [one["file"] for one in said["manifest"]]
    assert len(set(files)) == len(files) > 50 and all(one["comment"] for one in said["manifest"])
    assert all((ROOT / name).is_file() for name in files)
    # nobody has checked it yet, and nothing pretends otherwise
    assert "Nobody has checked it yet" in made["codecheck.yml"]
    assert not {"codechecker", "certificate", "report", "check_time"} & set(said)


def test_the_crate_is_whole(made):
    graph = json.loads(made["ro-crate-metadata.json"])["@graph"]
    entities = {one["@id"]: one for one in graph}
    assert len(entities) == len(graph)

    def pointed(value):
        if isinstance(value, dict):
            if set(value) == {"@id"}:
                yield value["@id"]
            else:
                for inner in value.values():
                    yield from pointed(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from pointed(inner)

    outside = {name for one in graph for name in pointed(one)} - set(entities)
    assert outside == {metadata.PROFILE}
    files = [one for one in graph if one["@type"] == "File"]
    assert all((ROOT / one["@id"]).is_file() for one in files)
    for one in files[:5]:
        content = (ROOT / one["@id"]).read_bytes()
        assert one["sha256"] == hashlib.sha256(content).hexdigest() and one["contentSize"] == str(len(content))
    assert {one["@id"] for one in files} <= {one["@id"] for one in entities["./"]["hasPart"]}
    made_by = [one for one in graph if one["@type"] == "CreateAction"]
    assert len(made_by) > 50 and all(one["endTime"][:2] == "20" for one in made_by)


def test_a_change_makes_them_stale(tmp_path, made):
    root = tmp_path / "copy"
    keep = ("pyproject.toml", "_config.yml", "_toc.yml", "CHANGELOG.md", "lipnb/__init__.py")
    for name in (*keep, "lab/statements.csv", "book/references.bib", "book/summary.md"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    shutil.copytree(ROOT / "book" / "figures", root / "book" / "figures")
    (root / "notebooks").symlink_to(ROOT / "notebooks")
    results = root / "data" / "results"
    results.mkdir(parents=True)
    for ending in ("csv", "json"):
        shutil.copy(ROOT / "data" / "results" / f"zoo.{ending}", results)
    assert metadata.write(root) == list(made) and not metadata.stale(root)
    (results / "zoo.csv").write_text((results / "zoo.csv").read_text() + "\n")
    assert set(metadata.stale(root)) == {"ro-crate-metadata.json"}
    dated = {"paper.md"} if "date:" in made["paper.md"].split("---")[1] else set()
    init = root / "lipnb" / "__init__.py"
    init.write_text(init.read_text().replace(f'"{lipnb.__version__}"', '"9.9.9"'))
    assert set(metadata.stale(root)) == {"CITATION.cff", ".zenodo.json", "ro-crate-metadata.json"} | dated
    text = metadata.contents(root)["CITATION.cff"]
    assert "date-released" not in text  # no such release in the changelog


def test_the_command(capsys):
    assert cli.main(["metadata", "--check"]) == 0 and cli.main(["pages", "--root", "/", "check"]) == 1
    assert cli.main(["metadata"]) == 0 and "all five files are what they should be" in capsys.readouterr().out
