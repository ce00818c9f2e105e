"""The verb `lipnb sweep`: a notebook and a grid, one table."""

import argparse
import signal
import sys

from lipscan.cli.words import Unknown, count, folder_named, parameter

EXAMPLES = """\
  lipnb sweep examples/quick.yml                    run what is missing; the same again after any stop
  lipnb sweep examples/quick.yml --dry-run          show the points, and which of them would run
  lipnb sweep examples/quick.yml --limit 2          try two
  lipnb sweep examples/quick.yml --retry-failed     run the failed points once more
  lipnb sweep examples/quick.yml --keep-stale       after an edit of the notebook: finished points stay, marked
  lipnb sweep examples/quick.yml -p tokens=64       the same grid with a single value of `tokens`
  lipnb sweep examples/two_clusters.py -p tokens=4 -p radius=0.5     one point, without a spec
  lipnb sweep examples/quick.yml --scheduler tcp://10.0.0.1:8786     on a Dask cluster

The exit code is 0 when no point has failed, 1 when some have, 130 when the sweep was stopped.
"""
SPEC = """the spec; every key but the first is optional:
  notebook: two_clusters.py                       .py (percent format) or .ipynb, from the folder of the spec
  parameters: {seed: 0}                           the same in every point
  grid:                                           every combination
    layer: [0, 1, 2]
    length: {range: [16, 65, 16]}                 also linspace, geomspace, logspace: [first, last, count]
  zip: {model_name: [minilm, gpt2-mini], masked: [false, true]}     these go together; or a list of such groups
  exclude: [{layer: 2, length: 64}]               leaves out every point that agrees with one of these
  sample: {count: 10, seed: 0}                    a random part of what is left
  output: sweeps/mine                             from the current folder; default: sweeps/ with the name of the spec
  workers: 2                                      notebooks at the same time
  threads: 1                                      of each notebook
  gpus: 2                                         how many, or which: [0, 3]; each worker gets one
  timeout: 600                                    seconds for a point
  kernel: python3
  cluster: {kind: SLURMCluster, jobs: 4, options: {cores: 8, memory: 16GB, queue: normal}}     of Dask-Jobqueue
values follow YAML 1.2 (null, .inf, lists and mappings included); the notebook gets each unchanged:
12:30 and dates are text, 010 is 10; ambiguous values, such as no, on or 1_000, are an error

the notebook: one cell tagged `parameters` sets defaults; two lines fill the table:
  from lipnb.sweeps import record
  record(lipschitz=value)
an executed notebook of more than 10 MB loses its largest outputs, never its recorded values; one that prints until it
fills 500 MB of memory is stopped, and so is a point that holds more than its share of the memory when little is left

the output folder:
  table.csv             a row for each finished point: its parameters, its recorded values
  failures.csv          what went wrong, and where
  notebooks/, failed/   the executed notebooks, named by the tables' column `point`
                        with --keep-stale, the column `stale` tells why a row comes from an earlier notebook or package
  stale.csv             good rows from an earlier notebook, package or spec, if any, with the reason; a row
                        stays there, and its notebook in notebooks/, as long as the re-run of its point fails
  points.jsonl          the outcome of each point, when and where; the other tables are made from it
  sweep.json            the points, their sources, who started them and with which versions; for `lipnb status FOLDER`
  .lock                 empty; it keeps two sweeps out of one folder, and may be deleted when no sweep runs
"""
SHOWN = 20  # failed points on the terminal; failures.csv has all


def _seconds(text):
    try:
        if 0 < float(text) < float("inf"):
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"give a number of seconds above 0; got {text!r}")


def add(verbs):
    """Add the verb to the parser."""
    verb = verbs.add_parser(
        "sweep",
        help="run a notebook over a grid of parameters",
        epilog=f"{SPEC}\nexamples:\n{EXAMPLES}",
        description="Run a notebook for every point of a grid of its parameters, on this "
        "machine or on a Dask cluster, and\ngather what it records into one table. "
        "Only points that are missing, or whose notebook or package\nchanged, run.",
    )
    verb.add_argument(
        "spec", metavar="SPEC.yml", help="what to sweep, see below; or a notebook, to run a single point of it"
    )
    verb.add_argument(
        "-p",
        dest="parameters",
        type=parameter,
        action="append",
        metavar="NAME=VALUE",
        help="a parameter's value in every point, in place of the spec's, written in YAML: 64, true, null, "
        "[1, 2], text (may be given several times); results go to a separate folder",
    )
    verb.add_argument("--dry-run", action="store_true", help="show the points and what would run; write nothing")
    verb.add_argument("--limit", type=count, metavar="N", help="run at most N points now")
    verb.add_argument("--retry-failed", action="store_true", help="run again the points that failed")
    verb.add_argument(
        "--keep-stale",
        action="store_true",
        help="keep the points that finished with an earlier notebook or package, and mark them in the table's column "
        "`stale` (for a change that cannot affect them); points that failed with an earlier version run again",
    )
    verb.add_argument(
        "--output",
        type=folder_named,
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
        help="seconds for a point, its start included; then its processes are killed (default: the spec's, else none)",
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
            raise Unknown(f"-p {name} is given twice: to run several values, write a spec with a grid")
    return given


def _stop(*_):
    raise KeyboardInterrupt


def _word(value):
    return value if isinstance(value, str) else repr(value)


def _point(parameters):
    return ", ".join(f"{name}={_word(value)}" for name, value in parameters.items())


def run(arguments):
    """Plan or run the sweep and print a summary; returns the exit code."""
    from lipnb.extras import extra
    from lipscan import sweeps

    with extra("sweeps"):
        from lipscan.sweeps.running import plan

    names = ("output", "workers", "threads", "timeout", "limit", "retry_failed", "keep_stale")
    options = {name: getattr(arguments, name) for name in names} | {"parameters": _overriding(arguments.parameters)}
    if arguments.dry_run:
        return _show(plan(arguments.spec, **options))
    signal.signal(signal.SIGTERM, _stop)  # treat the notice of a batch system as Ctrl-C
    sweep = sweeps.run(arguments.spec, scheduler=arguments.scheduler, **options)
    left = f", {sweep.left} still to run" if sweep.left else ""
    print(f"{len(sweep.table)} point{'s' * (len(sweep.table) != 1)} done{left}: {sweep.folder / 'table.csv'}")
    if "stale" in sweep.table:
        print(f"{sweep.table.stale.notna().sum()} of them of an earlier notebook or package: see the column `stale`")
    if sweep.stale:
        rows = "1 good row" if sweep.stale == 1 else f"{sweep.stale} good rows"
        print(f"{rows} not in that table, with the reason: {sweep.folder / 'stale.csv'}")
    if len(sweep.table) and not sweep.recorded:
        print("no value was recorded; in the notebook: from lipnb.sweeps import record; record(name=value)")
    if sweep.failures:
        _failed(sweep)
        return 1
    return 0


def _show(now):
    """Print the points of a dry run."""
    todo = set(now.todo)
    for point, state in now.states.items():
        print(f"{'run ' if point in todo else '    '} {point.id}  {_point(point.parameters)}  [{state}]")
    points = f"{len(now.states)} point{'s' * (len(now.states) != 1)}"
    print(f"{points}, {len(now.todo)} would run; results in {now.spec.output}")
    return 0


def _failed(sweep):
    """Print the first failures of a sweep."""
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
