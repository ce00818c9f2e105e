"""The verb `lipnb sweep`: a notebook and a grid, one table."""

import argparse
import signal
import sys
from pathlib import Path

from lipnb.cli.words import Unknown, count, parameter

EXAMPLES = """\
  lipnb sweep examples/quick.yml                    run what is missing; the same again after any stop
  lipnb sweep examples/quick.yml --dry-run          show the points, and which of them would run
  lipnb sweep examples/quick.yml --limit 2          try two
  lipnb sweep examples/quick.yml --retry-failed     those that failed, once more
  lipnb sweep examples/quick.yml -p tokens=64       the same grid with one value of `tokens`, and no other
  lipnb sweep examples/two_clusters.py -p tokens=4 -p radius=0.5     one point, without a spec
  lipnb sweep examples/quick.yml --keep-stale       after an edit of the notebook: run the rest, keep what is there
  lipnb sweep examples/quick.yml --scheduler tcp://10.0.0.1:8786     on a Dask cluster

The exit code is 0 when no point has failed, 1 when some have, 130 when the sweep was stopped.
"""
SPEC = """the spec; every key but the first is optional:
  notebook: two_clusters.py                       .py (percent format) or .ipynb, from the folder of the spec
  parameters: {seed: 0}                           the same in every point
  grid:                                           every combination
    layer: [0, 1, 2]
    length: {range: [16, 65, 16]}                 also linspace, geomspace, logspace: [first, last, count]
  zip: {model_name: [minilm, gpt2-mini], masked: [false, true]}     these go together
  exclude: [{layer: 2, length: 64}]               whatever agrees with one of these is left out
  sample: {count: 10, seed: 0}                    a random part of what is left
  output: sweeps/mine                             below the current folder; --output may say any other
  workers: 2                                      notebooks at the same time
  threads: 1                                      of each notebook
  gpus: 2                                         how many, or which: [0, 3]; each worker gets one
  timeout: 600                                    seconds for a point
  kernel: python3
  cluster: {kind: SLURMCluster, jobs: 4, options: {cores: 8, memory: 16GB, queue: normal}}

the notebook: a cell tagged `parameters` sets defaults; two lines fill the table:
  from lipnb.sweeps import record
  record(lipschitz=value)
of its output 1,000,000 characters are kept, and it says where it was cut; recorded values are never cut

the output folder:
  index.html            every point with its state, parameters, time and executed notebook; opens offline
  table.csv             a row for each finished point: its parameters, its recorded values
  stale.csv             rows of an earlier notebook, package or spec, where there are some; a good row stays there,
                        and its notebook in notebooks/, as long as the re-run of its point fails
                        with --keep-stale these rows stay in table.csv instead, the reason in the column `stale`
  failures.csv          what went wrong, and where
  notebooks/, failed/   the executed notebooks, named by the table's column `point`
  pages/                the same to read in a browser, without what is neither text nor picture
  points/, sweep.json   what was done, with which versions, when and where
  plan.json             the points, and what they are made from
  running.json          while it runs: by whom, since when, which points; `lipnb status FOLDER` reads it
  .lock                 empty; it keeps two sweeps out of one folder and may be deleted when none runs
"""
SHOWN = 20  # failed points on the terminal; failures.csv has all


def _seconds(text):
    try:
        if 0 < float(text) < float("inf"):
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"a number of seconds above 0 is wanted; got {text!r}")


def add(verbs):
    """Describe the verb to the parser."""
    verb = verbs.add_parser(
        "sweep",
        help="run a notebook over a grid of parameters",
        epilog=f"{SPEC}\nexamples:\n{EXAMPLES}",
        description="Run a notebook for every point of a grid of its parameters, on this "
        "machine or on a Dask cluster, and\ngather what it records into one table. "
        "Only points that are missing, or whose notebook or package\nchanged, run.",
    )
    verb.add_argument("spec", metavar="SPEC.yml", help="what to sweep, see below; or a notebook: one point of it")
    verb.add_argument(
        "-p",
        dest="parameters",
        type=parameter,
        action="append",
        metavar="NAME=VALUE",
        help="a parameter's value in every point, whatever the spec says of it; numbers, True, False and None are read "
        "as such, all else is text (may be given several times)",
    )
    verb.add_argument("--dry-run", action="store_true", help="show the points and what would run; write nothing")
    verb.add_argument("--limit", type=count, metavar="N", help="run at most N points now")
    verb.add_argument("--retry-failed", action="store_true", help="run the points again that failed before")
    verb.add_argument(
        "--keep-stale",
        action="store_true",
        help="good rows of an earlier notebook, package or spec stay in the table, and their points do not run",
    )
    verb.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="where results go (default: the spec's, else sweeps/SPEC in the current folder)",
    )
    verb.add_argument(
        "--workers",
        type=count,
        metavar="N",
        help="notebooks at the same time (default: the spec's, else one for each GPU, else one for each core)",
    )
    verb.add_argument(
        "--threads",
        type=count,
        metavar="N",
        help="threads of each notebook (default: the spec's, else cores / workers)",
    )
    verb.add_argument(
        "--timeout",
        type=_seconds,
        metavar="S",
        help="seconds for a point, its kernel's start included; "
        "then its kernel is killed (default: the spec's, else none)",
    )
    verb.add_argument(
        "--scheduler", metavar="ADDRESS", help="a Dask scheduler, such as tcp://10.0.0.1:8786, instead of this machine"
    )
    verb.set_defaults(run=run)


def _overriding(pairs):
    """The values of -p by name."""
    given = dict(pairs or [])
    for name in given:
        if sum(name == other for other, _ in pairs) > 1:
            raise Unknown(f"-p {name} is given twice: several values are a grid, which a spec describes")
    return given


def _stale(sweep, kept):
    """Where the rows of an earlier version are."""
    rows = "1 row" if sweep.stale == 1 else f"{sweep.stale} rows"
    where = (
        "stay in that table, the reason in its column `stale`"
        if kept
        else f"are not in that table: {sweep.folder / 'stale.csv'} keeps them, with the reason"
    )
    again = f"; {sweep.failed_again} because the re-run failed" if sweep.failed_again else ""
    return f"{rows} of an earlier notebook, package or spec {where}{again}"


def _stop(*_):
    raise KeyboardInterrupt


def _word(value):
    return value if isinstance(value, str) else repr(value)


def _point(parameters):
    return ", ".join(f"{name}={_word(value)}" for name, value in parameters.items())


def run(arguments):
    """One call of the library; the exit code."""
    from lipnb import sweeps
    from lipnb.origin import extra

    with extra("sweeps"):
        from lipnb.sweeps.planning import plan

    names = ("output", "workers", "threads", "timeout", "limit", "retry_failed", "keep_stale")
    options = {name: getattr(arguments, name) for name in names} | {"parameters": _overriding(arguments.parameters)}
    if arguments.dry_run:
        return _show(plan(arguments.spec, **options))
    signal.signal(signal.SIGTERM, _stop)  # a batch system's notice counts as Ctrl-C
    sweep = sweeps.run(arguments.spec, scheduler=arguments.scheduler, **options)
    left = f", {sweep.left} still to run" if sweep.left else ""
    print(f"{len(sweep.table)} point{'s' * (len(sweep.table) != 1)} done{left}: {sweep.folder / 'table.csv'}")
    if sweep.stale:
        print(_stale(sweep, arguments.keep_stale))
    if len(sweep.table) and not sweep.recorded:
        print("no value was recorded; in the notebook: from lipnb.sweeps import record; record(name=value)")
    if sweep.failures:
        _failed(sweep)
        return 1
    return 0


def _show(now):
    """The points of a dry run."""
    todo = set(now.todo)
    for point, state in now.states.items():
        print(f"{'run ' if point in todo else '    '} {point.id}  {_point(point.parameters)}  [{state}]")
    points = f"{len(now.states)} point{'s' * (len(now.states) != 1)}"
    print(f"{points}, {len(now.todo)} would run; results in {now.spec.output}")
    return 0


def _failed(sweep):
    """The table of failures."""
    print(f"{len(sweep.failures)} failed (--retry-failed runs them again):", file=sys.stderr)
    for failure in sweep.failures[:SHOWN]:
        shown = {name: value for name, value in failure.items() if name not in ("point", "error", "notebook")}
        print(f"  {failure['point']}  {_point(shown)}\n      {failure['error']}", file=sys.stderr)
    if len(sweep.failures) > SHOWN:
        print(f"  and {len(sweep.failures) - SHOWN} more", file=sys.stderr)
    print(
        f"their notebooks, with tracebacks: {sweep.folder / 'failed'}; all in {sweep.folder / 'failures.csv'}",
        file=sys.stderr,
    )
