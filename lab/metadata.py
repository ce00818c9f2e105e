"""What archives and checkers read about this repository, made from what it says of itself elsewhere.

Five files at the root: ``paper.md`` (a short paper: the book's page of that kind), ``CITATION.cff`` (how to cite),
``.zenodo.json`` (a deposit), ``codecheck.yml`` (what an independent checker would reproduce) and
``ro-crate-metadata.json`` (every table with the command that made it, every page, and the figures that are files).
Their facts stand in pyproject.toml, the changelog, the bibliography and the lists of tables and pages, nowhere else.
"""

import hashlib
import json
import re
import tomllib

import yaml

from lab import results
from lab.pages import glued
from lab.pages.checks import toc_pages

__all__ = ["contents", "stale", "write"]

PAPERS = ("castin2024smooth", "kim2021lipschitz")
PROFILE = "https://w3id.org/ro/crate/1.1"
UNCHECKED = """---
# The authors' part. Nobody has checked it yet: codechecker, report, certificate and check_time are a checker's to add.
# `python -m lab tables` makes what is missing: add --again to make a table anew.
"""
KEYWORDS = ["attention", "Lipschitz constant", "transformers", "reproducibility"]


def contents(root):
    """The five files as they should be.

    Parameters
    ----------
    root : Path
        The repository.

    Returns
    -------
    dict of str to str
        Name of the file -> its text.
    """
    facts = _facts(root)
    return {
        "paper.md": _paper_of_the_project(facts),
        "CITATION.cff": _yaml(_citation(facts)),
        ".zenodo.json": _json(_zenodo(facts)),
        "codecheck.yml": UNCHECKED + _yaml(_codecheck(facts)),
        "ro-crate-metadata.json": _json(_crate(facts)),
    }


def stale(root):
    """The files that are not what they should be: a dict of name to text, as they should be."""
    return {name: text for name, text in contents(root).items() if _text(root / name) != text}


def write(root):
    """Write what is stale; the names of these files."""
    changed = stale(root)
    for name, text in changed.items():
        (root / name).write_text(text, encoding="utf-8")
    return list(changed)


def _text(path):
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _yaml(value):
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=118)


def _json(value):
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _facts(root):
    """Everything that the files say, from where it is stated."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    book = yaml.safe_load((root / "_config.yml").read_text())
    version = re.search(r'__version__ = "(.+?)"', (root / "lipnb" / "__init__.py").read_text())[1]
    released = re.search(rf"^## \[{re.escape(version)}\] - (\S+)", (root / "CHANGELOG.md").read_text(), re.M)
    tables = []
    for path in sorted((root / "data" / "results").glob("*.csv")):
        birth = json.loads(path.with_suffix(".json").read_text())
        birth = birth if isinstance(birth, dict) else {}
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        tables.append({"path": path, "birth": birth, "sha256": digest, "bytes": path.stat().st_size})
    return {
        "root": root,
        "title": f"{project['name']}: {book['title'][0].lower()}{book['title'][1:]}",
        "about": project["description"],
        "authors": [author["name"] for author in project["authors"]],
        "licence": project["license"],
        "version": version,
        "date": released[1] if released else None,
        "papers": [_paper(root, key) for key in PAPERS],
        "tables": tables,
        "listed": results.listed(),
        "pages": toc_pages(yaml.safe_load((root / "_toc.yml").read_text())),
        "figures": sorted((root / "book" / "figures").glob("*.png")),
    }


def _paper(root, key):
    """Title, year, authors, proceedings and arXiv number of an entry of the bibliography."""
    from pybtex.database import parse_file

    entry = parse_file(root / "book" / "references.bib").entries[key]
    people = [
        {"family-names": _plain(" ".join(one.last_names)), "given-names": _plain(" ".join(one.first_names))}
        for one in entry.persons["author"]
    ]
    return {
        "title": _plain(entry.fields["title"]),
        "year": int(entry.fields["year"]),
        "authors": people,
        "venue": _plain(entry.fields["booktitle"]),
        "arxiv": re.search(r"arXiv:(\S+)", entry.fields["note"])[1],
    }


def _plain(text):
    """TeX accents and braces as plain text."""
    from pybtex.richtext import Text

    return str(Text.from_latex(text))


def _citation(facts):
    said = {
        "cff-version": "1.2.0",
        "message": "If you use lipnb or its measurements, please cite it, and the papers that it reproduces.",
        "title": facts["title"],
        "type": "software",
        "version": facts["version"],
        "date-released": facts["date"],
        "license": facts["licence"],
        "authors": [{"name": name} for name in facts["authors"]],
        "abstract": facts["about"],
        "keywords": KEYWORDS,
        "references": [
            {
                "type": "conference-paper",
                "title": paper["title"],
                "year": paper["year"],
                "authors": paper["authors"],
                "collection-title": paper["venue"],
                "identifiers": [{"type": "other", "value": f"arXiv:{paper['arxiv']}"}],
            }
            for paper in facts["papers"]
        ],
    }
    return {name: value for name, value in said.items() if value is not None}


def _zenodo(facts):
    return {
        "upload_type": "software",
        "title": facts["title"],
        "description": facts["about"],
        "version": facts["version"],
        "creators": [{"name": name} for name in facts["authors"]],
        "access_right": "open",
        "license": facts["licence"],
        "language": "eng",
        "keywords": KEYWORDS,
        "related_identifiers": [
            {"identifier": f"arXiv:{paper['arxiv']}", "relation": "references", "scheme": "arxiv"}
            for paper in facts["papers"]
        ],
    }


def _paper_of_the_project(facts):
    """The short paper with the numbers of the committed pages, in the Markdown that journals of software read."""
    root, name = facts["root"], "book/summary.md"
    text = glued.filled(glued.Runs(root, root / "notebooks"), name, (root / name).read_text(encoding="utf-8"))
    text = text[text.index("## Summary") :].replace("\n## ", "\n# ").replace("## Summary", "# Summary", 1)
    text = re.sub(r"\{cite:t\}`([^`]*)`", r"@\1", text)
    text = re.sub(r"\{cite\}`([^`]*)`", lambda cited: f"[{'; '.join('@' + key for key in cited[1].split(','))}]", text)
    head = {
        "title": facts["title"],
        "tags": ["Python", *KEYWORDS],
        "authors": [{"name": name} for name in facts["authors"]],
        "date": facts["date"],
        "bibliography": "book/references.bib",
    }
    return f"---\n{_yaml({key: value for key, value in head.items() if value is not None})}---\n\n{text}"


def _relative(facts, path):
    return path.relative_to(facts["root"]).as_posix()


def _codecheck(facts):
    """The author's part: who checks, when, the certificate and the report are for a checker to add."""
    files = []
    for table in facts["tables"]:
        name = table["path"].stem
        if name in facts["listed"].index:
            row = facts["listed"].loc[name]
            files.append({"file": _relative(facts, table["path"]), "comment": f"{row.about}; made by `{row.command}`"})
    return {
        "version": "https://codecheck.org.uk/spec/config/2.0/",
        "paper": {
            "title": facts["title"],
            "authors": [{"name": name} for name in facts["authors"]],
            "reference-other": [f"https://arxiv.org/abs/{paper['arxiv']}" for paper in facts["papers"]],
        },
        "manifest": files,
    }


def _crate(facts):
    """RO-Crate 1.1: the repository, its tables with the command that made each, its pages, figures and sources."""
    people = [{"@id": f"#{name.replace(' ', '-')}", "@type": "Organization", "name": name} for name in facts["authors"]]
    papers = [
        {
            "@id": f"https://arxiv.org/abs/{paper['arxiv']}",
            "@type": "ScholarlyArticle",
            "name": paper["title"],
            "datePublished": str(paper["year"]),
            "author": "; ".join(f"{who['given-names']} {who['family-names']}" for who in paper["authors"]),
        }
        for paper in facts["papers"]
    ]
    files, actions = [], []
    for table in facts["tables"]:
        path, birth, name = _relative(facts, table["path"]), table["birth"], table["path"].stem
        row = facts["listed"].loc[name] if name in facts["listed"].index else None
        files.append(
            {
                "@id": path,
                "@type": "File",
                "name": name,
                "description": name if row is None else row.about,
                "encodingFormat": "text/csv",
                "contentSize": str(table["bytes"]),
                "sha256": table["sha256"],
            }
        )
        if row is not None and "finished" in birth:
            actions.append(
                {
                    "@id": f"#made-{name}",
                    "@type": "CreateAction",
                    "name": row.command,
                    "endTime": birth["finished"],
                    "instrument": {"@id": "lab/"},
                    "result": {"@id": path},
                }
            )
    for name in facts["pages"]:
        notebook = name.startswith("notebooks/")
        path = f"{name}.ipynb" if notebook else f"{name}.md"
        kind = "application/x-ipynb+json" if notebook else "text/markdown"
        files.append({"@id": path, "@type": "File", "name": name.split("/")[-1], "encodingFormat": kind})
    for path in facts["figures"]:
        files.append({"@id": _relative(facts, path), "@type": "File", "name": path.stem, "encodingFormat": "image/png"})
    software = {
        "@id": "lab/",
        "@type": "Dataset",
        "name": "lab",
        "description": "What makes the tables and the pages; it uses the library lipnb beside it.",
    }
    library = {"@id": "lipnb/", "@type": "Dataset", "name": "lipnb", "description": facts["about"]}
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": facts["title"],
        "description": facts["about"],
        "version": facts["version"],
        "license": {"@id": f"https://spdx.org/licenses/{facts['licence']}"},
        "keywords": ", ".join(KEYWORDS),
        "author": [{"@id": one["@id"]} for one in people],
        "citation": [{"@id": one["@id"]} for one in papers],
        "mentions": [{"@id": one["@id"]} for one in actions],
        "hasPart": [{"@id": one["@id"]} for one in [software, library, *files]],
    }
    if facts["date"]:
        root["datePublished"] = facts["date"]
    licence = {
        "@id": root["license"]["@id"],
        "@type": "CreativeWork",
        "name": facts["licence"],
        "description": "The licence of code, text and figures; data of others have their own, see data/README.md.",
    }
    about = {
        "@id": "ro-crate-metadata.json",
        "@type": "CreativeWork",
        "conformsTo": {"@id": PROFILE},
        "about": {"@id": "./"},
    }
    graph = [about, root, licence, *people, *papers, software, library, *files, *actions]
    return {"@context": f"{PROFILE}/context", "@graph": graph}
