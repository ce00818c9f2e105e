"""The command `lipnb`: a thin door, each verb one call of the library."""

import argparse
import sys

import lipnb

EXAMPLES = """examples:
  lipnb results                        make every table of the book that is not there yet
  lipnb results real-text-embedded     make one table (this one needs no corpus and no network)
  lipnb results real-text --again      make it anew; the old one stays until the new one is complete
  lipnb results --model bert-base-uncased       the panels of the paper, where a hub gives its model
  LIPNB_RESULTS=elsewhere lipnb results real-text-embedded --lengths 2,8,32 --count 3

A run that is stopped, even by kill -9, continues where it was when the same command is given again.
"""


def _lengths(text):
    """Comma-separated lengths as a tuple."""
    try:
        lengths = tuple(int(part) for part in text.split(","))
    except ValueError:
        lengths = (0,)
    if min(lengths) < 1:
        raise argparse.ArgumentTypeError(f"lengths are whole numbers from 1 on, such as 2,8,32; got {text!r}")
    return lengths


def _results(arguments):
    """Make the tables asked for."""
    from lipnb import experiments, results

    known = {**experiments.TABLES, **experiments.TRAINED}
    if unknown := set(arguments.tables) - set(known):
        raise ValueError(f"there is no table {sorted(unknown)[0]!r} to make: choose from {', '.join(known)}.")
    if arguments.model:
        wanted = experiments.of_model(arguments.model)
    else:
        wanted = [known[name] for name in arguments.tables or experiments.TABLES]
    missing = [table for table in wanted if arguments.again or table.name not in results.names()]
    for table in wanted:
        if table not in missing:
            birth = results.provenance(table.name)
            print(f"{table.name}: there already, {birth['rows']} rows of {birth['finished']} (--again makes it anew)")
    options = {name: value for name in ("lengths", "count", "seed") if (value := getattr(arguments, name)) is not None}
    for name, table in experiments.make(missing, **options).items():
        converged = f", {int(table.converged.sum())} converged" if "converged" in table else ""
        seconds = results.provenance(name)["seconds"]
        print(f"{name}: {len(table)} rows{converged}, measured in {seconds:.0f} s, in {results.folder()}")


def _parser():
    from lipnb.experiments import TABLES, TRAINED

    parser = argparse.ArgumentParser(prog="lipnb", description="How smooth is attention? Measurements of local "
                                     "Lipschitz constants.")
    parser.add_argument("--version", action="version", version=f"lipnb {lipnb.__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    tables, trained = ("\n".join(f"  {table.name:22} {table.about}" for table in group.values())
                       for group in (TABLES, TRAINED))
    verb = verbs.add_parser("results", help="make the tables that the book's pages load",
                            epilog=f"tables:\n{tables}\n\ntables that train networks, made when named:\n"
                                   f"{trained}\n\n{EXAMPLES}",
                            formatter_class=argparse.RawDescriptionHelpFormatter,
                            description="Make the tables that the book's pages load, in data/results "
                                        "(or in the folder LIPNB_RESULTS).")
    verb.add_argument("tables", nargs="*", metavar="TABLE",
                      help="which ones (default: all but those that train networks), see below")
    verb.add_argument("--model", metavar="NAME", help="instead: every layer of this model, a name on the hub or a "
                      "folder, on both texts of the paper")
    verb.add_argument("--again", action="store_true", help="make them anew even where they are there")
    verb.add_argument("--lengths", type=_lengths, metavar="N,N,...", help="sequence lengths (default: the table's)")
    verb.add_argument("--count", type=int, help="windows for each length (default: the table's)")
    verb.add_argument("--seed", type=int, help="seed of start vectors and random inputs (default 0)")
    verb.set_defaults(run=_results)
    from lipnb.cli import sweep

    sweep.add(verbs)
    return parser


def main(argv=None):
    """Entry point of the command; an expected failure is one sentence on stderr and exit code 1."""
    arguments = _parser().parse_args(argv)
    try:
        return arguments.run(arguments) or 0
    except (ValueError, OSError, RuntimeError) as error:
        print(f"lipnb: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lipnb: stopped; what is finished is kept, the same command continues", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
