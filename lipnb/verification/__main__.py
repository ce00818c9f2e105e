"""The command ``python -m lipnb.verification``: makes the table of all checks, and fails where a bound is exceeded."""

import argparse
import sys

DESCRIPTION = """Hold random, degenerate, structured and gradient-ascended inputs against each upper bound of lipnb,
and keep the worst of each kind."""
EXAMPLES = """examples:
  python -m lipnb.verification                          every bound, more than 10,000 inputs each (an hour)
  python -m lipnb.verification --quick --save-as trial  a slice of a minute, in other tables
  python -m lipnb.verification --bounds certify yudin_upper --save-as two

A run that is stopped continues where it was when the same command is given again. The table goes to data/results, or
to the folder LIPNB_RESULTS. The table of
guarantees that include rounding, against fifty digits, has -digits after its name; it is made when all bounds are.
The exit status is 1 if a measured constant exceeded its bound.
"""


def main(given=None):
    """Make the table; the exit status."""
    from lipnb import results
    from lipnb.verification import CHECKS, KINDS, make_table

    parser = argparse.ArgumentParser(prog="python -m lipnb.verification", epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description=DESCRIPTION)
    parser.add_argument("--bounds", nargs="+", metavar="BOUND", choices=[check.name for check in CHECKS],
                        help=f"which ones (default all): {', '.join(check.name for check in CHECKS)}")
    parser.add_argument("--quick", action="store_true", help="one small block of each kind: a trial, not a result")
    parser.add_argument("--save-as", default="verify", metavar="NAME", help="name of the table (default verify)")
    arguments = parser.parse_args(given)
    slice_of_it = {"blocks": dict.fromkeys(KINDS, 1), "maps": 4} if arguments.quick else {}
    try:
        table = make_table(checks=arguments.bounds, save_as=arguments.save_as, **slice_of_it)
        exact = None
        if arguments.bounds is None:
            from lipnb.verification import digits

            few = {"blocks": {"certify": 6, "nearby_upper": 6}, "cases": 10} if arguments.quick else {}
            exact = digits.make_table(save_as=f"{arguments.save_as}-digits", **few)
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        print(f"lipnb.verification: {error}", file=sys.stderr)
        return 2
    show = table.pivot(index=["bound", "masked"], columns="kind", values="worst")
    print("largest measured / bound, by kind of input\n" + show.to_string(float_format="{:.4f}".format))
    violations = int(table.violations.sum())
    print(f"{table.cases.sum():,d} inputs, {violations} violations; table {arguments.save_as!r} in {results.folder()}")
    if exact is not None:
        print("guarantees that include rounding, against fifty digits\n" + exact.to_string(index=False))
        violations += int(exact.violations.sum() + exact.errors.sum())
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
