"""The verb `lipnb status`: progress of the sweep, scan or comparison in a folder."""

import json
import statistics
import time

EXAMPLES = """\
  lipnb status sweeps/quick                         how far it is, what is running, by whom, what failed
  lipnb status sweeps/quick --points                every point with its state
  watch -n 10 lipnb status sweeps/quick             the same every ten seconds
  lipnb status scan-minilm                          what the folder of a scan holds
  lipnb status drift-minilm-bfloat16                what the folder of a comparison holds: its verdict, if it is done
"""
STATES = """the states of a point:
  done       it has a row in table.csv
  failed     its notebook raised, or was stopped; `lipnb sweep SPEC.yml --retry-failed` runs it again
  running    its notebook is being executed now; on a Dask cluster: a worker has it, to run it now or next
  left       it has not run yet
  stale      it ran with an earlier notebook or package; it will run again, unless --keep-stale keeps it

The time left is the median time of a point, times the points left, over the number of points running now.
The exit code is 0 in every state; the exit code of `lipnb sweep` tells whether a point failed.
"""
SHOWN = 10  # failed points, and running ones, without --points


def add(verbs):
    """Add the verb to the parser."""
    verb = verbs.add_parser(
        "status",
        help="how far the sweep, scan or comparison in a folder is",
        description="Show what is done, failed, running and left of a sweep, how long it takes, and who runs it;\n"
        "or what is stored of a scan or a comparison (drift). Nothing is written, and no running command is disturbed.",
        epilog=f"{STATES}\nexamples:\n{EXAMPLES}",
    )
    verb.add_argument("folder", metavar="FOLDER", help="the output folder of the sweep, scan or comparison")
    verb.add_argument("--points", action="store_true", help="list every point")
    verb.set_defaults(run=run)


def run(arguments):
    """Print the status of a sweep, or what the folder of a scan or comparison holds."""
    if said := _no_sweep(arguments.folder):
        print(said)
        return 0
    from lipscan import sweeps

    now = sweeps.status(arguments.folder)
    states = ("done", "failed", "running", "left", "stale")
    counts = ", ".join(f"{now.count(state)} {state}" for state in states if state in states[:4] or now.count(state))
    points = f"{len(now.points)} point{'s' * (len(now.points) != 1)}"
    print(f"{now.folder}: {points} of {now.notebook.rsplit('/')[-1]}\n  {counts}")
    print(f"  {_by_whom(now)}")
    if now.seconds:
        shortest, middle, longest = (f(now.seconds) for f in (min, statistics.median, max))
        took = f"a point took {lasted(middle)} in the median, from {lasted(shortest)} to {lasted(longest)}"
        left = f"; about {lasted(now.remaining)} left" if now.remaining is not None else ""
        print(f"  {took}{left}")
    for point in _chosen(now.points, arguments.points):
        print(_line(point))
    print(
        f"  executed notebooks: {now.folder / 'notebooks'}"
        + (f", {now.folder / 'failed'}" if now.count("failed") else "")
    )
    return 0


def _no_sweep(folder):
    """A sentence on a folder with a scan, comparison or model; "" for a sweep, FileNotFoundError for anything else."""
    from pathlib import Path

    if (Path(folder) / "sweep.json").is_file():
        return ""
    if any((Path(folder) / f"scan.{ending}").is_file() for ending in ("csv", "json", "partial.jsonl")):
        from lipnb.extras import extra

        with extra("scan"):
            from lipscan.scanning.folder import load, state
        if (said := state(folder)) is None:
            load(folder)  # says what is amiss
        return f"{folder}: {said}"
    if any((Path(folder) / f"windows.{ending}").is_file() for ending in ("json", "partial.jsonl")):
        from lipnb.extras import extra

        with extra("scan"):
            from lipscan.drift.run import state as compared
        if (said := compared(folder)) is not None:
            return f"{folder}: {said}"
    if (Path(folder) / "against.csv").is_file():
        return f"{folder}: the comparison of two scans; report.html shows it."
    if (Path(folder) / "config.json").is_file():
        return f"{folder}: a model, not the folder of a sweep, scan or comparison; `lipnb scan {folder}` measures it."
    holds = "holds no sweep, scan or comparison" if Path(folder).is_dir() else "is not a folder"
    raise FileNotFoundError(f"{folder} {holds}: give the folder that `lipnb sweep`, `scan` or `drift` made.")


def lasted(seconds):
    """A duration in words, as 3.2 s or 2 h 05 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _by_whom(now):
    """Sentence on the user, host and process of the run, or of the last one."""
    if now.run is None:
        return "no run is at work"
    who = f"{now.run['user']} on {now.run['host']} (process {now.run['process']})"
    since = f"{lasted(max(0.0, time.time() - now.run['since']))} ago"
    if now.alive:
        return f"run by {who}, begun {since}: {now.run['where']}"
    if now.alive is None:
        return f"begun {since} by {who}; this machine cannot see whether it still runs"
    ended = "ended before it was done (killed, or by an error that it named)"
    return f"the run of {who}, begun {since}, {ended}: finished work is kept, and the same command continues"


def _chosen(points, every):
    """All points, or only the first running and failed ones."""
    if every:
        return points
    return [point for name in ("running", "failed") for point in [p for p in points if p["state"] == name][:SHOWN]]


def _line(point):
    shown = ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in point["parameters"].items()
    )
    took = f"  {lasted(point['seconds'])}" if "seconds" in point else ""
    where = f" on {point['where']}" if point.get("where") else ""
    error = f"\n      {point['error']}" if point.get("error") else ""
    return f"  {point['state']:8} {point['point']}  {shown}{took}{where}{error}"
