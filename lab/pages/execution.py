"""When, how long and on what pages and tables were last made: a file of facts, and the page that shows them."""

import hashlib
import json
import subprocess
from collections import Counter
from datetime import UTC, datetime
from importlib.metadata import version
from platform import python_version

from lab import results
from lab.pages.sources import sources, tables, write_if_changed
from lab.pages.verdicts import table as markdown

__all__ = ["MARK", "STORED", "gather", "note", "section", "store"]

STORED = "data/results/execution.json"
MARK = "<!-- the execution -->"
PACKAGES = ("lipnb", "torch", "transformers", "numpy", "scipy")


def note(path, seconds, reads):
    """Write what is known of a run beside its notebook.

    Parameters
    ----------
    path, seconds : Path, float
        The executed notebook, and how long it took.
    reads : Path
        What `lab.pages.watching` wrote, if the page read a text or a model.
    """
    read = json.loads(reads.read_text(encoding="utf-8")) if reads.is_file() else {"texts": [], "models": []}
    facts = {
        "finished": datetime.now(UTC).strftime("%Y-%m-%d"),
        "seconds": round(seconds, 1),
        "versions": {"python": python_version(), **{name: version(name) for name in PACKAGES}},
        **read,
    }
    path.with_suffix(".run.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def gather(root, notebooks, ledger):
    """The facts: of pages from their runs in _build if these are the notebooks, else as stored; of tables as they are.

    Parameters
    ----------
    root, notebooks : Path
        The repository, and the folder of executed notebooks.
    ledger : list of dict
        Their verdicts, from `lab.pages.verdicts.gather`.

    Returns
    -------
    dict
        "pages": name -> finished, seconds, versions, texts, models, tables, verdicts; "tables": name -> command,
        finished, rows, seconds, sha256, code ("unchanged", "changed in ... commits", "unknown").
    """
    stored = root / STORED
    known = json.loads(stored.read_text(encoding="utf-8")) if stored.is_file() else {"pages": {}, "tables": {}}
    counts = Counter((row["page"], row["verdict"]) for row in ledger)
    pages = {}
    for source in sources(root):
        run, facts = notebooks / f"{source.stem}.run.json", dict(known["pages"].get(source.stem, {}))
        if run.is_file():
            facts = json.loads(run.read_text(encoding="utf-8"))
        facts["tables"] = list(tables(root, source))
        facts["verdicts"] = {verdict: n for (page, verdict), n in counts.items() if page == source.stem}
        pages[source.stem] = facts
    return {"pages": pages, "tables": _tables(root, known["tables"])}


def _tables(root, known):
    """Facts of every table that has provenance."""
    listed, found = results.listed(), {}
    for path in sorted((root / "data" / "results").glob("*.csv")):
        side = path.with_suffix(".json")
        birth = json.loads(side.read_text(encoding="utf-8")) if side.is_file() else None
        if path.stem not in listed.index or not isinstance(birth, dict):
            continue
        made = birth.get("versions", {}).get("commit", "")
        found[path.stem] = {
            "command": listed.command[path.stem],
            "finished": max([birth["finished"], *(again["date"] for again in birth.get("made again", ()))]),
            "rows": birth["rows"],
            "seconds": birth["seconds"],
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "code": _changed(root, made, listed.module[path.stem]) or known.get(path.stem, {}).get("code", "unknown"),
        }
    return found


def _changed(root, commit, module):
    """Whether a file changed since a commit, in words; "" where that is not known here."""
    if not module or not commit:
        return ""
    git = ["git", "-C", root, "rev-list", "--count", f"{commit.split('-')[0]}..HEAD", "--", module]
    try:
        asked = subprocess.run(git, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    if asked.returncode:
        return ""
    count = int(asked.stdout)
    return f"{module} changed in {count} commit{'s' * (count != 1)} since" if count else f"{module} unchanged since"


def store(root, facts):
    """Write the facts to the file that the repository keeps."""
    write_if_changed(root / STORED, (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode())


def section(facts):
    """The facts as Markdown: a table of pages, a table of tables."""
    pages, made = facts["pages"], facts["tables"]
    seconds = [run["seconds"] for run in pages.values() if "seconds" in run]
    versions = Counter(json.dumps(run["versions"]) for run in pages.values() if "versions" in run)
    said = [
        f"{len(seconds)} of {len(pages)} pages have a recorded run; their times, of pages run side by side, add up to "
        f"{sum(seconds) / 60:.0f} minutes."
    ]
    for text, count in versions.items():
        listed = ", ".join(f"{name} {number}" for name, number in json.loads(text).items())
        said.append(f"{count} ran with {listed}.")
    lines = []
    for name, run in pages.items():
        read = ", ".join([*run.get("texts", ()), *run.get("models", ())]) or "–"
        shown = ", ".join(f"{verdict} {count}" for verdict, count in run["verdicts"].items()) or "–"
        time = f"{run['seconds']:.0f} s" if "seconds" in run else "–"
        lines.append([f"{{doc}}`../notebooks/{name}`", run.get("finished", "–"), time, read, shown])
    head = ["page", "last run", "time", "texts and models read", "verdicts"]
    rows = [
        [f"`{name}`", f"`{one['command']}`", one["finished"], f"{one['rows']:,}", f"`{one['sha256'][:8]}`", one["code"]]
        for name, one in made.items()
    ]
    below = ["table", "command", "made", "rows", "sha256", "code"]
    how = Counter(
        "unchanged since"
        if one["code"].endswith("unchanged since")
        else "unknown"
        if one["code"] == "unknown"
        else "changed"
        for one in made.values()
    )
    said.append(
        f"Of {len(made)} tables the describing file of {how['unchanged since']} is unchanged since, that of "
        f"{how['changed']} has changed, and of {how['unknown']} it is not known."
    )
    return "\n".join(
        [" ".join(said), "", "## Pages", "", *markdown(head, lines), "", "## Tables", "", *markdown(below, rows)]
    )
