"""The verb `python -m lab figures`: list or draw the book's figures that need only stored tables."""

import os
import sys

from lipscan.cli.words import Unknown, known

EXAMPLES = """\
  python -m lab figures                        list the figures, their pages and the tables they need
  python -m lab figures verification positions    draw two of them, into the folder figures
  python -m lab figures --all --format pdf --output drawings
  LIPNB_RESULTS=elsewhere python -m lab figures verification    draw tables of your own

Needs neither torch nor a model, only the tables of data/results (or of the folder LIPNB_RESULTS), which
`python -m lab tables` makes.
"""


def add(verbs):
    """Add the verb to the parser."""
    verb = verbs.add_parser(
        "figures",
        help="list the book's figures, or draw them again from the stored tables",
        epilog=f"examples:\n{EXAMPLES}",
        description="List the book's figures that stored tables are enough for, or draw them again.",
    )
    verb.add_argument("names", nargs="*", metavar="NAME", help="figures to draw (none: list them all)")
    verb.add_argument(
        "--all", action="store_true", help="draw every figure; if a table is missing, name the command that makes it"
    )
    verb.add_argument("--output", default="figures", metavar="FOLDER", help="where to write them (default: figures)")
    verb.add_argument(
        "--format", choices=("png", "svg", "pdf"), default="png", help="format of the files (default: png)"
    )
    verb.set_defaults(run=run)


def run(arguments):
    """List the figures, or draw the requested ones."""
    os.environ["MPLBACKEND"] = "agg"  # files only: needs no screen

    from lab import figures

    known("figure", arguments.names, figures.FIGURES)
    if arguments.all and arguments.names:
        raise Unknown("give names or --all, not both")
    if not arguments.all and not arguments.names:
        return print(_listing(figures.FIGURES))
    code = 0
    for name in dict.fromkeys(arguments.names or figures.FIGURES):
        try:
            print(figures.redraw(name, arguments.output, arguments.format), flush=True)
        except (FileNotFoundError, ValueError) as error:  # draw the others anyway
            print(f"python -m lab figures: {name} was not drawn: {error}", file=sys.stderr)
            code = 1
    return code


def _listing(listed):
    """The figures by page, aligned."""
    from lab import results

    wide, lines, page = max(map(len, listed)), [], None
    for figure in listed.values():
        if figure.page != page:
            page = figure.page
            lines.append(f"\npage {page}")
        lines.append(f"  {figure.name:{wide}}  {figure.about:60}  {', '.join(figure.tables)}")
        if missing := figure.missing():
            commands = " and ".join(f"`{results.listed().command[name]}`" for name in missing)
            lines.append(f"  {'':{wide}}  cannot be drawn yet: {commands} first")
        elif figure.live:
            lines.append(f"  {'':{wide}}  its page adds: {figure.live}")
    return "\n".join(
        [
            f"{'name':{wide + 2}}  {'what it shows':60}  tables, of {results.folder()}",
            *lines,
            "",
            "`python -m lab figures NAME ...` or `--all` draws them. All other figures are\n"
            "drawn from measurements made live on their pages: `make book` runs these.",
        ]
    )
