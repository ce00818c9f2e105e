"""The verb `python -m lab tables`: make the tables that the book's pages load."""

import json

from lipscan.cli.words import Unknown, known, lengths

TOLERANCE = 1e-2  # solvers stop at relative 1e-4, and an ascent of hundreds of steps spreads rounding

EXAMPLES = """\
  python -m lab tables                        make every missing table of the book
  python -m lab tables real-text-embedded     make one table (this one needs no corpus and no network)
  python -m lab tables bounds-survey --again  make it anew; the old one stays until the new one is complete
  python -m lab tables --model bert-base-uncased       every layer of another model, from a hub or a folder: hours
  python -m lab tables --model gpt2 --lengths 8,32,128 --count 3       the same in some minutes, from fewer windows
  python -m lab tables --check 5              some rows of every table without training measured again
  LIPNB_RESULTS=elsewhere python -m lab tables real-text-embedded --lengths 2,8,32 --count 3

A run that is stopped, even by kill -9, continues where it was when the same command is given again.
"""


def _epilog():
    """List of the tables, computed only for the help."""
    from lab import results

    tables = results.listed()
    tables = tables[tables.command.str.startswith("python -m lab tables")]
    measured, trained = (
        "\n".join(f"  {name:22} {about}" for name, about in group.about.items())
        for group in (tables[~tables.trains], tables[tables.trains])
    )
    return f"tables:\n{measured}\n\ntables that train networks, made when named:\n{trained}\n\nexamples:\n{EXAMPLES}"


def add(verbs):
    """Add the verb to the parser."""
    verb = verbs.add_parser(
        "tables",
        help="make the tables that the book's pages load",
        epilog=_epilog,
        description="Make the tables that the book's pages load, in data/results (or in the folder LIPNB_RESULTS).",
    )
    verb.add_argument(
        "tables", nargs="*", metavar="TABLE", help="which ones (default: all but those that train networks), see below"
    )
    verb.add_argument(
        "--model",
        metavar="NAME",
        help="measure instead every layer of this model, a name on the hub or a folder, on the texts of the atlas",
    )
    verb.add_argument("--again", action="store_true", help="make them again even if they exist")
    verb.add_argument(
        "--check",
        type=int,
        metavar="ROWS",
        help="make nothing: measure units of so many rows of each table again, drawn by --seed, and say how far they "
        "are off; not of tables that train networks",
    )
    verb.add_argument("--lengths", type=lengths, metavar="N,N,...", help="sequence lengths (default: the table's)")
    verb.add_argument("--count", type=int, help="windows for each length (default: the table's)")
    verb.add_argument(
        "--seed", type=int, help="seed of start vectors and random inputs, or of what --check draws (default 0)"
    )
    verb.set_defaults(run=run)


def run(arguments):
    """Make the requested tables."""
    from lab import results

    if arguments.model and arguments.tables:
        raise ValueError(f"--model makes tables of its own: leave out {' '.join(arguments.tables)}, or --model.")
    if arguments.check is not None:
        return _check(arguments)
    if arguments.count is not None and arguments.count < 1:
        raise ValueError(f"--count must be 1 or more, got {arguments.count}.")
    listed = results.listed()
    _ours(arguments.tables, listed)

    from lab import experiments  # only now, because it takes seconds

    if arguments.model:
        wanted = experiments.of_model(arguments.model)
    else:
        every = {**experiments.TABLES, **experiments.TRAINED}
        wanted = [every[name] for name in arguments.tables or experiments.TABLES]
    missing = [table for table in wanted if arguments.again or table.name not in results.names()]
    options = {name: value for name in ("lengths", "count", "seed") if (value := getattr(arguments, name)) is not None}
    for table in wanted:
        if table not in missing:
            birth = results.provenance(table.name)
            if other := _made_otherwise(table, birth["settings"], options):
                raise ValueError(
                    f"{table.name} is there already, made with {other}: --again makes it anew, and LIPNB_RESULTS names "
                    "another folder."
                )
            print(f"{table.name}: there already, {birth['rows']} rows of {birth['finished']} (--again makes it anew)")
    if not missing:
        return
    for name, table in experiments.make(missing, **options).items():
        converged = f", {int(table.converged.sum())} converged" if "converged" in table else ""
        if converged and not table.converged.all():
            converged += " (the others are lower bounds, not proved to be within the tolerance in this precision)"
        seconds = results.provenance(name)["seconds"]
        print(f"{name}: {len(table)} rows{converged}, measured in {seconds:.0f} s, in {results.folder()}")


def _ours(names, listed):
    """Refuse tables that do not exist or that another command makes."""
    ours = listed.command.str.startswith("python -m lab tables")
    for name in names:
        if name in listed.index and not ours[name]:
            raise Unknown(f"{name!r} is made, and measured again, by `{listed.command[name]}`, not here")
    known("table", names, listed.index[ours])


def _check(arguments):
    """Measure some rows of stored tables again."""
    from lab import results

    if arguments.check < 1:
        raise ValueError(f"--check must be 1 row or more, got {arguments.check}.")
    if arguments.model or arguments.again or arguments.lengths or arguments.count:
        raise ValueError("--check takes the options that the tables were made with: leave out the others.")
    listed = results.listed()
    _ours(arguments.tables, listed)
    if trained := [name for name in arguments.tables if listed.trains[name]]:
        raise ValueError(
            f"each row of {trained[0]} takes the training of a network, so that --check does not measure it again: "
            f"`{listed.command[trained[0]]} --again` makes it anew."
        )

    from tqdm import tqdm

    from lab import experiments
    from lab.experiments.checking import check

    wanted = arguments.tables or [name for name in experiments.TABLES if name in results.names()]
    if not wanted:
        raise ValueError(f"there is no table in {results.folder()} to check.")
    print(f"{'table':22} {'rows':>5} {'units':>12}  worst deviation")
    off = 0
    for found in check([experiments.TABLES[name] for name in wanted], rows=arguments.check, seed=arguments.seed or 0):
        words = f", {found['other']} rows with another word" if found["other"] else ""
        words += f", {found['unlike']}" if found["unlike"] else ""
        where = f" ({found['column']})" if found["column"] else ""
        tqdm.write(
            f"{found['table']:22} {found['rows']:5} {found['units']:>12}  {found['deviation']:.1e}{where}{words}"
        )
        off += found["deviation"] > TOLERANCE or found["other"] > 0 or found["unlike"] != ""
    if off:
        raise ValueError(
            f"{off} of {len(wanted)} tables differ from what this code measures: a number by more than {TOLERANCE:g}, "
            "a word, or in the rows or columns that there are."
        )


def _made_otherwise(table, settings, options):
    """Differences between the settings of a finished table and the requested ones, in words; empty without any."""
    other = []
    for name, value in json.loads(json.dumps(table.options | options)).items():
        made = settings.get(name, value)
        made = list(made) if isinstance(value, list) and isinstance(made, dict) else made  # names of texts, by editions
        if made != value:
            other.append(f"{name} {','.join(map(str, made)) if isinstance(made, list) else made}")
    return " and ".join(other)
