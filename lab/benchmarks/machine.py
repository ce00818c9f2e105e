"""What a table's rows were measured on and with, said without names of hosts or places."""

import platform
import resource
import statistics
import sys
import time
from pathlib import Path

import torch

from lab import results
from lab.benchmarks import ours
from lipscan.cli.words import Parser, Unknown, count
from lipscan.recording import Unit

__all__ = ["FLAGS", "enter", "held", "make", "parser", "peak", "processor", "spread", "start", "timed"]

FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_tile", "asimd", "bf16", "sve")


def processor():
    """Vendor, instruction sets and threads, as plain values."""
    said = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            said.setdefault(name.strip(), value.strip())
    except OSError:  # not Linux
        pass
    flags = (said.get("flags") or said.get("Features") or "").split()
    return {
        "architecture": platform.machine(),
        "vendor": said.get("vendor_id", "unknown"),
        "flags": [flag for flag in FLAGS if flag in flags],
        "torch_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def parser(description, examples):
    """A command line with what all scripts share: --quick, --threads, --again."""
    command = Parser(prog=_called(), description=description, epilog=examples)
    command.add_argument(
        "--quick", action="store_true", help="a trial with few and small inputs; the table says that it is one"
    )
    command.add_argument(
        "--threads",
        type=count,
        metavar="N",
        default=torch.get_num_threads(),
        help="threads of torch (default %(default)s)",
    )
    command.add_argument(
        "--again", action="store_true", help="forget the unfinished table of an earlier run instead of continuing it"
    )
    return command


def _called():
    return f"python -m lab bench {Path(sys.argv[0]).stem}"


def enter(main):
    """Run the entry point of a script: what cannot be done is one sentence and exit code 1 or 2.

    Ctrl-C is exit code 130 without a word: `lab bench`, which gets it too, has the word.
    """
    try:
        code = main()
    except KeyboardInterrupt:
        code = 130
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        print(f"{_called()}: {error}", file=sys.stderr)
        code = 2 if isinstance(error, Unknown) else 1
    sys.exit(code)


def start(arguments):
    """Do what the shared options say, and say aloud when the installed lipnb makes this a trial."""
    torch.set_num_threads(arguments.threads)
    if missing := ours.left_out():
        print(f"this lipnb has no option {', '.join(missing)}: what needs it is measured without, as a trial")
    ours.warm_up()


def make(name, settings, arguments, units, unit, pool=None):
    """The table ``bench-NAME``, or ``bench-NAME-trial``, see `lab.results.make`.

    Parameters
    ----------
    name : str
        Name of the script.
    settings : dict
        What the rows depend on; machine, modes and trial are added.
    arguments : Namespace
        Of the command line of `parser`.
    units : dict
        Key of each unit of work -> callable that gives its rows.
    unit : str
        What a unit is called.
    pool : concurrent.futures.Executor, optional
        Measures several units at the same time.

    Returns
    -------
    DataFrame
    """
    settings = {
        **settings,
        "trial": arguments.quick or bool(ours.left_out()),
        "left_out": ours.left_out(),
        "modes": ours.OURS,
        "processor": processor(),
    }
    table = f"bench-{name}-trial" if settings["trial"] else f"bench-{name}"  # a trial replaces no result
    if arguments.again:
        (results.folder() / f"{table}.partial.jsonl").unlink(missing_ok=True)
    work = [Unit(key, measure) for key, measure in units.items()]
    return results.make(table, settings, work, unit=unit, pool=pool)


def timed(run, repeats=3):
    """Run `repeats` times; the last answer, and the seconds: median, fastest, slowest."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        answer = run()
        seconds.append(time.perf_counter() - began)
    return answer, spread(seconds)


def spread(seconds):
    """Median, fastest and slowest of some seconds, as columns of a row."""
    return {"seconds": statistics.median(seconds), "fastest": min(seconds), "slowest": max(seconds)}


def held():
    """Megabytes of memory that this process holds; from here on `peak` counts anew where the system lets it."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:  # not Linux: the peak is that since the start
        pass
    return peak()


def peak():
    """Most megabytes of memory that this process held, since `held` was called or since it began."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(status.partition("VmHWM:")[2].split()[0]) / 2**10
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
