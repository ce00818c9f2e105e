"""`python -m lab metadata`: the files that archives and checkers read, from the lists of tables and pages."""

import sys
from pathlib import Path

EXAMPLES = """\
  python -m lab metadata            write paper.md, CITATION.cff, .zenodo.json, codecheck.yml and ro-crate-metadata.json
  python -m lab metadata --check    write nothing, and fail if one of them is not what it should be

What they say stands elsewhere: version in lipnb/__init__.py, date in CHANGELOG.md, authors and licence in
pyproject.toml, title in _config.yml, papers in book/references.bib, tables in lab.results, pages in _toc.yml, the
text of paper.md in book/summary.md.
"""


def add(verbs):
    """Describe the verb."""
    verb = verbs.add_parser(
        "metadata",
        help="write the files that archives and checkers read",
        epilog=f"examples:\n{EXAMPLES}",
        description="Make the files by which this repository is cited, deposited and checked.",
    )
    verb.add_argument("--check", action="store_true", help="only say which of them are stale; exit with 1 if one is")
    verb.set_defaults(run=run)


def run(arguments):
    """Write or check; the exit status."""
    from lab import metadata

    root = Path(__file__).parents[2]
    if arguments.check:
        changed = metadata.stale(root)
        for name in changed:
            print(f"{name} is stale: `python -m lab metadata` writes it anew.", file=sys.stderr)
        if not changed:
            print("all five files are what they should be")
        return bool(changed)
    changed = metadata.write(root)
    print(f"wrote {', '.join(changed)}" if changed else "all five files are what they should be")
    return 0
