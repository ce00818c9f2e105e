"""The verb `python -m lab verify`: make the table of all checks of bounds, and fail if a bound is exceeded."""

from lipscan.cli.words import Unknown, known

EXAMPLES = """\
  python -m lab verify                          every bound, thousands of inputs each (about two hours)
  python -m lab verify --quick --save-as trial  a slice of some minutes, in other tables
  python -m lab verify --bounds certify yudin_upper --save-as two
  python -m lab verify --bounds my_upper --put  a new bound alone (some ten minutes), into the stored table

A run that is stopped continues where it was when the same command is given again. The table goes to data/results, or
to the folder LIPNB_RESULTS. When all bounds are asked for, five more tables are made, named after it: -digits and
-in-use hold what counts rounding against fifty digits, -ball and -ball-in-use the bound on a ball against ascended
inputs, -families maps of models with drawn switches against the library's own. The exit status is 1 if a measured
constant exceeded its bound or a map is not the network's.
"""


def add(verbs):
    """Add the verb to the parser."""
    verb = verbs.add_parser(
        "verify",
        help="test each upper bound on thousands of inputs",
        epilog=f"examples:\n{EXAMPLES}",
        description="Hold random, degenerate, structured and gradient-ascended inputs against each upper bound\n"
        "of lipnb, and keep the worst of each kind.",
    )
    verb.add_argument(
        "--bounds",
        action="extend",
        nargs="+",
        metavar="BOUND",
        help="which ones (default all; a wrong name lists them)",
    )
    verb.add_argument("--quick", action="store_true", help="one small block of each kind: a trial, not a result")
    verb.add_argument(
        "--save-as", metavar="NAME", help="name of the table (default verify; verify-trial with --quick or --bounds)"
    )
    verb.add_argument(
        "--put", action="store_true", help="put the rows of these bounds into the stored table, next to the others"
    )
    verb.set_defaults(run=run)


def run(arguments):
    """Make the tables; 1 if a bound is exceeded."""
    from lab import results
    from lab.experiments import make
    from lab.verification import CHECKS, KINDS, balls, digits, families  # noqa: F401  (these register their tables)
    from lab.verification.table import put

    trial = arguments.quick or arguments.bounds is not None
    name = arguments.save_as or ("verify-trial" if trial else "verify")
    if name in results.listed().index and (trial or name != "verify"):
        raise Unknown(f"{name!r} is a table of the book, which a trial does not replace: give another --save-as")
    if not name.replace("-", "").replace("_", "").isalnum():
        raise Unknown(f"--save-as takes a name of letters, digits, - and _, not {name!r}: LIPNB_RESULTS names a folder")
    known("bound", arguments.bounds or [], [check.name for check in CHECKS])
    if arguments.put and (arguments.bounds is None or arguments.quick or arguments.save_as):
        raise Unknown("--put goes with --bounds alone: it measures them in full, into the stored table")

    def made(part, **few):
        """One of the tables, complete or a part."""
        return make([f"verify{part}"], save_as=f"{name}{part}", **(few if arguments.quick else {}))[f"{name}{part}"]

    every = {"blocks": dict.fromkeys(KINDS, 1), "maps": 4} if arguments.quick else {}
    name = "verify" if arguments.put else name
    table = (
        put(arguments.bounds)
        if arguments.put
        else make(["verify"], save_as=name, checks=arguments.bounds, **every)[name]
    )
    show = table.pivot(index=["bound", "masked"], columns="kind", values="worst")
    print("largest measured / bound, by kind of input\n" + show.to_string(float_format="{:.4f}".format))
    violations = int(table.violations.sum())
    held = f"{table.cases.sum():,d} inputs of {table.bound.nunique()} bounds, {violations} violations"
    print(f"the table {name!r} in {results.folder()} holds {held}")
    if arguments.bounds is None:
        exact = made("-digits", blocks={"certify": 6, "nearby_upper": 6}, cases=10)
        print("guarantees that include rounding, against fifty digits\n" + exact.to_string(index=False))
        used = made("-in-use", blocks=6, cases=5)
        print("the same for attention as models have it\n" + used.to_string(index=False))
        violations += int(sum(one.violations.sum() + one.errors.sum() for one in (exact, used)))
        for part, few in (
            ("-ball", {"blocks": {"3 to 12": 1}, "layers": {"3 to 12": 3}}),
            ("-ball-in-use", {"layers": 3}),
        ):
            ball = made(part, **few)
            print(f"ascended inputs of layers, over the bound on a ball: {name}{part}\n" + ball.to_string(index=False))
            violations += int(ball.violations.sum())
        drawn = made("-families", families=["qwen3", "phi"], each=2)
        print("configurations of models, by outcome\n" + drawn.outcome.value_counts().to_string())
        violations += int((drawn.outcome == "wrong").sum())
    return 1 if violations else 0
