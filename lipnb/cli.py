"""The command `lipnb`: a thin door, each verb one call of the library."""

import argparse
import sys

import lipnb

EXAMPLES = """examples:
  lipnb results                        make every table of the book that is not there yet
  lipnb results real-text-embedded     make one table (this one needs no corpus and no network)
  lipnb results real-text --again      make it anew; the old one stays until the new one is complete
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

    unknown = set(arguments.tables) - set(experiments.TABLES)
    if unknown:
        raise ValueError(f"there is no table {sorted(unknown)[0]!r} to make: choose from "
                         f"{', '.join(experiments.TABLES)}.")
    for name in arguments.tables or experiments.TABLES:
        if name in results.names() and not arguments.again:
            birth = results.provenance(name)
            print(f"{name}: there already, {birth['rows']} rows of {birth['finished']} (--again makes it anew)")
            continue
        table = experiments.make_table(name, lengths=arguments.lengths, count=arguments.count, seed=arguments.seed)
        print(f"{name}: {len(table)} rows, {int(table.converged.sum())} converged, in {results.folder()}")


def _parser():
    from lipnb.experiments import COUNT, LENGTHS, TABLES

    parser = argparse.ArgumentParser(prog="lipnb", description="How smooth is attention? Measurements of local "
                                     "Lipschitz constants.")
    parser.add_argument("--version", action="version", version=f"lipnb {lipnb.__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    verb = verbs.add_parser("results", help="make the tables that the book's pages load", epilog=EXAMPLES,
                            formatter_class=argparse.RawDescriptionHelpFormatter,
                            description="Make the tables that the book's pages load, in data/results "
                                        "(or in the folder LIPNB_RESULTS).")
    verb.add_argument("tables", nargs="*", metavar="TABLE", help=f"which ones (default all): {', '.join(TABLES)}")
    verb.add_argument("--again", action="store_true", help="make them anew even where they are there")
    verb.add_argument("--lengths", type=_lengths, default=LENGTHS, metavar="N,N,...",
                      help=f"sequence lengths (default {LENGTHS[0]},{LENGTHS[1]},...,{LENGTHS[-1]})")
    verb.add_argument("--count", type=int, default=COUNT, help=f"windows for each length (default {COUNT})")
    verb.add_argument("--seed", type=int, default=0, help="seed of the solver's start vector (default 0)")
    verb.set_defaults(run=_results)
    return parser


def main(argv=None):
    """Entry point of the command; an expected failure is one sentence on stderr and exit code 1."""
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"lipnb: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lipnb: stopped; what is finished is kept, the same command continues", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
