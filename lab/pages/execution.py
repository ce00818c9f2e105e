"""Record of when and how pages and tables were last made: a file of facts, and the page that shows them."""

import hashlib
import json
import subprocess
from collections import Counter

from lab import results
from lab.pages.sources import run_of, sources, tables, write_if_changed
from lab.pages.verdicts import table as markdown

STORED = "data/results/execution.json"
MARK = "<!-- the execution -->"
SHOWN = ("finished", "seconds", "versions")  # parts of the record of a run


def gather(root, notebooks, ledger):
    """Facts of pages, from their runs in _build if `notebooks` are those, else as stored; and of tables.

    "pages": name -> finished, seconds, versions, tables, verdicts; "tables": name -> command, finished,
    rows, seconds, sha256, code (number of commits since then that changed it).
    """
    known = stored(root)
    counts = Counter((row["page"], row["verdict"]) for row in ledger)
    pages = {}
    for source in sources(root):
        run = run_of(notebooks / f"{source.stem}.ipynb") or known["pages"].get(source.stem, {})
        facts = {name: run[name] for name in SHOWN if name in run} | {"tables": list(tables(root, source))}
        facts["verdicts"] = {verdict: n for (page, verdict), n in counts.items() if page == source.stem}
        pages[source.stem] = facts
    return {"pages": pages, "tables": _tables(root, known["tables"])}


def stored(root):
    """Facts stored in the repository."""
    path = root / STORED
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"pages": {}, "tables": {}}


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
    """Whether a file changed since a commit, in words; "" if unknown here."""
    if not module or not commit:
        return ""
    since = f"{commit.split('-')[0]}..HEAD"
    git = ["git", "-C", root, "log", "--follow", "--format=%h", since, "--", module]  # also under its names before
    try:
        count = len(subprocess.run(git, capture_output=True, text=True, check=True).stdout.split())
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{module} changed in {count} commit{'s' * (count != 1)} since" if count else f"{module} unchanged since"


def store(root, facts):
    """Write the facts to their file in the repository."""
    write_if_changed(root / STORED, (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode())


def section(facts):
    """The facts as Markdown: a table of pages, a table of tables."""
    pages, made = facts["pages"], facts["tables"]
    seconds = [run["seconds"] for run in pages.values() if "seconds" in run]
    said = [
        f"{len(seconds)} of {len(pages)} pages have a recorded run; their times, of pages run side by side, add up to "
        f"{sum(seconds) / 60:.0f} minutes."
    ]
    versions = Counter(
        ", ".join(f"{name} {number}" for name, number in run["versions"].items())
        for run in pages.values()
        if "versions" in run
    )
    said += [f"{count} ran with {listed}." for listed, count in versions.items()]
    ends = [one["code"].endswith("unchanged since") for one in made.values()]
    unknown = sum(one["code"] == "unknown" for one in made.values())
    said.append(
        f"Of {len(made)} tables, {sum(ends)} were made with today's description, "
        f"{len(made) - sum(ends) - unknown} with an older one; for {unknown} this is not known."
    )
    lines = [
        [
            f"{{doc}}`../notebooks/{name}`",
            run.get("finished", "–"),
            f"{run['seconds']:.0f} s" if "seconds" in run else "–",
            ", ".join(f"{verdict} {count}" for verdict, count in run["verdicts"].items()) or "–",
        ]
        for name, run in pages.items()
    ]
    rows = [
        [f"`{name}`", f"`{one['command']}`", one["finished"], f"{one['rows']:,}", f"`{one['sha256'][:8]}`", one["code"]]
        for name, one in made.items()
    ]
    head = ["page", "last run", "time", "verdicts"]
    below = ["table", "command", "made", "rows", "sha256", "code"]
    return "\n".join(
        [" ".join(said), "", "## Pages", "", *markdown(head, lines), "", "## Tables", "", *markdown(below, rows)]
    )
