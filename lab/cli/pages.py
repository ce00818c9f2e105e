"""The verb `python -m lab pages`: run the notebooks, pair them with their sources, lay the book out, check it."""

import sys
from pathlib import Path

EXAMPLES = """\
  python -m lab pages execute           run every page whose inputs changed, two at a time
  python -m lab pages execute 41        run page 41 alone, into _build/notebooks, where its inputs changed
  python -m lab pages pair 41           write its last run next to its source in notebooks/, to be committed
  python -m lab pages stage             lay the book out in _build/source, ready for jupyter-book
  python -m lab pages check             list what is missing or broken, and numbers typed in by hand
  python -m lab pages vary 12 13        run pages 12 and 13 with other seeds, texts, models and sizes
"""


def add(verbs):
    """Add the verb to the parser."""
    verb = verbs.add_parser(
        "pages",
        help="run, pair, lay out and check the pages of the book",
        epilog=f"examples:\n{EXAMPLES}",
        description="Run the notebooks, pair them with their sources, lay the book out and check it.",
    )
    verb.add_argument("--root", type=Path, metavar="FOLDER", help="the repository to work on (default: this one)")
    commands = verb.add_subparsers(dest="command", metavar="COMMAND", required=True)
    execute = commands.add_parser(
        "execute",
        help="run every page whose inputs changed",
        description="Run every page whose source, tables or checkpoint changed since its last run, or code of lipnb, "
        "lipscan or lab, into _build/notebooks, two at a time. Of data outside the repository only the folders' names "
        "count.",
    )
    execute.add_argument("pages", nargs="*", metavar="PAGE", help="parts of page names (default: all)")
    execute.add_argument("--workers", type=int, default=2, metavar="N", help="pages at a time (default 2)")
    pairs = commands.add_parser(
        "pair",
        help="write the last runs next to their sources",
        description="Write the last runs in _build/notebooks beside their sources, as the .ipynb that is committed, "
        "and what follows from them: the ledger, data/results/execution.json and the pictures of README.md.",
    )
    pairs.add_argument("pages", nargs="*", metavar="PAGE", help="parts of page names (default: all)")
    commands.add_parser(
        "check",
        help="list what is missing, broken or typed in by hand",
        description="Say what is missing, broken or typed in pages and prose, one line each. The exit status is 1 "
        "where there is something to say. Whether tagged cells and verdicts are still what the code gives, nbval "
        "says (`make test`).",
    )
    vary = commands.add_parser(
        "vary",
        help="run pages with other parameters than the book's",
        description="Run pages with the other seeds, texts, models and sizes of book/variations.yml, each set a "
        "point of a sweep. Nothing of the book changes; runs and tables are in _build/variations, and what has "
        "finished is not run again. All pages take about half an hour on two cores.",
    )
    vary.add_argument("pages", nargs="*", metavar="PAGE", help="parts of page names (default: all)")
    vary.add_argument("--workers", type=int, default=2, metavar="N", help="points of a page at a time (default 2)")
    staging = commands.add_parser(
        "stage",
        help="lay out the sources of the book",
        description="Write all that jupyter-book renders into a folder of its own: executed notebooks, prose with its "
        "counts and verdicts, pictures. From the committed notebooks it also writes the ledger, as these say it, "
        "and says which of them are older than their source.",
    )
    staging.add_argument("--notebooks", default="notebooks", help="the executed notebooks, from the root")
    staging.add_argument("--target", default="_build/source", help="where to lay the book out, from the root")
    verb.set_defaults(run=run)


def run(arguments):
    """Run one command; returns its exit code."""
    from lab.pages import sources

    root = (arguments.root or sources.ROOT).resolve()
    if not (root / "_toc.yml").is_file():
        raise ValueError(f"{root} is no copy of this repository: it has no _toc.yml.")
    if arguments.command == "execute":
        from lab.pages import running

        return running.execute(root, arguments.workers, arguments.pages)
    if arguments.command in ("pair", "stage"):
        from lab.pages import layout

        if arguments.command == "pair":
            return layout.pair(root, arguments.pages)
        from lab.pages import checks

        if root / arguments.notebooks == root / "notebooks":
            for sentence in checks.edited(root):
                print(sentence, file=sys.stderr)
        return layout.stage(root, root / arguments.notebooks, root / arguments.target)
    if arguments.command == "vary":
        from lab.pages import variations

        return variations.report(root, arguments.pages, arguments.workers)
    from lab.pages import checks

    return checks.report(root)
